"""One run of `evercount release`: events file → counts → stream → committed release file.

Which ticks a run releases is decided by the public clock alone: those that have ended by `now` (and by `end`), up to
the horizon. The rows have no say in it. If the last event decided, the length of the output would reveal it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from evercount._validate import stated
from evercount.engine.stream import Stream
from evercount.errors import EvercountError, HorizonReached, InputError, ParameterError, StoreError
from evercount.files.bad_rows import FEW, Reject, find_rejects, write_rejects
from evercount.files.count_rows import Counts, Spec, count
from evercount.files.run_state import Places, Spent, State, archive, commit, discard, locked, read_state
from evercount.files.sink import Block, output_kind, parquet_modules, write_releases
from evercount.files.source import Prefix, Source, freeze, open_source
from evercount.privacy import Budget
from evercount.privacy.composition import check_same_unit, composed_epsilon

NUMBERS = 1 << 17
"""So many published numbers are written at a time."""
CHARTS = (".png", ".svg", ".pdf")

Progress = Callable[[str, int, int], None]
"""What is being done, how many ticks of it are done, of how many (0: not known)."""


@dataclass(frozen=True)
class Job:
    """What one run is asked to do."""

    file: str
    spec: Spec
    budget: Budget
    out: str
    now: int
    end: int | None = None
    horizon: int | None = None
    factorization: str | None = None
    state: str | None = None
    rejects: str | None = None
    plot: str | None = None
    skip_bad: bool = False
    new_noise_stream: bool = False
    delimiter: str = ","
    level: float = 0.95


@dataclass(frozen=True)
class Outcome:
    """What a run has done: public, but for the bad rows."""

    first: int
    last: int
    """1-based ticks released by this run; last < first where no tick had ended."""
    horizon: int | None
    guarantee: str
    places: Places
    composed: str | None
    archived: tuple[Path, ...]
    bad: int
    shown: tuple[Reject, ...]
    next_end: str
    """When the next tick ends."""


class BadRows(InputError):
    """Bad rows, and no leave to skip them; nothing was published. `bad` is their number, `shown` are the first."""

    def __init__(self, name: str, bad: int, shown: tuple[Reject, ...]) -> None:
        self.bad, self.shown = bad, shown
        listed = "".join(f"\n  {reject}" for reject in shown)
        more = f"\n  … and {bad - len(shown)} more" if bad > len(shown) else ""
        super().__init__(
            f"{name} has {bad} bad {'row' if bad == 1 else 'rows'}; nothing was published:{listed}{more}\nMend them, "
            "or leave them out with --skip-bad; --rejects FILE writes all of them to a file."
        )


def release_file(
    job: Job,
    progress: Progress | None = None,
    stdin: IO[bytes] | None = None,
    open_stream: Callable[..., Stream] = Stream,
) -> Outcome:
    """Count the file, release the ticks that have ended, and publish them, or raise with nothing changed.

    `open_stream` opens a new stream from (query, budget, horizon, factorization). Audits pass one with a fixed secret.

    Guarantee. All runs with one state together are one `Stream`, so its guarantee holds for all that they publish: a
    tick is released once (`journal.py`), from totals in which every event counts once (`counting.py`). Ticks are
    chosen by the clock, not by the data. What is not protected: that a run failed, and what it says about bad rows;
    these are for the operator. Tests: tests/cli/test_cli_release.py::test_runs_in_pieces_are_one_run.
    """
    tell = progress or (lambda what, done, total: None)
    kind = output_kind(job.out)
    places = Places.of(job.out, job.state)
    _check_paths(job, places)
    _check_extras(job)
    with _interruptible(), locked(places) as scratch:
        state = read_state(places)
        kept: tuple[Path, ...] = ()
        earlier = () if state is None else state.earlier
        if job.new_noise_stream and state is not None:
            old = Stream.restore(state.stream)
            earlier = (*earlier, Spent(old.budget.to_dict(), old.numeric_delta))
            fresh = True
        else:
            fresh = state is None
        if state is not None and not fresh:
            _check_same(state.parameters, parameters(job))
            stream = Stream.restore(state.stream)
        else:
            stream = open_stream(job.spec.built, job.budget, job.horizon, job.factorization)
        composed = compose_sentence(earlier, Spent(stream.budget.to_dict(), stream.numeric_delta)) if earlier else None
        first, last = _due(job, stream)
        before = None if fresh or state is None else state
        next_end = job.spec.clock.show(job.spec.clock.start_of(last + 1))
        source = open_source(job.file, scratch, job.delimiter, stdin)
        tell("counting", 0, 0)
        counts, consumed, source = _counted(job, source, scratch, before, first, last)
        shown = _report_bad(job, source, scratch, counts.bad)
        if last > first:
            if job.new_noise_stream and state is not None:
                kept = tuple(archive(places, state))
            blocks = _blocks(stream, job, counts, first, last, tell)
            continued = None if before is None else places.output
            with _undone(places):
                write_releases(kind, continued, places.pending, blocks, stream.guarantee, header=before is None)
                users = {**(before.users if before else {}), **counts.users}
                made = State(parameters(job), stream.snapshot(), "", earlier, users, consumed)
            try:
                commit(places, made)
            except OSError as error:
                raise StoreError(f"the run could not be published: {error.strerror or error}") from error
        if job.plot is not None and places.output is not None and places.output.exists():
            _plot(job, places.output, stream)
        return Outcome(
            first + 1,
            last,
            job.horizon,
            stream.guarantee,
            places,
            composed,
            kept,
            counts.bad,
            shown,
            next_end,
        )


def parameters(job: Job) -> dict[str, Any]:
    """The public parameters that all runs of one stream must share, in words a difference can be told in."""
    spec = asdict(job.spec)
    clock = spec.pop("clock")
    shown = {
        **spec,
        "keys": list(job.spec.keys),
        "start": job.spec.clock.show(job.spec.clock.start),
        "tz": clock["zone"],
    }
    shown["every"] = f"{clock['length'] // 10**6} s" + (", by the calendar" if clock["calendar"] else "")
    budget = {key: value for key, value in job.budget.to_dict().items() if key != "max_events"}
    output = {"out format": output_kind(job.out), "to stdout": job.out == "-"}
    return {**shown, **budget, **output, "horizon": job.horizon, "factorization": job.factorization}


def compose_sentence(earlier: tuple[Spent, ...], now: Spent) -> str:
    """What all noise streams over the same data promise together.

    Guarantee. Gaussian and pure mechanisms compose (`privacy/composition.proof.md`), where μ belongs to the δ that
    remains after the numerical error; the numerical errors add up, each scaled from its own ε to the common one, and
    are paid from a part of the stated δ. Where they do not fit, ε and δ simply add up, which always holds. Test:
    tests/files/test_release_run.py::test_composed_promise.
    """
    spent = (*earlier, now)
    budgets = [Budget.from_dict(one.budget) for one in spent]
    for budget in budgets:
        check_same_unit(budgets[0], budget)
    epsilon, delta = sum(b.epsilon for b in budgets), sum(b.delta for b in budgets)
    most = max(b.delta for b in budgets)
    ideal = [b if b.pure else b.reserve(s.numeric_delta) for b, s in zip(budgets, spent, strict=True)]
    for share in (2.0**-20, 2.0**-6, 0.5):
        found = composed_epsilon(ideal, most * (1 - share))
        numeric = sum(
            s.numeric_delta * (1 + math.exp(min(found, 700.0))) / (1 + math.exp(min(b.epsilon, 700.0)))
            for b, s in zip(budgets, spent, strict=True)
        )
        if numeric <= most * share:
            epsilon, delta = found, most
            break
    return (
        f"Together with {len(earlier)} earlier noise stream{'s' * (len(earlier) > 1)} over the same data: "
        f"epsilon={stated(epsilon)}, delta={stated(delta)} (adjacency {budgets[0].adjacency}, unit "
        f"{budgets[0].unit})."
    )


# -- steps ------------------------------------------------------------------------------------------------------------


def _due(job: Job, stream: Stream) -> tuple[int, int]:
    """0-based [first, last): the ticks to release now."""
    if stream.horizon is not None and stream.tick >= stream.horizon:
        raise HorizonReached(stream.horizon)
    clock = job.spec.clock
    until = job.now if job.end is None else min(job.now, job.end)
    if job.end is not None and job.end <= clock.start:
        raise ParameterError(f"--end {clock.show(job.end)} is not after --start {clock.show(clock.start)}")
    last = max(clock.tick_of(until), stream.tick) if until > clock.start else stream.tick
    return stream.tick, last if stream.horizon is None else min(last, stream.horizon)


def _counted(
    job: Job, source: Source, scratch: Path, before: State | None, first: int, last: int
) -> tuple[Counts, Prefix | None, Source]:
    """The counts of the due ticks; with late=next also how much of the file they come from; and what was read.

    Why every row counts once. late=drop: a row counts in the run that releases the tick of its time, and a tick is
    released by one run. late=next: call a row new in the first run whose copy of the file holds it and which releases
    something. If the tick of its time is still open then, it counts with that tick, in whichever run releases it. If
    it is closed, the row counts in this run, in the first open tick; later runs find it inside the prefix that was
    consumed and its tick closed, and leave it alone. The prefix is advanced only by a commit, together with the ticks.
    """
    users = before.users if before else {}
    if job.spec.late == "drop":
        return count(source, job.spec, first, last, scratch, users=users), None, source
    if source.kind == "parquet" or job.file == "-":
        raise ParameterError(
            "--late next needs a CSV or JSONL file that only grows, to tell late rows from rows that were counted; "
            "use --late drop for Parquet and standard input"
        )
    whole, tail, consumed = freeze(source, scratch, before.consumed if before else None)
    return count(whole, job.spec, first, last, scratch, late=tail, users=users), consumed, whole


def _report_bad(job: Job, source: Source, scratch: Path, bad: int) -> tuple[Reject, ...]:
    """The first bad rows, all of them into --rejects; BadRows without --skip-bad."""
    found: Iterator[Reject] = find_rejects(source, job.spec, scratch) if bad else iter(())
    if job.rejects is not None:
        try:
            shown = tuple(write_rejects(Path(job.rejects), found))
        except OSError as error:
            raise StoreError(f"--rejects {job.rejects} cannot be written: {error.strerror}") from error
    else:
        shown = tuple(reject for reject, _ in zip(found, range(FEW), strict=False))
    if bad and not job.skip_bad:
        raise BadRows(source.name, bad, shown)
    return shown


def _blocks(stream: Stream, job: Job, counts: Counts, first: int, last: int, tell: Progress) -> Iterator[Block]:
    cells = stream.query.cells
    size = max(1, NUMBERS // cells)
    labels = tuple(stream.query.labels)
    for begin in range(first, last, size):
        ticks = range(begin, min(begin + size, last))
        values, std, half = [], [], []
        for tick in ticks:
            made = stream.step_totals(counts.row(tick, cells), tick + 1)
            values.append(made.values)
            std.append(made.std_all)
            half.append(made.half_widths(job.level))
            tell("releasing", tick + 1 - first, last - first)
        starts = [job.spec.clock.label(tick) for tick in ticks]
        yield Block([tick + 1 for tick in ticks], starts, labels, np.stack(values), np.stack(std), np.stack(half))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C inside DuckDB arrives as its RuntimeError; it means what it means elsewhere."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _undone(places: Places) -> Iterator[None]:
    """Remove the private files when a run ends before its commit, Ctrl-C included."""
    try:
        yield
    except OSError as error:
        discard(places)
        raise StoreError(f"the output cannot be written: {error.strerror or error}") from error
    except BaseException:
        discard(places)
        raise


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    differences = []
    for name in [*old, *(name for name in new if name not in old)]:
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        if name == "keys":
            differences.append("--keys holds other keys, or the same in another order")
        else:
            differences.append(f"{name} was {was!r} and is now {now!r}")
    if differences:
        raise ParameterError(
            "this is another stream than the one in the state: " + "; ".join(differences) + ". Use the parameters of "
            "before to continue it; --new-noise-stream starts again with these and adds to the spent budget"
        )


def _check_paths(job: Job, places: Places) -> None:
    """No two of the files may be the same."""
    named = {"the input": None if job.file == "-" else job.file, "--out": places.output, "--state": places.state}
    named |= {"--rejects": job.rejects, "--plot": job.plot}
    seen: dict[Path, str] = {}
    for what, name in named.items():
        if name is None:
            continue
        path = Path(name).resolve()
        if path in seen:
            raise ParameterError(f"{what} and {seen[path]} are the same file {name}: name different ones")
        seen[path] = what
        if what != "the input" and not path.parent.is_dir():
            raise ParameterError(f"{what} {name}: there is no folder {path.parent}")
        if what != "the input" and path.is_dir():
            raise ParameterError(f"{what} {name} is a directory: name a file")


def _check_extras(job: Job) -> None:
    """Refuse before the run what would fail after it: a missing library, a chart without a file to read."""
    if output_kind(job.out) == "parquet":
        parquet_modules()
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if job.out == "-":
            raise ParameterError("--plot needs --out FILE: the chart shows all ticks, read back from the output")
        if Path(job.plot).suffix.lower() not in CHARTS:
            raise ParameterError(f"--plot {job.plot!r}: the name must end in {', '.join(CHARTS)}")


def _plot(job: Job, output: Path, stream: Stream) -> None:
    """A chart of all released ticks, read back from the published file."""
    import duckdb

    from evercount.plotting import band_plot

    labels = tuple(stream.query.labels)[:8]
    reader = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[output_kind(job.out)]
    try:
        found = (
            duckdb.connect()
            .execute(
                f"SELECT tick, cell::VARCHAR AS cell, value, high - value AS half FROM {reader}(?) "
                "WHERE list_contains(?, cell::VARCHAR) ORDER BY tick",
                [str(output), list(labels)],
            )
            .fetchnumpy()
        )
    except duckdb.Error as error:
        raise StoreError(
            f"{output} is published; its chart could not be drawn: {str(error).splitlines()[0]}"
        ) from error
    ticks = np.unique(np.asarray(found["tick"], np.int64))
    shape = (len(ticks), len(labels))
    values, half = np.full(shape, np.nan), np.full(shape, np.nan)
    rows = np.searchsorted(ticks, np.asarray(found["tick"], np.int64))
    columns = np.asarray([labels.index(cell) for cell in found["cell"]], np.int64)
    values[rows, columns], half[rows, columns] = found["value"], found["half"]
    caption = f"band: {job.level:.0%} interval per number"
    target = Path(str(job.plot))
    half_made = target.with_name(f".new.{target.name}")
    try:
        band_plot(ticks, values, half, labels, caption, half_made)
        half_made.replace(target)
    except (OSError, ValueError) as error:
        raise EvercountError(f"{output} is published; its chart could not be written: {error}") from error
    finally:
        half_made.unlink(missing_ok=True)
