"""Which error will each view have, with every noise that a stream may run on, and which noise is
chosen?

Also how far each mechanism is from the least error that any factorization has for the same views
and unit; and what all plans need: where an error is largest, and how the numbers of one tick differ
in it. Errors are worst stds, as a stream's noise is chosen by them (`engine/noise_choice.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from html import escape
from typing import Any

import numpy as np

from evercount._validate import FloatArray, IntArray, aligned
from evercount.bounds.least_variance import least_variance
from evercount.engine.build import (
    FITTED_TICKS,
    RUNNING,
    Spec,
    choose_engine,
    full_ticks,
    view_width,
)
from evercount.engine.noise_choice import (
    BEST,
    MARGIN,
    Candidate,
    candidates,
    check_noise_for,
    choose_noise,
    in_one_tick,
    least_alone,
)
from evercount.engine.state import enforced_by
from evercount.engine.worst_errors import view_stds
from evercount.engine.write_table import frame_module
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import BUILT_IN, FACTORIZATIONS, Dense, check_horizon
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.best_dense import Certificate
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.privacy import Budget, counted_text, guarantee_text
from evercount.queries import Count, Query

MOST_NAMED = 6  # kinds of numbers that a sentence names
_GOLDEN = (3 - 5**0.5) / 2


def largest(
    values: Callable[[IntArray], FloatArray], places: IntArray, known: FloatArray
) -> tuple[int, float]:
    """(first place, value) of the maximum: the best of the rising `places`, then golden sections
    around it. Between two neighbours of the best place the value must have one hill. The search
    ends when the place is known to one in a hundred, measured from zero: the value of a hill that
    wide is then known to about one in 100,000. `known`: the values at `places`."""
    known_values = dict(zip(places.tolist(), known.tolist(), strict=True))

    def look(*asked: int) -> list[float]:
        new = [place for place in asked if place not in known_values]
        if new:
            known_values.update(zip(new, values(np.asarray(new)).tolist(), strict=True))
        return [known_values[place] for place in asked]

    at = int(np.argmax(list(known_values.values())))
    low = int(places[max(at - 1, 0)])
    high = int(places[min(at + 1, len(places) - 1)])
    while high - low > max(4, high // 100):
        step = round((high - low) * _GOLDEN)
        left, right = look(low + step, high - step)
        if left >= right:
            high -= step
        else:
            low += step
    if high - low <= 4:
        look(*range(low, high + 1))
    most = max(known_values.values())
    return min(
        place for place, size in known_values.items() if size >= most - 1e-13 * abs(most)
    ), most


def error_shares(query: Query) -> dict[str, float]:
    """The std of some outputs over the largest one: the first output of each size, where they
    differ; else nothing.

    >>> from evercount import Histogram
    >>> error_shares(Histogram(["a", "b", "c"], weights={"b": 4}))
    {'a': 1.0, 'b': 0.25}
    """
    norms = np.atleast_1d(query.publishing.norms())
    if query.discovery is not None or len(norms) < 2:
        return {}
    sizes, first = np.unique(np.round(norms / norms.max(), 6), return_index=True)
    named = sorted(zip(first.tolist(), sizes.tolist(), strict=True))
    if len(named) > 1:
        return {query.labels[place]: size for place, size in named}
    return {}


def shares_sentence(shares: dict[str, float]) -> str:
    """What a plan says of numbers with less error than those in its table; empty where all are
    alike."""
    if not shares:
        return ""
    less = {label: share for label, share in shares.items() if share < 1}
    others = "others have this fraction of it: " + ", ".join(
        f"{label} {share:.3g}" for label, share in less.items()
    )
    if len(less) > MOST_NAMED:
        others = f"others have as little as {min(less.values()):.3g} of it"
    return f"The table is about the number with the largest error; {others}."


_ENDLESS = (
    f" It is fitted to the first 2^{FITTED_TICKS.bit_length() - 1} ticks; after them it is just as "
    "private, and errors of running totals grow faster."
)


@dataclass(frozen=True)
class ViewRow:
    """One mechanism.

    Args:
        name: the factorization.
        delta: δ of its promise: 0 for Laplace noise, whatever was asked for.
        stds: the worst std of each view.
        score: the largest of them in units of the least std that the view can have with noise for
            it alone.
        twice: the ε of two such streams over the same events together.
        chosen: whether a stream with these views runs on it.
    """

    name: str
    delta: float
    stds: dict[str, float]
    score: float
    twice: float
    chosen: bool

    @property
    def kind(self) -> str:
        """Its name in words: "fresh" alone may be Laplace or Gaussian noise."""
        return f"{self.name} (delta={self.delta:g})"


@dataclass(frozen=True, repr=False)
class ViewPlan:
    """The rows, the chosen one first, the others from the smallest error on. Printed, it is a
    table.

    Args:
        query: the query, as text.
        epsilon: the budget.
        delta: the budget.
        horizon: the number of ticks, or None: then over 2^20 ticks.
        guarantee: the promise in one sentence.
        counted: what the numbers are about, where not all events of a user are counted; else empty.
        reason: why a stream runs on the chosen one.
        rows: one for each mechanism.
        shares: the std of outputs over the largest one, where outputs differ: by the first label of
            each size.
    """

    query: str
    epsilon: float
    delta: float
    horizon: int | None
    guarantee: str
    counted: str
    reason: str
    rows: list[ViewRow]
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable.

        Returns:
            The facts by name.
        """
        return asdict(self)

    def columns(self) -> dict[str, list[Any]]:
        """The table, column by column: the noise, its δ, the worst std of each view, what a second
        stream costs.

        Returns:
            The columns by name.
        """
        stds = {view: [row.stds[view] for row in self.rows] for view in self.rows[0].stds}
        return {
            "noise": [row.name for row in self.rows],
            "delta": [row.delta for row in self.rows],
            **stds,
            "score": [row.score for row in self.rows],
            "twice: epsilon": [row.twice for row in self.rows],
            "chosen": [row.chosen for row in self.rows],
        }

    def to_pandas(self) -> Any:
        """The table as a pandas data frame.

        Returns:
            The data frame, one row for each mechanism.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return frame_module("pandas").DataFrame(self.columns())

    def to_polars(self) -> Any:
        """The table as a Polars data frame.

        Returns:
            The data frame, one row for each mechanism.

        Raises:
            MissingExtra: polars is not installed.
        """
        return frame_module("polars").DataFrame(self.columns())

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ViewRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> ViewRow:
        return self.rows[index]

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        views = list(self.rows[0].stds)
        table = [["noise", "delta", *views, "twice: epsilon"]]
        for row in self.rows:
            name = f"{row.name} (chosen)" if row.chosen else row.name
            stds = [f"{row.stds[view]:,.2f}" for view in views]
            table.append([name, f"{row.delta:g}", *stds, f"{row.twice:.2f}"])
        sentences = [self.reason, shares_sentence(self.shares)]
        return "\n".join([*aligned(table, left=1), *filter(None, sentences)])


def plan_views(
    budget: Budget,
    horizon: int | None,
    views: Iterable[str] | Mapping[str, str],
    query: Query | None = None,
    factorization: Spec | None = None,
) -> ViewPlan:
    """The worst std of each view with every noise that may be chosen for these views, and with a
    declared one.

    Args:
        budget: the promise.
        horizon: the number of ticks, or None.
        views: "running", "per-tick", "last-7"; or names of your own for them, {"per-day":
            "last-25"}.
        query: what is asked; a `Count` if omitted.
        factorization: the one that the stream declares, or "best"; None leaves the choice to
            evercount.

    Returns:
        The candidates, the one that a stream runs on first.

    Raises:
        ParameterError: there is no such view, or the query has none.

    >>> from evercount import Budget
    >>> print(plan_views(Budget(1.0, 0.0), 365, ["per-tick", "running"]))
    noise             delta  per-tick  running  twice: epsilon
    terrace (chosen)      0      1.79    13.41            2.00
    fresh                 0      1.36    25.92            2.00
    bridge                0      5.93    10.31            2.00
    terrace (delta=0) is chosen: at worst 1.32 times the best possible for one view; next best: ...
    """
    query = query or Count()
    horizon = check_horizon(horizon)
    if isinstance(views, Mapping):
        named = dict(views)
    else:
        named = {view: view for view in views}
    if {"per-day", "per-week"} & set(named.values()):
        raise ParameterError(
            "a plan counts ticks: for a day of hourly ticks write last-25 (the longest day of a "
            "zone), for a week of daily ticks last-7; `evercount plan --every 1h` and declarations "
            "take per-day and per-week"
        )
    names = check_noise_for(query, named.values())
    query = query.for_views(names)
    query.check_budget(budget)
    promise, engine = choose_noise(query, budget, horizon, factorization, names)

    def is_chosen(one: Candidate) -> bool:
        return one.budget.pure == promise.pure and one.engine.name == engine.name

    rivals = candidates(query, budget, horizon, names, margin=math.inf)
    declared = factorization is not None and factorization != BEST
    if declared:
        stds = view_stds(query, promise, horizon, engine, names)
        others = tuple(one for one in rivals if not is_chosen(one))
        rivals = (Candidate(promise, engine, stds), *others)
    least = least_alone(query, budget, horizon, names, rivals)
    rows = []
    for one in rivals:
        if one.budget.pure:
            twice = 2 * budget.epsilon
        else:
            twice = Budget.from_mu(math.sqrt(2) * budget.mu, budget.delta).epsilon
        by_width = dict(zip(names, one.stds, strict=True))
        by_label = {label: by_width[name] for label, name in (named or {RUNNING: RUNNING}).items()}
        rows.append(
            ViewRow(
                one.engine.name, one.budget.delta, by_label, one.score(least), twice, is_chosen(one)
            )
        )
    rows.sort(key=lambda row: (not row.chosen, row.score))
    enforced = enforced_by(query, None)
    reason = _reason(rows, declared)
    if horizon is None and rows[0].name == "blend":
        reason += _ENDLESS
    return ViewPlan(
        repr(query),
        budget.epsilon,
        budget.delta,
        horizon,
        guarantee_text(budget, enforced).sentence,
        counted_text(budget, enforced),
        reason,
        rows,
        error_shares(query),
    )


def _reason(rows: list[ViewRow], declared: bool) -> str:
    """Say why a stream runs on the first row: it is declared, or chosen (`choose_noise`)."""
    chosen = rows[0]
    others = rows[1:]
    if declared:
        reason = (
            f"{chosen.kind} is declared: at worst {chosen.score:.2f} times the best possible for "
            "one view."
        )
        if others:
            reason += (
                f" Without `factorization`, the least: {others[0].kind}, {others[0].score:.2f} "
                "times."
            )
        return reason
    if not others:
        return f"{chosen.kind} is chosen: no other noise serves these views."
    best = others[0]
    reason = (
        f"{chosen.kind} is chosen: at worst {chosen.score:.2f} times the best possible for one "
        "view; "
    )
    if best.score >= chosen.score:
        return f"{reason}next best: {best.kind}, {best.score:.2f} times."
    return (
        f"{reason}{best.kind} has {best.score:.2f} times, but Laplace noise is chosen only where "
        f"it is better by more than {MARGIN:g} times: the epsilons of two such streams over the "
        "same events add up in full."
    )


@lru_cache(maxsize=32)
def dense_optimum(
    widths: tuple[int | None, ...],
    ticks: int,
    q: int = 1,
    period: int | None = None,
    worst: bool = False,
) -> Dense:
    """The optimum for views of these widths (1: per tick, 7: the last seven, None: running).

    Args:
        widths: One for each view.
        ticks: The horizon, at most 1024.
        q: The most ticks that a protected unit touches.
        period: Where these lie within so many consecutive ones.
        worst: Whether errors are those of a view's worst tick, or root mean squares over its ticks.

    Returns:
        The factorization, with its `certificate`.

    Raises:
        TooLarge: There are more ticks.

    >>> dense_optimum((1, None), 16).certificate.gap < 0.01
    True
    """
    if ticks > LARGEST_OPTIMAL_HORIZON:
        raise TooLarge(
            f"the optimum is computed for at most {LARGEST_OPTIMAL_HORIZON} ticks, {ticks} were "
            "asked for"
        )
    # row t adds up ticks 1 … t; of a view, the last `width` of them
    running = counting_matrix(ticks)
    views = [running if width is None else np.triu(running, 1 - width) for width in widths]
    return Dense.optimal(views, q, period, worst=worst)


@dataclass(frozen=True)
class Distance:
    """One mechanism, the worst std of each view, and how far it is from the least that noise can
    have."""

    name: str
    delta: float
    stds: tuple[float, ...]
    above: float
    """By what part its largest ratio, of a view's std to the certified least of the view alone, is
    above the certified least ratio: of Gaussian noise, and of noise of any law where δ = 0."""
    above_any: float
    """The same for noise of any law; NaN where nothing is known."""
    chosen: bool


@dataclass(frozen=True)
class AnyNoise:
    """What noise of any law needs for some views."""

    alone: tuple[float, ...]
    """No noise that is drawn without a look at the data has a smaller worst std of this view, even
    alone."""
    least_score: float
    """None has a smaller largest ratio of its stds to these."""

    def above(self, stds: Sequence[float]) -> float:
        """By what part the largest ratio of these stds is above the least."""
        return (
            max(own / least for own, least in zip(stds, self.alone, strict=True)) / self.least_score
            - 1
        )


def any_noise(
    budget: Budget, horizon: int | None, views: Sequence[str], query: Query | None = None
) -> AnyNoise | None:
    """What noise of any law needs; None without a horizon, and for queries in which an event
    changes several numbers.

    **Guarantee.** No data-independent noise that keeps the budget has less. Proof:
    `bounds/least_variance.proof.md`. Test:
    tests/bounds/test_least_variance.py::test_none_of_ours_is_below_what_any_noise_needs.
    """
    query = query or Count()
    change = _change_of_one_number(query, budget)
    if horizon is None or change is None:
        return None
    best = dense_optimum(tuple(map(view_width, views)), horizon, worst=True).certificate
    assert best is not None
    one = change * math.sqrt(least_variance(budget.epsilon, budget.delta))
    return AnyNoise(tuple(one * least for least in best.alone), best.least_score)


def _change_of_one_number(query: Query, budget: Budget) -> float | None:
    """The most that a unit changes one number in one tick; None where a unit may change several at
    once."""
    if not query.memoryless or query.people is not None or query.discovery is not None:
        return None
    squared = query.squared_sensitivity(budget.adjacency)
    try:
        total = query.l1_sensitivity(budget.adjacency)
    except ParameterError:
        return None
    if not math.isclose(total**2, squared, rel_tol=1e-9):
        return None
    return total * (budget.touched(1).per_tick or 1)


def distances(
    budget: Budget,
    horizon: int | None,
    views: Sequence[str],
    query: Query | None = None,
    own: Sequence[str] = (),
) -> tuple[list[Distance], Certificate, float]:
    """Every mechanism that may be chosen for these views, and `own` ones that are registered, next
    to the best that Gaussian noise can do: (the mechanisms, the certificate of the optimum, the std
    that its errors are multiples of). For δ = 0 that std is of no noise, and `above` is
    `above_any`.
    """
    query = query or Count()
    names = tuple(views)
    if horizon is None or not query.memoryless:
        raise ParameterError(
            "the optimum needs a horizon and a query without memory: omit --optimal"
        )
    anyhow = any_noise(budget, horizon, names, query)
    if budget.pure and anyhow is None:
        raise ParameterError(
            "at delta=0 the least error is known where an event changes one number: give a delta, "
            "or omit --optimal"
        )
    q = full_ticks(query, budget, horizon)
    widths = tuple(map(view_width, names))
    if budget.pure:
        q = 1  # all that a unit does, in one tick
    span = None
    if not budget.pure:
        span = budget.touched(horizon).span
    best = dense_optimum(widths, horizon, q, span, True).certificate
    assert best is not None
    one = math.nan
    if not budget.pure:
        one = budget.noise_multiplier() * math.sqrt(in_one_tick(query, budget))
    chosen = choose_noise(query, budget, horizon, None, names)
    mechanisms = []
    engines = [choose_engine(query, budget, horizon, name, names) for name in own]
    registered = [
        Candidate(budget, each, view_stds(query, budget, horizon, each, names)) for each in engines
    ]
    for each in (*candidates(query, budget, horizon, names, margin=math.inf), *registered):
        above_any = math.nan
        if anyhow is not None:
            above_any = anyhow.above(each.stds)
        above = above_any
        if not budget.pure:
            ratio = max(
                std / (one * least) for std, least in zip(each.stds, best.alone, strict=True)
            )
            above = ratio / best.least_score - 1
        same = (each.engine.name, each.budget.delta) == (chosen[1].name, chosen[0].delta)
        mechanisms.append(
            Distance(each.engine.name, each.budget.delta, each.stds, above, above_any, same)
        )
    return sorted(mechanisms, key=lambda each: each.above), best, one


def optimum_table(budget: Budget, horizon: int | None, views: Sequence[str], query: Query) -> str:
    """`distances` as a table for people, with the certified gap of the optimum itself."""
    own: list[str] = []
    if not budget.pure:
        own = sorted(FACTORIZATIONS.keys() - set(BUILT_IN))
    mechanisms, best, one = distances(budget, horizon, views, query, own)
    anyhow = any_noise(budget, horizon, views, query)
    delta = f"{budget.delta:g}"

    def row(name: str, promise: str, stds: Iterable[float], *above: float) -> list[str]:
        shares = ["" if math.isnan(share) else f"{share:.1%}" for share in above]
        return [name, promise, *(f"{std:.2f}" for std in stds), *shares]

    heads = ["above any noise"] if budget.pure else ["above Gaussian", "above any noise"]
    rows = [["worst std", "delta", *views, *heads]]
    if not budget.pure:
        gap = math.nan
        if anyhow is not None:
            gap = anyhow.above([one * error for error in best.errors])
        rows.append(
            row("best matrices found", delta, (one * error for error in best.errors), best.gap, gap)
        )
    for each in mechanisms:
        name = f"{each.name} (chosen)" if each.chosen else each.name
        above = [each.above_any] if budget.pure else [each.above, each.above_any]
        rows.append(row(name, f"{each.delta:g}", each.stds, *above))
    empty = [math.nan] * len(heads)
    notes = [
        (
            "least: certified for each view alone. above: of the certified least for the views "
            "together, at most."
        )
    ]
    if not budget.pure:
        rows.append(
            row("least of Gaussian noise", delta, (one * least for least in best.alone), *empty)
        )
    if anyhow is not None:
        rows.append(row("least of any noise", delta, anyhow.alone, *empty))
        notes.append("any noise: of any law, drawn without a look at the data; units in one tick.")
    return "\n".join([*aligned(rows), *notes])
