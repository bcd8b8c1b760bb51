"""Who may do what, how often, and how much at once; and where the first admin token comes from."""

from __future__ import annotations

import ipaddress
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Annotated

from pydantic import Field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from evercount._safe_files import FULL_DISK, MAKE_ROOM, open_private, read_secret_file
from evercount.declarations.fields import table
from evercount.errors import HttpProblem, ParameterError
from evercount.noise import random_token
from evercount.store import Store
from evercount.store.reader import Reading
from evercount.store.sealing import Role, check_token, read_tokens, token_digest


@dataclass(frozen=True)
class Limits:
    body: int = 2_000_000  # bytes of a body
    batch: int = 10_000  # events of a batch
    # requests per second of one client: of a valid token, or of an address without one
    rate: float = 1000.0
    burst: float = 2000.0
    listeners: int = 256  # live connections at a time
    # of these for clients with a token: those without one cannot take the last seats
    listeners_kept: int = 64
    listeners_per_client: int = 32  # live connections of one client at a time
    # open connections of one address at a time; trusted proxies may have more
    connections: int = 512
    header_seconds: float = 10.0  # how long the head of a request may take to arrive
    body_seconds: float = 60.0  # how long the body of a request may take to arrive
    write_seconds: float = 60.0  # how long a client may leave an answer unread
    plans: int = 64  # plans that wait or are computed at a time
    plans_per_client: int = 4  # of one client
    # how long a plan or the noise of a declaration may take, with its wait in line
    compute_seconds: float = 120.0
    export_seconds: float = 600.0  # how long the file of an export may take
    page: int = 1000  # releases of one answer
    numbers: int = 200_000  # published numbers of one answer


@table("a token")
class NewToken:
    """A token that an admin requests."""

    role: Role
    label: Annotated[
        str, Field(max_length=200, description="a string of at most 200 characters")
    ] = ""


class Access:
    """Tokens and their roles. An admin may do everything; write and read may do what their name
    says."""

    def __init__(self, store: Reading, admin: str | None = None) -> None:
        self._store = store
        self._given = token_digest(check_token(admin)) if admin else None
        self.reload()

    def reload(self) -> None:
        self._tokens = read_tokens(self._store)

    def role(self, request: Request) -> str | None:
        """The role of the request's token; None without a token, HttpProblem with a wrong one.

        **Guarantee.** The comparison looks at hashes only and at all of them, in constant time
        each, so its duration tells nothing about how much of a guess was right. Test:
        `tests/service/test_service_access.py`.
        """
        header = request.headers.get("authorization")
        if header is None:
            return None
        digest = sent_digest(header)
        if digest is None:
            raise HttpProblem(401, "Unauthorized", "the Authorization header must be: Bearer TOKEN")
        role = self._role_of(digest)
        if role is None:
            raise HttpProblem(401, "Unauthorized", "unknown token")
        return role

    def _role_of(self, digest: bytes) -> str | None:
        """Find the role of a token by its hash; None if there is no such token."""
        role = None
        if self._given is not None and compare_digest(digest, self._given):
            role = "admin"
        for token in self._tokens:
            if compare_digest(digest, bytes(token.digest)):
                role = role or token.role
        return role

    def client(self, scope: Scope) -> str:
        """Whose share of the service a request uses up: its token's if that is valid, else its
        address's. The address is the one that connected, or the one that a trusted proxy names.
        Addresses of one IPv6 network of 64 bits are one client: anyone who has one of them has
        all."""
        digest = sent_digest(Headers(scope=scope).get("authorization", ""))
        if digest is not None and self._role_of(digest) is not None:
            return f"token {digest.hex()}"
        if not scope.get("client"):
            return "address local"
        return f"address {shared_address(str(scope['client'][0]))}"

    @staticmethod
    def has_token(client: str) -> bool:
        """Whether a client, as `client` names it, has a valid token."""
        return client.startswith("token ")

    def sender(self, request: Request) -> bytes:
        """Identify the holder of a token: idempotency keys of different senders are different."""
        return sent_digest(request.headers.get("authorization", "")) or b""

    def still_allowed(self, request: Request) -> bool:
        """Whether a long answer may continue: its token was not revoked."""
        try:
            return self.role(request) is not None
        except HttpProblem:
            return False

    def require(self, request: Request, *roles: str) -> str:
        """The request's role, which must be admin or one of `roles`."""
        role = self.role(request)
        if role is None:
            raise HttpProblem(
                401,
                "Unauthorized",
                f"this needs a token with the role {' or '.join((*roles, 'admin'))}",
            )
        if role != "admin" and role not in roles:
            raise HttpProblem(403, "Forbidden", f"a token with the role {role!r} may not do this")
        return role


