"""The 256-bit secret of a stream: drawn by the operating system, shown only by `hex()`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NoReturn, SupportsIndex

from evercount.errors import ParameterError

_KEY_BYTES = 32
_DERIVE_PERSON = b"evercount.derive"  # BLAKE2b's "person" field: keeps these keys apart from any other use


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

    Anyone who holds it can subtract the noise from every release, past and future. So it is never part of a
    repr, a message or a pickle, and `hex()` is the only way to see it: review what calls `hex()`.

    Build one with `Secret.generate()` or `Secret.from_hex(text)`; the constructor is refused.

    Raises:
        ParameterError: the constructor was called.

    **Guarantee.** `repr`, `str`, `format` and error messages contain no bit of the key; pickling is refused;
    comparison takes the same time wherever the keys differ. Keys of different labels (`derive`) are
    independent and tell nothing of their parent, if keyed BLAKE2b is a pseudorandom function. Tests:
    `tests/noise/test_secret.py`.

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
        good = isinstance(text, str) and len(text) == 2 * _KEY_BYTES and text.isascii() and text.isalnum()
        try:
            secret = cls._of(bytes.fromhex(text)) if good else None
        except ValueError:
            secret = None
        # The text may be a mistyped secret: it must not stand in the message or in the locals of a traceback.
        del text
        if secret is None:
            raise ParameterError("a secret is written as exactly 64 hexadecimal digits (256 bits)") from None
        return secret

    def hex(self) -> str:
        """The key as 64 hexadecimal digits: the only way to see it. Keep it as you would keep a password.

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
            raise ParameterError(f"a label must be a nonempty text, not {label!r}")
        digest = hashlib.blake2b(label.encode(), digest_size=_KEY_BYTES, key=self.__key, person=_DERIVE_PERSON)
        return Secret._of(digest.digest())

    # Defining __eq__ without __hash__ makes it unhashable. That is intended: hashes depend on the key and get printed.
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
        raise ParameterError("a Secret is not pickled: store secret.hex() where passwords are stored")


def check_secret(secret: object) -> Secret:
    """The secret, or a ParameterError that does not show what was given."""
    if not isinstance(secret, Secret):
        raise ParameterError(f"exact noise needs a Secret, not a {type(secret).__name__}: Secret.generate()")
    return secret
