// The first thing a reader looks at: new events per tick, day or week of one cell, with their error band.

import { fileOf, viewOf } from "./api.js";
import { focusChart, placesNoted } from "./charts.js";
import { DASH, began, byId, decimals, element, number, setText, tickWord, ticks } from "./format.js";

const SPANS = 366; // a year of days
const PAUSE = 1000; // a live stream is asked at most this often (ms)
const PATIENCE = 5; // and it has this many times as long for itself as an answer took
export const NO_TREND =
  "The noise is larger than every rise and fall here: one constant number would fit all of these bands. The line is omitted, because it would show a trend that nobody can know. Longer periods show more.";

/** A view's name in words: "New per day", "Last 24 hours", "Median". */
export function viewTitle(name) {
  const last = /^last-(\d+)$/.exec(name);
  if (last) return `Last ${ticks(Number(last[1]))}`;
  const quantile = /^quantile-(.+)$/.exec(name);
  if (quantile) return quantile[1] === "0.5" ? "Median so far" : `Quantile ${quantile[1]} so far`;
  if (name === "running") return "Running total";
  return name.startsWith("per-") ? `New per ${name === "per-tick" ? tickWord(false) : name.slice(4)}` : name;
}

/** The view to begin with: days, where a day has more than one tick and some days are over; else what the stream shows, or single ticks where that is a total. */
export function firstView(facts) {
  const views = facts.views ?? [];
  const short = /^(\d+(ms|s|m|h))$/.test(facts.tick ?? "");
  const enough = views.includes("per-day") && short && facts.released * (parseTick(facts.tick) / 86400) > 4;
  if (enough) return "per-day";
  if (facts.shown !== "running") return facts.shown;
  return views.includes("per-tick") ? "per-tick" : (views[0] ?? "running");
}

function parseTick(text) {
  const found = /^(\d+)(ms|s|m|h)$/.exec(text);
  return found ? Number(found[1]) * { ms: 0.001, s: 1, m: 60, h: 3600 }[found[2]] : 0;
}

/** Chart columns [x, high, low, value] of one cell of an answer, and whether x is time. */
export function spanColumns(answer, cell = 0) {
  const spans = answer.releases;
  const times = spans.map((span) => (span.start === null ? NaN : Date.parse(span.start) / 1000));
  const timed = spans.length > 0 && times.every((time, i) => Number.isFinite(time) && (i === 0 || time > times[i - 1]));
  const flat = answer.flat?.[cell] ?? false;
  return {
    timed,
    flat,
    data: [
      spans.map((span, i) => (timed ? times[i] : span.tick)),
      spans.map((span) => span.high[cell]),
      spans.map((span) => span.low[cell]),
      spans.map((span) => (flat ? null : span.values[cell])),
    ],
  };
}

/** One number with its errors in words that say which is which; what is missing, where a key was not public. */
export function reading(span, cell = 0) {
  if (span.values[cell] === null)
    return { value: DASH, error: span.note ?? "not known: the key was not there for all of that time" };
  const std = span.std[cell];
  const digits = decimals(std ?? (span.high[cell] - span.low[cell]) / 4);
  const error = std === null ? "" : `std ${number(std, digits)}  ·  `;
  return {
    value: number(span.values[cell], digits),
    error: `${error}95 % interval ${number(span.low[cell], digits)} to ${number(span.high[cell], digits)}`,
  };
}

/** When a span was: its day, the moment at which it began, or its number where there is no clock. */
export function when(span, view = "per-tick") {
  const start = span.start === null ? null : Date.parse(span.start) / 1000;
  const said = span.note ? `: ${span.note}` : "";
  const whole = ["per-day", "per-week"].includes(view) ? true : undefined;
  if (span.first === span.tick || whole) return began(start, span.tick, whole) + said;
  const since = start === null ? `${tickWord()} ${number(span.first)} to ${number(span.tick)}` : `since ${began(start, span.first)}`;
  return since + said;
}

