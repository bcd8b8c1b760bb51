"""Who may do what, how often, and how much at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from evercount.service.http_errors import Problem
from evercount.store.reader import Reading
from evercount.store.tokens import Token, check_token, read_tokens, same, token_digest


@dataclass(frozen=True)
class Limits:
    """What one request and one client may ask for."""

    body: int = 2_000_000
    """Bytes of a body."""
    batch: int = 10_000
    """Events of a batch."""
    rate: float = 1000.0
    """Requests per second of one token, or of one address without a token."""
    burst: float = 2000.0
    listeners: int = 256
    """Live connections at a time."""
    page: int = 1000
    """Releases of one answer."""
    numbers: int = 200_000
    """Published numbers of one answer."""


class Access:
    """Tokens and their roles. An admin may do everything; write and read may do what their name says."""

    def __init__(self, store: Reading, admin: str | None = None) -> None:
        self._store = store
        self._given = token_digest(check_token(admin)) if admin else None
        self._tokens: list[Token] = []
        self.reload()

    def reload(self) -> None:
        """Read the stored tokens again."""
        self._tokens = read_tokens(self._store)

    @property
    def has_admin(self) -> bool:
        """Whether anybody can administer the service."""
        return self._given is not None or any(token.role == "admin" for token in self._tokens)

    def role(self, request: Request) -> str | None:
        """The role of the request's token; None without a token, Problem with a wrong one.

        **Guarantee.** The comparison looks at hashes only and at all of them, in constant time each, so its duration
        tells nothing about how much of a guess was right. Test: `tests/service/test_service_access.py`.
        """
        header = request.headers.get("authorization")
        if header is None:
            return None
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Problem(401, "Unauthorized", "the Authorization header must be: Bearer TOKEN")
        digest = token_digest(token.strip())
        found = "admin" if self._given is not None and same(digest, self._given) else None
        for known in self._tokens:
            if same(digest, known.digest):
                found = found or known.role
        if found is None:
            raise Problem(401, "Unauthorized", "the token is not known")
        return found

    def require(self, request: Request, *roles: str) -> str:
        """The request's role, which must be admin or one of `roles`."""
        role = self.role(request)
        if role is None:
            raise Problem(401, "Unauthorized", f"this needs a token with the role {' or '.join((*roles, 'admin'))}")
        if role != "admin" and role not in roles:
            raise Problem(403, "Forbidden", f"a token with the role {role!r} may not do this")
        return role


class Buckets:
    """A token bucket per client, for at most `most` clients; the oldest are forgotten."""

    def __init__(self, rate: float, burst: float, most: int = 10_000) -> None:
        self.rate, self.burst, self.most = rate, burst, most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> None:
        """Take one request from the client's bucket, or Problem 429."""
        now = time.monotonic() if now is None else now
        level, since = self._buckets.pop(client, (self.burst, now))
        level = min(self.burst, level + (now - since) * self.rate)
        if level < 1:
            self._buckets[client] = (level, now)
            raise Problem(429, "TooManyRequests", "too many requests in a short time", retry=(1 - level) / self.rate)
        self._buckets[client] = (level - 1, now)
        while len(self._buckets) > self.most:
            self._buckets.popitem(last=False)


def client_of(scope: Scope) -> str:
    """Whose bucket a request is taken from: the address that connected."""
    return str(scope["client"][0]) if scope.get("client") else "local"


async def read_body(request: Request, most: int) -> bytes:
    """The body, or Problem 413 as soon as it is too long."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise Problem(413, "TooLarge", f"a body has at most {most} bytes")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Problem(413, "TooLarge", f"a body has at most {most} bytes")
        parts.append(part)
    return b"".join(parts)
