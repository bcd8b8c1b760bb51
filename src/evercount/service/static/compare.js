// The page that sets two cells side by side, of one stream or of two: both with their bands, and their difference.

import { listStreams, viewOf } from "./api.js";
import { compareChart, focusChart, placesNoted } from "./charts.js";
import { byId, element, lateRule, setText, setTick, setZone, shownZone } from "./format.js";
import { NO_TREND, firstView, reading, save, spanColumns, viewTitle, when } from "./views.js";

const SPANS = 366;
const NOTHING = "No number is complete yet.";

export class ComparePage {
  /** `onAddress(parts)` keeps the choice in the address; `onRefused(error)` when there is nothing to read. */
  constructor({ onAddress, onRefused }) {
    this.onAddress = onAddress;
    this.onRefused = onRefused;
    this.streams = [];
    this.shown = false;
    this.request = null;
    for (const id of ["compare-stream-a", "compare-stream-b"]) {
      byId(id).addEventListener("change", () => {
        this.fill();
        this.ask();
      });
    }
    for (const id of ["compare-cell-a", "compare-cell-b", "compare-view"]) byId(id).addEventListener("change", () => this.ask());
    byId("compare-form").addEventListener("submit", (event) => event.preventDefault());
    for (const form of ["csv", "parquet", "json"]) {
      byId(`compare-save-${form}`).addEventListener("click", () =>
        save(this.chosen().a, this.difference(), form).catch((error) => this.problem(error.message)),
      );
    }
    document.addEventListener("themechange", () => {
      this.both?.chart.redraw(false);
      this.apart?.chart.redraw(false);
    });
  }

  /** Show the page; `parts`: stream, cell, stream, cell, view, as in the address. */
  async open([a, cellA, b, cellB, view] = []) {
    this.shown = true;
    try {
      ({ streams: this.streams } = await listStreams());
    } catch (error) {
      this.onRefused(error);
      return;
    }
    this.streams = this.streams.filter((facts) => facts.views?.length);
    if (!this.streams.length) {
      this.problem("No stream here has views to compare.");
      return;
    }
    const names = this.streams.map((facts) => facts.name);
    const several = (name) => this.facts(name).labels.length > 1 || this.partner(name) !== name;
    const first = names.includes(a) ? a : (names.find(several) ?? names[0]);
    for (const [id, name] of [["compare-stream-a", first], ["compare-stream-b", names.includes(b) ? b : this.partner(first)]]) {
      byId(id).replaceChildren(...names.map((one) => element("option", { value: one }, one)));
      byId(id).value = name;
    }
    this.fill(cellA, cellB, view);
    this.ask();
  }

  close() {
    this.shown = false;
    this.request?.abort();
  }

  /** What a stream is compared with, unless something is chosen: itself, or one of the same ticks where it has one cell only. */
  partner(name) {
    const { labels, tick } = this.facts(name);
    const other = labels.length > 1 ? null : this.streams.find((facts) => facts.name !== name && facts.tick === tick);
    return other?.name ?? name;
  }

  facts(name) {
    return this.streams.find((facts) => facts.name === name);
  }

  /** The cells and views of the chosen streams; what was chosen stays where it can. */
  fill(cellA, cellB, view) {
    const [a, b] = [this.facts(byId("compare-stream-a").value), this.facts(byId("compare-stream-b").value)];
    for (const [id, facts, wanted, other] of [["compare-cell-a", a, cellA, 0], ["compare-cell-b", b, cellB, a === b ? 1 : 0]]) {
      const kept = wanted ?? byId(id).value;
      byId(id).replaceChildren(...facts.labels.map((label) => element("option", { value: label }, label)));
      byId(id).value = facts.labels.includes(kept) ? kept : (facts.labels[other] ?? facts.labels[0]);
    }
    setZone(a.tick === "manual" ? null : a.zone);
    setTick(a.tick);
    const totals = a.query.own_ticks || b.query.own_ticks ? [] : ["running"];
    const views = [...a.views.filter((name) => b.views.includes(name) && !name.startsWith("quantile")), ...totals];
    const kept = view ?? byId("compare-view").value;
    byId("compare-view").replaceChildren(...views.map((name) => element("option", { value: name }, viewTitle(name))));
    byId("compare-view").value = views.includes(kept) ? kept : [firstView(a), firstView(b)].find((name) => views.includes(name)) ?? views[0];
  }

  chosen() {
    const value = (id) => byId(`compare-${id}`).value;
    return { a: value("stream-a"), cellA: value("cell-a"), b: value("stream-b"), cellB: value("cell-b"), view: value("view") };
  }