class Buckets:
    """A token bucket per client, for at most `most` clients; the oldest are forgotten."""

    def __init__(self, rate: float, burst: float, most: int = 10_000) -> None:
        self.rate = rate
        self.burst = burst
        self.most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> None:
        """Take one request from the client's bucket, or HttpProblem 429."""
        if now is None:
            now = time.monotonic()
        level, since = self._buckets.pop(client, (self.burst, now))
        level = min(self.burst, level + (now - since) * self.rate)
        if level < 1:
            self._buckets[client] = (level, now)
            raise HttpProblem(
                429,
                "TooManyRequests",
                "too many requests in a short time",
                retry=(1 - level) / self.rate,
            )
        self._buckets[client] = (level - 1, now)
        while len(self._buckets) > self.most:
            self._buckets.popitem(last=False)


def sent_digest(header: str) -> bytes | None:
    """The digest of the token in an Authorization header, valid or not; None if there is no
    token."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return None
    return token_digest(token.strip())


def shared_address(host: str) -> str:
    """The address, or the network of 64 bits of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


async def read_body(request: Request, most: int) -> bytes:
    """The body, or HttpProblem 413 as soon as it is too long."""
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not declared.isdigit() or int(declared) <= most:
        async for part in request.stream():
            body += part
            if len(body) > most:
                break
        else:
            return bytes(body)
    raise HttpProblem(413, "TooLarge", f"the body of a request has at most {most} bytes")


VARIABLE = "EVERCOUNT_ADMIN_TOKEN"


def default_file(store: Store) -> Path:
    """`<db>.admin-token` next to an SQLite file; for PostgreSQL `<head>.admin-token` next to the
    head file."""
    place = store.database.file or store.head.path
    return place.with_name(f"{place.name}.admin-token")


def admin_token(
    store: Store, named: Path | None = None, *, read_only: bool = False
) -> tuple[str | None, Path | None]:
    """The admin token that is not stored, and the file that holds it; None if there is none.

    It is that of EVERCOUNT_ADMIN_TOKEN, else that of the named file, else that of the file in the
    default place. A file that is missing is written, readable by its owner only; in the default
    place only if the store has no admin token. A service that is `read_only` does
    without where no file can be written: stored tokens are enough.
    """
    if given := os.environ.get(VARIABLE):
        return given, None
    place = named or default_file(store)
    if not os.path.lexists(place):
        if named is None and any(token.role == "admin" for token in read_tokens(store)):
            return None, None
        try:
            return write_token_file(place), place
        except ParameterError:
            if read_only and named is None:
                return None, None
            raise
    text = read_secret_file("the admin token file", place, links=False)
    try:
        return check_token(text), place
    except ParameterError:
        raise ParameterError(
            f"the admin token file {place} holds no token: remove it and a new one is written"
        ) from None


def write_token_file(path: Path) -> str:
    """Write a new admin token into a file that only its owner can read; return the token."""
    token = f"evc_admin_{random_token()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(
            open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8"
        ) as content:
            content.write(token + "\n")
            content.flush()
            os.fsync(content.fileno())
    except OSError as error:
        if error.errno in FULL_DISK:
            # this call made it, and without a token it would be refused from now on
            path.unlink(missing_ok=True)
            raise ParameterError(
                f"the admin token file {path} cannot be written: {MAKE_ROOM}"
            ) from None
        raise ParameterError(
            f"the admin token file {path} cannot be written: {error.strerror}. "
            f"Name another with --admin-token-file, or set {VARIABLE}"
        ) from None
    return token
