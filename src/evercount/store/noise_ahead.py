"""NoiseAhead: noise is drawn beside the writer of a store, so that no tick waits for it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from evercount.store.open_stream import LiveStream


class NoiseAhead:
    """Threads that draw the next noise of streams. The numbers are the same, whoever draws them and when."""

    def __init__(self) -> None:
        self._blocks = ThreadPoolExecutor(1, "evercount-noise")
        self._new_keys = ThreadPoolExecutor(4, "evercount-new-keys")  # they may take long, and others must not wait

    def draw_block(self, live: LiveStream) -> None:
        prepare = getattr(live.stream, "prepare", None)
        threads = self._new_keys if live.declaration.query.discovery is not None else self._blocks
        live.ahead = None if prepare is None or live.finished or live.cut is not None else threads.submit(prepare)

    def draw_new_keys(self, live: LiveStream) -> None:
        """Begin to draw the noise of the keys that the open tick has brought."""
        if live.declaration.query.discovery is None or (live.ahead is not None and not live.ahead.done()):
            return
        if live.looked_at < len(live.events):
            live.looked_at = len(live.events)
            live.ahead = self._new_keys.submit(live.stream.prepare, list(live.events))

    def under_way(self, live: LiveStream) -> Future[Any] | None:
        """What has to end before `close_ticks` of this stream is quick: noise that is drawn beside the writer.

        The noise of a new key takes time in proportion to the tick: with very many new keys at a late tick it takes
        longer than clients of other streams may wait.
        """
        self.draw_new_keys(live)
        return None if live.ahead is None or live.ahead.done() else live.ahead

    def close(self) -> None:
        self._blocks.shutdown(cancel_futures=True)
        self._new_keys.shutdown(cancel_futures=True)
