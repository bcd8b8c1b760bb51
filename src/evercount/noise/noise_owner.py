"""NoiseOwner: the one live object that publishes with the noise of a key: in one process, and never a copy."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, ClassVar, NoReturn, Self

from evercount.errors import EvercountError, ParameterError
from evercount.noise.secret import Secret

_lock = threading.RLock()  # a dying owner may be collected while this thread holds it
_live: dict[str, set[weakref.ref[Any]]] = {}


class NoiseOwner:
    """Base of streams, counters and clients. Two owners of one key that saw different data reveal how these differ.

    **Guarantee.** An owner is not copied and not pickled. After a fork it works in the process that made it and refuses
    in the other. While an owner lives, a second one of the same key is refused in this process, unless it was restored
    from a snapshot (a restored owner stands for the one that was lost) or only replays. Assumption: other processes
    are not seen; the store's lock keeps them out. Tests: tests/engine/test_one_noise_owner.py.
    """

    _owner_noun: ClassVar[str]  # what an owner is called in messages

    _process: int = 0
    _closed: bool = False
    _place: tuple[str, weakref.ref[Any]] | None = None

    def _own(self, key: Secret | None = None, *, restored: bool = False) -> None:
        """Own the noise from now on; with a key, as the only live owner of it."""
        self._process = os.getpid()
        self._closed = False
        if key is None:
            return
        name = key.derive("evercount/live owners").hex()
        with _lock:
            owners = _live.setdefault(name, set())
            if not restored and any(other() is not None for other in owners):
                raise ParameterError(
                    f"another {self._owner_noun} with this secret and the same declaration is live in this process: "
                    f"both would have the same noise. Use a fresh secret, close() the other {self._owner_noun}, or "
                    "restore() its snapshot to continue it"
                )
            reference = weakref.ref(self, lambda dead: _forget(name, dead))
            owners.add(reference)
        self._place = (name, reference)

    def _check_owner(self) -> None:
        """Refuse after `close` and in a process that is a fork of the owner's."""
        if os.getpid() != self._process:
            raise EvercountError(
                f"this {self._owner_noun} belongs to another process: after a fork both would publish with the same "
                f"noise, and the difference would reveal their data. Make the {self._owner_noun} after the fork, or "
                "hand its newest snapshot to one process"
            )
        if self._closed:
            raise EvercountError(f"this {self._owner_noun} is closed")

    def close(self) -> None:
        """Give the noise up: nothing more is released, and a snapshot or an owner of the same secret may go on."""
        self._closed = True
        if self._place is not None:
            _forget(*self._place)

    def __enter__(self) -> Self:
        self._check_owner()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse(self, done: str) -> NoReturn:
        why = "two with one noise would reveal how their data differ"
        raise ParameterError(f"a {self._owner_noun} is not {done}: {why}")

    def __copy__(self) -> NoReturn:
        self._refuse("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("pickled")


def _forget(name: str, owner: weakref.ref[Any]) -> None:
    with _lock:
        owners = _live.get(name, set())
        owners.discard(owner)
        if not owners:
            _live.pop(name, None)
