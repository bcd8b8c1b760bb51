// All cells of a stream, a page at a time: small charts and a table with one common filter, order and page.

import { tinyChart } from "./charts.js";
import { began, byId, decimals, element, number, setText, tickWord } from "./format.js";

const PAGE = 24;
const TINY_TICKS = 120;
const COLUMNS = [
  ["cell", "Cell", (row, i) => i],
  ["value", "Value", (row, i) => row.values[i]],
  ["std", "Std", (row, i) => row.std[i]],
  ["low", "95 % low", (row, i) => row.low[i]],
  ["high", "95 % high", (row, i) => row.high[i]],
];
const ORDERS = [
  ["cell", 1, "as declared"],
  ["name", 1, "by name"],
  ["value", -1, "largest first"],
  ["value", 1, "smallest first"],
];

export class Cells {
  constructor(onPick) {
    this.onPick = onPick;
    this.history = null;
    this.focus = 0;
    this.page = 0;
    this.sort = "cell";
    this.direction = 1;
    this.tiles = [];
    this.rows = [];
    this.order = [];
    byId("order").replaceChildren(...ORDERS.map(([, , text], i) => element("option", { value: String(i) }, text)));
    byId("order").addEventListener("change", (event) => {
      const [key, direction] = ORDERS[Number(event.target.value)] ?? ORDERS[0];
      this.sortBy(key, direction);
    });
    byId("find").addEventListener("input", () => this.turn(0));
    byId("page-back").addEventListener("click", () => this.turn(this.page - 1));
    byId("page-next").addEventListener("click", () => this.turn(this.page + 1));
    byId("table-head").replaceChildren(
      ...COLUMNS.map(([key, title]) => {
        const button = element("button", { type: "button", class: "sort" }, title);
        button.addEventListener("click", () => {
          const wanted = key === "cell" ? "name" : key;
          this.sortBy(wanted, this.sort === wanted ? -this.direction : key === "cell" ? 1 : -1);
        });
        return element("th", { scope: "col", class: key === "cell" ? "" : "n", "data-key": key }, button);
      }),
    );
  }

  /** Show another stream's cells; `top` of them only, where the stream is about the largest ones. */
  show(history, top = null) {
    this.history = history;
    this.top = top;
    byId("find").value = "";
    byId("order").value = "0";
    this.page = 0;
    this.sort = top ? "value" : "cell";
    this.direction = top ? -1 : 1;
    if (top) byId("order").value = "2";
    this.order = [];
    const all = number(history.labels.length);
    setText(byId("cells-title"), top ? `The ${number(top)} largest of ${all} keys, by their published numbers` : `All ${all} cells`);
    this.update(true);
  }

  sortBy(key, direction) {
    this.sort = key;
    this.direction = direction;
    const known = ORDERS.findIndex(([k, d]) => k === key && d === direction);
    byId("order").value = known < 0 ? "" : String(known);
    this.turn(0);
  }

  turn(page) {
    this.page = page;
    this.update(true);
  }

  /** Which cells are listed, in order. The order stays put while somebody points at it or has the focus in it. */
  arrange(force) {
    const busy = byId("tiles").matches(":hover, :focus-within") || byId("cells-table").matches(":hover, :focus-within");
    if (!force && (busy || this.sort === "cell" || this.sort === "name")) return;
    const { labels, last } = this.history;
    const wanted = byId("find").value.trim().toLowerCase();
    const cells = labels.map((_, i) => i).filter((i) => labels[i].toLowerCase().includes(wanted));
    if (this.sort === "name") {
      const collator = new Intl.Collator("en", { numeric: true });
      cells.sort((a, b) => this.direction * collator.compare(labels[a], labels[b]));
    } else if (this.sort !== "cell" && last) {
      const read = COLUMNS.find(([key]) => key === this.sort)[2];
      cells.sort((a, b) => this.direction * ((read(last, a) ?? -Infinity) - (read(last, b) ?? -Infinity)) || a - b);
    }
    this.order = this.top && this.sort === "value" && this.direction < 0 && !wanted ? cells.slice(0, this.top) : cells;
  }

