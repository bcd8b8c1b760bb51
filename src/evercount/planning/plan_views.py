"""plan_views: which error will each view have? The candidates for a stream's noise, and the one that is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from evercount.engine.build import FITTED_TICKS
from evercount.engine.noise_choice import MARGIN, candidates, check_noise_for, choose_noise, least_alone
from evercount.engine.user_counting import enforced_by
from evercount.engine.view_widths import RUNNING
from evercount.engine.write_table import frame_module
from evercount.errors import ParameterError
from evercount.factorizations import check_horizon
from evercount.planning.largest import error_shares, shares_sentence
from evercount.privacy import Budget, counted_text, guarantee_text
from evercount.queries import Count, Query
from evercount.text_rules import aligned

_ENDLESS = (
    f" It is fitted to the first 2^{FITTED_TICKS.bit_length() - 1} ticks; after them it is just as private, and errors "
    "of running totals grow faster."
)


@dataclass(frozen=True)
class ViewRow:
    """One mechanism.

    Args:
        name: the factorization.
        delta: δ of its promise: 0 for Laplace noise, whatever was asked for.
        stds: the worst std of each view.
        score: the largest of them in units of the least std that the view can have with noise for it alone.
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
    """The rows, the chosen one first, the others from the smallest error on. Printed, it is a table.

    Args:
        query: the query, as text.
        epsilon: the budget.
        delta: the budget.
        horizon: the number of ticks, or None: then over 2^20 ticks.
        guarantee: the promise in one sentence.
        counted: what the numbers are about, where not all events of a user are counted; else empty.
        reason: why a stream runs on the chosen one.
        rows: one for each mechanism.
        shares: the std of outputs over the largest one, where outputs differ: by the first label of each size.
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
        """The table, column by column: the noise, its δ, the worst std of each view, what a second stream costs.

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
        told = [self.reason, shares_sentence(self.shares)]
        return "\n".join([*aligned(table, left=1), *filter(None, told)])


def plan_views(
    budget: Budget, horizon: int | None, views: Iterable[str] | Mapping[str, str], query: Query | None = None
) -> ViewPlan:
    """The worst std of each view with every noise that may be chosen for these views.

    Args:
        budget: the promise.
        horizon: the number of ticks, or None.
        views: "running", "per-tick", "last-7"; or names of your own for them, {"per-day": "last-25"}.
        query: what is asked; a `Count` if omitted.

    Returns:
        The candidates, the chosen one first.

    Raises:
        ParameterError: there is no such view, or the query has none.

    >>> from evercount import Budget
    >>> print(plan_views(Budget(1.0, 0.0), 365, ["per-tick", "running"]))
    noise           delta  per-tick  running  twice: epsilon
    fresh (chosen)      0      1.36    25.92            2.00
    bridge              0      5.94    10.31            2.00
    fresh (delta=0) is chosen: its std is at most 2.52 times the least that a view can have alone. Next: bridge ...
    """
    query, horizon = query or Count(), check_horizon(horizon, unbounded=True)
    named = dict(views) if isinstance(views, Mapping) else {view: view for view in views}
    if {"per-day", "per-week"} & set(named.values()):
        raise ParameterError(
            "a plan counts ticks: for a day of hourly ticks write last-25 (the longest day of a zone), for a week of "
            "daily ticks last-7; `evercount plan --every 1h` and declarations take per-day and per-week"
        )
    names = check_noise_for(query, named.values())
    query = query.for_views(names)
    query.check_budget(budget)
    kept, engine = choose_noise(query, budget, horizon, None, names)
    found = candidates(query, budget, horizon, names, margin=math.inf)
    least = least_alone(query, budget, horizon, names, found)
    rows = []
    for one in found:
        mine = one.budget.pure == kept.pure and one.engine.name == engine.name
        twice = (
            2 * budget.epsilon if one.budget.pure else Budget.from_mu(math.sqrt(2) * budget.mu, budget.delta).epsilon
        )
        by_width = dict(zip(names, one.stds, strict=True))
        stds = {label: by_width[name] for label, name in (named or {RUNNING: RUNNING}).items()}
        rows.append(ViewRow(one.engine.name, one.budget.delta, stds, one.score(least), twice, mine))
    rows.sort(key=lambda row: (not row.chosen, row.score))
    enforced = enforced_by(query, None)
    return ViewPlan(
        repr(query),
        budget.epsilon,
        budget.delta,
        horizon,
        guarantee_text(budget, enforced).sentence,
        counted_text(budget, enforced),
        _reason(rows, names) + (_ENDLESS if horizon is None and rows[0].name == "blend" else ""),
        rows,
        error_shares(query),
    )


def _reason(rows: list[ViewRow], views: tuple[str, ...]) -> str:
    """Why the first row is chosen: `choose_noise` in words."""
    chosen, others = rows[0], rows[1:]
    if not others:
        return f"{chosen.kind} is chosen: no other noise serves these views."
    said = f"{chosen.kind} is chosen: its std is at most {chosen.score:.2f} times the least that a view can have alone."
    best = others[0]
    if best.score >= chosen.score:
        return f"{said} Next: {best.kind}, {best.score:.2f} times."
    if views == (RUNNING,):
        return (
            f"{said} {best.kind} has {best.score:.2f} times, but running totals alone keep the noise of their budget."
        )
    return (
        f"{said} {best.kind} has {best.score:.2f} times, but Laplace noise is chosen only where it is better by more "
        f"than {MARGIN:g} times: the epsilons of two such streams over the same events add up in full."
    )
