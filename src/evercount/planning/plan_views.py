"""Which error will each view have, with every noise that a stream may run on, and which noise is
chosen?

Errors are worst stds, as a stream's noise is chosen by them (`engine/noise_choice.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from evercount._validate import aligned
from evercount.engine.build import FITTED_TICKS, RUNNING, Spec
from evercount.engine.noise_choice import (
    BEST,
    MARGIN,
    Candidate,
    candidates,
    check_noise_for,
    choose_noise,
    least_alone,
)
from evercount.engine.state import enforced_by
from evercount.engine.worst_errors import view_stds
from evercount.engine.write_table import frame_module
from evercount.errors import ParameterError
from evercount.factorizations import check_horizon
from evercount.planning.output_errors import error_shares, shares_sentence
from evercount.privacy import Budget, counted_text, guarantee_text
from evercount.queries import Count, Query

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
            "epsilon_if_run_twice": [row.twice for row in self.rows],
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
        table = [["noise", "delta", *views, "epsilon_if_run_twice"]]
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
    noise             delta  per-tick  running  epsilon_if_run_twice
    terrace (chosen)      0      1.79    13.41                  2.00
    fresh                 0      1.36    25.92                  2.00
    bridge                0      5.93    10.31                  2.00
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