  difference() {
    const { a, cellA, b, cellB, view } = this.chosen();
    return { view, limit: SPANS, cell: cellA, minus: cellB, ...(a === b ? {} : { minus_stream: b }) };
  }

  async ask() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    const { a, cellA, b, cellB, view } = this.chosen();
    this.onAddress([a, cellA, b, cellB, view]);
    try {
      const [one, other, apart] = await Promise.all([
        viewOf(a, { view, limit: SPANS, cell: cellA }, request.signal),
        viewOf(b, { view, limit: SPANS, cell: cellB }, request.signal),
        viewOf(a, this.difference(), request.signal),
      ]);
      if (request !== this.request || !this.shown) return;
      this.problem("");
      this.draw(one, other, apart);
    } catch (error) {
      if (!request.signal.aborted) this.problem(`These cannot be compared: ${error.message}.`);
    }
  }

  problem(text) {
    setText(byId("compare-problem"), text);
    byId("compare-problem").hidden = text === "";
    byId("compare-cards").hidden = text !== "";
  }

  draw(one, other, apart) {
    const { a, cellA, b, cellB, view } = this.chosen();
    const names = a === b ? [cellA, cellB] : [`${a}: ${cellA}`, `${b}: ${cellB}`];
    document.title = `${names.join(" and ")} · evercount`;
    setText(byId("compare-title"), `${viewTitle(view)}: ${names.join(" and ")}`);
    byId("compare-legend").replaceChildren(...names.map((name, i) => element("li", { class: `key-${i + 1}` }, name)));
    const [left, right] = [spanColumns(one), spanColumns(other)];
    this.both?.destroy();
    const noted = [[one, left], [other, right]].flatMap(([answer, columns]) => placesNoted(answer.releases).map((place) => columns.data[0][place]));
    this.both = compareChart(byId("compare-chart"), left, right, noted);
    const counted = [...new Set([this.facts(a).counted, this.facts(b).counted])].filter(Boolean);
    setText(byId("compare-counted"), counted.length > 1 ? `${a}: ${counted[0]} ${b}: ${counted[1]}` : counted.join(""));
    byId("compare-counted").hidden = counted.length === 0;
    this.hints(this.facts(a), this.facts(b));
    const flatNames = names.filter((_, i) => [left, right][i].flat);
    setText(byId("compare-both-note"), flatNames.length ? `${flatNames.join(" and ")}: ${NO_TREND}` : "");
    byId("compare-both-note").hidden = flatNames.length === 0;
    const { timed, flat, data } = spanColumns(apart);
    this.apart?.destroy();
    this.apart = focusChart(byId("apart-chart"), timed, () => {}, true);
    this.apart.set(data, placesNoted(apart.releases));
    setText(byId("apart-title"), `${names[0]} minus ${names[1]}`);
    const last = apart.releases.at(-1);
    setText(byId("apart-summary"), last ? this.sentence(names, last) : NOTHING);
    setText(byId("apart-note"), flat ? NO_TREND : "");
    byId("apart-note").hidden = !flat;
    for (const [id, columns] of [["compare-chart", left], ["apart-chart", { data }]]) {
      byId(id).classList.toggle("empty", columns.data[0].length === 0);
      byId(id).dataset.empty = NOTHING;
      byId(id).setAttribute("aria-label", `${names.join(" and ")}, ${columns.data[0].length} numbers`);
    }
  }

  /** In which zone times are shown (that of the first stream), and what becomes of late events. */
  hints(a, b) {
    const timed = a.tick !== "manual";
    setText(byId("compare-zone"), timed ? `Times in ${shownZone()}.` : "");
    byId("compare-zone").hidden = !timed;
    const late = [a, b].find((facts) => facts.late === "next" && lateRule(facts));
    setText(byId("compare-late"), late ? lateRule(late) : "");
    byId("compare-late").hidden = !late;
  }

  /** Which one is larger, if that can be known at all. */
  sentence(names, span) {
    const { value, error } = reading(span);
    const { view } = this.chosen();
    if (span.values[0] === null) return `Newest span, ${when(span, view)}: ${error}.`;
    const known = span.low[0] > 0 ? `${names[0]} is larger` : span.high[0] < 0 ? `${names[1]} is larger` : "the noise hides which one is larger";
    return `Newest span, ${when(span, view)}: the difference is ${value} (${error}). With 95 % confidence, ${known}.`;
  }
}
