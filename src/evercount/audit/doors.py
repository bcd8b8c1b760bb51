"""The interfaces of evercount as programs under audit, by name, and one replay of any of them with
all neighbours.

A `Stream` of the library shows its noisy sums before anything is computed from them.
`evercount release` reads a CSV of events and writes the published CSV; `release_batch` of Spark
takes a DataFrame and writes Parquet; the service has a module of its own. Other people's programs
are found by their import path.

Secrets are handed over in memory. That of `release` is also in its state file, as every stream's
is; that lies in a temporary folder, which is removed with everything in it when the run ends. The
Spark session is started once, on two threads of this machine, and reused; its noise follows from
the operator's secret in the environment and the public name of the run, which the audit's secret
chooses: so two runs with one secret have the same noise.
"""

from __future__ import annotations

import copy
import csv
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from evercount._validate import FloatArray, check_name
from evercount.audit.neighbour_pairs import Audited, neighbours, worst_pairs
from evercount.audit.replay import Claim, Data, Published, ReplayReport, no_progress, replay, search
from evercount.audit.universes import Universe, universe, universe_of_rows
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.engine.build import RUNNING
from evercount.engine.release import Release
from evercount.engine.stream import Stream
from evercount.errors import ParameterError
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_choice import EndlessBridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.factorizations.terrace import Terrace
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.mechanisms.laplace_noise import node_rate
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import OTHER, Query
from evercount.queries.sensitivities import protected_l1, rows_of


def parts_of(query: Query, pure: bool) -> FloatArray | None:
    """Compute the matrix that turns published numbers into parts with the noise of one cell each;
    None for cells themselves.

    Consistent trees and tables publish more numbers than they have independent ones, and a replay
    prices a difference by the covariance of the noise.

    **Guarantee.** With A the map from noisy sums to outputs and A = U·S·Vᵀ, published·V·S⁻¹ =
    sums·U: orthonormal combinations of cells, which hold all that is published. Test:
    tests/audit/test_replay_doors.py::test_parts_hold_all_that_is_published.
    """
    if query.discovery is not None:
        return None
    cells = np.eye(query.cells)
    zero = query.decode_run(1, 0 * cells[:1])
    outputs = query.decode_run(1, cells) - zero
    probe = np.arange(1.0, 1 + 3 * query.cells).reshape(3, query.cells)
    linear = query.publishing.why_no_views is None or query.outputs == query.cells
    linear = linear and np.allclose(query.decode_run(5, probe) - zero, probe @ outputs)
    if linear and outputs.shape == cells.shape and np.allclose(outputs, cells):
        return None
    if pure or not linear:
        raise ParameterError(
            f"{query!r} publishes numbers that are not linear maps of its noisy sums: audit it "
            "with --interface library"
        )
    _, size, right = np.linalg.svd(outputs)
    positive = size > 1e-9 * size.max()
    return np.asarray(right[: len(size)][positive].T / size[positive])


def published_table(
    query: Query, parts: FloatArray | None, releases: list[dict[str, float]]
) -> tuple[tuple[str, ...], FloatArray]:
    """Put releases into (labels, numbers) with independent noise in every column; 0 where a tick
    lacks a label."""
    labels = tuple(dict.fromkeys(label for row in releases for label in row))
    if query.discovery is not None:  # there `other` follows from the other numbers
        labels = tuple(label for label in labels if label != OTHER)
    rows = [[row.get(label, 0.0) for label in labels] for row in releases]
    values = np.asarray(rows).reshape(-1, len(labels))
    if parts is None:
        return labels, values
    return tuple(f"part {number}" for number in range(parts.shape[1])), values @ parts


class DoorProgram:
    """What the programs of all doors share: a query, a budget, ticks after which they stop and go
    on, and the claim."""

    door: ClassVar[str]
    universe: Universe
    declaration: StreamDeclaration

    def __init__(
        self,
        query: Query,
        budget: Budget,
        horizon: int | None = None,
        factorization: Any = None,
        *,
        restarts: tuple[int, ...] = (),
    ) -> None:
        self.query = query
        self.budget = budget
        self.horizon = horizon
        self.factorization = factorization
        self.restarts = restarts
        self.name = f"{self.door}: {query.name}"
        self.names_users = budget.unit == "user" and query.people is None
        self.claim = cache(lambda ticks: stream_claim(self.open(Secret.generate()), ticks))

    def open(self, secret: Secret) -> Stream:
        """The stream behind the program."""
        return self.declaration.build(secret=secret)


