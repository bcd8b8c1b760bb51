// The planner page: the promise, whom it protects, the horizon and the views; the noise that is chosen, and the exact error of every other one.

import { planFor } from "./api.js";
import { curveStyle, planChart } from "./charts.js";
import { byId, element, number, plain, probability, setText, setTick, significant, tickWord, ticks } from "./format.js";
import { viewTitle } from "./views.js";

const ENDLESS = 21;
const PAUSE = 180;
const FAR = 5;
const EPSILONS = [1, 1.5, 2, 3, 4, 5, 6, 7, 8];

/** ε of a slider position: a preferred number in each of four decades from 0.01 to 80. */
function epsilonAt(position) {
  const power = Math.floor(position / EPSILONS.length) - 2;
  return Number((EPSILONS[position % EPSILONS.length] * 10 ** power).toPrecision(3));
}

const CAPS = ["period", "max_per_tick", "max_ticks", "max_events"];
const SLIDERS = ["plan-epsilon", "plan-delta", "plan-horizon"];
const CHOICES = ["plan-every", "plan-per-tick", "plan-last", "plan-last-ticks", "plan-running", "plan-unit", ...CAPS.map((name) => `plan-${name}`)];

/**
 * One card whose numbers the service computes. One request at a time: a plan that is being computed is not given up for
 * the next, which would wait for it there; of all that was asked for meanwhile, the newest is asked for after it.
 */
class Computed {
  constructor(name, doing, draw) {
    this.name = name;
    this.doing = doing;
    this.draw = draw;
    this.wanted = null;
    this.request = null;
    this.cache = new Map();
  }

  async ask(parameters) {
    this.wanted = parameters;
    if (this.request) return;
    const request = (this.request = new AbortController());
    const [card, busy] = [byId(`${this.name}-card`), byId(`${this.name}-busy`)];
    card.setAttribute("aria-busy", "true");
    // A plan that is ready within the pause of a slider needs no word; a longer one counts its seconds.
    const begun = performance.now();
    const told = setInterval(() => {
      const seconds = Math.floor((performance.now() - begun) / 1000);
      setText(busy, this.doing);
      busy.dataset.seconds = seconds < 2 ? "" : ` ${number(seconds)} s`; // drawn, not read out
    }, PAUSE);
    for (let asked = null; asked !== this.wanted && request === this.request; ) {
      asked = this.wanted;
      const key = JSON.stringify(asked);
      try {
        if (!this.cache.has(key)) this.cache.set(key, await planFor(asked, request.signal));
        if (asked === this.wanted && request === this.request) this.draw(this.cache.get(key));
      } catch (error) {
        if (asked === this.wanted && request === this.request) setText(byId(`${this.name}-summary`), `No plan: ${error.message}. ${error.remedy ?? ""}`);
      }
    }
    clearInterval(told);
    if (request === this.request) this.close();
  }

  close() {
    this.request?.abort();
    this.request = null;
    byId(`${this.name}-card`).removeAttribute("aria-busy");
    setText(byId(`${this.name}-busy`), "");
    delete byId(`${this.name}-busy`).dataset.seconds;
  }
}

