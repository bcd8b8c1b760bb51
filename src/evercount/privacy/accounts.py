"""How much of a total is left, also where the next stream is chosen after seeing what the earlier ones released.

A total (ε, δ) has one account or two, and what each holds of every kind is fixed before the first release. That is what
makes the choice harmless: whoever could look at releases and then decide whether δ goes into noise, into pure streams
or into leaks would reach up to three times the δ (`composition.proof.md`, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import (
    LEAST_DELTA,
    Cost,
    Meeting,
    check_same_unit,
    largest_mu,
    meetings_of,
    mixed_delta_upper,
    round_down,
)
from evercount.privacy.time_range import TimeRange

_FOR_NOISE = Fraction(3, 4)
"""Of the δ of Gaussian streams; the rest pays for their leaks. A quarter costs 1 % of noise."""


class Room(NamedTuple):
    """What is left in an account."""

    mu_squared: Fraction
    leak: Fraction
    epsilon: Fraction
    delta: Fraction


@dataclass(frozen=True)
class Account:
    """What streams may spend of each kind, whatever the order."""

    epsilon: float  # the ε of the total, at which leaks are counted
    mu: float  # √Σμ² of streams that count as their noise
    leak: float  # σ of what those leak
    plain_epsilon: float  # σε of streams that count as their promise
    plain_delta: float  # σδ of those

    def room_after(self, costs: Iterable[Cost], outside: Iterable[Cost] = ()) -> Room | None:
        """What these leave, in exact arithmetic; None if one of them did not fit. A stream counts as its noise where
        that fits, else as its promise. That is decided when its turn comes, from what was declared before it, and never
        again. `outside` are streams over other time ranges."""
        room = Room(Fraction(self.mu) ** 2, *map(Fraction, (self.leak, self.plain_epsilon, self.plain_delta)))
        for cost in outside:
            price = Fraction(cost.outside_at(self.epsilon))
            if cost.leak is not None and price <= room.leak:
                room = room._replace(leak=room.leak - price)
            elif price <= room.delta:
                room = room._replace(delta=room.delta - price)
            else:
                return None
        for cost in costs:
            if not cost.plain:
                noise, leak = Fraction(cost.mu) ** 2, Fraction(cost.leak_at(self.epsilon))
                if noise <= room.mu_squared and leak <= room.leak:
                    room = room._replace(mu_squared=room.mu_squared - noise, leak=room.leak - leak)
                    continue
                if cost.chain:
                    return None  # promises of a chain would add up
            epsilon, delta = Fraction(cost.budget.epsilon), Fraction(cost.budget.delta)
            if epsilon > room.epsilon or delta > room.delta:
                return None
            room = room._replace(epsilon=room.epsilon - epsilon, delta=room.delta - delta)
        return room


class Filter:
    """Which streams fit into a total, in the order in which they are declared.

    Args:
        total: the promise of all of them together.
        plain: the part of it for streams that count as their promise; the rest is for Gaussian noise. None: half of δ
            is for noise alone and half for promises alone, which then have all of ε; the streams decide which.

    **Guarantee.** Streams of which every one, when it was declared, was admitted next to all earlier ones are together
    (total.epsilon, total.delta)-DP. Number, kinds, budgets, time ranges and inputs may depend on everything released
    before. Proof: `composition.proof.md`, sections 7 and 8. Assumes that each keeps its `Cost`. Tests:
    `tests/privacy/test_privacy_adaptive.py::test_no_adaptive_choice_beats_the_total` and
    `tests/privacy/test_successors.py::test_ten_years_cost_one`.
    """

    def __init__(self, total: Budget, plain: Budget | None = None) -> None:
        self.total, self.plain = total, plain
        half = total.delta / 2 if total.delta / 2 >= LEAST_DELTA else 0.0
        for_plain = plain or replace(total, calibration="tight", delta=half)
        check_same_unit(total, for_plain)
        if for_plain.epsilon > total.epsilon or for_plain.delta > total.delta:
            raise ParameterError(f"the plain part {for_plain!r} is more than the total {total!r}.")
        sums = Account(total.epsilon, 0.0, 0.0, for_plain.epsilon, for_plain.delta)
        for_noise = Fraction(total.delta) - Fraction(for_plain.delta)
        self._delta = round_down(for_noise * _FOR_NOISE)
        if self._delta < LEAST_DELTA:
            self.accounts: tuple[Account, ...] = (sums,)
            return
        noise = replace(
            sums,
            mu=largest_mu(total.epsilon, Fraction(0 if plain is None else plain.epsilon), self._delta),
            leak=round_down(for_noise * (1 - _FOR_NOISE)),
        )
        if plain is None:
            self.accounts = (replace(noise, plain_epsilon=0.0, plain_delta=0.0), sums)
        else:
            self.accounts = (noise,)

    def admits(self, costs: Sequence[Cost]) -> bool:
        """Whether the last of these may be declared after the others. One alone may take everything. A person of a
        chain is in several of its streams, so one account must hold all of these."""
        meetings = meetings_of(costs)
        if not any(cost.chain for cost in costs):
            return all(self._holds(meeting) for meeting in meetings)
        if all(len(one.inside) == 1 and self._keeps(one.inside[0], one) for one in meetings):
            return True
        return any(_least_room(account, meetings) is not None for account in self.accounts)

    def _holds(self, meeting: Meeting) -> bool:
        """Whether streams that meet are within the total: one alone by itself, several by an account."""
        if len(meeting.inside) == 1 and self._keeps(meeting.inside[0], meeting):
            return True
        return any(account.room_after(meeting.inside, meeting.outside) is not None for account in self.accounts)

    def _keeps(self, cost: Cost, meeting: Meeting) -> bool:
        """Whether one stream that no other meets is within the total, by its promise or by its profile."""
        epsilon, left = self.total.epsilon, Fraction(self.total.delta) - meeting.price_outside(self.total.epsilon)
        if cost.budget.epsilon > epsilon or left < 0:
            return False
        if Fraction(cost.budget.delta) <= left:
            return True
        return (
            not cost.plain
            and Fraction(mixed_delta_upper(cost.mu, Fraction(0), epsilon)) + Fraction(cost.leak_at(epsilon)) <= left
        )

    def remaining(self, costs: Sequence[Cost], pure: bool, during: TimeRange | None = None) -> Cost | None:
        """The largest cost of one kind that is admitted after these, for a stream over this range, or None."""
        probe = Cost(replace(self.total, delta=0.0, calibration="tight"), during=during)
        met = [one for one in meetings_of([*costs, probe]) if one.inside and one.inside[-1] is probe]
        rests = [Meeting(one.inside[:-1], one.outside) for one in met]  # without the probe, which is the last one
        if not any(rest.inside for rest in rests):
            whole = Cost(probe.budget if pure else self.total, 0.0, during)
            if all(self._keeps(whole, rest) for rest in rests):
                return whole
        rooms = [room for account in self.accounts if (room := _least_room(account, rests)) is not None]
        if pure or self.total.pure:
            epsilon = round_down(max((room.epsilon for room in rooms), default=Fraction(0)))
            return replace(probe, budget=replace(probe.budget, epsilon=epsilon)) if epsilon > 0 else None
        mu = _root_down(max((room.mu_squared for room in rooms), default=Fraction(0)))
        # A small rest costs no ε at this δ; it is then stated at the smaller δ where it does.
        delta = min(self._delta, gaussian.delta_of(mu, 0.0) / 2) if mu else 0.0
        if delta < LEAST_DELTA:
            return None
        left = Budget.from_mu(mu, delta)
        budget = replace(self.total, epsilon=left.epsilon, delta=left.delta, calibration="tight")
        return Cost(budget, 0.0, during)


def _least_room(account: Account, meetings: Sequence[Meeting]) -> Room | None:
    """What is left of an account at every one of these."""
    rooms = [account.room_after(one.inside, one.outside) for one in meetings]
    if None in rooms:
        return None
    return Room(*(min(values) for values in zip(*(room for room in rooms if room is not None), strict=True)))


def _root_down(square: Fraction) -> float:
    """The largest double whose square is not above, but for one or two units in the last place."""
    root = math.sqrt(round_down(square))
    while Fraction(root) ** 2 > square:
        root = math.nextafter(root, 0.0)
    return root
