"""Secrets of a store: private columns are encrypted, and of access tokens only the hashes are
stored.

Columns: AES-256-GCM with one derived key per stream, purpose and tick.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import Row, insert

from evercount._safe_files import read_secret_file
from evercount.errors import ParameterError, StoreError
from evercount.noise import random_bytes, random_token
from evercount.store import schema
from evercount.store.database import remove, rows_of

if TYPE_CHECKING:
    from evercount.store.reader import Reading
    from evercount.store.writer import Store

NONCE_BYTES = 12
PLAIN, SEALED = b"\x00", b"\x01"


def read_key(text: str) -> bytes:
    """32 bytes from 64 hexadecimal digits or from base64; the text never stands in a message."""
    cleaned = text.strip()
    try:
        key = (
            bytes.fromhex(cleaned)
            if len(cleaned) == 64
            else base64.b64decode(cleaned, validate=True)
        )
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != 32:
        raise ParameterError(
            "the store's key must be 32 bytes, written as 64 hexadecimal digits or base64; make "
            "one with `openssl rand -hex 32`"
        )
    return key


def key_from_environment(file: Path | None = None) -> bytes | None:
    """The key of `file`, else of EVERCOUNT_KEY_FILE or EVERCOUNT_KEY; None when none is given."""
    if path := file or os.environ.get("EVERCOUNT_KEY_FILE"):
        return read_key(read_secret_file("the key file", Path(path)))
    text = os.environ.get("EVERCOUNT_KEY")
    return read_key(text) if text else None


class Sealer:
    """Seals and opens the private columns of one store.

    **Guarantee.** With a key, a sealed value tells its length and nothing else, and a changed
    value, or one moved to another stream, purpose or tick, is refused (AES-256-GCM; keys by
    HKDF-SHA256 over store, purpose, stream and tick, so that one key seals far fewer than 2^32
    values). Without a key, values are kept as they are. Assumption: the key is 256 random bits.
    Tests: `tests/store/test_store_sealing.py`.
    """

    def __init__(self, key: bytes | None, store: str) -> None:
        self._key = key
        self._store = store
        self._cipher = lru_cache(maxsize=256)(self._derive)

    @property
    def encrypted(self) -> bool:
        return self._key is not None

    def _derive(self, place: str) -> AESGCM:
        assert self._key is not None
        info = f"evercount/store/1|{self._store}|{place}".encode()
        return AESGCM(HKDF(SHA256(), 32, salt=None, info=info).derive(self._key))

    def seal(
        self, value: bytes, purpose: str, stream: int, tick: int = 0, extra: bytes = b""
    ) -> bytes:
        if self._key is None:
            return PLAIN + value
        nonce = random_bytes(NONCE_BYTES)
        return (
            SEALED + nonce + self._cipher(f"{purpose}|{stream}|{tick}").encrypt(nonce, value, extra)
        )

    def open(
        self, stored: bytes, purpose: str, stream: int, tick: int = 0, extra: bytes = b""
    ) -> bytes:
        stored = bytes(stored)
        if stored[:1] == PLAIN and self._key is None:
            return stored[1:]
        if stored[:1] != SEALED or self._key is None:
            raise StoreError(
                f"a stored {purpose} is {'not ' if self._key else ''}encrypted: the store was "
                "changed by hand"
            )
        try:
            place = f"{purpose}|{stream}|{tick}"
            return self._cipher(place).decrypt(
                stored[1 : 1 + NONCE_BYTES], stored[1 + NONCE_BYTES :], extra
            )
        except InvalidTag:
            raise StoreError(
                f"a stored {purpose} cannot be opened: the key is not the one of this store, or "
                "the value was changed"
            ) from None


Role = Literal["admin", "write", "read"]
# characters of a token that an operator chooses; a shorter one could be guessed from its hash
SHORTEST = 24


def token_digest(token: str) -> bytes:
    """What is stored of a token: tokens are long random texts, so a plain fast hash cannot be
    turned back."""
    return hashlib.blake2b(
        token.encode("utf-8", "replace"), digest_size=32, person=b"evercount.token"
    ).digest()


def check_token(token: str) -> str:
    if len(token) < SHORTEST:
        raise ParameterError(
            f"an access token must have at least {SHORTEST} characters: use a long random one"
        )
    return token


def add_token(store: Store, role: Role, label: str = "") -> tuple[int, str]:
    """(id, token) of a new token; this is the only time that it can be seen."""
    token = f"evc_{role}_{random_token()}"
    row = {"role": role, "label": label, "digest": token_digest(token), "created": time.time()}
    with store.database.transaction() as connection:
        number = connection.execute(
            insert(schema.tokens).values(**row).returning(schema.tokens.c.id)
        ).scalar_one()
    return int(number), token


def read_tokens(store: Reading) -> Sequence[Row[*tuple[Any, ...]]]:
    with store.database.reading() as connection:
        return rows_of(connection, schema.tokens, order="id").all()


def remove_token(store: Store, number: int) -> bool:
    with store.database.transaction() as connection:
        return remove(connection, schema.tokens, id=number)
