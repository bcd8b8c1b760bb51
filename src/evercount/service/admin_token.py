"""Where the first admin token comes from: the environment, a file for its owner only, or the terminal if asked for."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from evercount.errors import ParameterError
from evercount.noise import random_token
from evercount.store import Store
from evercount.store.rollback_guard import default_path
from evercount.store.tokens import add_token, check_token, read_tokens

VARIABLE = "EVERCOUNT_ADMIN_TOKEN"
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class AdminToken:
    """The token that the service knows besides the stored ones, and what the operator is told about it."""

    given: str | None = None
    """A token that is not stored: from the environment or a file."""
    file: Path | None = None
    """Where `given` was read from or written to."""
    shown: str | None = None
    """A new stored token that is printed once, because that was asked for."""


def default_file(store: Store) -> Path:
    """`<db>.admin-token` beside an SQLite file; for PostgreSQL beside the default head file."""
    place = store.database.file or default_path(store.database)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place.with_name(f"{place.name}.admin-token")


def choose_admin_token(store: Store, file: Path | None = None, show: bool = False) -> AdminToken:
    """The admin token of a service that starts.

    EVERCOUNT_ADMIN_TOKEN wins. A file that is named or lies in the default place is read. If nobody could administer
    the store otherwise, a new token is written into that file, readable by its owner only; with `show` it is stored as
    a hash instead, and printed once.
    """
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        return AdminToken(from_environment)
    place = file or default_file(store)
    if os.path.lexists(place):
        return AdminToken(read_token_file(place), place)
    if file is None and any(token.role == "admin" for token in read_tokens(store)):
        return AdminToken()
    if show and file is None:
        return AdminToken(shown=add_token(store, "admin", "created at the first start")[1])
    token = write_token_file(place)
    return AdminToken(token, place, token if show else None)


def read_token_file(path: Path) -> str:
    """The token in a file that belongs to this user alone, or ParameterError."""
    try:
        handle = os.open(path, os.O_RDONLY | NO_LINKS)
    except OSError as error:
        raise ParameterError(
            f"the admin token file {path} cannot be read (it may be a link): {error.strerror}"
        ) from None
    with os.fdopen(handle, encoding="utf-8") as content:
        facts = os.fstat(content.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ParameterError(f"the admin token file {path} is not a regular file")
        if hasattr(os, "geteuid") and (facts.st_uid != os.geteuid() or facts.st_mode & 0o077):
            raise ParameterError(
                f"the admin token file {path} must belong to the user who runs the service and be readable by nobody "
                f"else: chmod 600 {path}, or remove it and a new one is written"
            )
        try:
            return check_token(content.read(1000).strip())
        except (ParameterError, UnicodeDecodeError):
            raise ParameterError(
                f"the admin token file {path} holds no token: remove it and a new one is written"
            ) from None


def write_token_file(path: Path) -> str:
    """A new token, in a new file of mode 600."""
    token = f"evc_admin_{random_token()}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as content:
            content.write(token + "\n")
            content.flush()
            os.fsync(content.fileno())
    except OSError as error:
        raise ParameterError(f"the admin token file {path} cannot be written: {error.strerror}") from None
    return token
