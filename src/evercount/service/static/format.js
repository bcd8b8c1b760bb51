// Numbers, times and small pieces of the page, written the same way everywhere. Numbers look as the reader's locale has them;
// the page is in English, so dates are in the reader's English, or in British.

const SPOKEN = (navigator.languages ?? []).filter((name) => {
  try {
    return Intl.NumberFormat.supportedLocalesOf(name).length > 0;
  } catch {
    return false; // some systems name locales that no browser knows
  }
});
const LOCALE = SPOKEN[0] ?? "en";
const ENGLISH = SPOKEN.find((name) => name.startsWith("en")) ?? "en-GB";
const MINUS = "\u2212";
export const DASH = "\u2013";
const formats = new Map();

function fixed(digits) {
  if (!formats.has(digits)) {
    formats.set(
      digits,
      new Intl.NumberFormat(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits }),
    );
  }
  return formats.get(digits);
}

/** How many decimals make sense next to an error of this size: two digits of the error. */
export function decimals(std) {
  if (!(std > 0)) return 0;
  return Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(std))));
}

/** A number with `digits` decimals, grouped; a dash when there is none. */
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const nothing = Math.abs(value) < 0.5 * 10 ** -digits;
  return fixed(digits).format(nothing ? 0 : value).replace("-", MINUS);
}

/** A positive number with three significant digits. */
export function significant(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (value === 0) return "0";
  return number(value, Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))));
}

/** A number as it was declared. */
export const plain = (value) => new Intl.NumberFormat(LOCALE, { maximumSignificantDigits: 15 }).format(value);

/** A number of a promise in three digits, rounded up so that the promise still holds; from its digits, so that 1.1 stays 1.1. */
export function atMost(value) {
  return new Intl.NumberFormat(LOCALE, { maximumSignificantDigits: 3, roundingMode: "ceil" }).format(String(value));
}

