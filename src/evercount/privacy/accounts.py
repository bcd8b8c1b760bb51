"""How much of a total is left, also where the next stream is chosen after seeing what the earlier
ones released.

A total (ε, δ) has two accounts, and what each holds is fixed before the first release. That is what
makes the choice harmless: whoever could look at releases and then decide whether δ goes into noise,
into pure streams or into leaks would reach up to three times the δ (`composition.proof.md`, section
7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import LEAST_DELTA, Cost, Overlap, overlaps_of
from evercount.privacy.gaussian import root_down, round_down
from evercount.privacy.time_range import TimeRange

_FOR_NOISE = Fraction(3, 4)
"""Of the δ of Gaussian streams; the rest pays for their leaks. A quarter costs 1 % of noise."""


class Account(NamedTuple):
    """What streams of one kind may spend, or what is left of that, whatever their order. The
    account of noise holds Gaussian streams, by μ² and what they leak; the other one holds promises
    of any kind, by ε and δ."""

    noise: bool
    total_epsilon: float  # the ε of the total, at which leaks are counted
    most: Fraction  # Σμ², or Σε
    delta: Fraction  # Σ of leaks, or Σδ

    def room_after(self, inside: Iterable[Cost], outside: Iterable[Cost] = ()) -> Account | None:
        """What these streams leave, in exact arithmetic; None where they do not fit. `outside` are
        those over other time ranges."""
        most = self.most
        delta = self.delta
        for cost in outside:
            if self.noise and cost.leak is None:
                return None
            delta -= Fraction(cost.outside_at(self.total_epsilon))
        for cost in inside:
            if self.noise:
                if cost.plain:
                    return None
                most -= Fraction(cost.mu) ** 2
                delta -= Fraction(cost.leak_at(self.total_epsilon))
            else:
                # promises of a chain would add up
                if cost.chain and not cost.plain:
                    return None
                most -= Fraction(cost.budget.epsilon)
                delta -= Fraction(cost.budget.delta)
        if most < 0 or delta < 0:
            return None
        return self._replace(most=most, delta=delta)


class Filter:
    """Which streams fit into a total, in the order in which they are declared: half of δ is for
    noise alone, half for promises alone, which then have all of ε.

    **Guarantee.** Streams of which every one, when it was declared, was admitted next to all
    earlier ones are together (total.epsilon, total.delta)-DP. Number, kinds, budgets, time ranges
    and inputs may depend on everything released before. Proof: `composition.proof.md`, sections 7
    and 8. Assumes that each keeps its `Cost`. Tests:
    `tests/privacy/test_privacy_adaptive.py::test_no_adaptive_choice_beats_the_total` and
    `tests/privacy/test_successors.py::test_ten_years_cost_one`.
    """

    def __init__(self, total: Budget) -> None:
        self.total = total
        half = Fraction(0)
        if total.delta / 2 >= LEAST_DELTA:
            half = Fraction(total.delta / 2)
        self.promises = Account(False, total.epsilon, Fraction(total.epsilon), half)
        rest = Fraction(total.delta) - half
        self._delta = round_down(rest * _FOR_NOISE)
        self.noise = Account(True, total.epsilon, Fraction(0), Fraction(0))
        if self._delta >= LEAST_DELTA:
            mu = Fraction(gaussian.mu_of(total.epsilon, self._delta))
            leak = Fraction(round_down(rest * (1 - _FOR_NOISE)))
            self.noise = Account(True, total.epsilon, mu**2, leak)

    def admits(self, costs: Sequence[Cost]) -> bool:
        """Whether the last of these may be declared after the others. One alone may take
        everything. A person of a chain is in several of its streams, so one account must hold all
        of these."""
        overlaps = overlaps_of(costs)
        alone = [len(one.inside) == 1 and self._holds(one.inside[0], one) for one in overlaps]
        if any(cost.chain for cost in costs):
            return all(alone) or any(
                _least_room(account, overlaps) for account in (self.noise, self.promises)
            )
        shared = [one for one, fits in zip(overlaps, alone, strict=True) if not fits]
        return all(self.noise.room_after(*one) or self.promises.room_after(*one) for one in shared)

    def _holds(self, cost: Cost, overlap: Overlap) -> bool:
        """Whether one stream that no other meets is within the total, by its promise or by its
        profile."""
        epsilon = self.total.epsilon
        left = Fraction(self.total.delta) - overlap.price_outside(self.total.epsilon)
        if cost.budget.epsilon > epsilon or left < 0:
            return False
        if cost.plain or Fraction(cost.budget.delta) <= left:
            return Fraction(cost.budget.delta) <= left
        return (
            Fraction(gaussian.delta_upper(cost.mu, epsilon)) + Fraction(cost.leak_at(epsilon))
            <= left
        )

    def remaining(
        self, costs: Sequence[Cost], pure: bool, during: TimeRange | None = None
    ) -> Cost | None:
        """The largest cost of one kind that is admitted after these, for a stream over this range,
        or None."""
        probe = Cost(replace(self.total, delta=0.0, calibration="tight"), during=during)
        # those with the probe, without the probe, which is the last one
        rests = [
            Overlap(one.inside[:-1], one.outside)
            for one in overlaps_of([*costs, probe])
            if one.inside and one.inside[-1] is probe
        ]
        if not any(rest.inside for rest in rests):
            whole = Cost(probe.budget if pure else self.total, 0.0, during)
            if all(self._holds(whole, rest) for rest in rests):
                return whole
        account = self.promises if pure or self.total.pure else self.noise
        room = _least_room(account, rests)
        most = Fraction(0) if room is None else room.most
        if not account.noise:
            epsilon = round_down(most)
            if epsilon <= 0:
                return None
            return replace(probe, budget=replace(probe.budget, epsilon=epsilon))
        mu = root_down(most)
        if not mu:
            return None
        # A small rest costs no ε at this δ; it is then stated at the smaller δ where it does.
        delta = min(self._delta, gaussian.delta_of(mu, 0.0) / 2)
        if delta < LEAST_DELTA:
            return None
        left = Budget.from_mu(mu, delta)
        budget = replace(self.total, epsilon=left.epsilon, delta=left.delta, calibration="tight")
        return Cost(budget, 0.0, during)


def _least_room(account: Account, overlaps: Sequence[Overlap]) -> Account | None:
    """Compute what is left of an account at every one of these; None where one does not fit."""
    rooms = []
    for overlap in overlaps:
        room = account.room_after(overlap.inside, overlap.outside)
        if room is None:
            return None
        rooms.append(room)
    most = min(room.most for room in rooms)
    delta = min(room.delta for room in rooms)
    return account._replace(most=most, delta=delta)
