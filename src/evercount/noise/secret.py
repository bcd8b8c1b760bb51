"""The 256-bit secret of a stream, the one live object that may publish with its noise, and
randomness for simulations.

A secret is drawn by the operating system and shown only by `hex()`. Its owner lives in one process
and is never copied. Anybody can compute the randomness for simulations, so nothing that was made
with it may be published.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
import weakref
from typing import Any, ClassVar, NoReturn, Self, SupportsIndex

import numpy as np

from evercount._validate import check_whole
from evercount.errors import EvercountError, ParameterError, SnapshotError

_KEY_BYTES = 32
# BLAKE2b's "person" field: keeps these keys apart from any other use
_DERIVE_PERSON = b"evercount.derive"


def random_bytes(count: int) -> bytes:
    """Fresh bytes of the operating system's generator: for nonces and identities.

    Args:
        count: the number of bytes.

    Returns:
        The bytes.

    >>> len(random_bytes(16))
    16
    """
    return secrets.token_bytes(count)


def random_token() -> str:
    """A fresh text of 256 random bits that fits a URL: for access tokens.

    Returns:
        43 characters.

    >>> len(random_token())
    43
    """
    return secrets.token_urlsafe(_KEY_BYTES)


class Secret:
    """A 256-bit key from which all noise of a stream follows.

    Anyone who holds it can subtract the noise from every release, past and future. So it is never
    part of a repr, a message or a pickle, and `hex()` is the only way to see it: review what calls
    `hex()`.

    Build one with `Secret.generate()` or `Secret.from_hex(text)`; the constructor is refused.

    Raises:
        ParameterError: the constructor was called.

    **Guarantee.** `repr`, `str`, `format` and error messages contain no bit of the key; pickling is
    refused; comparison takes the same time wherever the keys differ. Keys of different labels
    (`derive`) are independent and tell nothing of their parent, if keyed BLAKE2b is a pseudorandom
    function. Tests: `tests/noise/test_secret.py`.

    >>> secret = Secret.generate()
    >>> secret
    Secret(…)
    >>> Secret.from_hex(secret.hex()) == secret
    True
    >>> secret.derive("one purpose") == secret.derive("another purpose")
    False
    """

    __slots__ = ("__key",)
    __key: bytes

    def __init__(self) -> None:
        raise ParameterError("build a Secret with Secret.generate() or Secret.from_hex(text)")

    @classmethod
    def _of(cls, key: bytes) -> Secret:
        """Make a secret of its key."""
        secret = object.__new__(cls)
        object.__setattr__(secret, "_Secret__key", key)  # our own __setattr__ refuses every change
        return secret

    @classmethod
    def generate(cls) -> Secret:
        """A fresh secret from the operating system's generator.

        Returns:
            The secret.
        """
        return cls._of(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def from_hex(cls, text: str) -> Secret:
        """The secret whose `hex()` is this text.

        Args:
            text: Exactly 64 hexadecimal digits.

        Returns:
            The secret.

        Raises:
            ParameterError: The text is anything else. The message does not repeat it.
        """
        good = (
            isinstance(text, str)
            and len(text) == 2 * _KEY_BYTES
            and text.isascii()
            and text.isalnum()
        )
        try:
            secret = cls._of(bytes.fromhex(text)) if good else None
        except ValueError:
            secret = None
        # The text may be a mistyped secret: it must not stand in the message or in the locals of a
        # traceback.
        del text
        if secret is None:
            raise ParameterError(
                "a secret is written as exactly 64 hexadecimal digits (256 bits)"
            ) from None
        return secret

    def hex(self) -> str:
        """The key as 64 hexadecimal digits: the only way to see it. Keep it as you would keep a
        password.

        Returns:
            The digits.
        """
        return self.__key.hex()

    def derive(self, label: str) -> Secret:
        """An independent secret for one purpose.

        Args:
            label: The purpose, not empty. The same label always gives the same secret.

        Returns:
            The secret for this purpose.

        Raises:
            ParameterError: The label is empty or no text.
        """
        if not isinstance(label, str) or not label:
            raise ParameterError(f"a label must be a nonempty string, got {label!r}")
        digest = hashlib.blake2b(
            label.encode(), digest_size=_KEY_BYTES, key=self.__key, person=_DERIVE_PERSON
        )
        return Secret._of(digest.digest())

    # Defining __eq__ without __hash__ makes it unhashable. That is intended: hashes depend on the
    # key and get printed.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__key, other.__key)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret cannot be changed")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ParameterError(
            "a Secret is not pickled: store secret.hex() where passwords are stored"
        )


def check_secret(secret: object) -> Secret:
    """The secret, or a ParameterError that does not show what was given."""
    if not isinstance(secret, Secret):
        raise ParameterError(
            f"exact noise needs a Secret, not a {type(secret).__name__}: Secret.generate()"
        )
    return secret


def insecure_generator(seed: int | None) -> np.random.Generator:
    """NumPy's fastest generator of normals. Its state can be guessed from its outputs, and its
    doubles have gaps."""
    # Such gaps rule out neighbouring data sets (Mironov 2012, "On significance of the least
    # significant bits for differential privacy"): releases have `ExactNoise`.
    return np.random.Generator(
        np.random.SFC64(None if seed is None else check_whole("seed", seed, 0, 2**128))
    )


def insecure_secret(seed: int | None) -> Secret:
    """A secret that follows from a public seed; None for a fresh one.

    >>> insecure_secret(7) == insecure_secret(7)
    True
    """
    if seed is None:
        return Secret.generate()
    return Secret.from_hex("0" * 64).derive(f"insecure seed {seed}")


_lock = threading.RLock()  # a dying owner may be collected while this thread holds it
_live: dict[str, dict[weakref.ref[Any], range | None]] = {}
"""By the name of a key: its live owners, and which of its cells each of them has (None: all)."""


class NoiseOwner:
    """Base of streams, counters and clients. Two owners of one key that saw different data reveal
    how these differ.

    **Guarantee.** An owner is not copied and not pickled. After a fork it works in the process that
    made it and refuses in the other. In one process, at most one owner of a cell of a key gives
    noise: a second one is refused while the first lives, and one that is restored from a snapshot
    takes the place of those that live, which then refuse. In a fork, none is restored while the
    process that it comes from runs and had a live one when it forked. Exceptions: a replay, which
    is never published, and owners that are not `_exclusive`. Assumption: other processes are not
    seen; the store's lock keeps them out. Tests: tests/engine/test_one_noise_owner.py.
    """

    _owner_noun: ClassVar[str]  # what an owner is called in messages
    _exclusive: ClassVar[bool] = True
    """Whether no other owner may have its noise. False where a commit decides which of several
    equal ones counts."""

    _process: int = 0
    _closed: bool = False
    # whether an owner that was restored from a snapshot has taken its place
    _replaced: bool = False
    _torn: bool = False  # whether an interruption left data between two ticks
    _place: tuple[str, weakref.ref[Any]] | None = None

    def _own(
        self, key: Secret | None = None, *, cells: range | None = None, restored: bool = False
    ) -> None:
        """Own the noise from now on; with a key, as the only live owner of these cells of it (None:
        all of them)."""
        self._process = os.getpid()
        self._closed = False
        if key is None or not self._exclusive:
            return
        name = key.derive("evercount/live owners").hex()
        with _lock:
            rivals = _owners_of(name, cells)
            if rivals and not restored:
                raise ParameterError(
                    f"another {self._owner_noun} with this secret and the same declaration is live "
                    "in this process: both would have the same noise. Use a fresh secret, close() "
                    f"the other {self._owner_noun}, or restore() its snapshot to continue it"
                )
            for rival in rivals:
                if rival._process != self._process and _runs(rival._process):
                    raise SnapshotError(
                        f"process {rival._process}, of which this one is a fork, has a live "
                        f"{self._owner_noun} with this noise, and nobody can stop it from here. "
                        "close() it there before the fork, or restore the snapshot in a process "
                        "that was started otherwise, once that one has ended"
                    )
            for rival in rivals:
                rival._replaced = True
                rival.close()
            reference = weakref.ref(self, lambda dead: _forget(name, dead))
            _live.setdefault(name, {})[reference] = cells
        self._place = (name, reference)

    def _check_owner(self) -> None:
        """Refuse an owner that may give no more noise: after `close`, after another one was
        restored from its snapshot, in a process that is a fork of the owner's, and after an
        interruption within a tick."""
        if os.getpid() != self._process:
            raise EvercountError(
                f"this {self._owner_noun} belongs to another process: after a fork both would "
                "publish with the same noise, and the difference would reveal their data. Make the "
                f"{self._owner_noun} after the fork, or hand its newest snapshot to one process"
            )
        if self._replaced:
            raise EvercountError(
                f"this {self._owner_noun} was replaced: another one was restored from its snapshot "
                f"and has the same noise. Go on with the restored {self._owner_noun}"
            )
        if self._closed:
            raise EvercountError(f"this {self._owner_noun} is closed")
        if self._torn:
            raise EvercountError(
                f"this {self._owner_noun} was interrupted in the middle of a tick and cannot "
                "continue; restore its newest snapshot"
            )

    def close(self) -> None:
        """Give the noise up: nothing more is released, and a snapshot or an owner of the same
        secret may go on."""
        self._closed = True
        if self._place is not None:
            _forget(*self._place)

    def __enter__(self) -> Self:
        self._check_owner()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what `copy` and `pickle` both ask
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        why = "two with one noise would reveal how their data differ"
        raise ParameterError(f"a {self._owner_noun} is not copied or pickled: {why}")


def _owners_of(name: str, cells: range | None) -> list[NoiseOwner]:
    """The live owners of a key that have one of these cells; None means all cells."""
    owners = []
    for reference, own in list(_live.get(name, {}).items()):
        owner = reference()
        if owner is not None and _overlap(own, cells):
            owners.append(owner)
    return owners


def _runs(process: int) -> bool:
    """Whether a process of this number runs. Asked of processes that this one was forked from."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def _overlap(one: range | None, other: range | None) -> bool:
    """Whether two ranges of cells share one; None means all cells."""
    if one is None or other is None:
        return True
    return max(one.start, other.start) < min(one.stop, other.stop)


def _forget(name: str, owner: weakref.ref[Any]) -> None:
    """Remove an owner that no longer lives."""
    with _lock:
        owners = _live.get(name, {})
        owners.pop(owner, None)
        if not owners:
            _live.pop(name, None)
