"""What the encoder of a query with a memory has read of the open tick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evercount.errors import EventRefused, InputError
from evercount.queries import Query

UNREADABLE = "the batch holds an event that the stream's query cannot read"
OF_REQUEST = "of this request"
ENCODER_FAULTS = (TypeError, ValueError, OverflowError, IndexError, KeyError, AttributeError)
"""What an encoder's own checks may fail to foresee; it is still the sender's event."""


class OpenEncoder:
    """A copy of the stream's encoder that has read the events of the open tick. Derived: it is
    never stored.

    Where the query `splits`, new events are encoded by themselves, once. Otherwise the events of
    the tick are encoded together with them, on a copy, because only that tells what the closing
    tick will do.

    **Guarantee.** What `take` accepts, one part after the other, the closing tick accepts as one
    list, with the same increments. Test:
    tests/store/test_store_open_encoder.py::test_parts_are_taken_as_the_tick_is.
    """

    def __init__(self, query: Query, state: Any, events: Sequence[Any]) -> None:
        self._query = query
        self._state = query.load_state(query.dump_state(state))
        self._events = [] if query.splits else list(events)
        if query.splits:
            self._state = query.encode(self._state, list(events))[1]

    def take(self, events: Sequence[Any], places: Sequence[int]) -> None:
        """Read more events of the tick, or refuse them and stay as before. `places`: their numbers
        in the request. An error that is no InputError leaves the encoder in doubt: the caller
        builds a new one."""
        if self._query.splits:
            try:
                self._state = self._query.encode(self._state, list(events))[1]
            except EventRefused as error:
                raise error.numbered(places[error.number], OF_REQUEST) from None
            return
        try:
            self._query.encode(
                self._query.load_state(self._query.dump_state(self._state)),
                [*self._events, *events],
            )
        except (InputError, *ENCODER_FAULTS):
            # the text of a user's own encoder may count the events of others in this tick
            raise InputError(UNREADABLE) from None
        self._events.extend(events)
