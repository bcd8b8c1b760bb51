"""The cap per user: the first events of each user, in SQL, from a table that need not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EVENTS_OF_A_GROUP = 1 << 22
"""About how many events are sorted by time in one step; all events of a user are in the same step."""
MOST_GROUPS = 256
MOST_OF_MIN = 10**6
"""DuckDB's min(x, n) takes n below this."""


def first_events(
    connection: DuckDBPyConnection, users: Mapping[str, int], most: int, *, ordered: bool
) -> tuple[str, dict[str, int]]:
    """The first `most` events of each user, and how many events each of these users has had by now.

    The first is a SELECT of rows of the table `event`, which holds place (1 or more for an event), who, us, what else
    is wanted and, with `ordered`, o; its rows are in their order. `users` are the events of each user before. The
    second leaves out users that were at the cap `most` before.

    **Guarantee.** Without a declared order an event counts if fewer than `most` events of its user come before it by
    (time, row). With one it counts if at most `most` events of its user stand at or before its (time, order), so that
    events at one place count together or not at all; those that do not count take up room nevertheless. Both look at
    the places of that user's events alone: `queries/user_cap.proof.md`, Lemma 1 and Order. Tests:
    tests/files/test_cap_users.py::test_a_declared_order_is_that_of_plain_python and
    tests/files/test_cap_users.py::test_without_an_order_it_is_the_row.

    Say that a user has room for r more events. If it has no more than r, all count. Else those at times before that of
    the (r+1)-th by time count, later ones do not, and only those at that very time need to be put in order.
    """
    connection.execute(
        "CREATE TEMP TABLE earlier AS SELECT unnest(?::VARCHAR[]) AS who, unnest(?::BIGINT[]) AS had",
        [list(users), list(users.values())],
    )
    connection.execute(
        f"CREATE TEMP TABLE user_room AS SELECT who, greatest(0, {most} - coalesce(had, 0)) AS room, events FROM ("
        "SELECT who, count(*) AS events FROM event WHERE place > 0 GROUP BY who) LEFT JOIN earlier USING (who)"
    )
    _limit_users(connection)
    if ordered:
        turn = "count(*) OVER (PARTITION BY who ORDER BY o)"
    else:
        turn = "row_number() OVER (PARTITION BY who ORDER BY row)"
    rows = "(SELECT *, rowid AS row FROM event WHERE place > 0) JOIN user_limit USING (who)"
    counted = (
        f"SELECT *, 0 AS turn FROM {rows} WHERE last_time IS NULL OR us < last_time UNION ALL "
        f"SELECT * FROM (SELECT *, {turn} AS turn FROM {rows} WHERE us = last_time) WHERE turn <= room - before"
    )
    known = connection.execute(
        f"SELECT who, least({most}, {most} - room + events) FROM user_room WHERE room > 0"
    ).fetchall()
    return counted, dict(known)


def _limit_users(connection: DuckDBPyConnection) -> None:
    """Make the table `user_limit`: for users with more events than room the time of their first event beyond it, and
    how many of their events lie before that time; NULL for the others."""
    ((users, limited, events, longest),) = connection.execute(
        "SELECT count(*), count(*) FILTER (events > room), coalesce(sum(events) FILTER (events > room), 0), "
        "coalesce(max(room) FILTER (events > room), 0) + 1 FROM user_room"
    ).fetchall()
    # min(us, n) makes room for n times of every user, however few there are: it is for caps that are not too large.
    if limited * longest <= EVENTS_OF_A_GROUP and longest < MOST_OF_MIN:
        times, groups = f"min(us, {longest})", 1
    else:
        times, groups = "list(us)", min(MOST_GROUPS, 1 + events // EVENTS_OF_A_GROUP)
    over = "" if limited == users else " SEMI JOIN (SELECT who FROM user_room WHERE events > room) USING (who)"
    connection.execute(
        "CREATE TEMP TABLE user_limit AS SELECT who, room, NULL::BIGINT AS last_time, NULL::BIGINT AS before "
        "FROM user_room WHERE events <= room"
    )
    for group in range(groups):
        connection.execute(
            "INSERT INTO user_limit SELECT who, room, times[room + 1], list_position(times, times[room + 1]) - 1 FROM ("
            f"SELECT who, list_sort({times}) AS times FROM event{over} "
            f"WHERE place > 0 AND hash(who) % {groups} = {group} GROUP BY who) JOIN user_room USING (who)"
        )
