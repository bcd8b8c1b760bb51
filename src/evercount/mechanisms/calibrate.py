"""From a budget, a sensitivity and a factorization to a noise stream with the right σ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations import Factorization, Fresh, Periods
from evercount.mechanisms.declared_key import noise_key
from evercount.mechanisms.exact.arithmetic import numeric_delta, numeric_horizon
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.exact.filter_numbers import MOST_TICKS
from evercount.mechanisms.fresh_noise import ONE_BY_ONE, FreshStream, PeriodicStream
from evercount.mechanisms.named_noise import NamedNoise
from evercount.mechanisms.noise_stream import NoiseStream
from evercount.noise import Secret
from evercount.privacy import Budget

NUMERIC_DELTA = 2.0**-60  # the most that finite arithmetic may take from δ by default
SIGMA_TOLERANCE = 1e-12  # relative head-room of σ over the rounding of the few products that make it


@dataclass(frozen=True, eq=False)
class Noise:
    stream: NoiseStream
    sigma: float
    numeric_delta: float
    limit: int | None
    """The last tick that the guarantee covers; None where every day has noise of its own, without an end."""
    key: Secret
    fingerprint: str | None = None
    """The digest of the declaration that the key was derived from; None where the key is the secret itself."""
    unseen: float = 0.0
    """The part of `numeric_delta` that depends on noise of which nothing was shown before (`Cost.unseen`)."""

    def dump(self) -> dict[str, Any]:
        """What `build_noise(dumped=...)` needs to continue identically. Secret."""
        state = self.stream.dump()
        return {"name": "exact", "sigma": self.sigma, "state": state, "declaration": self.fingerprint}


def build_noise(
    factorization: Factorization,
    *,
    cells: int,
    grid: float,
    sensitivity: float,
    budget: Budget,
    horizon: int | None,
    secret: Secret | None = None,
    dumped: dict[str, Any] | None = None,
    declaration: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    part: range | None = None,
    touched: int | None = None,
) -> Noise:
    """Noise that makes the whole stream (ε, δ)-DP.

    With `declaration` the key is derived from the secret and the declaration (`declared_key`); without, the secret is
    the key. With `names` a cell's noise belongs to its name, and further names may join (`NamedNoise`); `cells` is then
    how many cells one protected unit can touch; with `fresh`, rows are those of single ticks. Noise that was dumped
    goes on with its own key and σ; without a state it begins anew with that σ. With `part` it is the noise of these
    cells only, the same as all `cells` have there. `touched` is the most ticks whose increments one protected
    unit changes; None where that is not known.

    Guarantee. σ = multiplier(ε, δ − numeric_delta)·Δ with Δ = `sensitivity`. If ‖R(X−X′)‖_F ≤ Δ for all neighbours,
    R·X + z with z ~ N(0, σ²) is (ε, δ − numeric_delta)-DP (`privacy/gaussian.proof.md`). Test:
    tests/engine/test_stream_privacy.py::test_sigma_is_what_the_theorem_asks.
    """
    if not sensitivity > 0:
        raise ParameterError(f"the query declares a sensitivity of {sensitivity}: it must be positive")
    norm = sensitivity * (1 + SIGMA_TOLERANCE)
    if part is not None and isinstance(factorization, Periods):
        raise ParameterError("a part of the cells has no noise of periods")
    # The price of finite arithmetic grows with σ, and σ with that price: bound it for a σ that is surely larger.
    most = 2 * budget.noise_multiplier() * norm / grid
    cap = min(NUMERIC_DELTA, budget.delta / 16)
    reserved, limit = _numeric_price(factorization, most, cells, budget.epsilon, horizon, touched, cap)
    if reserved > budget.delta / 2:
        raise ParameterError(
            f"delta={budget.delta:g} is too small for exact arithmetic here, which needs {reserved:.3g} of it; "
            "choose a larger delta, a smaller epsilon, a shorter horizon or fewer cells"
        )
    sigma = _continued(budget.reserve(reserved).noise_multiplier() * norm, dumped)
    if sigma / grid > most:
        raise ParameterError("the numerical error leaves too little of delta; choose a larger delta")
    scale = sigma / grid
    state = None if dumped is None else dumped["state"]
    key, fingerprint = noise_key(secret, dumped, declaration, factorization, sigma)
    first, number = (0, cells) if part is None else (part.start, len(part))
    stream: NoiseStream
    if names is not None:
        if isinstance(factorization, Periods):
            raise ParameterError(f"unlisted keys have no noise of {factorization.name!r}: omit it")
        engine = ONE_BY_ONE if isinstance(factorization, Fresh) else factorization
        if state is None:
            stream = NamedNoise(engine, scale, key, names, limit, reserved)
        else:
            stream = NamedNoise.load(engine, scale, state)
            limit = min(limit, stream.limit)
    elif isinstance(factorization, Fresh):
        fresh = FreshStream(scale, number, key, first, reserved, limit)
        stream = fresh if state is None else fresh.resume(state)
    elif isinstance(factorization, Periods):
        stream = _exact_periods(factorization, scale, cells, key, state)
    elif state is None:
        stream = ExactStream(factorization, scale, number, key, first, numeric_delta=reserved, limit=limit)
    else:
        stream = loaded = ExactStream.load(factorization, scale, number, state)
        if loaded.first_cell != first:
            raise SnapshotError("the noise state belongs to other cells")
        limit = min(limit, loaded.limit)
    return Noise(stream, sigma, reserved, limit, key, fingerprint)


def _continued(sigma: float, dumped: Mapping[str, Any] | None) -> float:
    """The σ that is needed, or that of the dumped stream: another special function may differ in the last digits.

    **Guarantee.** The result is at least `sigma`·(1 − SIGMA_TOLERANCE). Test:
    tests/engine/test_stream_hardening.py::test_a_snapshot_cannot_lower_the_noise.
    """
    if dumped is None:
        return sigma
    own = float(dumped["sigma"])
    if not own >= sigma * (1 - SIGMA_TOLERANCE):
        raise SnapshotError(f"the stream's noise has std {own!r} where its query and budget need {sigma!r}")
    return own


def _numeric_price(
    factorization: Factorization,
    scale: float,
    cells: int,
    epsilon: float,
    horizon: int | None,
    touched: int | None,
    cap: float,
) -> tuple[float, int]:
    """(numeric δ, last tick that it covers).

    **Guarantee.** Ticks of `fresh` and periods have independent noise, and data that agree in one have the same law
    there: only those that a unit touches cost anything. Tests:
    tests/mechanisms/test_fresh_noise.py::test_only_touched_ticks_cost_anything and
    tests/factorizations/test_periods.py::test_only_the_periods_that_a_unit_touches_cost_anything.
    """
    if not isinstance(factorization, Fresh | Periods):
        limit = numeric_horizon(factorization, scale, cells, epsilon, cap) if horizon is None else horizon
        return numeric_delta(factorization, scale, cells, epsilon, limit), limit
    width = factorization.width if isinstance(factorization, Periods) else 1
    engine = factorization.period if isinstance(factorization, Periods) else ONE_BY_ONE
    once = numeric_delta(engine, scale, cells, epsilon, width)
    last = MOST_TICKS if horizon is None else horizon
    if touched is None and horizon is None:  # a unit may touch them all: as many as the price allows
        last = min(last, max(1, int(cap / once)) * width)
    parts = -(-last // width)
    return once * min(parts, parts if touched is None else touched), last


def _exact_periods(
    factorization: Periods, scale: float, cells: int, root: Secret, state: dict[str, Any] | None
) -> NoiseStream:
    """Every period has noise of its own, from a key derived from the stream's key and the period's number."""

    def make(number: int) -> NoiseStream:
        return ExactStream(factorization.period, scale, cells, root.derive(f"period {number}"))

    stream = PeriodicStream(factorization.width, make, root)
    if state is not None:
        stream.resume(state, lambda inner: ExactStream.load(factorization.period, scale, cells, inner))
    return stream
