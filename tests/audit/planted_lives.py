"""Privacy holes of the past, planted again one at a time: each is a change of the program that the
generator of lives must notice (`test_planted_lives.py`).

What lives cannot reach stands in `OUT_OF_REACH`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from evercount.declarations import declaration as declarations
from evercount.declarations import unit_periods
from evercount.engine import build, stream_snapshot, user_counting
from evercount.files import count_rows, open_keeper, release_run, renewal, resume_run
from evercount.files.ledger_entry import LedgerEntry
from evercount.files.state_file import StateFile
from evercount.files.store_keeper import StoreKeeper
from evercount.mechanisms import laplace_noise
from evercount.privacy import composition, ledger, time_range
from evercount.queries import ActiveUsers, DistinctUsers, Occupancy, people, sensitivities
from evercount.queries.base import Query
from evercount.queries.user_cap import Caps, Used
from evercount.store import declare_stream, spending, stream_life
from evercount.store.rollback_guard import HeadFile
from wrapped_functions import wrap

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Hole:
    """One hole: how it is planted, in which ways its lives are looked for, and how long at most."""

    plant: Plant
    ways: tuple[str, ...] = ("python",)
    quick: bool = True  # found within seconds
    pooled: bool = False  # many lives together show it


# -- what the engine asks for ----------------------------------------------------------------------


def without_period(kind: type[Query[Any]]) -> Plant:
    """The engine drops `period` where it asks for what a person changes."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        asked, asked_l1 = build.sensitivity_on, sensitivities.protected_l1

        def sensitivity_on(
            engine: Any, query: Any, adjacency: Any, unit: Any = "event", period: bool = False
        ) -> Any:
            return asked(engine, query, adjacency, unit, period and not isinstance(query, kind))

        def protected_l1(query: Any, budget: Any, horizon: int | None) -> float:
            if isinstance(query, kind):
                budget = replace(budget, period=None, period_ticks=None)
            return asked_l1(query, budget, horizon)

        patch.setattr(build, "sensitivity_on", sensitivity_on)
        patch.setattr(build, "protected_l1", protected_l1)

    return plant


def without_ticks(patch: pytest.MonkeyPatch) -> None:
    """Δ₁ of a person who counts in every tick is that of one tick."""
    asked = sensitivities.protected_l1

    def protected_l1(query: Any, budget: Any, horizon: int | None) -> float:
        own = query.people
        if own is None or not isinstance(query, ActiveUsers):
            return asked(query, budget, horizon)
        return float(own.user_l1_sensitivity(budget.adjacency))

    patch.setattr(build, "protected_l1", protected_l1)


def two_histories(patch: pytest.MonkeyPatch) -> None:
    """Occupancy of persons in periods: two histories under replace, where there are three."""
    wrap(patch, people, "_histories", lambda histories, *given: min(histories(*given), 2))


def replace_as_add_remove(patch: pytest.MonkeyPatch) -> None:
    """Another event in its place costs what its absence costs."""
    asked = sensitivities.protected_l1

    def protected_l1(query: Any, budget: Any, horizon: int | None) -> float:
        return asked(query, replace(budget, adjacency="add-remove"), horizon)

    patch.setattr(build, "protected_l1", protected_l1)


def one_lag_of_revisions(patch: pytest.MonkeyPatch) -> None:
    """A person has all caps anew at each revision of a day."""

    def cap(self: Any, ticks: Any, users: Any, first_tick: int, known: Any) -> Any:
        return list(ticks), user_counting.UserChanges()

    patch.setattr(user_counting.DayCaps, "cap", cap)


# -- caps ------------------------------------------------------------------------------------------


def caps_anew_in_each_piece(patch: pytest.MonkeyPatch) -> None:
    """What persons have used of their caps is forgotten between two calls of `run`."""
    cap = user_counting.UserCaps.cap

    def forgetful(self: Any, ticks: Any, users: Any, first_tick: int, known: Any) -> Any:
        return cap(self, ticks, users, first_tick, {})

    patch.setattr(user_counting.UserCaps, "cap", forgetful)


def caps_anew_in_each_run_of_files(patch: pytest.MonkeyPatch) -> None:
    """What persons have used of their caps is forgotten between two runs."""
    count = count_rows.count

    def forgetful(*given: Any, users: Any, **named: Any) -> Any:
        return count(*given, users={}, **named)

    patch.setattr(release_run, "count", forgetful)


