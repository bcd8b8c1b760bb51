"""Where the first admin token comes from: the environment, a file for its owner only, or the terminal if asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evercount._safe_files import open_private, read_secret_file
from evercount.errors import ParameterError
from evercount.noise import random_token
from evercount.store import Store
from evercount.store.tokens import add_token, check_token, read_tokens

VARIABLE = "EVERCOUNT_ADMIN_TOKEN"


@dataclass(frozen=True)
class AdminToken:
    """The token that the service knows besides the stored ones, and what the operator is told about it."""

    given: str | None = None  # a token that is not stored: from the environment or a file
    file: Path | None = None  # where `given` was read from or written to
    shown: str | None = None  # a new stored token that is printed once, because that was asked for


def default_file(store: Store) -> Path:
    """`<db>.admin-token` next to an SQLite file; for PostgreSQL `<head>.admin-token` next to the head file."""
    place = store.database.file or store.head.path
    return place.with_name(f"{place.name}.admin-token")


def named_admin_token(file: Path | None, show: bool = False) -> AdminToken | None:
    """The token of EVERCOUNT_ADMIN_TOKEN, else of a named file, which is made if it is missing; it needs no store."""
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        return AdminToken(from_environment)
    return None if file is None else _token_in(file, show)


def choose_admin_token(store: Store, show: bool = False, *, read_only: bool = False) -> AdminToken:
    """The admin token of a store for which none is named.

    The file in the default place is read. If nobody could administer the store otherwise, a new token is written into
    that file, readable by its owner only; with `show` it is stored as a hash instead, and printed once.
    A service that is `read_only` does without where no file can be written: stored tokens are enough for it.
    """
    place = default_file(store)
    if not os.path.lexists(place):
        if any(token.role == "admin" for token in read_tokens(store)):
            return AdminToken()
        if show:
            return AdminToken(shown=add_token(store, "admin", "created at the first start")[1])
    try:
        return _token_in(place)
    except ParameterError:
        if read_only and not os.path.lexists(place):
            return AdminToken()
        raise


def _token_in(place: Path, show: bool = False) -> AdminToken:
    if os.path.lexists(place):
        return AdminToken(read_token_file(place), place)
    token = write_token_file(place)
    return AdminToken(token, place, token if show else None)


def read_token_file(path: Path) -> str:
    text = read_secret_file("the admin token file", path, links=False)
    try:
        return check_token(text)
    except ParameterError:
        raise ParameterError(
            f"the admin token file {path} holds no token: remove it and a new one is written"
        ) from None


def write_token_file(path: Path) -> str:
    token = f"evc_admin_{random_token()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as content:
            content.write(token + "\n")
            content.flush()
            os.fsync(content.fileno())
    except OSError as error:
        raise ParameterError(
            f"the admin token file {path} cannot be written: {error.strerror}. "
            f"Name another with --admin-token-file, or set {VARIABLE}"
        ) from None
    return token
