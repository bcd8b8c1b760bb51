"""What the streams of a store spend, alone and together, and the cap that the operator set on
it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import format_utc
from evercount.errors import BudgetExceeded, ParameterError
from evercount.privacy import Cost, compose
from evercount.privacy.accounts import Filter
from evercount.privacy.composition import check_periods
from evercount.privacy.time_range import Grid
from evercount.store import schema
from evercount.store.database import Database, read_fact, write_fact

CAP = "budget_cap"  # the key of the cap among the store's own facts


@dataclass(frozen=True)
class Spending:
    stream: str
    cost: Cost
    public: bool
    retired: bool = False

    @property
    def unit(self) -> tuple[Any, ...]:
        """What tells units apart, whenever periods begin. A store enforces the cap of each stream
        (or its query needs none), so every stream about users keeps its promise for all events of a
        user, however many it counts: all of them speak about the same unit. Where persons are
        protected in periods, the last entry is how long these are, as far as that is known: a
        period of 7 ticks is a week or seven hours."""
        during = self.cost.during
        length = None
        if during is not None and (grid := Grid.of(during.periods)) is not None:
            length = grid.length
        return *self.cost.budget.neighbours, length

    def shares_unit(self, other: Spending) -> bool:
        """Whether both may speak about the same unit, so that a cap holds for both together."""
        lengths = {self.unit[-1], other.unit[-1]} - {None}
        return self.unit[:-1] == other.unit[:-1] and len(lengths) < 2


@dataclass(frozen=True)
class BudgetCap:
    """The most that streams about the same unit may spend together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < float("inf") or not 0 <= self.delta < 1:
            raise ParameterError("a budget cap needs epsilon above 0 and delta from 0 to below 1")


def retired_rows(connection: Connection) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: dict(row) for row in connection.execute(select(schema.retired)).mappings()}


def read_spendings(
    connection: Connection, ending: Mapping[str, int | None] | None = None
) -> list[Spending]:
    """Every line of the ledger, in the order in which it was spent. Streams that a restored
    database lost come last, with what the head file knew of them. A stream that was retired counts
    events until its last released tick; `ending` are streams that are about to be, with that
    instant."""
    table, names = schema.ledger, schema.streams
    query = (
        select(table.c.cost, names.c.name, names.c.declaration)
        .join(names, names.c.id == table.c.stream)
        .order_by(table.c.sequence)
    )
    retired = retired_rows(connection)
    until = {name: json.loads(row["facts"]).get("until") for name, row in retired.items()} | dict(
        ending or {}
    )
    lines = [
        Spending(
            row["name"],
            _ended(Cost.from_dict(json.loads(row["cost"])), until.get(row["name"])),
            json.loads(row["declaration"])["public"],
            row["name"] in retired,
        )
        for row in connection.execute(query).mappings()
    ]
    lost = {
        name: json.loads(row["facts"])["cost"]
        for name, row in retired.items()
        if row["stream"] is None
    }
    return lines + [
        Spending(name, Cost.from_dict(cost), False, True) for name, cost in sorted(lost.items())
    ]


def states(line: str, declaration: StreamDeclaration) -> bool:
    """Whether a stored line has the budget and the time range of its stream, which the chain of
    releases covers."""
    cost = Cost.from_dict(json.loads(line))
    during = declaration.during
    if cost.budget != declaration.budget:
        return False
    if cost.during is None or during is None:
        return cost.during is None
    return (cost.during.start, cost.during.ticks) == (during.start, during.ticks)


def _ended(cost: Cost, until: int | None) -> Cost:
    """Reduce a cost to that of a stream that releases nothing of what happened from an instant
    on."""
    during = cost.during
    if during is None or until is None or (during.end is not None and during.end <= until):
        return cost
    return replace(cost, during=replace(during, end=max(until, during.start + 1)))


def read_cap(connection: Connection) -> BudgetCap | None:
    text = read_fact(connection, CAP)
    if text is None:
        return None
    return BudgetCap(**json.loads(text))


def groups_of(lines: Sequence[Spending]) -> list[list[Spending]]:
    """Group the streams that speak about the same unit and can be added up. Streams of persons in
    periods of which one may meet two of another stream are in different groups, and others may be
    in several; a cap refuses them.

    **Guarantee.** What one group spends together is what `compose` states, for every unit of its
    streams, and a stream of the same unit is left out of a group only where it cannot be added to
    it. Test: `tests/store/test_store_periods.py::test_no_total_is_below_what_a_person_costs`.
    """
    groups: list[list[Spending]] = []
    for first in lines:
        if any(first is line for group in groups for line in group):
            continue
        group = [first]
        for line in lines:
            if line is not first and _fits(line, group):
                group.append(line)
        groups.append(group)
    return groups


