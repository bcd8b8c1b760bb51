"""Fitness of event files for a declared stream: what is wrong in the rows, what becomes of late
ones, which keys are smaller than their error, and what caps leave out.

For the operator alone: every number is exact. Rows are read once, into a table that DuckDB may
spill into the private scratch folder; `event_sql.py` says what is wrong with a row, as in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evercount.declarations.cautions import late_text
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import settle
from evercount.declarations.view_names import noise_views
from evercount.engine.build import LAST, PER_TICK, RUNNING, view_width
from evercount.engine.worst_errors import REFERENCE_TICKS, worst_std
from evercount.errors import ParameterError
from evercount.files.count_rows import unreadable
from evercount.files.event_sql import REASONS, columns_of, is_keyed, open_files, placed
from evercount.files.source import Source, linked_names, open_sources, with_one_line_end
from evercount.queries.sensitivities import rows_of
from evercount.queries.user_cap import Caps

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_LISTED = 8  # unknown keys, keys below their error and late ticks that are listed
UNPARSED = "not a row of this file"
NO_KEY = "(none)"
OTHER = "other"
ALL_EVENTS = "all events"


@dataclass(frozen=True)
class FileRows:
    """The rows of one file. `repeated` are equal to an earlier row, in this file or before it;
    `bad` are refused by a run; `first` and `last` are the earliest and the latest time."""

    file: str
    rows: int
    bad: int
    repeated: int
    first: str | None
    last: str | None


@dataclass(frozen=True)
class UnknownKeys:
    """Rows whose key is not in the list, how many such keys there are, and the most frequent."""

    rows: int
    keys: int
    first: dict[str, int]
    counted_as_other: bool


@dataclass(frozen=True)
class Lateness:
    """Rows that would be late if the files were in order of arrival and each tick were published as
    soon as it may close. `moves` lists the begin of their tick, that of the tick in which they
    count (None: they are not counted) and their number, most rows first."""

    rows: int
    rule: str
    moves: list[tuple[str, str | None, int]]


@dataclass(frozen=True)
class SmallKeys:
    """Keys whose expected number in a view is below its standard deviation: the numbers, smallest
    first, and how many such keys there are, of how many."""

    view: str
    std: float
    below: int
    keys: int
    smallest: dict[str, float]


@dataclass(frozen=True)
class CapShares:
    """Events of each month, and how many of them count under each cap alone, and under all."""

    months: list[str]
    events: list[int]
    counted: dict[str, list[int]]

    def share_dropped(self, cap: str) -> list[float]:
        """Return the share of each month's events that a cap drops."""
        pairs = zip(self.counted[cap], self.events, strict=True)
        return [1 - counted / events for counted, events in pairs]


ALL_CAPS = "as declared"


@dataclass(frozen=True)
class Fitness:
    """How fit files are to be published as a declared stream. As sensitive as the events.

    Args:
        now: The present time, before which rows count.
        files: The rows of each file that is read.
        linked: Names of a file that is named before, each with its first name; read once.
        equal: Files with the same rows as an earlier one.
        repeated: Rows that are equal to an earlier row in every column.
        bad: Rows that a run refuses, by reason.
        future: Rows later than `now`.
        before_start: Rows before the start of the stream.
        after_end: Rows after its last tick.
        no_person: Rows without a person; None if the declaration names no column of persons.
        unknown: Rows with a key that is not in the list; None if there is no list.
        late: Rows whose tick was closed when they arrived.
        small: Keys below their error, by view.
        caps: What caps leave out; None if persons are not protected.
    """

    now: str
    files: list[FileRows]
    linked: dict[str, str]
    equal: dict[str, str]
    repeated: int
    bad: dict[str, int]
    future: int
    before_start: int
    after_end: int
    no_person: int | None
    unknown: UnknownKeys | None
    late: Lateness
    small: list[SmallKeys]
    caps: CapShares | None

    @property
    def rows(self) -> int:
        """How many rows all files have together."""
        return sum(file.rows for file in self.files)

    def facts(self) -> dict[str, Any]:
        """The report for programs."""
        return {"rows": self.rows, **asdict(self)}


