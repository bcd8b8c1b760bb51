// The guarantee of a stream in plain words: who is protected, from what, how strongly, how long, and what is not covered.

import { atMost, byId, element, lateRule, number, plain, probability, setText, tickWord, ticks } from "./format.js";

/** The largest chance of a right guess, for the bar: `guess_chance` of guarantee_text.py, whose words state it. */
function guessing(epsilon, delta) {
  return Math.min(1, (1 + delta * Math.exp(-epsilon)) / (1 + Math.exp(-epsilon)));
}

const WEAK = 0.95;

function duration(facts, tick) {
  if (facts.horizon === null || facts.horizon === undefined) {
    return "All releases together, for as long as it runs. This stream has no end, and the promise does not wear out with time.";
  }
  const left = facts.horizon - tick;
  const all = `All ${ticks(facts.horizon)} together, not each one separately. `;
  return left > 0
    ? `${all}${ticks(left)} ${left === 1 ? "is" : "are"} left; then the stream stops by itself.`
    : `${all}They are all published: nothing more is published from this stream.`;
}

/** What noise does to a count that may look like a mistake. */
function oddities(tidied) {
  const odd = ["may be a little too high or too low"];
  if (!tidied.includes("monotone")) odd.push(`may fall from one ${tickWord(false)} to the next`);
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

/** Say how much is left now; the rest of the panel does not change with time. */
export function renderLength(facts, tick) {
  setText(byId("guarantee-length"), duration(facts, tick));
}

function part(title, ...content) {
  return [element("h3", {}, title), ...content];
}

const words = (text) => element("p", {}, text);

/** The ledger's total, where the service states one. */
function together(facts, ledger) {
  const { adjacency, unit, period = null } = facts.budget;
  const total = ledger?.totals?.find(
    (one) => one.adjacency === adjacency && one.unit === unit && one.period === period && (one.names?.includes(facts.name) ?? true),
  );
  const apart = total?.apart
    ? [words(`${number(total.apart)} more protect persons in periods that begin at other times: one period here meets two of theirs, and they are not in this total.`)]
    : [];
  if (!total || (total.streams < 2 && !total.apart)) return [];
  return part(
    "Together with the other streams",
    words(`This service ${ledger.covers === "public streams" ? "publishes" : "runs"} ${number(total.streams)} streams with this kind of promise. If they are about the same ${unit}s, the promise of all of them together is epsilon ${atMost(total.epsilon)} and delta ${probability(total.delta)}.`),
    ...apart,
  );
}

/**
 * Fill the panel. `tick` is the newest released tick, which may be newer than the facts. What is promised, and to whom,
 * is said in the service's own words (`explained`): they are those of every release.
 */
export function renderGuarantee(box, facts, tick, ledger) {
  const { budget, explained } = facts;
  const share = guessing(budget.epsilon, budget.delta);
  box.replaceChildren(
    ...part("Who is protected", words(explained.who)),
    ...part(
      "From what",
      words(`From anyone who reads all the published numbers, now and later, even if they know everything else and have any computers, as long as they cannot break AES-256 encryption or the keyed hash function BLAKE2b. How much they can find out about ${explained.question} is limited, as follows.`),
    ),
    ...part(
      "How strongly",
      element(
        "dl",
        { class: "pair" },
        element("div", {}, element("dt", {}, "Epsilon"), element("dd", { class: "num" }, plain(budget.epsilon))),
        element("div", {}, element("dt", {}, "Delta"), element("dd", { class: "num" }, probability(budget.delta))),
      ),
      ...explained.strength.map(words),
      guessBar(share),
      ...(share > WEAK ? [words("This is a weak promise: an epsilon of this size rules out little.")] : []),
    ),
    ...part("For how long", element("p", { id: "guarantee-length" }, duration(facts, tick))),
    ...together(facts, ledger),
    ...part("What it does not protect", element("ul", {}, ...explained.not_protected.map((item) => element("li", {}, item)))),
    ...part(
      "How to read the numbers",
      words(`The noise is the protection. ${oddities(facts.postprocess ?? [])} The band says how far off a number can be: it holds the true one in 19 of 20 cases. ${facts.counted}`),
      ...(lateRule(facts) ? [words(lateRule(facts))] : []),
    ),
    element("details", { class: "plain" }, element("summary", {}, "The formal sentence"), words(facts.guarantee ?? "")),
    element("details", { class: "plain" }, element("summary", {}, "A text for your readers, or a lawyer"), element("p", { id: "guarantee-letter" }, explained.letter)),
  );
}