def _fits(line: Spending, group: list[Spending]) -> bool:
    """Return whether a stream can be added to those of a group."""
    if line.unit != group[0].unit:
        return False
    own = _periods_of(line)
    others = [one.cost for one in group if not own or _periods_of(one) != own]
    try:
        check_periods([line.cost], others)
    except ParameterError:
        return False
    return True


def _periods_of(line: Spending) -> str:
    """Return the text that says which periods persons are protected in; empty where nothing
    does."""
    if line.cost.during is None:
        return ""
    return line.cost.during.periods


def describe_ledger(lines: Iterable[Spending], cap: BudgetCap | None = None) -> dict[str, Any]:
    """The lines, and what streams about the same unit spend together, exactly composed. Of persons
    in periods: which streams these are, and how many are `apart`, with the same unit but for when
    its periods begin."""
    lines = list(lines)
    entries = []
    for line in lines:
        budget = line.cost.budget
        during = line.cost.during
        mu = 0.0 if budget.pure else budget.mu  # a pure stream spends ε alone
        entry = {"stream": line.stream, "mu": mu, **budget.to_dict()}
        if line.cost.span is not None and during is not None:
            entry["during"] = [
                None if at is None else format_utc(at) for at in (during.start, during.end)
            ]
        if line.retired:
            entry["retired"] = True
        entries.append(entry)
    totals = []
    for members in groups_of(lines):
        adjacency, unit, period = members[0].cost.budget.neighbours
        together = compose(line.cost for line in members)
        whom: dict[str, Any] = {
            "adjacency": adjacency,
            "unit": unit,
            "period": period,
            "streams": len(members),
        }
        if period is not None:
            alike = [line for line in lines if line.shares_unit(members[0])]
            whom |= {"names": [line.stream for line in members], "apart": len(alike) - len(members)}
        totals.append({**whom, "epsilon": together.epsilon, "delta": together.delta})
    shown = {} if cap is None else {"cap": asdict(cap)}
    return {"entries": entries, "totals": totals, **shown}


def refuse_beyond_cap(
    database: Database,
    new: Spending,
    ending: Mapping[str, int | None] | None = None,
    earlier: Sequence[Cost] = (),
) -> None:
    """Refuse a new stream that would spend beyond the cap, together with all others about the same
    unit; `ending` as in `read_spendings`. `earlier` is what streams before it have spent elsewhere,
    which is charged with it.

    **Guarantee.** After every declaration that this lets pass, the total that the ledger states for
    each unit is at most (cap.epsilon, cap.delta), and the streams keep it together, also where a
    declaration depended on what others had released (`accounts.Filter`), if the cap was set before
    the first of them. Retired streams count in full. Tests: `tests/store/test_store_cap.py`,
    test_the_stated_total_never_exceeds_the_cap, test_a_cap_is_kept_by_choices_after_releases;
    `tests/store/test_store_periods.py`.
    """
    if (cap := database.read(read_cap)) is None:
        return
    lines = database.read(read_spendings, ending)
    lines += [Spending(new.stream, cost, False, True) for cost in earlier]
    lines = [line for line in lines if line.shares_unit(new)]
    costs = [line.cost for line in (*lines, new)]
    try:
        check_periods([new.cost], costs[:-1])
        together = compose(costs)
    except ParameterError as error:
        raise BudgetExceeded(
            f"this store has a cap, and what stream {new.stream!r} and others cost together cannot "
            f"be stated: {error} Declare it so, or remove the cap with `evercount store cap "
            "--remove`"
        ) from None
    whole = replace(together, epsilon=cap.epsilon, delta=cap.delta, calibration="tight")
    if (
        together.epsilon > cap.epsilon
        or together.delta > cap.delta
        or not Filter(whole).admits(costs)
    ):
        raise BudgetExceeded(
            f"with stream {new.stream!r} the streams about the same unit would spend epsilon "
            f"{together.epsilon:.6g}, delta {together.delta:.3g} together, and the cap of this "
            f"store is epsilon {cap.epsilon:.6g}, delta {cap.delta:.3g}. Of several streams over "
            "the same time, half of delta is for Gaussian noise and half for promises that add up. "
            "Declare it with a smaller budget, or raise the cap with `evercount store cap`"
        )


def set_cap(database: Database, cap: BudgetCap | None) -> None:
    """Set or remove the cap on what streams about the same unit spend together. What is spent stays
    spent."""
    with database.transaction() as connection:
        write_fact(connection, CAP, None if cap is None else json.dumps(asdict(cap)))