class LibraryProgram(DoorProgram):
    """The library door: `Stream.step`, tick by tick."""

    # Two streams with one secret reveal how their data differ: what an audit measures, on synthetic
    # data. They are no replays, so that snapshots are audited too; each is closed before the next
    # is opened.

    door = "library"

    def __init__(self, *declared: Any, events: Universe | None = None, **rest: Any) -> None:
        super().__init__(*declared, **rest)
        self.universe = universe(self.query) if events is None else events

    def open(self, secret: Secret) -> Stream:
        return Stream(self.query, self.budget, self.horizon, self.factorization, secret=secret)

    def run(self, data: Data, secret: Secret) -> Published:
        stream = self.open(secret)
        rows = list[FloatArray]()
        _tap(stream, rows)
        facts = []
        for tick, events in enumerate(data, 1):
            release = self._step(stream, tick, events)
            # the error of a ratio is computed from the published numbers and differs with them
            facts.append((release.tick, tuple(release.labels)))
            if tick in self.restarts:
                blob = stream.snapshot()
                stream.close()
                stream = Stream.restore(blob)
                _tap(stream, rows)
        values = np.concatenate([np.empty((0, self.query.cells)), *rows])
        labels = tuple(f"cell {cell}" for cell in range(self.query.cells))
        public_facts = (tuple(facts), stream.guarantee)
        stream.close()
        return Published(tuple(range(1, len(data) + 1)), labels, values, public_facts)

    def _step(self, stream: Stream, tick: int, events: tuple[Any, ...]) -> Release:
        """Give the stream the events of a tick, and their users where the budget protects users."""
        if not self.names_users:
            return stream.step(self.universe.tick(events), tick)
        users = [user for user, _ in events]
        plain_events = [event for _, event in events]
        batch = self.universe.tick(plain_events)
        if not isinstance(batch, list):  # the sum of a count's events forgets whose they are
            batch = plain_events
        return stream.step(batch, tick, users=users)


def _tap(stream: Stream, rows: list[FloatArray]) -> None:
    """Keep a copy of every noisy row: a stream shows them to `Query.decode_run` before
    post-processing."""
    query = stream.query
    observed_query = copy.copy(query)

    def keep(first_tick: int, noisy: FloatArray) -> Any:
        rows.append(noisy.copy())
        return query.decode_run(first_tick, noisy)

    vars(observed_query)["decode_run"] = keep
    stream._parameters = replace(stream._parameters, query=observed_query)


def stream_claim(stream: Stream, ticks: int) -> Claim:
    """Read the claim of a stream about its first ticks: L, and σ or the cost of a unit of Laplace
    noise."""
    query = stream.query
    budget = stream.budget
    factorization = stream.factorization
    if factorization.horizon is not None and ticks > factorization.horizon:
        raise ParameterError(f"{ticks} ticks are more than the horizon of {factorization.horizon}")
    left = factorization.dense(ticks)[0]
    if not budget.pure:
        return Claim(budget, left, sigma=stream.sigma)
    l1 = protected_l1(query, budget, stream.horizon)
    if isinstance(factorization, DigitTree):
        rate = node_rate(budget.epsilon, l1, query.grid, factorization.levels)
        return Claim(budget, left, cost=rate / query.grid)
    if isinstance(
        factorization, HybridTree | Bridge | EndlessBridge | Terrace
    ):  # L is in units of each node's share of ε
        return Claim(budget, left, cost=budget.epsilon / l1)
    raise ParameterError(
        f"the audit does not know how {factorization.name!r} shares ε among its nodes"
    )


START = "2026-01-01T00:00:00Z"