  update(force = false) {
    this.arrange(force);
    const pages = Math.max(1, Math.ceil(this.order.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const shown = this.order.slice(this.page * PAGE, (this.page + 1) * PAGE);
    this.pager(pages, shown.length);
    this.heads();
    this.resize(shown.length);
    shown.forEach((cell, slot) => {
      this.tile(this.tiles[slot], cell);
      this.row(this.rows[slot], cell);
    });
    const { last } = this.history;
    setText(byId("table-caption"), `Published numbers of ${last ? began(last.time, last.tick) : tickWord(false)}, with standard deviation and 95 % interval. ${this.counted}`);
  }

  pager(pages, count) {
    byId("pager").hidden = pages === 1 && this.order.length > 0;
    const from = this.page * PAGE + 1;
    setText(byId("page-text"), count ? `${number(from)} to ${number(from + count - 1)} of ${number(this.order.length)}` : "No cell has this in its name");
    byId("page-back").disabled = this.page === 0;
    byId("page-next").disabled = this.page >= pages - 1;
  }

  heads() {
    for (const head of byId("table-head").children) {
      const sorted = head.dataset.key === (this.sort === "name" ? "cell" : this.sort === "cell" ? "" : this.sort);
      if (sorted) head.setAttribute("aria-sort", this.direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
  }

  /** As many tiles and rows as are shown: they are kept and refilled, which keeps the keyboard focus where it is. */
  resize(count) {
    while (this.tiles.length > count) {
      const tile = this.tiles.pop();
      tile.spark.destroy();
      tile.item.remove();
      this.rows.pop().line.remove();
    }
    while (this.tiles.length < count) {
      const name = element("span", { class: "tile-name" });
      const value = element("span", { class: "tile-value num" });
      const box = element("span", { class: "tile-chart", "aria-hidden": "true" });
      const button = element("button", { type: "button", class: "tile" }, name, value, box);
      const item = element("li", {}, button);
      const tile = { item, button, name, value, cell: -1, spark: null };
      button.addEventListener("click", () => this.onPick(tile.cell));
      byId("tiles").append(item);
      tile.spark = tinyChart(box);
      this.tiles.push(tile);
      const pick = element("button", { type: "button", class: "link" });
      const numbers = COLUMNS.slice(1).map(() => element("td", { class: "n num" }));
      const line = element("tr", {}, element("th", { scope: "row" }, pick), ...numbers);
      const row = { line, pick, numbers, cell: -1 };
      pick.addEventListener("click", () => this.onPick(row.cell));
      byId("table-rows").append(line);
      this.rows.push(row);
    }
  }

  tile(tile, cell) {
    const { last, labels } = this.history;
    tile.cell = cell;
    setText(tile.name, labels[cell]);
    tile.button.title = labels[cell];
    const digits = last ? decimals(last.std[cell]) : 0;
    const text = last ? `${number(last.values[cell], digits)} ± ${number(last.std[cell], digits)}` : "no release yet";
    setText(tile.value, text);
    tile.button.setAttribute("aria-pressed", String(cell === this.focus));
    const { rows, data } = this.history.columns(cell, TINY_TICKS);
    data[0] = rows.map((row) => row.tick);
    tile.spark.set(data);
  }

  row(row, cell) {
    const { last, labels } = this.history;
    row.cell = cell;
    setText(row.pick, labels[cell]);
    row.line.toggleAttribute("data-focus", cell === this.focus);
    const digits = last ? decimals(last.std[cell]) : 0;
    COLUMNS.slice(1).forEach(([, , read], i) => setText(row.numbers[i], number(last ? read(last, cell) : null, digits)));
  }

  /** Redraw in the colours of a new theme. */
  repaint() {
    for (const tile of this.tiles) tile.spark.chart.redraw(false);
  }
}
