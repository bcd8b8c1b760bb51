// uPlot charts in the page's colours: the focus chart, the small multiples and the planner's curves.

import { axisNumber, tickWord, timeLabels, zoned } from "./format.js";

/** A colour of the style sheet, as it is in the present theme. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const NO_POINTS = { show: false };
const EDGE = { stroke: () => colour("edge"), width: 1, points: NO_POINTS };

function axis(extra) {
  return {
    stroke: () => colour("muted"),
    grid: { stroke: () => colour("grid"), width: 1 },
    ticks: { show: false },
    font: FONT,
    ...extra,
  };
}

function band() {
  return [{ series: [1, 2], fill: () => colour("band") }];
}

const SOLID = [];
const DASHED = [8, 4];
const DOTTED = [2, 3];
const MIXED = [10, 3, 2, 3];
const DASHES = [SOLID, DASHED, DOTTED, MIXED];

/** A band needs two ticks; for a single one the interval is drawn as an error bar. */
function single(u) {
  if (u.data[0].length !== 1 || u.data[1][0] === null) return;
  const x = Math.round(u.valToPos(u.data[0][0], "x", true));
  const [high, low] = [u.data[1][0], u.data[2][0]].map((value) => u.valToPos(value, "y", true));
  u.ctx.save();
  u.ctx.fillStyle = colour("band");
  u.ctx.fillRect(x - 6 * devicePixelRatio, high, 12 * devicePixelRatio, low - high);
  u.ctx.restore();
}

/** Resize with the box; uPlot needs pixels. */
function fit(box, chart, height) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    if (box.clientWidth === width || box.clientWidth === 0) return;
    width = box.clientWidth;
    chart.setSize({ width, height: height() });
  });
  observer.observe(box);
  return observer;
}

/** The x axis of ticks or times. */
function across(timed) {
  return axis({
    space: timed ? 90 : 54,
    gap: 9,
    size: timed ? 48 : 34,
    values: (u, splits, index, space, increment) => (timed ? timeLabels(splits, increment) : splits.map(axisNumber)),
    incrs: timed ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000],
  });
}

/** A line at zero, where it is inside the chart. */
function zeroLine(u) {
  const { min, max } = u.scales.y;
  if (!(min < 0 && max > 0)) return;
  const y = Math.round(u.valToPos(0, "y", true)) + 0.5;
  u.ctx.save();
  u.ctx.strokeStyle = colour("muted");
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.setLineDash([]);
  u.ctx.beginPath();
  u.ctx.moveTo(u.bbox.left, y);
  u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
  u.ctx.stroke();
  u.ctx.restore();
}

/** Dotted lines at the numbers that have notes, such as those of a week with a missing day. */
function notedLines(u, marks) {
  u.ctx.save();
  u.ctx.strokeStyle = colour("muted");
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const place of marks) {
    const x = Math.round(u.valToPos(u.data[0][place], "x", true)) + 0.5;
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
  }
  u.ctx.restore();
}

/** The places of rows or spans with notes, for `notedLines`. */
export const placesNoted = (rows) => rows.flatMap((row, place) => (row.note ? [place] : []));

/** Two cells, each a line with its band; `left` and `right` are columns of `spanColumns`, `noted` the x of numbers with notes. */
export function compareChart(box, left, right, noted = []) {
  const timed = left.timed && right.timed;
  const data = uPlot.join([left.data, right.data]); // undefined where only the other has an x, null where a number is missing: a gap
  const height = () => (innerWidth < 640 ? 240 : 300);
  const edge = (tint) => ({ stroke: () => colour(`curve-${tint}`), width: 0.6, points: NO_POINTS });
  const line = (tint, dash) => ({ stroke: () => colour(`curve-${tint}`), dash, width: 2, points: { show: (u) => u.data[0].length === 1 } });
  const shade = (tint) => () => `color-mix(in srgb, ${colour(`curve-${tint}`)} 18%, transparent)`;
  const chart = new uPlot(
    {
      width: box.clientWidth || 600,
      height: height(),
      legend: { show: false },
      tzDate: zoned,
      padding: [12, 40, 0, 0],
      cursor: { show: false },
      scales: { x: { time: timed } },
      bands: [{ series: [1, 2], fill: shade(1) }, { series: [4, 5], fill: shade(2) }],
      series: [{}, edge(1), edge(1), line(1, SOLID), edge(2), edge(2), line(2, DASHED)],
      axes: [across(timed), axis({ size: 64, values: (u, splits) => splits.map(axisNumber) })],
      hooks: { draw: [zeroLine, (u) => notedLines(u, noted.map((x) => u.data[0].indexOf(x)))] },
    },
    data,
    box,
  );
  const observer = fit(box, chart, height);
  return {
    chart,
    destroy() {
      observer.disconnect();
      chart.destroy();
    },
  };
}

