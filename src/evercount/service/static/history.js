// The releases of one stream that this page holds: a window of the newest ticks, in order, each once.

const MOST_NUMBERS = 120_000;
const NUMBERS_PER_REQUEST = 20_000;

/** How many ticks are worth holding for a stream with so many cells. */
export function ticksHeld(cells) {
  return Math.min(5000, Math.max(20, Math.floor(MOST_NUMBERS / Math.max(1, cells))));
}

/** How many ticks to ask for at a time. */
export function ticksAsked(cells) {
  return Math.min(500, Math.max(1, Math.floor(NUMBERS_PER_REQUEST / Math.max(1, cells))));
}

export class History {
  /** `nonnegative`: the numbers are never below zero, so the low end of their intervals is not either. `every`: there is a row for every tick. */
  constructor(labels, nonnegative = false, every = true) {
    this.labels = labels;
    this.every = every;
    this.nonnegative = nonnegative;
    this.most = ticksHeld(labels.length);
    this.rows = [];
  }

  get lastTick() {
    return this.rows.length ? this.rows[this.rows.length - 1].tick : 0;
  }

  get last() {
    return this.rows[this.rows.length - 1] ?? null;
  }

  /** "added"; "revised" for a newer number of a tick that is here, "known" for no newer one; "gap" when ticks are missing before it. */
  add(release) {
    if (this.rows.length && release.tick <= this.lastTick) {
      const at = this.rows.findIndex((row) => row.tick === release.tick);
      if (at < 0 || !(release.as_of > this.rows[at].as_of)) return "known";
      this.rows[at] = this.row(release);
      return "revised";
    }
    if (this.every && this.rows.length && release.tick !== this.lastTick + 1) return "gap";
    this.rows.push(this.row(release));
    if (this.rows.length > this.most + 64) this.rows.splice(0, this.rows.length - this.most);
    return "added";
  }

  /** A release as the page holds it; a number that is not final says so. */
  row(release) {
    const time = release.start === null || release.start === undefined ? NaN : Date.parse(release.start) / 1000;
    const low = this.nonnegative ? release.low.map((value) => Math.max(0, value)) : release.low;
    const open = release.revisions_left ? `not final, revised ${release.revisions_left} more times` : "";
    const note = [release.note, open].filter(Boolean).join("; ") || undefined;
    return { ...release, low, note, time: Number.isFinite(time) ? time : null };
  }

  /** True when the rows have start times that grow, so that the x axis can be time. */
  timed(rows) {
    return rows.every((row, i) => row.time !== null && (i === 0 || row.time > rows[i - 1].time));
  }

  /** Columns of a cell for a chart: [x, high, low, value] of the newest `count` ticks (0: all), and the rows. */
  columns(cell, count = 0) {
    const rows = count ? this.rows.slice(-count) : this.rows;
    const timed = rows.length > 0 && this.timed(rows);
    return {
      rows,
      timed,
      data: [
        rows.map((row) => (timed ? row.time : row.tick)),
        // null: a key that was not public yet
        rows.map((row) => row.high[cell] ?? null),
        rows.map((row) => row.low[cell] ?? null),
        rows.map((row) => row.values[cell] ?? null),
      ],
    };
  }
}
