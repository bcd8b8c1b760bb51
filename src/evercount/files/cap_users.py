"""The caps per user and period, in SQL, over a table that need not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evercount.queries.user_cap import Caps

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

UsedBefore = tuple[int, int]
"""What one user has used of the caps in the open period: counted events, and ticks with an event. 0 without a cap."""
EVENTS_OF_A_STEP = 1 << 22
"""About how many events are put in order in one step; all events of a user are in the same step."""
MOST_STEPS = 256
NUMBER_OF_USER = "hash(who)"
"""SQL: a number that is much faster to sort by than the text of a user. It is used only where no two users share it."""


@dataclass(frozen=True)
class UserRule:
    """Which events of the table `event` count.

    The table holds place (the tick, 1 or more for an event), who, us, what else is wanted and, with `ordered`, o; its
    rows are in their order.
    """

    caps: Caps
    period: str = "0"
    """SQL: the number of the period, from place."""
    ordered: bool = False

    def keep(
        self,
        connection: DuckDBPyConnection,
        users: Mapping[str, UsedBefore],
        begun: int = 0,
        total: str = "0",
    ) -> str:
        """SQL: place, cell, events and total (`total` is an aggregate) of all groups of events that count.

        `users` are those of the period with the number `begun`.

        **Guarantee.** An event counts if its turn among its user's events of its tick is at most the room that the
        user has there, `Caps.rooms`: by (time, row), or with a declared order by (time, order), where events at one
        place share the last turn. Events that do not count for that take up room nevertheless. It looks at the places
        of that user's events of one period alone: `queries/user_cap.proof.md`, Lemma 1 and Order. Tests:
        tests/files/test_cap_users.py::test_caps_are_those_of_plain_python and
        tests/files/test_cap_users.py::test_a_shared_number_of_two_users_is_noticed.
        """
        _load(connection, users)
        user = NUMBER_OF_USER if _has_no_twins(connection) else "who"
        ((rows,),) = connection.execute("SELECT count(*) FROM event").fetchall()
        steps = min(MOST_STEPS, 1 + rows // EVENTS_OF_A_STEP)
        made = False
        for step in range(steps):
            chosen = "place > 0" + f" AND hash(who) % {steps} = {step}" * (steps > 1)
            kept = self._kept(self._rows(user, chosen, begun if users else None))
            groups = f"SELECT place, cell, count(*) AS events, {total} AS total FROM ({kept}) GROUP BY place, cell"
            connection.execute(f"INSERT INTO counted {groups}" if made else f"CREATE TEMP TABLE counted AS {groups}")
            made = True
        return (
            "SELECT place, cell, sum(events)::BIGINT AS events, sum(total)::BIGINT AS total FROM counted GROUP BY ALL"
        )

    def _rows(self, user: str, chosen: str, begun: int | None) -> str:
        """SQL: the chosen events with their user and period, and what the user had used before."""
        columns = f"* EXCLUDE (who), rowid AS row, {user} AS who, {self.period} AS period"
        if begun is None:
            return f"SELECT {columns}, 0 AS had_events, 0 AS had_ticks FROM event WHERE {chosen}"
        had = "coalesce(events, 0) AS had_events, coalesce(ticks, 0) AS had_ticks"
        return (
            f"SELECT * EXCLUDE (events, ticks), {had} FROM (SELECT {columns}, who AS name FROM event WHERE {chosen}) "
            f"LEFT JOIN earlier ON name = known AND period = {begun}"
        )

    def _kept(self, rows: str) -> str:
        """SQL: the rows that count.

        row_number − rank over the places of a period is the turn in the tick, dense_rank the number of the tick. With
        max_events and max_per_tick, what earlier ticks have used up is the number of their events within max_per_tick:
        their rows are numbered a second time.
        """
        most, each, ticks = self.caps.events, self.caps.per_tick, self.caps.ticks
        time = "us, o" if self.ordered else "us, row"
        if ticks is None and (most is None or each is None):
            group, room = ("who, place", f"{each}") if most is None else ("who, period", f"{most} - had_events")
            turn = self._turn(f"PARTITION BY {group} ORDER BY {time}")
            return f"SELECT * FROM (SELECT *, {turn} AS turn FROM ({rows})) WHERE turn <= {room}"
        by_tick, in_order = (f"PARTITION BY who, period ORDER BY {keys}" for keys in ("place", f"place, {time}"))
        numbered = (
            f"SELECT *, {self._turn(in_order)} AS last, row_number() OVER ({in_order}) AS number, "
            f"rank() OVER ({by_tick}) - 1 AS before, dense_rank() OVER ({by_tick}) AS nth FROM ({rows})"
        )
        conditions = [] if ticks is None else [f"nth + had_ticks <= {ticks}"]
        if most is None:
            conditions.append(f"last - before <= {each}")
            return f"SELECT * FROM ({numbered}) WHERE {' AND '.join(conditions)}"
        if each is None:
            conditions.append(f"last <= {most} - had_events")
            return f"SELECT * FROM ({numbered}) WHERE {' AND '.join(conditions)}"
        first = " AND ".join([*conditions, f"number - before <= {each}"])
        again = f"SELECT *, rank() OVER ({by_tick}) - 1 AS used FROM ({numbered}) WHERE {first}"
        return f"SELECT * FROM ({again}) WHERE last - before <= least({each}, {most} - had_events - used)"

    def _turn(self, window: str) -> str:
        """SQL: how many events are at or before this one; RANGE is up to the last at the same place."""
        return f"count(*) OVER ({window})" if self.ordered else f"row_number() OVER ({window})"

    def used(self, connection: DuckDBPyConnection, opened: int, begun: int) -> dict[str, UsedBefore]:
        """What the users that came in the period `opened` have used by now; `keep` was told those of `begun`.

        Users are left out who had used up all before.
        """
        most, each, ticks = self.caps.events, self.caps.per_tick, self.caps.ticks
        if self.caps.within_a_tick:
            return {}
        here = f"place > 0 AND {self.period} = {opened}"
        if ticks is None and each is None:
            came = f"SELECT who, count(*) AS came, 0 AS ticks_here FROM event WHERE {here} GROUP BY who"
            events, number = "came", "0"
        else:
            came = (
                "SELECT who, list(came ORDER BY place) AS came, count(*) AS ticks_here FROM ("
                f"SELECT who, place, {'count(*)' if each is None else f'least(count(*), {each})'} AS came FROM event "
                f"WHERE {here} GROUP BY who, place) GROUP BY who"
            )
            left = "came" if ticks is None else f"came[:greatest(0, {ticks} - had_ticks)]"
            events = f"coalesce(list_sum({left}), 0)"
            number = "0" if ticks is None else f"least({ticks}, had_ticks + ticks_here)"
        known = "0" if most is None else f"least({most}, had_events + {events})"
        joined = f"({came}) LEFT JOIN earlier ON who = known AND {opened} = {begun}"
        rows = connection.execute(
            f"SELECT who, {known}::BIGINT AS now_events, {number}::BIGINT AS now_ticks FROM (SELECT *, "
            f"coalesce(events, 0) AS had_events, coalesce(ticks, 0) AS had_ticks FROM {joined}) "
            f"WHERE (now_events, now_ticks) <> (had_events, had_ticks)"
        ).fetchall()
        return {who: (events_now, ticks_now) for who, events_now, ticks_now in rows}


def _load(connection: DuckDBPyConnection, users: Mapping[str, UsedBefore]) -> None:
    """Make the table `earlier` of what users have used before."""
    connection.execute(
        "CREATE TEMP TABLE earlier AS SELECT unnest(?::VARCHAR[]) AS known, unnest(?::BIGINT[]) AS events, "
        "unnest(?::BIGINT[]) AS ticks",
        [list(users), [events for events, _ in users.values()], [ticks for _, ticks in users.values()]],
    )


def _has_no_twins(connection: DuckDBPyConnection) -> bool:
    """Whether all users have different numbers: then an order by them is one by users."""
    ((users, numbers),) = connection.execute(
        f"SELECT count(*), count(DISTINCT number) FROM (SELECT DISTINCT who, {NUMBER_OF_USER} AS number FROM event "
        "WHERE place > 0)"
    ).fetchall()
    return bool(users == numbers)