def inspect_files(
    names: tuple[str, ...], declaration: StreamDeclaration, now: int, delimiter: str, scratch: Path
) -> Fitness:
    """Read the files as a run would, and report how fit they are. Nothing is written but into
    `scratch`. Test: tests/fitness/test_report.py, against plain Python."""
    columns_of(declaration)
    if declaration.schedule.start is None:
        raise ParameterError(
            "`start` is missing, without which no row has a tick: name the start of the stream"
        )
    linked = linked_names(names)
    distinct = tuple(dict.fromkeys(linked.get(name, name) for name in names))
    sources = with_one_line_end(open_sources(distinct, scratch, delimiter), scratch, "whole")
    with open_files(sources, declaration, scratch) as (connection, keys):
        rows = _Rows(connection, sources, declaration, keys, now)
        rows.read()
        return Fitness(
            now=declaration.schedule.show(now),
            files=rows.by_file(),
            linked=linked,
            equal=rows.equal_files(),
            repeated=rows.repeated(),
            bad=rows.bad(),
            future=rows.number(f"us > {now}"),
            before_start=rows.number(f"us < {declaration.first_begin}"),
            after_end=rows.number(f"place IS NULL AND us <= {now}"),
            no_person=rows.without_person(),
            unknown=rows.unknown_keys(),
            late=rows.late(),
            small=rows.small_keys(),
            caps=rows.cap_shares(),
        )


