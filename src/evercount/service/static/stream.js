// The page of one stream: loads what was released, follows what comes, and keeps every part of the page in step.

import { ServiceError, releasesAfter, streamFacts } from "./api.js";
import { Cells } from "./cells.js";
import { focusChart, placesNoted } from "./charts.js";
import { DASH, began, byId, capital, decimals, element, every, kindOf, lateRule, moment, number, plain, probability, setText, setTick, setZone, shownZone, tickWord, ticks } from "./format.js";
import { renderGuarantee, renderLength } from "./guarantee.js";
import { History, ticksAsked } from "./history.js";
import { follow } from "./live.js";
import { SpanCard, viewTitle } from "./views.js";

const QUIET = 20000; // a screen reader hears about new ticks at most this often (ms)
const HISTORY_ROWS = 100;
const STATES = {
  loading: "Loading",
  connecting: "Connecting",
  live: "Live",
  waiting: "Connection lost",
  refused: "No access",
  finished: "Finished",
  stopped: "Stopped",
  scheduled: "Scheduled",
};
export class StreamPage {
  /** `onRefused(error)` is told when the stream cannot be shown; `onCell(label)` when a cell is picked. */
  constructor({ onRefused, onCell, onView }) {
    this.onRefused = onRefused;
    this.onCell = onCell;
    this.name = null;
    this.facts = null;
    this.ledger = null;
    this.history = null;
    this.feed = null;
    this.opening = null;
    this.view = null;
    this.cell = 0;
    this.frame = 0;
    this.heardAt = -Infinity;
    this.wasLost = false;
    this.cells = new Cells((cell) => this.pick(cell));
    this.spans = new SpanCard({ onView, onError: (text) => this.say(`No file: ${text}`) });
    byId("range").addEventListener("change", () => this.draw());
    byId("history").addEventListener("toggle", () => this.draw());
    byId("focus-chart").addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("themechange", () => {
      this.view?.chart.redraw(false);
      this.cells.repaint();
    });
  }

  /** Show a stream; `label` is the cell to start with, `ledger` what the streams spend together. */
  async open(name, label, ledger = this.ledger, view = null) {
    this.close();
    this.wanted = view;
    this.ledger = ledger;
    this.name = name;
    const opening = (this.opening = new AbortController());
    this.state("loading");
    try {
      const facts = await streamFacts(name, opening.signal);
      const history = new History(facts.labels, (facts.postprocess ?? []).includes("nonnegative"), !["per-day", "per-week"].includes(facts.shown));
      const limit = ticksAsked(facts.labels.length);
      let after = Math.max(0, facts.released - history.most);
      while (after < facts.released) {
        const releases = await releasesAfter(name, after, limit, opening.signal);
        if (!releases.length) break;
        for (const release of releases) history.add(release);
        after = history.lastTick;
      }
      if (opening !== this.opening) return;
      this.begin(facts, history, label);
    } catch (error) {
      if (opening !== this.opening || opening.signal.aborted) return;
      this.state("refused");
      this.onRefused(error instanceof ServiceError ? error : new ServiceError(0, String(error.message ?? error)));
    }
  }

