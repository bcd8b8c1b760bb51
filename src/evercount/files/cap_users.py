"""The cap per user: the first events of each user, from Arrow batches that need not fit into memory together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from evercount._arrays import IntArray
from evercount.files.source import arrow
from evercount.queries.user_cap import last_turns


def first_events(
    batches: Iterable[Any], users: Mapping[str, int], most: int, rows: int
) -> tuple[Any, dict[str, int]] | None:
    """The first `most` events of each user, and how many events each of these users has had by now.

    Args:
        batches: record batches with `who`, `us` and what else is wanted of an event; all events of these users, in the
            order of the rows. With a column `o`, the declared order, that of the rows is no matter.
        users: the events that each user has had before.
        most: the cap.
        rows: so many new events are put in order at a time.

    Returns:
        The events that count as a table, and the new numbers of events, at most `most`, of the users that were below
        the cap before. None without a batch.

    **Guarantee.** Without a declared order an event counts if fewer than `most` events of its user come before it by
    (time, row). With one it counts if at most `most` events of its user stand at or before its (time, order), so that
    events at one place count together or not at all; those that do not count take up room nevertheless. Both look at
    the places of that user's events alone, however they are cut into batches: `queries/user_cap.proof.md`, Lemma 1 and
    Pieces. Tests: tests/files/test_many_files.py::test_users_in_small_pieces and
    tests/files/test_cap_users.py::test_a_declared_order_in_pieces_is_that_of_plain_python.
    """
    held: list[Any] = []  # the first of them is what was kept so far
    for batch in batches:
        held.append(arrow().Table.from_batches([batch]))
        if sum(map(len, held[1:])) >= rows:
            held = [_candidates(arrow().concat_tables(held), users, most)]
    if not held:
        return None
    kept = _candidates(arrow().concat_tables(held), users, most)
    names, events = (kept["who"].value_counts().field(side).to_pylist() for side in (0, 1))
    known = {who: min(most, users.get(who, 0) + more) for who, more in zip(names, events, strict=True)}
    if "o" in kept.column_names:
        code, room = _users_and_room(kept, users, most)
        turns = last_turns(code, kept["us"].to_numpy(), kept["o"].to_numpy())
        kept = kept.take(np.flatnonzero(turns <= room[code]))
    return kept, known


def _users_and_room(events: Any, users: Mapping[str, int], most: int) -> tuple[IntArray, IntArray]:
    """For each event the number of its user, and for each user how many events still fit under the cap."""
    coded = events["who"].combine_chunks().dictionary_encode()
    room = [max(0, most - users.get(who, 0)) for who in coded.dictionary.to_pylist()]
    return np.asarray(coded.indices.to_numpy(), np.int64), np.asarray(room, np.int64)


def _candidates(events: Any, users: Mapping[str, int], most: int) -> Any:
    """The rows of a table that may be among the first of their user: as many as fit under the cap, by (time, row).

    By (time, order) where an order is declared, and then one more: it shows that the last place has more events than
    fit. What is left out of a part of a user's events is left out of all of them, so a table may be handed in piece by
    piece, each together with what was kept of those before.
    """
    code, room = _users_and_room(events, users, most)
    keys: tuple[Any, ...] = (events["us"].to_numpy(), code)
    if "o" in events.column_names:
        keys, room = (events["o"].to_numpy(), *keys), room + (room > 0)
    order = np.lexsort(keys)  # stable: rows of one time stay in the order of the file
    code = code[order]
    begins = np.searchsorted(code, np.arange(len(room)))
    turn = np.arange(len(code)) - begins[code]
    return events.take(order[turn < room[code]])