def caps_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets what persons have used of their caps."""
    dump = stream_snapshot.dump_stream

    def forgetful(parameters: Any, state: Any) -> Any:
        return dump(parameters, replace(state, users={}))

    patch.setattr("evercount.engine.stream.dump_stream", forgetful)


def cap_by_content(patch: pytest.MonkeyPatch) -> None:
    """An event that says nothing new takes no place under the cap."""
    after = Caps.after

    def after_content(self: Any, used: Used, tick: int, counted: Any) -> Used:
        return after(self, used, tick, 0)

    patch.setattr(Caps, "after", after_content)


def caps_not_carried(patch: pytest.MonkeyPatch) -> None:
    """A renewal forgets the caps of queries that count persons."""
    used = renewal.used_caps

    def forgetful(declaration: Any, state: Any, stream: Any) -> Any:
        return {} if declaration.query.people is not None else used(declaration, state, stream)

    patch.setattr(resume_run, "used_caps", forgetful)


# -- which periods meet ----------------------------------------------------------------------------


def periods_are_not_cut(patch: pytest.MonkeyPatch) -> None:
    """A renewal in the middle of a period is free."""
    patch.setattr(time_range.TimeRange, "whole", property(lambda self: self))


def periods_begin_together(patch: pytest.MonkeyPatch) -> None:
    """Persons in periods are added up without asking when these begin."""
    patch.setattr(composition, "check_periods", lambda *given: None)
    for module in (ledger, spending):
        if hasattr(module, "check_periods"):
            patch.setattr(module, "check_periods", lambda *given: None)


def one_group(patch: pytest.MonkeyPatch) -> None:
    """A store adds up streams whose periods begin on different days."""
    patch.setattr(spending, "groups_of", lambda lines: [list(lines)] if lines else [])
    periods_begin_together(patch)


def persons_lie_in_one_range(patch: pytest.MonkeyPatch) -> None:
    """Persons without periods cost nothing more in a second stream after the first."""
    for module in (time_range, composition, declarations):
        patch.setattr(module, "lies_in_one_range", lambda budget: True)


def days_of_24_hours(patch: pytest.MonkeyPatch) -> None:
    """Periods of days are 24 hours long, whatever the clock does."""

    def period_of(budget: Any, schedule: Any) -> Any:
        if not isinstance(budget.period, str) or schedule.calendar:
            return original(budget, schedule)
        days = int(budget.period[:-1]) * {"d": 1, "w": 7}[budget.period[-1]]
        ticks = days * 86_400_000_000 // schedule.length
        return lambda tick: (tick - 1) // max(ticks, 1)

    original = unit_periods.period_of
    patch.setattr(declarations, "period_of", period_of)


# -- the key of the noise --------------------------------------------------------------------------


def rows_not_in_the_key(patch: pytest.MonkeyPatch) -> None:
    """Columns and zone are missing from the key of the noise."""
    patch.setattr(declarations.StreamDeclaration, "noise_secret", lambda self, secret: secret)


def periods_not_in_the_key(patch: pytest.MonkeyPatch) -> None:
    """Periods are missing from the key of the noise."""
    patch.setattr(time_range.TimeRange, "key", property(lambda self: [self.start, self.ticks]))


def range_not_in_the_key(patch: pytest.MonkeyPatch) -> None:
    """The start is missing from the key of the noise: next year has the noise of this one."""
    patch.setattr(time_range.TimeRange, "key", property(lambda self: [0, self.ticks]))


def twins_in_a_store(patch: pytest.MonkeyPatch) -> None:
    """Two streams of a store may have one secret and one declaration."""
    patch.setattr(declare_stream, "refuse_twin", lambda *given: None)


# -- homes and outputs -----------------------------------------------------------------------------


def output_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A stream publishes over what another one has published."""
    for keeper in (StateFile, StoreKeeper):
        patch.setattr(keeper, "check_output", lambda self: None)


def store_beside_a_state_file(patch: pytest.MonkeyPatch) -> None:
    """A store does not take over the stream of the state file beside it."""
    output_of_anybody(patch)

    def beside(open_store: Any, job: Any, output: Any) -> Any:
        patch.setattr("evercount.files.move_stream.take_over", lambda *given: True)
        return open_store(job, output)

    wrap(patch, open_keeper, "_open_store", beside)


def old_copies_go_on(patch: pytest.MonkeyPatch) -> None:
    """An older copy of a database releases its ticks again."""
    patch.setattr(HeadFile, "check", lambda self, *given: {})