class FilesProgram(DoorProgram):
    """The file door: every query whose events can be rows, tick by tick an hour long."""

    door = "files"
    unordered = False  # whether rows come in no order, so that a column must give it

    def __init__(self, *declared: Any, **rest: Any) -> None:
        super().__init__(*declared, **rest)
        self.parts = parts_of(self.query, self.budget.pure)
        rows = self.query.rows
        if rows is None:
            raise ParameterError(
                f"--interface {self.door} takes queries whose events are rows, not {self.query!r}"
            )
        self.universe = universe_of_rows(self.query)
        columns = rows.columns
        self.levels = tuple(f"level {place + 1}" for place in range(rows.levels))
        names: dict[str, Any] = {name: name for name in ("key", "value", "user") if name in columns}
        if self.budget.unit == "user":
            names["user"] = "user"
            if self.unordered:
                names["order"] = "order"
        self.declaration = StreamDeclaration(
            "audited",
            self.query,
            self.budget,
            "1h",
            START,
            horizon=self.horizon,
            factorization=self.factorization,
            columns=Columns("time", levels=self.levels, **names),
            # the claim is about running sums; other views are differences of them
            noise_for=(RUNNING,),
        )

    def run(self, data: Data, secret: Secret) -> Published:
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            events = Path(folder, "events.csv")
            out = Path(folder, "out.csv")
            facts = []
            for ticks in sorted({*self.restarts, len(data)}):  # the file grows from run to run
                self._write_events(events, data[:ticks])
                now = self.declaration.schedule.start_of(ticks + 1)
                outcome = release_file(
                    Job(str(events), self.declaration, str(out), now, secret=secret)
                )
                facts.append(
                    (
                        outcome.run.first,
                        outcome.last,
                        outcome.published.guarantee,
                        outcome.run.composed,
                        outcome.next_end,
                    )
                )
            with out.open(encoding="utf-8", newline="") as file:
                return published_rows(self.query, self.parts, list(csv.DictReader(file)), facts)

    def _write_events(self, path: Path, data: Data) -> None:
        """Write the events as a CSV file."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("time", "key", "value", "user", *self.levels))
            writer.writerows(self._rows(data))

    def _rows(self, data: Data) -> Iterator[tuple[Any, ...]]:
        """Make rows of time, key, value, user and levels of the events."""
        schedule = self.declaration.schedule
        for tick, events in enumerate(data, 1):
            moment = schedule.show(schedule.start_of(tick))
            for event in events:
                if self.names_users:
                    yield moment, *self._row(*event)
                else:
                    yield moment, *self._row("", event)

    def _row(self, user: str, event: Any) -> tuple[Any, ...]:
        """Give key, value, user and levels of an event."""
        columns = rows_of(self.query).columns
        if self.query.people is not None and "key" in columns:
            person, key = event
            return key, "", person
        if self.query.people is not None:
            return "", "", event
        if self.levels:
            return "", "", user, *event
        if "key" not in columns:
            return "", event, user
        if isinstance(event, tuple):
            event = event[0]
        return event, "", user


def published_rows(
    query: Query, parts: FloatArray | None, rows: list[dict[str, Any]], run_facts: list[Any]
) -> Published:
    """Read the numbers of a table of releases, and everything in it that is not a noisy number."""
    by_tick: dict[int, dict[str, float]] = {}
    for row in rows:
        by_tick.setdefault(int(row["tick"]), {})[row["cell"]] = float(row["value"])
    labels, values = published_table(query, parts, list(by_tick.values()))
    facts = [(row["tick"], row["start"], row["cell"], row["std"]) for row in rows]
    # intervals of discovered keys are not symmetric, and follow from the numbers
    halves = []
    if not query.publishing.kept:
        halves = [round(float(row["high"]) - float(row["low"]), 6) for row in rows]
    public_facts = (tuple(facts), tuple(halves), tuple(run_facts))
    return Published(tuple(by_tick), labels, values, public_facts)


def open_door(
    door: str,
    query: Query,
    budget: Budget,
    horizon: int | None,
    factorization: str | None,
    restarts: tuple[int, ...],
) -> Audited:
    check_name("interface", door, ("library", "files", "service", "spark"))
    doors: dict[str, Callable[..., Audited]] = {
        "library": LibraryProgram,
        "files": FilesProgram,
        "spark": SparkProgram,
    }
    if door == "service":
        from evercount.audit.service_door import ServiceProgram

        doors[door] = ServiceProgram
    return doors[door](query, budget, horizon, factorization, restarts=restarts)


def find_program(path: str) -> Audited:
    """Import the program MODULE:NAME; a class or function of no arguments is called."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ParameterError(f"a program is named MODULE:NAME, not {path!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ParameterError(f"no program can be imported as {path!r}: {error}") from error
    finally:
        sys.path.pop(0)
    candidate: Audited = target
    if isinstance(target, type) or not hasattr(target, "run"):
        candidate = target()
    missing = [
        part for part in ("name", "claim", "run", "universe") if not hasattr(candidate, part)
    ]
    if missing:
        raise ParameterError(f"{path!r} is not an audit.Program: it lacks {', '.join(missing)}")
    return candidate


def run_replay(
    program: Audited,
    ticks: int,
    secret: Secret,
    examples: int,
    progress: Callable[[str, int], None] = no_progress,
) -> ReplayReport:
    """Replay the worst neighbours of the program's query, where it has one, and `examples` random
    ones."""
    budget = program.claim(ticks).budget
    query = getattr(program, "query", None)
    pairs = []
    if isinstance(query, Query):
        pairs = worst_pairs(program, query, ticks)
    first = replay(program, pairs, secret, lambda done: progress("worst neighbours", done))
    if not first.holds or not examples:
        return first
    if budget.unit == "user" and isinstance(query, Query) and query.people is not None:
        return first  # random neighbours would need users' names in events that already have them
    progress("random neighbours", 0)
    second = search(program, neighbours(program.universe, budget, ticks), secret, examples)

    def spent(report: ReplayReport) -> float:
        if report.worst is None:
            return -1.0
        return report.worst.spent

    worse = max(first, second, key=spent)
    return replace(worse, pairs=first.pairs + second.pairs, refused=first.refused + second.refused)


SCHEMA = "time string, key string, value double, user string, order bigint"


class SparkProgram(FilesProgram):
    """The Spark door: queries whose rows have a listed key or a value, in a batch of all ticks."""

    # A batch is not stopped halfway, so `restarts` changes nothing. Two cells or more are cut into
    # two shards.

    door = "spark"
    unordered = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.levels or self.query.people is not None or self.query.discovery is not None:
            raise ParameterError(
                f"--interface spark takes listed keys and values in one column, not {self.query!r}"
            )
        _session()

    def run_name(self, secret: Secret) -> str:
        """The public name of the batch that an audit's secret stands for."""
        return secret.derive("evercount/audit/spark").hex()[:32]

    def run(self, data: Data, secret: Secret) -> Published:
        from evercount.engine.write_table import parquet_modules
        from evercount.spark import release_batch

        _, parquet = parquet_modules()
        table = []
        for order, (time, key, value, user) in enumerate(self._rows(data)):
            number = None if value == "" else float(value)
            table.append((time, key, number, user, order))
        events = _session().createDataFrame(table, SCHEMA)
        until = self.declaration.schedule.start_of(len(data) + 1)
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            out = str(Path(folder, "out"))
            outcome = release_batch(
                events, self.declaration, out, until=until, shards=2, run=self.run_name(secret)
            )
            rows = parquet.read_table(out).to_pylist()
        labels = list(self.query.labels)
        rows.sort(key=lambda row: (row["tick"], labels.index(row["cell"])))
        facts = [outcome.ticks, outcome.shards, outcome.run, outcome.guarantee]
        return published_rows(self.query, self.parts, rows, facts)


@cache
def _session() -> Any:
    """Open the session of all audits of this process. Its secret is fresh unless the environment
    names one."""
    from evercount.spark import open_session
    from evercount.spark.session import FILE_VARIABLE, VARIABLE

    if not (os.environ.get(FILE_VARIABLE) or os.environ.get(VARIABLE)):
        # before the JVM starts: its Python workers inherit it
        os.environ[VARIABLE] = Secret.generate().hex()
    session = open_session("local[2]", "evercount audit").newSession()  # settings of its own
    session.conf.set("spark.sql.shuffle.partitions", "2")  # the tables are tiny
    return session