export class Planner {
  constructor(announce) {
    this.announce = announce;
    this.plan = null;
    this.views = null;
    this.view = null;
    this.timer = 0;
    this.shown = false;
    this.styles = new Map();
    this.curves = new Computed("plan", "Computing the errors of all mechanisms…", (plan) => {
      this.plan = plan;
      this.draw();
    });
    this.choice = new Computed("views", "Computing the errors of each view…", (plan) => this.drawViews(plan));
    byId("plan-epsilon").max = String(EPSILONS.length * 3);
    byId("plan-epsilon").value = "14";
    byId("plan-delta").value = "10";
    byId("plan-horizon").value = "12";
    for (const id of [...SLIDERS, ...CHOICES]) {
      byId(id).addEventListener("input", () => {
        this.labels();
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.ask(), PAUSE);
      });
    }
    byId("plan-log").addEventListener("change", () => this.draw());
    byId("plan-form").addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("themechange", () => this.shown && this.draw());
  }

  /** The promise, whom it protects and the length, as [name, value] pairs. */
  parameters() {
    const position = Number(byId("plan-horizon").value);
    const chosen = [["epsilon", String(epsilonAt(Number(byId("plan-epsilon").value)))], ["delta", `1e-${byId("plan-delta").value}`]];
    if (position < ENDLESS) chosen.push(["horizon", String(2 ** position)]);
    if (byId("plan-unit").value === "user") {
      chosen.push(["unit", "user"]);
      for (const name of CAPS) if (byId(`plan-${name}`).value) chosen.push([name, byId(`plan-${name}`).value]);
    }
    return chosen;
  }

  /** The names of the views that are ticked. */
  wanted() {
    const named = [["plan-per-tick", "per-tick"], ["plan-last", `last-${byId("plan-last-ticks").value}`], ["plan-running", "running"]];
    return named.filter(([id]) => byId(id).checked).map(([, name]) => name);
  }

  labels() {
    const { epsilon, delta, horizon } = Object.fromEntries(this.parameters());
    setTick(byId("plan-every").value);
    for (const word of document.querySelectorAll("#planner-page [data-tick]")) setText(word, tickWord(word.dataset.tick === "many"));
    const length = horizon ? ticks(Number(horizon)) : "without end";
    for (const [name, text] of [["epsilon", plain(Number(epsilon))], ["delta", probability(Number(delta))], ["horizon", length]]) {
      setText(byId(`plan-${name}-out`), text);
      byId(`plan-${name}`).setAttribute("aria-valuetext", name === "delta" ? delta : text);
    }
    byId("plan-caps").hidden = byId("plan-unit").value === "event";
  }

  open() {
    this.shown = true;
    this.labels();
    if (this.plan) this.draw();
    this.ask();
  }

  close() {
    this.shown = false;
    for (const computed of [this.curves, this.choice]) computed.close();
    clearTimeout(this.timer);
  }

  ask() {
    const [parameters, views] = [this.parameters(), this.wanted()];
    this.curves.ask(parameters);
    if (views.length) this.choice.ask([...parameters, ...views.map((name) => ["view", name])]);
    else setText(byId("views-summary"), "Nothing is published: choose a view.");
  }

  /** One row for each noise, one column for each view; the service says which one is chosen and why. */
  drawViews(plan) {
    this.views = plan;
    const views = Object.keys(plan.rows[0].stds);
    const head = ["Noise", "Delta", ...views.map(viewTitle), "Epsilon of two streams"];
    byId("views-head").replaceChildren(...head.map((text, i) => element("th", { scope: "col", ...(i ? { class: "n" } : {}) }, text)));
    const cell = (text) => element("td", { class: "n num" }, text);
    byId("views-rows").replaceChildren(
      ...plan.rows.map((row) =>
        element(
          "tr",
          row.chosen ? { "data-chosen": "" } : {},
          element("th", { scope: "row" }, row.chosen ? `${row.name} (chosen)` : row.name),
          cell(row.delta ? probability(row.delta) : "0"),
          ...views.map((view) => cell(significant(row.stds[view]))),
          cell(number(row.twice, 2)),
        ),
      ),
    );
    setText(byId("views-summary"), plan.reason);
    setText(byId("views-caption"), `Worst std of one number in each view, ${length(plan)}. The last column: what this stream and a second one over the same events cost together. ${inDays(plan.counted)}`);
    setText(byId("views-guarantee"), inDays(plan.guarantee));
  }

  /** A mechanism keeps its colour and dash while the page is open, whatever its rank. */
  style(name) {
    if (!this.styles.has(name)) this.styles.set(name, curveStyle(name, this.styles.size));
    return this.styles.get(name);
  }

  draw() {
    const { plan } = this;
    if (!plan) return;
    const floor = plan.lower_bound?.worst_std ?? null;
    const best = plan.mechanisms[0];
    const curves = plan.mechanisms.map((row) => ({ ...row, style: this.style(row.name), best: row === best }));
    this.view?.destroy();
    const logarithmic = byId("plan-log").checked;
    // On a plain scale one mechanism with a far larger error would press all others flat: it stays in the table only.
    const drawn = curves.filter((curve) => logarithmic || curve.worst_std <= FAR * best.worst_std);
    const absent = curves.filter((curve) => !drawn.includes(curve)).map((curve) => curve.name);
    this.view = planChart(byId("plan-chart"), drawn, floor, logarithmic);
    const far = `Smallest error: ${best.name}. In its worst ${tickWord(false)} the standard deviation is ${significant(best.worst_std)}`;
    const bound = floor === null ? "." : this.nextToBound(best, floor);
    setText(byId("plan-summary"), far + bound);
    setText(byId("plan-caption"), `Exact errors for epsilon ${plain(plan.epsilon)}, delta ${probability(plan.delta)}, ${length(plan)}${absent.length ? `. Too large for this scale, in the table only: ${absent.join(", ")}` : ""}`);
    const rows = plan.mechanisms.map((row) => this.row(row));
    if (floor !== null) rows.push(this.bound(floor));
    byId("plan-rows").replaceChildren(...rows);
  }

  /** The best one next to the bound, which is about Gaussian noise only: noise of another kind (delta 0) can be below it. */
  nextToBound(best, floor) {
    const smallest = `the smallest that Gaussian noise can have is ${significant(floor)}`;
    if (best.ratio_to_lower_bound >= 1) return `, ${number(best.ratio_to_lower_bound, 3)} times the bound: ${smallest}.`;
    return `. It needs no delta, and its noise is not Gaussian; ${smallest}.`;
  }

  row(row) {
    const cell = (text) => element("td", { class: "n num" }, text);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, swatch(this.style(row.name)), row.name),
      cell(significant(row.worst_std)),
      cell(significant(row.last_std)),
      cell(`± ${significant(row.interval95)}`),
      cell(`± ${significant(row.simultaneous)}`),
      cell(row.ratio_to_lower_bound === null ? "–" : number(row.ratio_to_lower_bound, 3)),
      cell(bytes(row.state_bytes)),
    );
  }

  bound(floor) {
    const line = { colour: "ink", dash: [3, 5] };
    const rest = ["", "", "", number(1, 3), ""].map((text) => element("td", { class: "n num" }, text));
    return element(
      "tr",
      { class: "bound" },
      element("th", { scope: "row" }, swatch(line), "lower bound, Gaussian"),
      element("td", { class: "n num" }, significant(floor)),
      ...rest,
    );
  }
}

/** A text of the plan, which knows ticks only, in the reader's word for them. */
const inDays = (text) => text.replace(/\bticks\b/g, tickWord()).replace(/\btick\b/g, tickWord(false));

const length = (plan) => (plan.horizon === null ? "a stream without end" : ticks(plan.horizon));

function bytes(count) {
  return count < 10_000 ? `${number(count)} B` : count < 1e7 ? `${number(count / 1024, 1)} KiB` : `${number(count / 2 ** 20, 1)} MiB`;
}

/** The curve's line as it is drawn in the chart. */
function swatch(style) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 28 8");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", "M1 4H27");
  line.setAttribute("class", style.colour);
  line.setAttribute("stroke-dasharray", style.dash.join(" "));
  svg.append(line);
  return svg;
}
