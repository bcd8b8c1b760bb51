"""How much of a total is left, also where the next stream is chosen after seeing what the earlier ones released.

A total (ε, δ) has one account or two, and what each holds of every kind is fixed before the first release. That is what
makes the choice harmless: whoever could look at releases and then decide whether δ goes into noise, into pure streams
or into leaks would reach up to three times the δ (`composition.proof.md`, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import Cost, check_same_unit, largest_mu, round_down

_LEAST_DELTA = 2.0**-1022
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
    """What streams may spend of each kind, whatever the order.

    Args:
        epsilon: the ε of the total, at which leaks are counted.
        mu: √Σμ² of streams that count as their noise.
        leak: Σ of what those leak.
        plain_epsilon: Σε of streams that count as their promise.
        plain_delta: Σδ of those.
    """

    epsilon: float
    mu: float
    leak: float
    plain_epsilon: float
    plain_delta: float

    def room_after(self, costs: Sequence[Cost]) -> Room | None:
        """What these leave, in exact arithmetic; None if one of them did not fit.

        A stream counts as its noise where that fits, else as its promise. That is decided when its turn comes, from
        what was declared before it, and never again.
        """
        room = Room(Fraction(self.mu) ** 2, *map(Fraction, (self.leak, self.plain_epsilon, self.plain_delta)))
        for cost in costs:
            if not cost.plain:
                noise, leak = Fraction(cost.mu) ** 2, Fraction(cost.leak_at(self.epsilon))
                if noise <= room.mu_squared and leak <= room.leak:
                    room = room._replace(mu_squared=room.mu_squared - noise, leak=room.leak - leak)
                    continue
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
    (total.epsilon, total.delta)-DP. Number, kinds, budgets and inputs may depend on everything released before. Proof:
    `composition.proof.md`, section 7. Assumes that each keeps its `Cost`. Test:
    `tests/privacy/test_privacy_adaptive.py::test_no_adaptive_choice_beats_the_total`.
    """

    def __init__(self, total: Budget, plain: Budget | None = None) -> None:
        self.total, self.plain = total, plain
        for_plain = plain or replace(total, calibration="tight", delta=_half(total.delta))
        check_same_unit(total, for_plain)
        if for_plain.epsilon > total.epsilon or for_plain.delta > total.delta:
            raise ParameterError(f"the plain part {for_plain!r} is more than the total {total!r}.")
        sums = Account(total.epsilon, 0.0, 0.0, for_plain.epsilon, for_plain.delta)
        for_noise = Fraction(total.delta) - Fraction(for_plain.delta)
        self._delta = round_down(for_noise * _FOR_NOISE)
        if self._delta < _LEAST_DELTA:
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
        """Whether the last of these may be declared after the others. One alone may take everything."""
        if len(costs) == 1 and self._keeps(costs[0].budget):
            return True
        return any(account.room_after(costs) is not None for account in self.accounts)

    def _keeps(self, budget: Budget) -> bool:
        return budget.epsilon <= self.total.epsilon and budget.delta <= self.total.delta

    def remaining(self, costs: Sequence[Cost], pure: bool) -> Cost | None:
        """The largest cost of one kind that is admitted after these, or None."""
        if not costs:
            return Cost(replace(self.total, delta=0.0, calibration="tight") if pure else self.total, leak=0.0)
        rooms = [room for account in self.accounts if (room := account.room_after(costs)) is not None]
        if pure or self.total.pure:
            epsilon = round_down(max((room.epsilon for room in rooms), default=Fraction(0)))
            return Cost(replace(self.total, epsilon=epsilon, delta=0.0, calibration="tight")) if epsilon > 0 else None
        mu = _root_down(max((room.mu_squared for room in rooms), default=Fraction(0)))
        # A small rest costs no ε at this δ; it is then stated at the smaller δ where it does.
        delta = min(self._delta, gaussian.delta_of(mu, 0.0) / 2) if mu else 0.0
        if delta < _LEAST_DELTA:
            return None
        left = Budget.from_mu(mu, delta)
        return Cost(replace(self.total, epsilon=left.epsilon, delta=left.delta, calibration="tight"), leak=0.0)


def _half(delta: float) -> float:
    return delta / 2 if delta / 2 >= _LEAST_DELTA else 0.0


def _root_down(square: Fraction) -> float:
    """The largest double whose square is not above, but for one or two units in the last place."""
    root = math.sqrt(round_down(square))
    while Fraction(root) ** 2 > square:
        root = math.nextafter(root, 0.0)
    return root
