"""Access tokens: only their hashes are stored."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import delete, insert, select

from evercount.errors import ParameterError, UnknownName
from evercount.noise import random_token
from evercount.store import schema
from evercount.store.reader import Reading
from evercount.store.writer import Store

Role = Literal["admin", "write", "read"]
ROLES: tuple[str, ...] = get_args(Role)
SHORTEST = 24  # characters of a token that an operator chooses; a shorter one could be guessed from its hash


@dataclass(frozen=True)
class Token:
    id: int
    role: str
    label: str
    digest: bytes
    created: float


def token_digest(token: str) -> bytes:
    """What is stored of a token: tokens are long random texts, so a plain fast hash cannot be turned back."""
    return hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=32, person=b"evercount.token").digest()


def check_token(token: str) -> str:
    if len(token) < SHORTEST:
        raise ParameterError(f"an access token must have at least {SHORTEST} characters: use a long random one")
    return token


def add_token(store: Store, role: str, label: str = "") -> tuple[int, str]:
    """(id, token) of a new token; this is the only time that it can be seen."""
    if role not in ROLES:
        raise UnknownName("role", role, ROLES)
    if not isinstance(label, str) or len(label) > 200:
        raise ParameterError("label must be a text of at most 200 characters")
    token = f"evc_{role}_{random_token()}"
    row = {"role": role, "label": label, "digest": token_digest(token), "created": time.time()}
    with store.database.transaction() as connection:
        number = connection.execute(insert(schema.tokens).values(**row).returning(schema.tokens.c.id)).scalar_one()
    return int(number), token


def read_tokens(store: Reading) -> list[Token]:
    with store.database.reading() as connection:
        rows = connection.execute(select(schema.tokens).order_by(schema.tokens.c.id)).mappings().all()
    return [Token(row["id"], row["role"], row["label"], bytes(row["digest"]), row["created"]) for row in rows]


def remove_token(store: Store, number: int) -> bool:
    with store.database.transaction() as connection:
        removed = connection.execute(delete(schema.tokens).where(schema.tokens.c.id == number))
    return bool(removed.rowcount)