/** A small probability of a promise in powers of ten. */
export function probability(value) {
  if (!Number.isFinite(value)) return DASH;
  if (value >= 0.001 || value === 0) return atMost(value);
  const [mantissa, exponent] = value.toExponential().split("e");
  const power = [...String(-Number(exponent))].map((d) => "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[d]).join("");
  return `${mantissa === "1" ? "" : `${atMost(mantissa)} × `}10\u207b${power}`;
}

let zone = null;
let stamps = new Map();

/** Show all times in this zone (null: the reader's own). */
export function setZone(name) {
  zone = name;
  stamps = new Map();
}

/** The zone in which times are shown. */
export const shownZone = () => zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;

function stampOf(parts) {
  const key = JSON.stringify(parts);
  if (!stamps.has(key)) stamps.set(key, new Intl.DateTimeFormat(ENGLISH, { ...parts, ...(zone ? { timeZone: zone } : {}) }));
  return stamps.get(key);
}

const DAY = { day: "numeric", month: "short" };
const CLOCK = { hour: "2-digit", minute: "2-digit" };
const SECONDS = { ...CLOCK, second: "2-digit" };

/** A moment as a date of the shown zone, for a chart's axis. */
export const zoned = (seconds) => (zone ? uPlot.tzDate(new Date(seconds * 1000), zone) : new Date(seconds * 1000));

const UNITS = { ms: "millisecond", s: "second", m: "minute", h: "hour", d: "day", w: "week" };

let tick = { one: "period", many: "periods", whole: false };

/** What one tick of the shown stream is called: a day, an hour, a period of 15 minutes; a period where ticks are closed by hand. */
export function setTick(text) {
  const [, size, unit] = /^(\d+)(ms|s|m|h|d|w)$/.exec(text ?? "") ?? [];
  const alone = size === "1" ? UNITS[unit] : unit ? `period of ${size} ${UNITS[unit]}s` : "period";
  tick = { one: alone, many: size === "1" || !unit ? `${alone}s` : alone.replace("period", "periods"), whole: unit === "d" || unit === "w" };
}

/** "1 day", "365 days": so many ticks in words. */
export const ticks = (count) => `${number(count)} ${count === 1 ? tick.one : tick.many}`;

/** The word for one tick or for many. */
export const tickWord = (many = true) => (many ? tick.many : tick.one);

/** A word as the first of a line. */
export const capital = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}`;

/** How often a number comes, in words. */
export function every(text) {
  const [, size, unit] = /^(\d+)(ms|s|m|h|d|w)$/.exec(text ?? "") ?? [];
  return unit ? `every ${size === "1" ? UNITS[unit] : `${size} ${UNITS[unit]}s`}` : "by hand";
}

/** A moment in the shown time zone, from seconds since 1970. */
export function moment(seconds) {
  if (seconds === null) return DASH;
  const date = new Date(seconds * 1000);
  return stampOf({ ...DAY, year: "numeric", ...(seconds % 60 === 0 ? CLOCK : SECONDS) }).format(date);
}

/** When a tick or span began: a date where they are days or weeks, else with the time; a number where there is no clock. */
export function began(seconds, number_, whole = tick.whole) {
  if (seconds === null || !Number.isFinite(seconds)) return `${tick.one} ${number(number_)}`;
  return whole ? stampOf({ weekday: "short", ...DAY, year: "numeric" }).format(new Date(seconds * 1000)) : moment(seconds);
}

/** Labels of a time axis: the day appears where it changes. */
export function timeLabels(splits, increment) {
  let before = "";
  return splits.map((seconds) => {
    const date = new Date(seconds * 1000);
    const today = stampOf(increment >= 28 * 86400 ? { month: "short", year: "numeric" } : DAY).format(date);
    const changed = today !== before;
    before = today;
    if (increment >= 86400) return today;
    const time = stampOf(increment < 60 ? SECONDS : CLOCK).format(date);
    return changed ? `${time}\n${today}` : time;
  });
}

/** An axis label that stays short. */
export function axisNumber(value) {
  if (value === null) return null;
  const size = Math.abs(value);
  if (size >= 1e5) return new Intl.NumberFormat(LOCALE, { notation: "compact", maximumFractionDigits: 2 }).format(value).replace("-", MINUS);
  return new Intl.NumberFormat(LOCALE, { maximumFractionDigits: size < 1 ? 4 : 2 }).format(value).replace("-", MINUS);
}

/** An element with properties and children; text is always text, never markup. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else if (key.includes("-") || key === "role" || key === "scope") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

/** Set text only where it changed, so that nothing is read out or laid out twice. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const byId = (id) => document.getElementById(id);

/** What becomes of events that come late: the rule, never whether some came. Empty where ticks are closed by hand. */
export function lateRule({ tick: length, late, revise_for: times }) {
  if (length === "manual") return "";
  const arrives = `An event that arrives after its ${tick.one} was published`;
  if (late === "next") return `${arrives} is counted in the ${tick.one} that is published next, whose number is then higher.`;
  if (late === "revise") return `A number is published ${number(times)} more times, with the events that have arrived by then. What arrives later is not counted.`;
  return `${arrives} is not counted.`;
}

const KINDS = {
  count: "Running count", histogram: "Running count", "top-k": "Running count", rollup: "Running count", marginals: "Running count", "discovered-keys": "Running count",
  sum: "Running sum", quantiles: "Values so far", "distinct-users": "Different persons", "active-users": "Active persons, added up", occupancy: "Inside now",
  substrings: "Occurrences so far", episodes: "Occurrences so far", cuts: "Weight of this edge so far", prefix: "Running number",
  edges: "Edges of the graph", triangles: "Triangles of the graph", "k-stars": "Stars of the graph", components: "Connected parts of the graph",
  "degree-histogram": "Vertices of this degree", "degree-sequence": "Degrees, largest first", "high-degree": "Vertices of at least this degree", "min-degree": "Smallest degree of a vertex",
  "min-cut": "Edges of the smallest cut", "spanning-forest": "Weight of the lightest spanning forest", matching: "Edges of the largest matching",
};

/** What the published number is, in words. */
export function kindOf({ name, parameters, own_ticks: ownTicks }) {
  if (ownTicks) return `Count of this ${tick.one}`;
  if (name === "average") return `Average per ${parameters.per === "event" ? "event" : tick.one}`;
  if (name === "window" || name === "window-of") return `Last ${ticks(parameters.width)}`;
  return KINDS[name] ?? "Running number";
}