/** The large chart of one cell: value with its interval as a band. `onCursor(index or null)` follows the pointer. */
export function focusChart(box, timed, onCursor) {
  let marks = [];
  const height = () => (innerWidth < 640 ? 240 : 330);
  const options = {
    width: box.clientWidth || 600,
    height: height(),
    legend: { show: false },
    padding: [12, 40, 0, 0],
    tzDate: zoned,
    cursor: { drag: { x: false, y: false }, y: false, points: { size: 8 } },
    scales: { x: { time: timed } },
    bands: band(),
    series: [
      {},
      EDGE,
      EDGE,
      { stroke: () => colour("accent"), width: 2, points: { show: (u) => u.data[0].length === 1, size: 7 } },
    ],
    axes: [
      across(timed),
      axis({ size: 64, values: (u, splits) => splits.map(axisNumber) }),
    ],
    hooks: {
      draw: [single, zeroLine, (u) => notedLines(u, marks)],
      setCursor: [(u) => onCursor(u.cursor.left >= 0 ? u.cursor.idx : null)],
    },
  };
  const chart = new uPlot(options, [[], [], [], []], box);
  const observer = fit(box, chart, height);
  return {
    chart,
    timed,
    /** Draw these columns; `noted` are the places of numbers with notes. */
    set(data, noted = []) {
      marks = noted;
      chart.setData(data);
    },
    noted: () => marks,
    /** Put the cursor on a data point, as the pointer would. */
    point(index) {
      chart.setCursor({ left: chart.valToPos(chart.data[0][index], "x"), top: 10 });
    },
    destroy() {
      observer.disconnect();
      chart.destroy();
    },
  };
}

/** A small chart without axes for the overview. */
export function tinyChart(box) {
  const chart = new uPlot(
    {
      width: box.clientWidth || 160,
      height: 48,
      legend: { show: false },
      cursor: { show: false },
      padding: [3, 2, 3, 2],
      scales: { x: { time: false } },
      bands: band(),
      series: [{}, EDGE, EDGE, { stroke: () => colour("accent"), width: 1.5, points: NO_POINTS }],
      axes: [{ show: false }, { show: false }],
    },
    [[], [], [], []],
    box,
  );
  const observer = fit(box, chart, () => 48);
  return {
    chart,
    set: (data) => chart.setData(data),
    destroy() {
      observer.disconnect();
      chart.destroy();
    },
  };
}

/** Colour and dash of the known mechanisms; those that jump most from tick to tick are solid, which stays readable. */
const STYLES = {
  bridge: [4, SOLID],
  balanced: [1, SOLID],
  optimal: [3, DASHED],
  normalized: [2, DASHED],
  "square-root": [5, DOTTED],
  "square-root, paper": [5, DASHED],
  unbounded: [4, MIXED],
  anytime: [6, DASHED],
  "pure-tree": [5, SOLID],
  honaker: [3, SOLID],
  "honaker-full": [3, DOTTED],
  "binary-tree": [6, SOLID],
  fresh: [2, SOLID],
};

/** Colour and dash of a curve, never colour alone; `n` chooses for a name that is not in the list. */
export function curveStyle(name, n) {
  const known = STYLES[name.replace(/'s .*$/, "")];
  const [tint, dash] = known ?? [(n % 6) + 1, DASHES[n % DASHES.length]];
  return { colour: `curve-${tint}`, dash };
}

/** Curves of std over ticks. `curves`: {ticks, std, style, faint}; `floor` is the lower bound. */
export function planChart(box, curves, floor, logarithmic) {
  const height = () => (innerWidth < 640 ? 280 : 380);
  const tables = curves.map((curve) => [curve.ticks, curve.std]);
  const data = uPlot.join(tables);
  data.push(data[0].map(() => floor));
  const scale = logarithmic ? { distr: 3 } : {};
  const line = (style, width) => ({ stroke: () => colour(style.colour), dash: style.dash, width, points: NO_POINTS, spanGaps: true });
  // On a logarithmic axis only 1, 2 and 5 of each decade (x: only the decades) get a line and a label.
  const leading = (value) => Number(value.toExponential(6).split("e")[0]);
  const keep = (digits) => (u, splits) => splits.map((value) => (!logarithmic || digits.includes(leading(value)) ? value : null));
  const labels = (u, splits) => splits.map((value) => (value === null ? "" : axisNumber(value)));
  const lines = (digits) => ({ filter: keep(digits), grid: { stroke: () => colour("grid"), width: 1, filter: keep(digits) } });
  const chart = new uPlot(
    {
      width: box.clientWidth || 600,
      height: height(),
      legend: { show: false },
      cursor: { show: false },
      padding: [12, 16, 0, 0],
      scales: {
        x: { time: false, ...scale, range: (u, low, high) => [low, high] },
        y: logarithmic ? { ...scale, range: (u, low, high) => [low * 0.8, high * 1.15] } : { range: (u, low, high) => [0, high * 1.05] },
      },
      series: [{}, ...curves.map((curve) => line(curve.style, curve.best ? 2.8 : 1.5)), { stroke: () => colour("ink"), dash: [3, 5], width: 1.4, points: NO_POINTS }],
      axes: [
        axis({ label: tickWord(false), labelFont: FONT, labelSize: 20, size: 26, space: 60, values: labels, ...lines([1]) }),
        axis({ size: 64, values: labels, ...lines([1, 2, 5]) }),
      ],
    },
    data,
    box,
  );
  const observer = fit(box, chart, height);
  return {
    chart,
    destroy() {
      observer.disconnect();
      chart.destroy();
    },
  };
}
