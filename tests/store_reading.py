"""Read what a store has released, as tests compare it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evercount.store import LiveStream, Reading, Store


def close_and_read(
    store: Store, live: LiveStream, count: int, closed_at: float = 0.0
) -> list[dict[str, Any]]:
    """Release the next ticks, and read what they show."""
    before = live.closed
    store.close_ticks(live, count, closed_at)
    return store.read_releases(live, before)


def all_releases(reading: Reading, name: str) -> Iterator[dict[str, Any]]:
    """Read the releases of a stream page by page, up to the last one at the time of the first."""
    from evercount.store.stored_releases import find_stream, released_until

    one = reading.database.read(find_stream, name)
    until, after = reading.database.read(released_until, one.id), 0
    while page := reading.read_releases(one, after, until=until):
        yield from page
        after = page[-1]["tick"]


def stored_labels(reading: Reading, name: str) -> list[str]:
    from evercount.store.stored_releases import find_stream, labels_of

    return list(reading.database.read(labels_of, reading.database.read(find_stream, name)))
