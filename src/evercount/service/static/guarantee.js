// The guarantee of a stream in plain words: who is protected, from what, how strongly, how long, and what is not covered.

import { byId, element, number, oneIn, probability, setText } from "./format.js";

/**
 * The largest chance of guessing right which of two equally likely cases holds: (e^ε + δ)/(1 + e^ε).
 * It follows from total variation ≤ (e^ε − 1 + 2δ)/(e^ε + 1), so δ is included.
 */
export function guessing(epsilon, delta) {
  return Math.min(1, (1 + delta * Math.exp(-epsilon)) / (1 + Math.exp(-epsilon)));
}

const WEAK = 0.95;
const percent = (share) => `${number(share * 100, share > 0.995 && share < 1 ? 2 : 0)} %`;

function who({ budget, query }) {
  if (budget.unit === "user") {
    if (["distinct-users", "active-users"].includes(query?.name)) return "Every single user, with everything they do, however many events that is.";
    const most = budget.max_events === 1 ? "one event" : `${number(budget.max_events)} events`;
    return `Every single user, with everything they contribute: at most ${most} in the whole stream.`;
  }
  return "Every single event. Someone who causes several events is protected for each of them, but less well for all of them together.";
}

function question(budget) {
  const thing = budget.unit === "user" ? "a user's events" : "an event";
  return budget.adjacency === "replace"
    ? `what ${thing} ${budget.unit === "user" ? "were" : "was"}`
    : `whether ${thing} ${budget.unit === "user" ? "are" : "is"} in the data at all`;
}

function compared(budget) {
  const thing = budget.unit === "user" ? "the user" : "the event";
  return budget.adjacency === "replace" ? `with ${thing} as with any other` : `with ${thing} as without`;
}

function duration(facts, tick) {
  if (facts.horizon === null || facts.horizon === undefined) {
    return "All releases together, for ever. This stream has no last tick, and the promise does not wear out with time.";
  }
  const left = facts.horizon - tick;
  const all = `All ${number(facts.horizon)} ticks together, not each one separately. `;
  return left > 0
    ? `${all}${number(left)} ${left === 1 ? "tick is" : "ticks are"} left; then the stream stops by itself.`
    : `${all}They are all released: nothing more is published from this stream.`;
}

function limits(facts) {
  const { budget } = facts;
  const items = [
    "Facts about everybody. If the numbers show that a disease spreads in a region, that is learned about all who live there, in the data or not.",
    "What is public anyway: the list of cells, the times of the ticks, and that this stream exists.",
    "The operator. Events are collected and added up on the server before the noise; the promise is about what is published.",
    "Other publications about the same events. Promises add up; a second stream means a weaker promise for both together.",
  ];
  if (budget.unit === "event") items.splice(1, 0, "Many events of one person taken together. For two events the promise is only about half as strong, and so on.");
  return items;
}

/** What noise does to a count that may look like a mistake. */
function oddities(tidied) {
  const odd = ["may be a little too high or too low"];
  if (!tidied.includes("monotone")) odd.push("may fall from one tick to the next");
  if (!tidied.includes("nonnegative")) odd.push("may even be negative");
  return `A number ${odd.length > 1 ? `${odd.slice(0, -1).join(", ")} and ${odd.at(-1)}` : odd[0]}.`;
}

/** The share of a right guess as a bar: blind guessing on the left half, what the numbers can add after it. */
function guessBar(share) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 6");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "guess");
  svg.setAttribute("aria-hidden", "true");
  for (const [name, x, width] of [["rest", 0, 100], ["blind", 0, 50], ["gain", 50, (share - 0.5) * 100]]) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    rect.setAttribute("class", name);
    rect.setAttribute("x", String(x));
    rect.setAttribute("width", String(Math.max(width, 0)));
    rect.setAttribute("height", "6");
    svg.append(rect);
  }
  return svg;
}

/** Say how many ticks are left now; the rest of the panel does not change with time. */
export function renderLength(facts, tick) {
  setText(byId("guarantee-length"), duration(facts, tick));
}

function part(title, ...content) {
  return [element("h3", {}, title), ...content];
}

const words = (text) => element("p", {}, text);

/** The ledger's total, where the service states one. */
function together(facts, ledger) {
  const { adjacency, unit, max_events: most } = facts.budget;
  const total = ledger?.totals?.find((one) => one.adjacency === adjacency && one.unit === unit && one.max_events === most);
  if (!total || total.streams < 2) return [];
  return part(
    "Together with the other streams",
    words(`This service ${ledger.covers === "public streams" ? "publishes" : "runs"} ${number(total.streams)} streams with this kind of promise. If they are about the same ${unit}s, the promise of all of them together is epsilon ${number(total.epsilon, 2)} and delta ${probability(total.delta)}.`),
  );
}

/** Fill the panel. `tick` is the newest released tick, which may be newer than the facts. */
export function renderGuarantee(box, facts, tick, ledger) {
  const { budget } = facts;
  const share = guessing(budget.epsilon, budget.delta);
  box.replaceChildren(
    ...part("Who is protected", words(who(facts))),
    ...part(
      "From what",
      words(`From anybody who reads all the published numbers, now and later, even if they know every other event and have any computer they like. How much they can find out about ${question(budget)} is limited, as follows.`),
    ),
    ...part(
      "How strongly",
      element(
        "dl",
        { class: "pair" },
        element("div", {}, element("dt", {}, "Epsilon"), element("dd", { class: "num" }, String(budget.epsilon))),
        element("div", {}, element("dt", {}, "Delta"), element("dd", { class: "num" }, probability(budget.delta))),
      ),
      words(`Of two equally likely cases, the right one can be guessed with a chance of at most ${percent(share)}. Blind guessing gives 50 %.`),
      guessBar(share),
      words(`In general, any result is at most ${number(Math.exp(budget.epsilon), 2)} times as likely ${compared(budget)}, plus a chance of ${oneIn(budget.delta)}.`),
      ...(share > WEAK ? [words("This is a weak promise: an epsilon of this size rules out little.")] : []),
    ),
    ...part("For how long", element("p", { id: "guarantee-length" }, duration(facts, tick))),
    ...together(facts, ledger),
    ...part("What it does not protect", element("ul", {}, ...limits(facts).map((item) => element("li", {}, item)))),
    ...part(
      "How to read the numbers",
      words(`The noise is the protection. ${oddities(facts.postprocess ?? [])} The band says how far off a number can be: it holds the true one in 19 of 20 cases.`),
    ),
    element("details", { class: "plain" }, element("summary", {}, "The formal sentence"), words(facts.guarantee ?? "")),
  );
}