/** Save a view as a file, with this tab's token. */
export async function save(name, parameters, form) {
  const { blob, file } = await fileOf(name, parameters, form);
  const link = element("a", { href: URL.createObjectURL(blob), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export class SpanCard {
  /** `onView(name)` is told when another view is chosen, `onError(text)` when a file cannot be made. */
  constructor({ onView, onError }) {
    this.facts = null;
    this.answer = null;
    this.chart = null;
    this.request = null;
    this.timer = 0;
    this.askedAt = -Infinity;
    this.waiting = false;
    this.took = 0;
    byId("span-view").addEventListener("change", (event) => {
      this.view = event.target.value;
      onView(this.view);
      this.ask();
    });
    for (const form of ["csv", "parquet", "json"]) {
      byId(`save-${form}`).addEventListener("click", () =>
        save(this.facts.name, this.parameters(), form).catch((error) => onError(error.message)),
      );
    }
    document.addEventListener("themechange", () => this.chart?.chart.redraw(false));
  }

  parameters() {
    const quantile = this.view.startsWith("quantile");
    return { view: this.view, limit: SPANS, ...(quantile ? {} : { cell: this.label }) };
  }

  /** Show a stream's cell; hides itself where the stream has no views, and leaves its buttons to the card of the numbers. */
  open(facts, label, view) {
    this.close();
    this.facts = facts;
    this.label = label;
    const views = facts.views ?? [];
    byId("span-card").hidden = views.length === 0;
    document.body.classList.toggle("has-views", views.length > 0);
    byId(views.length ? "span-card" : "focus-card").append(byId("share"), byId("share-note"));
    byId("compare-link").hidden = views.length === 0;
    if (!views.length) {
      this.view = "running";
      return;
    }
    this.view = views.includes(view) || /^last-\d+$/.test(view ?? "") || (view === "running" && !facts.query.own_ticks) ? view : firstView(facts);
    const listed = views.includes(this.view) || this.view === "running" ? views : [this.view, ...views];
    const all = facts.query.own_ticks ? listed : [...listed, "running"]; // keys of the day have no running totals
    byId("span-view").replaceChildren(...all.map((name) => element("option", { value: name }, viewTitle(name))));
    byId("span-view").value = this.view;
    this.ask();
  }

  close() {
    this.request?.abort();
    this.waiting = false;
    clearTimeout(this.timer);
    this.timer = 0;
    this.answer = null;
  }

  pick(label) {
    this.label = label;
    if (this.facts?.views?.length) this.ask();
  }

  /** A new tick: ask again, but not for each of many, not before the last answer is here, and rarely where answers take long. */
  refresh() {
    if (!this.facts?.views?.length || this.timer || this.waiting) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.ask();
    }, Math.max(0, this.askedAt + Math.max(PAUSE, PATIENCE * this.took) - performance.now()));
  }

  async ask() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.waiting = true;
    this.askedAt = performance.now();
    try {
      const answer = await viewOf(this.facts.name, this.parameters(), request.signal);
      if (request !== this.request) return;
      this.waiting = false;
      this.took = performance.now() - this.askedAt;
      this.answer = answer;
      this.draw();
    } catch (error) {
      if (request.signal.aborted) return;
      this.waiting = false;
      setText(byId("span-note"), `This view cannot be shown: ${error.message}.`);
      byId("span-note").hidden = false;
    }
  }

  draw() {
    const { answer } = this;
    const { timed, flat, data } = spanColumns(answer);
    const box = byId("span-chart");
    if (!this.chart || this.chart.timed !== timed) {
      this.chart?.destroy();
      this.chart = focusChart(box, timed, (index) => this.readout(index));
    }
    this.chart.set(data, placesNoted(answer.releases));
    const last = answer.releases.at(-1);
    const shown = last ? reading(last) : { value: DASH, error: "" };
    setText(byId("span-name"), this.view.startsWith("quantile") ? this.facts.name : this.label);
    setText(byId("span-eyebrow"), last ? `${viewTitle(this.view)}, ${when(last, this.view)}` : viewTitle(this.view));
    setText(byId("span-value"), shown.value);
    setText(byId("span-error"), shown.error);
    setText(byId("span-note"), flat ? NO_TREND : "");
    byId("span-note").hidden = !flat;
    box.classList.toggle("empty", !last);
    const span = { "per-day": "whole day", "per-week": "whole week" }[this.view];
    box.dataset.empty = span ? `Nothing to show yet: no ${span} is over.` : "Nothing to show yet: the first number is not complete.";
    const size = answer.releases.length;
    box.setAttribute("aria-label", last ? `${viewTitle(this.view)}, ${this.label}, ${number(size)} numbers. Newest: ${shown.value}, ${shown.error}. ${flat ? "No trend can be read." : ""}` : "No number yet.");
    if (this.chart.chart.cursor.left < 0 || this.chart.chart.cursor.idx === null) this.readout(null);
  }

  readout(index) {
    const span = index === null || index === undefined ? null : this.answer?.releases[index];
    if (!span) {
      setText(byId("span-readout"), "");
      return;
    }
    const { value, error } = reading(span);
    setText(byId("span-readout"), `${when(span, this.view)}: ${value}, ${error}`);
  }
}
