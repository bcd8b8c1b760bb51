"""Budget: how much one stream may reveal, about whom, and how much noise that costs.

A budget is a promise (ε, δ) about all releases of a stream together. It names the adjacency, the
protected unit and the calibration that turns the promise into noise. It holds numbers only and
draws nothing.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

from evercount._validate import check_count, check_delta, check_name, check_number, check_positive
from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.gaussian import Calibration
from evercount.privacy.guarantee_text import guarantee_text

Adjacency = Literal["add-remove", "replace"]
Unit = Literal["event", "user"]
CAPS = ("max_events", "max_per_tick", "max_ticks", "period", "period_ticks")
PERIOD_TEXT = re.compile(r"[1-9][0-9]{0,3}[dw]")


class Touched(NamedTuple):
    """The most that one protected unit changes after the caps; None where nothing bounds it."""

    ticks: int | None
    per_tick: int | None
    events: int | None
    span: int | None
    """All its ticks lie within so many consecutive ones."""

    @property
    def full_ticks(self) -> int | None:
        """The ticks that it fills, the last perhaps in part, if it does as much as it may in each:
        the worst case."""
        if self.events is None or self.per_tick is None:
            return self.ticks
        return _least(self.ticks, -(-self.events // self.per_tick))


@dataclass(frozen=True)
class Budget:
    """An (ε, δ) promise for all releases of a stream together.

    Args:
        epsilon: ε > 0.
        delta: δ with 0 ≤ δ < 1; 0 is pure privacy.
        adjacency: What a neighbouring stream is. "add-remove": one unit is absent in it; "replace":
            each event of one unit is any other legal event in its place (`sentence` says it in
            full).
        calibration: How the noise is computed: "tight" (exact, any ε), "classic" (Dwork and Roth)
            or "paper", the last two for ε < 1 only.
        unit: What is protected: one "event", or everything under one "user" id, of which the caps
            below say how much is counted. Caps hold per user id and period; what is beyond them is
            dropped.
        max_events: The most events that are counted for one user id.
        max_per_tick: The most events that are counted for one user id in one tick, the first ones.
        max_ticks: In how many ticks one user id counts: the first ones in which it has an event.
        period: What one user id does in one period is protected, rather than all it ever does: a
            number of ticks, or where ticks have times a calendar length such as "1d", "1w" or "4w",
            counted from the stream's start. None: the whole stream is one period.
        period_ticks: How many ticks a period has at most. Found by evercount: from `period`, or
            from the schedule.

    Raises:
        ParameterError: A number is outside its range, or the calibration cannot give this promise.
        UnknownName: An adjacency, calibration or unit that does not exist.

    **Guarantee.** Gaussian noise of std `noise_multiplier()`·Δ, where Δ bounds ‖R(X − X′)‖_F over
    all neighbours, makes all releases together (epsilon, delta)-DP for the adjacency and unit
    named. Proof: `gaussian.proof.md`. It is assumed that Δ was computed for the same adjacency and
    unit. Test: `tests/privacy/test_privacy_budget.py::test_noise_multiplier_meets_the_promise`.

    >>> budget = Budget(epsilon=0.5, delta=1e-10)
    >>> round(budget.noise_multiplier(), 4)
    11.4362
    >>> paper = Budget(epsilon=0.5, delta=1e-10, calibration="paper")
    >>> paper.noise_multiplier() > budget.noise_multiplier()
    True
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "add-remove"
    calibration: Calibration = "tight"
    unit: Unit = "event"
    max_events: int | None = None
    max_per_tick: int | None = None
    max_ticks: int | None = None
    period: int | str | None = None
    period_ticks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta, pure=True))
        check_name("adjacency", self.adjacency, get_args(Adjacency))
        check_name("calibration", self.calibration, get_args(Calibration))
        check_name("unit", self.unit, get_args(Unit))
        self._check_caps()
        if self.calibration != "tight":
            self.noise_multiplier()  # fails now, not at the first release, if it cannot

    def _check_caps(self) -> None:
        """Refuse caps and periods that have no meaning, and derive the ticks of a period."""
        for name, value in zip(CAPS, (*self.caps, self.period, self.period_ticks), strict=True):
            if value is None:
                continue
            if self.unit == "event":
                raise ParameterError(
                    f"{name}={value!r} has no meaning with unit='event', which protects one event. "
                    "Use unit='user' to protect what a user does."
                )
            if name == "period" and isinstance(value, str):
                if not PERIOD_TEXT.fullmatch(value):
                    raise ParameterError(
                        f"period={value!r:.80} is not a length of the calendar: write a whole "
                        "number and d or w, such as 1d, 1w or 4w, or a number of ticks"
                    )
                continue
            object.__setattr__(self, name, check_count(name, value))
        if isinstance(self.period, int):
            object.__setattr__(self, "period_ticks", self.period)
        elif self.period is None and self.period_ticks is not None:
            raise ParameterError(
                "period_ticks says how long a period is, but there is no period: omit it"
            )

    @property
    def caps(self) -> tuple[int | None, int | None, int | None]:
        """The most events, events of a tick, and ticks of one user id and period; None where there
        is no such cap."""
        return self.max_events, self.max_per_tick, self.max_ticks

    @property
    def neighbours(self) -> tuple[str, str, int | str | None]:
        """Which two streams are neighbours, whatever is counted of them: adjacency, unit and
        period."""
        return self.adjacency, self.unit, self.period

    def touched(self, horizon: int | None = None) -> Touched:
        """The most that one protected unit changes, after the caps.

        Args:
            horizon: The number of ticks, or None.

        Returns:
            The numbers of ticks and events; None where nothing bounds them.

        Raises:
            ParameterError: The period is a length of the calendar, and nobody has said how many
                ticks it has.

        **Guarantee.** After the caps, neighbours differ in at most `events` events, in at most
        `ticks` ticks, in each in at most `per_tick` events, and all of these ticks lie within
        `span` consecutive ones. Test:
        `tests/queries/test_user_cap.py::test_neighbours_differ_by_what_is_touched`.

        >>> Budget(1.0, 1e-6, unit="user", max_per_tick=2, max_ticks=30, period=365).touched()
        Touched(ticks=30, per_tick=2, events=60, span=365)
        """
        if self.unit == "event":
            return Touched(1, 1, 1, 1)
        if isinstance(self.period, str) and self.period_ticks is None:
            no_times = f"period={self.period!r} follows a calendar, and this stream has no times"
            raise ParameterError(f"{no_times}: give the period as a number of ticks")
        span = _least(self.period_ticks, horizon)
        ticks = _least(self.max_ticks, span, self.max_events)
        events = self.max_events
        if self.max_per_tick is not None and ticks is not None:
            events = _least(events, self.max_per_tick * ticks)
        return Touched(ticks, _least(self.max_per_tick, events), events, span)

    @property
    def pure(self) -> bool:
        """Whether δ = 0. Only Laplace trees give that; everything Gaussian refuses it."""
        return self.delta == 0

    # -- the same promise in other parameters ------------------------------------------------------

    @classmethod
    def from_mu(cls, mu: float, delta: float, **promise: Any) -> Budget:
        """The tight budget at `delta` of a mechanism that is μ-Gaussian-DP.

        Args:
            mu: The Gaussian-DP parameter Δ/σ.
            delta: The δ of the budget, above 0.
            promise: `adjacency`, `unit` and caps, as for `Budget`.

        Returns:
            The budget.

        Raises:
            ParameterError: A number is outside its range, or δ alone covers the mechanism (ε would
                be 0).

        **Guarantee.** The result's `.mu` is at most `mu` (so it never spends more than asked), and
        smaller by a relative 1e-9 at most. Test:
        `tests/privacy/test_privacy_budget.py::test_from_mu_and_from_rho_never_buy_more_than_asked`.

        >>> round(Budget.from_mu(1.0, 1e-6).epsilon, 3)
        4.887
        """
        mu = check_positive("mu", mu)
        delta = check_delta(delta)
        epsilon = gaussian.epsilon_of(mu, delta)
        step = 2.0**-50
        while epsilon > 0 and gaussian.mu_of(epsilon, delta) > mu and step < 1:
            epsilon *= 1 - step
            step *= 2
        if epsilon <= 0 or gaussian.mu_of(epsilon, delta) > mu:
            raise ParameterError(
                f"at delta={delta!r} a mechanism with mu={mu!r} costs no epsilon: delta alone "
                f"covers it. Choose a delta well below {gaussian.delta_of(mu, 0.0):.3g}."
            )
        return cls(epsilon, delta, **promise)

    @classmethod
    def from_rho(cls, rho: float, delta: float, **promise: Any) -> Budget:
        """The tight budget at `delta` of Gaussian noise that is ρ-zCDP, ρ = Δ²/2σ².

        ρ fixes σ, and the Gaussian mechanism with that σ is exactly √(2ρ)-Gaussian-DP, so the
        conversion loses nothing. The result's `.rho` is at most `rho`.

        Args:
            rho: The zCDP parameter Δ²/2σ².
            delta: The δ of the budget, above 0.
            promise: `adjacency`, `unit` and caps, as for `Budget`.

        Returns:
            The budget.

        Raises:
            ParameterError: A number is outside its range, or δ alone covers the mechanism (ε would
                be 0).

        >>> round(Budget.from_rho(0.5, 1e-6).epsilon, 3)
        4.887
        """
        return cls.from_mu(
            gaussian.root_down(2 * Fraction(check_positive("rho", rho))), delta, **promise
        )

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter Δ/σ of the noise that this budget's calibration gives."""
        if self.calibration == "tight":
            return gaussian.mu_of(self.epsilon, self.delta)
        return 1.0 / self.noise_multiplier()

    @property
    def rho(self) -> float:
        """The zCDP parameter Δ²/2σ² = μ²/2 of the noise that this budget's calibration gives."""
        return self.mu**2 / 2

    def noise_multiplier(self) -> float:
        """σ/Δ, rounded up: the std of the noise for sensitivity one.

        Returns:
            The ratio.

        Raises:
            ParameterError: δ = 0, which Gaussian noise cannot give.
        """
        return gaussian.multiplier(self.calibration, self.epsilon, self.delta)

    def reserve(self, numeric_delta: float) -> Budget:
        """The budget left for the ideal mechanism when `numeric_delta` of δ is set aside for
        numerical error.

        Args:
            numeric_delta: The part of δ to set aside, ≥ 0 and below δ.

        Returns:
            The budget that is left.

        Raises:
            ParameterError: It is negative, or nothing would be left.

        **Guarantee.** The result's δ plus `numeric_delta` is at most this δ, in exact arithmetic.
        Test: `tests/privacy/test_privacy_budget.py::test_reserve_rounds_down`.

        >>> Budget(0.5, 1e-10).reserve(2.5e-11).delta
        7.5e-11
        """
        reserved = check_number("numeric_delta", numeric_delta)
        if reserved < 0:
            raise ParameterError(f"numeric_delta must not be negative, got {numeric_delta!r}")
        if reserved >= self.delta:
            raise ParameterError(
                f"the numerical error needs delta {reserved!r} and the budget has {self.delta!r}: "
                "nothing is left for the noise. Choose a larger delta or compute with more bits."
            )
        return replace(self, delta=gaussian.round_down(Fraction(self.delta) - Fraction(reserved)))

    # -- words and data ----------------------------------------------------------------------------

    def sentence(self) -> str:
        """The guarantee in one plain sentence, with numbers rounded up. A stream says more: who
        keeps to the cap.

        Returns:
            The sentence.

        >>> print(Budget(0.5, 1e-10).sentence())
        All releases together protect any one event: the probability of any outcome is at most ...
        """
        return guarantee_text(self).sentence

    def to_dict(self) -> dict[str, Any]:
        """The fields that are given, JSON-serialisable; `from_dict` is the inverse.

        Returns:
            The fields by name.

        >>> Budget.from_dict(Budget(0.5, 1e-10).to_dict()) == Budget(0.5, 1e-10)
        True
        """
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Budget:
        """The budget of `to_dict`.

        Args:
            data: A result of `to_dict`.

        Returns:
            The budget.

        Raises:
            ParameterError: Not a mapping, or with unknown or missing fields.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise ParameterError(f"a budget is a mapping of its fields: {error}") from None


def _least(*numbers: int | None) -> int | None:
    """Take the least of these; None bounds nothing."""
    return min((number for number in numbers if number is not None), default=None)