@dataclass(frozen=True)
class _Rows:
    """The table `row` of a connection: file, digest, us, place, cell, k and who of each row that
    can be parsed, in the order of the files."""

    connection: DuckDBPyConnection
    sources: tuple[Source, ...]
    declaration: StreamDeclaration
    keys: list[str]
    now: int

    def read(self) -> None:
        """Make the table."""
        schedule = self.declaration.schedule
        stop = max(2, schedule.tick_of(self.now) + 1)
        if self.declaration.horizon is not None:
            stop = min(stop, self.declaration.horizon + 1)
        self.connection.execute(
            "CREATE TEMP TABLE row (file INTEGER, digest UBIGINT, us BIGINT, place BIGINT, "
            "cell INTEGER, k VARCHAR, who VARCHAR)"
        )
        for number, source in enumerate(self.sources):
            rows = placed((source,), self.declaration, 1, stop, "n, digest, k")
            self.connection.execute(
                f"INSERT INTO row SELECT {number}, digest, us, place, cell, k, who FROM ({rows})"
            )
        unreadable(self.connection, self.sources)  # refuses what cannot be read on

    @property
    def _event(self) -> str:
        """SQL: whether a row is an event that has happened."""
        return f"place > 0 AND us <= {self.now}"

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def number(self, condition: str) -> int:
        """Count the rows that fulfil a condition."""
        ((rows,),) = self._fetch(f"SELECT count(*) FROM row WHERE {condition}")
        return int(rows)

    @cached_property
    def _unparsed(self) -> Mapping[int, int]:
        """The number of lines of each file that DuckDB could not parse."""
        if all(source.typed for source in self.sources):
            return {}
        lines = dict(
            self._fetch(
                "SELECT file_path, count(DISTINCT line_byte_position) FROM reject_errors JOIN "
                "reject_scans USING (scan_id, file_id) GROUP BY file_path"
            )
        )
        places = {str(source.path.absolute()): at for at, source in enumerate(self.sources)}
        return {places[path]: int(number) for path, number in lines.items()}

    @cached_property
    def _repeated(self) -> Mapping[int, int]:
        """The number of rows of each file that are equal to an earlier row."""
        groups = "SELECT file, digest, count(*) AS rows FROM row GROUP BY file, digest"
        first = "SELECT *, min(file) OVER (PARTITION BY digest) AS first FROM " + f"({groups})"
        rows = self._fetch(
            f"SELECT file, sum(rows - (file = first)::INTEGER)::BIGINT FROM ({first}) GROUP BY file"
        )
        return dict(rows)

    def repeated(self) -> int:
        """Count the rows that are equal to an earlier one."""
        return sum(self._repeated.values())

    def by_file(self) -> list[FileRows]:
        """Describe each file."""
        read = {
            file: facts
            for file, *facts in self._fetch(
                "SELECT file, count(*), count(*) FILTER (place < 0), min(us), max(us) FROM row "
                "GROUP BY file"
            )
        }
        files = []
        for number, source in enumerate(self.sources):
            rows, bad, first, last = read.get(number, (0, 0, None, None))
            unparsed = self._unparsed.get(number, 0)
            files.append(
                FileRows(
                    source.name,
                    rows + unparsed,
                    bad + unparsed,
                    self._repeated.get(number, 0),
                    self._shown(first),
                    self._shown(last),
                )
            )
        return files

    def _shown(self, instant: int | None) -> str | None:
        """Show the time of a row, without an error where a row is from another age."""
        if instant is None:
            return None
        try:
            return self.declaration.schedule.show(instant)
        except ParameterError:
            return "beyond the year 9999"

    def equal_files(self) -> dict[str, str]:
        """Name the files that have the same rows as an earlier one, in any order and packing."""
        contents = self._fetch(
            "SELECT file, count(*), bit_xor(digest), sum(digest::HUGEINT) FROM row GROUP BY file "
            "ORDER BY file"
        )
        first: dict[tuple[Any, ...], int] = {}
        equal = {}
        for file, *content in contents:
            before = first.setdefault(tuple(content), file)
            if before != file:
                equal[self.sources[file].name] = self.sources[before].name
        return equal

    def bad(self) -> dict[str, int]:
        """Count the rows that a run refuses, by the reason that it gives."""
        reasons = self._fetch(
            "SELECT -place, count(*) FROM row WHERE place < 0 GROUP BY place ORDER BY place DESC"
        )
        bad = {REASONS[reason]: rows for reason, rows in reasons}
        unparsed = sum(self._unparsed.values())
        if unparsed:
            bad[UNPARSED] = unparsed
        return bad

    def without_person(self) -> int | None:
        """Count the rows without a person."""
        if columns_of(self.declaration).user is None:
            return None
        return self.number(f"coalesce(who, '') = '' AND {self._parsed}")

    @property
    def _parsed(self) -> str:
        """SQL: whether a row is an object of JSON, or of another format."""
        return "coalesce(place, 0) <> -9"

    def unknown_keys(self) -> UnknownKeys | None:
        """Count the keys that are not in the list."""
        if not is_keyed(self.declaration) or self.declaration.query.discovery is not None:
            return None
        keys, others = rows_of(self.declaration.query).keys
        unknown = "cell IS NULL"
        if others:
            unknown = f"cell = {len(keys)}"
        groups = (
            f"SELECT coalesce(k, '{NO_KEY}') AS k, count(*) AS rows FROM row "
            f"WHERE {unknown} AND {self._parsed} GROUP BY ALL"
        )
        ((number, rows),) = self._fetch(
            f"SELECT count(*), coalesce(sum(rows), 0)::BIGINT FROM ({groups})"
        )
        first = self._fetch(f"{groups} ORDER BY rows DESC, k LIMIT {MOST_LISTED}")
        return UnknownKeys(rows, number, dict(first), bool(others))

    def late(self) -> Lateness:
        """Find the rows that stand after one by which their tick may close."""
        declaration = self.declaration
        schedule = declaration.schedule
        seen = f"CASE WHEN us BETWEEN {declaration.first_begin} AND {self.now} THEN us END"
        # in the order of the table: without ORDER BY, DuckDB computes the window row by row
        ordered = (
            f"SELECT place, us, max({seen}) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT "
            "ROW) AS latest FROM row"
        )
        open_tick = schedule.sql_tick(f"(latest - {declaration.waits})")
        moved = (
            f"SELECT place, {open_tick} AS open FROM ({ordered}) WHERE {self._event} AND latest - "
            f"{declaration.waits} >= {declaration.first_begin}"
        )
        groups = (
            f"SELECT place, open, count(*) AS rows FROM ({moved}) WHERE open > place GROUP BY ALL"
        )
        if declaration.late == "drop":
            groups = (
                "SELECT place, NULL AS open, sum(rows)::BIGINT AS rows FROM "
                f"({groups}) GROUP BY ALL"
            )
        elif declaration.revise_for is not None:
            oldest = f"open - place > {declaration.revise_for}"
            groups = (
                f"SELECT place, CASE WHEN {oldest} THEN NULL ELSE place END AS open, "
                f"sum(rows)::BIGINT AS rows FROM ({groups}) GROUP BY ALL"
            )
        ((rows,),) = self._fetch(f"SELECT coalesce(sum(rows), 0)::BIGINT FROM ({groups})")
        most = self._fetch(f"{groups} ORDER BY rows DESC, place, open LIMIT {MOST_LISTED}")
        moves = []
        for place, where, number in most:
            counted_in = None
            if where is not None:
                counted_in = self._tick_name(where)
            moves.append((self._tick_name(place), counted_in, number))
        return Lateness(rows, late_text(declaration), moves)

    def _tick_name(self, tick: int) -> str:
        """Name a tick by the day on which it begins, or by its begin."""
        schedule = self.declaration.schedule
        begin = schedule.show(schedule.start_of(tick))
        if schedule.calendar:
            return begin[:10]
        return begin

    def small_keys(self) -> list[SmallKeys]:
        """Compare what each key has on average in a view with the error of the view."""
        declaration = self.declaration
        rows = rows_of(declaration.query)
        ended = declaration.ended(self.now)
        counts_keys = set(rows.columns) <= {"key"} and declaration.query.people is None
        if not counts_keys or not ended or declaration.revise_for is not None:
            return []
        names = [ALL_EVENTS]
        if is_keyed(declaration):
            names = [*self.keys]
            if rows.keys[1]:
                names.append(OTHER)
        counts = dict(
            self._fetch(
                f"SELECT cell, count(*) FROM row WHERE {self._event} AND place <= {ended} "
                "GROUP BY cell"
            )
        )
        settled = settle(declaration)
        model = settled.build(replay=True)._errors
        views = noise_views(declaration.views, declaration.schedule) or settled.noise_for
        last = declaration.horizon or REFERENCE_TICKS
        weights = declaration.query.parameters().get("weights", {})
        small = []
        for view in views:
            if view not in (RUNNING, PER_TICK) and LAST.fullmatch(view) is None:
                continue
            width = view_width(view)
            ticks = ended if width is None else min(width, ended)
            std = worst_std(model, width, last)
            means = {name: counts.get(cell, 0) * ticks / ended for cell, name in enumerate(names)}
            below = sorted(
                (mean, name) for name, mean in means.items() if mean < std / weights.get(name, 1)
            )
            smallest = {name: mean for mean, name in below[:MOST_LISTED]}
            small.append(SmallKeys(view, std, len(below), len(names), smallest))
        return small

    def cap_shares(self) -> CapShares | None:
        """Count the events of each month that each cap leaves."""
        declaration = self.declaration
        tried = _caps_to_try(declaration)
        if columns_of(declaration).user is None or not tried:
            return None
        events = "count(*)"
        query = declaration.query
        if query.people is not None and not rows_of(query).repeats:
            events = "count(DISTINCT cell)"  # a person counts once in a tick, under each key
        self.connection.execute(
            f"CREATE TEMP TABLE visit AS SELECT who, place, {events} AS events FROM row WHERE "
            f"{self._event} GROUP BY who, place"
        )
        self._make_spans()
        counted = {}
        months: list[tuple[str, int]] = []
        for name, caps in tried.items():
            rows = self._fetch(
                "SELECT month, sum(events)::BIGINT, sum(counted)::BIGINT FROM "
                f"({_counted_sql(caps)}) GROUP BY month ORDER BY month"
            )
            months = [(month, number) for month, number, _ in rows]
            counted[name] = [number for _, _, number in rows]
        return CapShares([month for month, _ in months], [number for _, number in months], counted)

    def _make_spans(self) -> None:
        """Make the table `span`: the month and the period of each tick that has events."""
        schedule = self.declaration.schedule
        caps = self.declaration.user_caps
        period_of: Callable[[int], int] = getattr(caps, "period_of", lambda tick: 0)
        ticks = [tick for (tick,) in self._fetch("SELECT DISTINCT place FROM visit")]
        self.connection.execute(
            "CREATE TEMP TABLE span AS SELECT unnest(?::BIGINT[]) AS place, unnest(?::VARCHAR[]) "
            "AS month, unnest(?::BIGINT[]) AS period",
            [
                ticks,
                [schedule.show(schedule.start_of(tick))[:7] for tick in ticks],
                [period_of(tick) for tick in ticks],
            ],
        )


