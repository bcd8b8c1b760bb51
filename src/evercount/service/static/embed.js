// One chart for other sites to embed: embed#/stream/cell/view. It reads public streams only and never sends a token.

import { stayAnonymous, streamFacts, viewOf } from "./api.js";
import { focusChart, placesNoted } from "./charts.js";
import { byId, kindOf, lateRule, setText, setTick, setZone } from "./format.js";
import { NO_TREND, firstView, reading, spanColumns, viewTitle, when } from "./views.js";

const AGAIN = 30_000;
stayAnonymous();
let chart = null;

async function show() {
  const [name, cell, wanted] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  try {
    const facts = await streamFacts(name);
    setZone(facts.tick === "manual" ? null : facts.zone);
    setTick(facts.tick);
    const label = facts.labels.includes(cell) ? cell : facts.labels[0];
    const view = wanted || firstView(facts);
    const answer = await viewOf(name, { view, limit: 366, ...(view.startsWith("quantile") ? {} : { cell: label }) });
    const { timed, flat, data } = spanColumns(answer);
    const title = facts.views?.length ? viewTitle(view) : kindOf(facts.query);
    if (!chart || chart.timed !== timed) {
      chart?.destroy();
      chart = focusChart(byId("embed-chart"), timed, () => {});
    }
    chart.set(data, placesNoted(answer.releases));
    const last = answer.releases.at(-1);
    setText(byId("embed-title"), `${facts.name}: ${label}`);
    setText(byId("embed-text"), last ? `${title}, ${when(last, view)}: ${reading(last).value}, ${reading(last).error}` : "Nothing is released yet.");
    setText(byId("embed-note"), `${flat ? NO_TREND : "Band: 95 % interval. Published with differential privacy."} ${facts.late === "next" ? lateRule(facts) : ""} ${facts.counted}`);
    document.title = byId("embed-title").textContent;
  } catch (error) {
    setText(byId("embed-text"), `This chart cannot be shown: ${error.message}.`);
  }
  setTimeout(show, AGAIN);
}

show();
