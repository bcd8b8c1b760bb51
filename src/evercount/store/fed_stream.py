"""FedStream: a stream that Spark or a log feeds. Numbered batches of totals in, due ticks out."""

from __future__ import annotations

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.errors import ParameterError, StreamStopped
from evercount.queries.capabilities import rows_of
from evercount.store.accept_totals import Counted, CountedBatch, last_batches, last_tick, read_position
from evercount.store.close_shards import Run
from evercount.store.writer import Store


def check_fed(declaration: StreamDeclaration, source: str) -> None:
    """ParameterError for streams that need more than a source hands over of their events."""
    query, budget = declaration.query, declaration.budget
    if declaration.schedule.manual:
        raise ParameterError(f"{source} closes ticks by the clock: declare a tick such as 1h instead of 'manual'")
    named = query.people is not None or query.discovery is not None or budget.unit == "user"
    if declaration.revise_for is not None and named:
        raise ParameterError(
            f"late = 'revise' counts an event by how late it came, and what {source} hands over of persons and names "
            "does not say that: use `evercount release` or the service"
        )
    if query.people is not None and rows_of(query).repeats:
        raise ParameterError(
            f"{query.name!r} follows each user from event to event, so every event must be there in its order when its "
            f"tick closes; {source} hands over what each user did in a tick at most once: use `evercount release` or "
            "the service"
        )
    if query.people is not None and budget.caps[:2] != (None, None):
        raise ParameterError(
            f"{query.name!r} counts a user once, however many events there are, and {source} hands over each user once "
            "a tick: leave max_events and max_per_tick out (max_ticks and period are served), or use `evercount "
            "release`"
        )


class FedStream:
    """One declared stream of a store; instants are in microseconds since 1970."""

    def __init__(self, store: Store, declaration: StreamDeclaration, now: int, shards: int | None = None) -> None:
        self.store = store
        self.live = store.declare(declaration, now / SECOND, shards=shards)
        self.declaration = self.live.declaration  # with the start that the store knows
        self.run: Run | None = None  # what closes the shards of a stream that is cut; None: this process

    @property
    def last_tick(self) -> int:
        return last_tick(self.live)

    @property
    def finished(self) -> bool:
        return self.live.finished

    def last_batches(self) -> dict[str, int]:
        with self.store.database.reading() as connection:
            return last_batches(connection, self.live.id)

    def position(self, source: str) -> bytes | None:
        with self.store.database.reading() as connection:
            return read_position(connection, self.live, self.store.sealer, source)

    def accept(self, query: str, batch: int, found: Counted, fresh: bool, position: bytes | None = None) -> bool:
        """Commit what a batch holds; False if it was committed before. See `store.accept_totals`."""
        one = CountedBatch(query, batch, found.totals, fresh, found.users, position, found.named)
        return self.store.accept_totals(self.live.name, one)

    def due(self, now: int) -> int:
        if self.live.stopped:
            raise StreamStopped(f"stream {self.live.name!r} is stopped: {self.live.stopped}")
        return self.live.due(now / SECOND)

    def close_due(self, now: int, wait: int = 0) -> range:
        """Release the ticks that have ended, and waited for `wait` or as long as is declared; returns them."""
        now -= max(0, wait - self.declaration.waits)
        first = self.live.closed + 1
        while (count := self.due(now)) > 0:
            self.store.close_ticks(self.live, count, now / SECOND, describe=0, run=self.run)
        return range(first, self.live.closed + 1)
