// Numbers, times and small pieces of the page, written the same way everywhere.

const MINUS = "\u2212";
export const DASH = "\u2013";
const formats = new Map();

function fixed(digits) {
  if (!formats.has(digits)) {
    formats.set(
      digits,
      new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
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
  const text = fixed(digits).format(value);
  return (Number(text.replaceAll(",", "")) === 0 ? text.replace("-", "") : text).replace("-", MINUS);
}

/** A positive number with three significant digits. */
export function significant(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (value === 0) return "0";
  return number(value, Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))));
}

/** A small probability in powers of ten. */
export function probability(value) {
  if (!Number.isFinite(value)) return DASH;
  if (value >= 0.001 || value === 0) return String(Number(value.toPrecision(3)));
  const [mantissa, exponent] = value.toExponential().split("e");
  const power = [...String(-Number(exponent))].map((d) => "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[d]).join("");
  const front = Number(Number(mantissa).toPrecision(3));
  return `${front === 1 ? "" : `${front} × `}10\u207b${power}`;
}

/** "1 in 10 billion": the same small probability in words. */
export function oneIn(value) {
  if (!(value > 0)) return "never";
  const words = new Intl.NumberFormat("en", { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 2 });
  return `1 in ${words.format(1 / value)}`;
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
  if (!stamps.has(key)) stamps.set(key, new Intl.DateTimeFormat("en-GB", { ...parts, ...(zone ? { timeZone: zone } : {}) }));
  return stamps.get(key);
}

const DAY = { day: "numeric", month: "short" };
const CLOCK = { hour: "2-digit", minute: "2-digit" };
const SECONDS = { ...CLOCK, second: "2-digit" };

/** A moment as a date of the shown zone, for a chart's axis. */
export const zoned = (seconds) => (zone ? uPlot.tzDate(new Date(seconds * 1000), zone) : new Date(seconds * 1000));

const UNITS = { ms: "millisecond", s: "second", m: "minute", h: "hour", d: "day", w: "week" };

/** "15m" as "15 minutes"; anything else as it is. */
export function duration(text) {
  const found = /^(\d+)(ms|s|m|h|d|w)$/.exec(text ?? "");
  return found ? `${found[1]} ${UNITS[found[2]]}${found[1] === "1" ? "" : "s"}` : (text ?? "");
}

/** A moment in the shown time zone, from seconds since 1970. */
export function moment(seconds) {
  if (seconds === null) return DASH;
  const date = new Date(seconds * 1000);
  return stampOf({ ...DAY, year: "numeric", ...(seconds % 60 === 0 ? CLOCK : SECONDS) }).format(date);
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
  if (size >= 1e5) return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(value).replace("-", MINUS);
  return new Intl.NumberFormat("en", { maximumFractionDigits: size < 1 ? 4 : 2 }).format(value).replace("-", MINUS);
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

const KINDS = {
  count: "Running count", histogram: "Running count", "top-k": "Running count", rollup: "Running count", marginals: "Running count", "discovered-keys": "Running count",
  sum: "Running sum", quantiles: "Values so far", "distinct-users": "Different users", "active-users": "Active users, all ticks added up", occupancy: "Inside now",
  substrings: "Occurrences so far", episodes: "Occurrences so far", cuts: "Weight of this edge so far", prefix: "Running number",
  edges: "Edges of the graph", triangles: "Triangles of the graph", "k-stars": "Stars of the graph", components: "Connected parts of the graph",
  "degree-histogram": "Vertices of this degree", "degree-sequence": "Degrees, largest first", "high-degree": "Vertices of at least this degree", "min-degree": "Smallest degree of a vertex",
  "min-cut": "Edges of the smallest cut", "spanning-forest": "Weight of the lightest spanning forest", matching: "Edges of the largest matching",
};

/** What the published number is, in words. */
export function kindOf({ name, parameters, own_ticks: ownTicks }) {
  if (ownTicks) return "Count of this tick";
  if (name === "average") return `Average per ${parameters.per ?? "tick"}`;
  if (name === "window" || name === "window-of") return `Last ${number(parameters.width)} ticks`;
  return KINDS[name] ?? "Running number";
}