def state_after_the_output(patch: pytest.MonkeyPatch) -> None:
    """The output is published before the state is on the disk."""

    def late(write: Any, self: Any) -> None:
        if self.output is not None and self.output.pending.exists():
            self.output.pending.replace(self.output.path)
        write(self)

    wrap(patch, StateFile, "_write", late)


def ledger_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    """A run of files enters nothing in its ledger."""
    patch.setattr(LedgerEntry, "spend", lambda self: None, raising=False)


def earlier_noise_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is stated of a renewed stream leaves out the streams before it."""

    def alone(earlier: Any, now: Any) -> str:
        together = now.budget
        return f"Together: epsilon={together.epsilon!r}, delta={together.delta!r} (adjacency …"

    patch.setattr(resume_run, "compose_sentence", alone)


# -- what is released ------------------------------------------------------------------------------


def halves_to_even(patch: pytest.MonkeyPatch) -> None:
    """Noise is rounded with halves to even, before counts are added."""

    def round_to_grid(noise: Any, bits: int, up: Any) -> Any:
        if bits == 0:
            return noise
        low = noise >> bits
        rest = noise - (low << bits)
        half = 1 << (bits - 1)
        return np.asarray(low + ((rest > half) | ((rest == half) & (low % 2 == 1))))

    patch.setattr(laplace_noise, "round_to_grid", round_to_grid)


def missing_persons_move(patch: pytest.MonkeyPatch) -> None:
    """Events of persons move from a missing tick to the next one, where caps are full already."""
    patch.setattr(stream_life, "NEXT", "nothing")


HOLES: Mapping[str, Hole] = {
    "distinct users without their period": Hole(without_period(DistinctUsers)),
    "occupancy without its period": Hole(without_period(Occupancy), quick=False),
    "active users without their ticks": Hole(without_ticks),
    "occupancy of two histories": Hole(two_histories, quick=False),
    "replace as add-remove": Hole(replace_as_add_remove),
    "caps anew at each revision": Hole(one_lag_of_revisions, ("store",), False),
    "caps anew in each piece": Hole(caps_anew_in_each_piece),
    "caps anew in each run of files": Hole(caps_anew_in_each_run_of_files, ("frame",), False),
    "caps not in snapshots": Hole(caps_not_in_snapshots),
    "a cap that looks at contents": Hole(cap_by_content),
    "caps of active users not carried": Hole(caps_not_carried, ("frame",), False),
    "a renewal in the middle of a period": Hole(periods_are_not_cut),
    "periods that begin on other days": Hole(periods_begin_together, quick=False),
    "a store that adds up other periods": Hole(one_group, ("store",), False),
    "persons who come back": Hole(persons_lie_in_one_range),
    "days of 24 hours": Hole(days_of_24_hours, quick=False),
    "zone and columns not in the key": Hole(rows_not_in_the_key),
    "periods not in the key": Hole(periods_not_in_the_key, quick=False),
    "the start not in the key": Hole(range_not_in_the_key),
    "twins in a store": Hole(twins_in_a_store, ("store",), False),
    "an output of anybody": Hole(output_of_anybody, ("frame",), False),
    "a store beside a state file": Hole(store_beside_a_state_file, ("moves",), False),
    "old copies go on": Hole(old_copies_go_on, ("store",), False),
    "state after the output": Hole(state_after_the_output, ("frame",), False),
    "a ledger that is not charged": Hole(ledger_is_not_charged, ("frame",), False),
    "earlier noise is forgotten": Hole(earlier_noise_is_forgotten, ("frame",), False),
    "missing ticks of persons move": Hole(missing_persons_move, ("store",), False),
    "halves to even": Hole(halves_to_even, quick=False, pooled=True),
}

OUT_OF_REACH: Mapping[str, str] = {
    "noise in doubles": "in tests/mechanisms/test_whole_noise.py: sums of 2^53 grid units",
    "a restored stream beside a living one": "needs an operator who feeds both other rows",
    "parts that overlap": "lives of Python do not cut cells into parts",
    "active users on own matrices": "a declaration names its noise, so lives have no own matrices",
    "a guarantee that speaks of counted events": "lives read its unit, not its sentence",
    "dp_event of unlisted keys": "no release depends on it",
    "Spark that charges no cut week": "lives do not run Spark",
    "fork of a stream": "lives stay in one process",
}
"""Holes of the past that no life here can show, and why."""