def _caps_to_try(declaration: StreamDeclaration) -> dict[str, Caps]:
    """Name the declared caps, each alone, and all together."""
    budget = declaration.budget
    whole = Caps.of(budget)
    if whole == Caps():
        return {}
    alone = {
        f"max_events {whole.events}": Caps(events=whole.events),
        f"max_per_tick {whole.per_tick}": Caps(per_tick=whole.per_tick),
        f"max_ticks {whole.ticks}": Caps(ticks=whole.ticks),
    }
    used = {name: caps for name, caps in alone.items() if caps != Caps()}
    if len(used) < 2:
        return {ALL_CAPS: whole}
    return {ALL_CAPS: whole, **used}


def _counted_sql(caps: Caps) -> str:
    """SQL: month, events and counted events of each person in each tick, by `Caps.rooms`."""
    each = "events"
    if caps.per_tick is not None:
        each = f"least(events, {caps.per_tick})"
    counted = each
    if caps.events is not None:
        counted = f"greatest(0, least({each}, {caps.events} - before))"
    if caps.ticks is not None:
        counted = f"CASE WHEN turn <= {caps.ticks} THEN {counted} ELSE 0 END"
    return (
        f"SELECT month, events, {counted} AS counted FROM (SELECT month, events, row_number() OVER "
        f"turns AS turn, sum({each}) OVER turns - {each} AS before FROM visit JOIN span USING "
        "(place) WINDOW turns AS (PARTITION BY who, period ORDER BY place ROWS UNBOUNDED "
        "PRECEDING))"
    )