  close() {
    this.opening?.abort();
    this.opening = null;
    this.feed?.stop();
    this.feed = null;
    this.spans.close();
    this.history = null;
    this.facts = null;
    this.name = null;
    this.wasLost = false;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  begin(facts, history, label) {
    this.facts = facts;
    this.history = history;
    this.cell = Math.max(0, facts.labels.indexOf(label));
    this.cells.focus = this.cell;
    byId("stream-page").hidden = false;
    setText(byId("stream-name"), facts.name);
    setText(byId("stream-description"), facts.description ?? "");
    for (const caption of document.querySelectorAll(".counted")) {
      caption.hidden = !facts.counted;
      setText(caption, facts.counted);
    }
    byId("cells-card").hidden = facts.labels.length === 1;
    setZone(facts.tick === "manual" ? null : facts.zone);
    setTick(facts.tick);
    for (const caption of document.querySelectorAll(".late-rule")) {
      caption.hidden = facts.late !== "next" || !lateRule(facts); // other rules explain no spike: the guarantee states them
      setText(caption, lateRule(facts));
    }
    setText(byId("history-tick"), facts.tick === "manual" ? capital(tickWord(false)) : "Start");
    for (const option of byId("range").options) if (option.value !== "0") setText(option, `last ${ticks(Number(option.value))}`);
    this.view?.destroy();
    this.view = null;
    this.cells.counted = facts.counted;
    this.cells.show(history, facts.query?.name === "top-k" ? facts.query.parameters.k : null);
    this.spans.open(facts, facts.labels[this.cell], this.wanted);
    this.draw();
    renderGuarantee(byId("guarantee-body"), facts, this.tick, this.ledger);
    if (this.finished) this.state("finished");
    else if (facts.state === "stopped") this.state("stopped");
    else this.follow();
  }

  get tick() {
    return Math.max(this.history.lastTick, this.facts.released);
  }

  get finished() {
    return this.facts.horizon !== null && this.facts.horizon !== undefined && this.tick >= this.facts.horizon;
  }

  // -- the live feed ------------------------------------------------------------------------------------------------

  follow() {
    const { history } = this;
    this.feed = follow(this.name, {
      position: () => history.lastTick,
      onRelease: (release) => history === this.history && this.take(release),
      onEnd: () => history === this.history && this.state("finished"),
      onState: (state, detail) => history === this.history && this.connection(state, detail),
    });
  }

  connection(state, detail) {
    if (state === "refused") {
      this.state("refused");
      this.onRefused(detail);
      return;
    }
    if (state === "waiting") this.wasLost = true;
    if (state === "live" && this.wasLost) {
      this.wasLost = false;
      this.check();
    }
    if (state === "live" && this.facts.state === "scheduled" && !this.history.last) this.state("scheduled");
    else this.state(this.wasLost && state === "connecting" ? "waiting" : state, detail);
  }

  /** After a break: is this still the stream that we were showing? */
  async check() {
    const { history, name } = this;
    try {
      const facts = await streamFacts(name);
      if (history !== this.history) return;
      if (facts.released < history.lastTick || facts.labels.length !== history.labels.length) {
        await this.open(name, history.labels[this.cell]);
      } else {
        this.facts = facts;
        if (facts.state === "stopped") {
          this.feed?.stop();
          this.draw();
          this.state("stopped");
        }
      }
    } catch {
      // the feed reports what is wrong
    }
  }

  take(release) {
    if (release.values.length > this.history.labels.length) {
      this.check(); // keys became public: open the stream again with their labels
      return;
    }
    const outcome = this.history.add(release);
    if (outcome === "gap") this.fill();
    if (outcome === "added" || outcome === "revised") this.schedule();
  }

  /** Fetch the ticks between what is here and what just came. */
  async fill() {
    const { history, name } = this;
    try {
      for (;;) {
        const releases = await releasesAfter(name, history.lastTick, ticksAsked(history.labels.length));
        if (history !== this.history || !releases.length) return;
        let added = 0;
        for (const release of releases) added += history.add(release) === "added";
        this.schedule();
        if (!added) return;
      }
    } catch {
      // the next release, or the next connection, tries again
    }
  }

  /** Many ticks at once are drawn once. */
  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (!this.history) return;
      if (this.facts.state === "scheduled") {
        this.facts = { ...this.facts, state: "open" };
        this.state("live");
      }
      this.draw();
      this.spans.refresh();
      this.cells.update();
      renderLength(this.facts, this.tick);
      this.announce();
      if (this.finished) {
        this.feed?.stop();
        this.state("finished");
      }
    });
  }

  state(state, detail) {
    const pill = byId("connection");
    pill.dataset.state = state;
    const text = state === "waiting" && detail ? `${STATES.waiting}, next try in ${detail} s` : STATES[state];
    setText(byId("connection-text"), text);
    if (state === "waiting" && !this.saidLost) this.say("Connection lost. The page reconnects by itself.");
    if (state === "live" && this.saidLost) this.say("Live again.");
    if (state === "finished" && this.history) this.say("All numbers of this stream are published.");
    this.saidLost = state === "waiting" || (this.saidLost && state === "connecting");
  }

  // -- what is shown --------------------------------------------------------------------------------------------------

  pick(cell) {
    this.cell = cell;
    this.cells.focus = cell;
    this.draw();
    this.spans.pick(this.history.labels[cell]);
    this.cells.update();
    this.onCell(this.history.labels[cell]);
    const card = byId("focus-card").getBoundingClientRect();
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (card.top < 0 || card.top > innerHeight / 2) byId("focus-card").scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
    this.say(`Chart shows ${this.sentence()}`);
  }

  draw() {
    if (!this.history) return;
    this.drawFacts();
    const { last, labels } = this.history;
    const label = labels[this.cell];
    setText(byId("focus-name"), label);
    setText(byId("focus-eyebrow"), last ? `${this.facts.shown === "running" ? kindOf(this.facts.query) : viewTitle(this.facts.shown)} · ${this.at(last)}` : `Waiting for the first ${tickWord(false)}`);
    document.title = `${this.facts.name}: ${label} · evercount`;
    const digits = last ? decimals(last.std[this.cell]) : 0;
    setText(byId("focus-value"), last ? number(last.values[this.cell], digits) : DASH);
    setText(byId("focus-error"), last ? `std ${number(last.std[this.cell], digits)}  ·  95 % interval ${number(last.low[this.cell], digits)} to ${number(last.high[this.cell], digits)}` : "");
    this.drawChart(label);
    if (byId("history").open) this.drawHistory(label);
  }

  drawChart(label) {
    const box = byId("focus-chart");
    const { rows, timed, data } = this.history.columns(this.cell, Number(byId("range").value));
    if (!this.view || this.view.timed !== timed) {
      this.view?.destroy();
      this.view = focusChart(box, timed, (index) => this.readout(index));
    }
    this.shownRows = rows;
    this.view.set(data, placesNoted(rows));
    box.classList.toggle("empty", rows.length === 0);
    box.dataset.empty = this.finished ? "Nothing was released." : `The first ${tickWord(false)} is not over yet. Its numbers appear here by themselves.`;
    box.setAttribute("aria-label", `${label}, ${ticks(rows.length)}. ${rows.length ? this.sentence() : "No release yet."}`);
    if (this.view.chart.cursor.left < 0 || this.view.chart.cursor.idx === null) this.readout(null);
  }

  drawFacts() {
    const { facts, history, tick } = this;
    const bounded = facts.horizon !== null && facts.horizon !== undefined;
    const items = [
      [`${capital(tickWord())} published`, bounded ? `${number(tick)} of ${number(facts.horizon)}` : number(tick)],
      ["Published", every(facts.tick)],
      ["Epsilon", plain(facts.budget.epsilon)],
      ["Delta", probability(facts.budget.delta)],
      ["Protects", facts.explained.who.split(/[.(]/)[0].trim()],
      ["Access", facts.public ? "public" : "by token"],
    ];
    if (facts.tick !== "manual") items.push(["Times in", shownZone()]);
    if (facts.state === "scheduled" && !history.last) items.push(["Starts at", moment(Date.parse(facts.start) / 1000)]);
    const next = this.nextTick();
    if (next !== null) items.push(["Next number at", moment(next)]);
    const list = byId("facts");
    if (list.children.length !== items.length) {
      list.replaceChildren(...items.map(([name]) => element("div", {}, element("dt", {}, name), element("dd", { class: "num" }))));
    }
    items.forEach(([name, value], i) => {
      setText(list.children[i].firstChild, name);
      setText(list.children[i].lastChild, value);
    });
    const note = byId("stream-note");
    const over = this.finished
      ? `All ${ticks(facts.horizon)} of this stream are published. These numbers do not change any more; a new stream would be a new promise that adds to this one.`
      : facts.state === "stopped"
        ? "The service has stopped this stream. What was released stays as it is."
        : facts.noise && facts.noise !== "exact"
          ? "This stream runs on simulated noise, for trials only. Its numbers are not protected well enough to be published."
          : "";
    note.hidden = over === "";
    setText(note, over);
    const bar = byId("horizon-bar");
    bar.hidden = !bounded;
    if (bounded) {
      bar.setAttribute("aria-valuemin", "0");
      bar.setAttribute("aria-valuemax", String(facts.horizon));
      bar.setAttribute("aria-valuenow", String(tick));
      bar.firstElementChild.style.width = `${(100 * tick) / facts.horizon}%`;
    }
  }

  /** When the open tick ends: told by the service, then one tick length after another. */
  nextTick() {
    const { facts, history } = this;
    if (!facts.closes || this.finished || facts.state === "stopped") return null;
    const closes = Date.parse(facts.closes) / 1000;
    const length = /^(\d+)(ms|s|m|h)$/.exec(facts.tick);
    const ahead = history.lastTick - facts.released;
    if (ahead <= 0) return closes;
    return length ? closes + ahead * Number(length[1]) * { ms: 0.001, s: 1, m: 60, h: 3600 }[length[2]] : null;
  }

  drawHistory(label) {
    const rows = this.history.rows.slice(-HISTORY_ROWS).reverse();
    setText(byId("history-caption"), `${label}: the newest ${ticks(rows.length)}, newest first. ${this.facts.counted}`);
    byId("history-rows").replaceChildren(
      ...rows.map((row) => {
        const digits = decimals(row.std[this.cell]);
        const cell = (text) => element("td", { class: "n num" }, text);
        return element(
          "tr",
          {},
          element("th", { scope: "row", class: "num" }, row.note ? `${capital(this.at(row))} (${row.note})` : capital(this.at(row))),
          ...[row.values, row.std, row.low, row.high].map((list) => cell(number(list[this.cell], digits))),
        );
      }),
    );
  }

  // -- reading single ticks ---------------------------------------------------------------------------------------------

  readout(index) {
    const row = index === null || index === undefined ? null : this.shownRows?.[index];
    const held = this.history;
    if (!row) {
      const partial = held && held.rows.length && held.rows[0].tick > 1;
      setText(byId("cursor-readout"), partial ? `Loaded: ${this.at(held.rows[0])} to ${this.at(held.last)}.` : "");
      return;
    }
    const digits = decimals(row.std[this.cell]);
    const [value, std, low, high] = [row.values, row.std, row.low, row.high].map((list) => number(list[this.cell], digits));
    const said = row.note ? `  ·  ${row.note}` : "";
    setText(byId("cursor-readout"), `${capital(this.at(row))}: ${value}, std ${std}, 95 % interval ${low} to ${high}${said}`);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const count = this.shownRows?.length ?? 0;
    if (!(event.key in steps) || !count || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const { cursor } = this.view.chart;
    const from = cursor.left >= 0 && cursor.idx !== null ? cursor.idx : count;
    this.view.point(Math.min(count - 1, Math.max(0, from + steps[event.key])));
  }

  sentence() {
    const { last, labels } = this.history;
    if (!last) return `${labels[this.cell]}: no release yet.`;
    const digits = decimals(last.std[this.cell]);
    return `${labels[this.cell]}: ${number(last.values[this.cell], digits)}, standard deviation ${number(last.std[this.cell], digits)}, ${this.at(last)}.`;
  }

  /** Which tick a row is about, in words. */
  at(row) {
    return began(row.time, row.tick, ["per-day", "per-week"].includes(this.facts.shown) ? true : undefined);
  }

  announce() {
    const now = performance.now();
    if (now - this.heardAt < QUIET) return;
    this.heardAt = now;
    this.say(`New number. ${this.sentence()}`);
  }

  say(text) {
    setText(byId("announcer"), text);
  }
}
