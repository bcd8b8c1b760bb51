"""What the client commands share: the address of a running service, the token, and its answers as typed errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Option

from evercount.errors import ParameterError, ServiceRefused

if TYPE_CHECKING:
    import httpx

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS = 30.0  # how long an answer may take

Url = Annotated[str, Option("--url", envvar="EVERCOUNT_URL", help="Address of the service.", show_default=True)]
TokenFile = Annotated[
    Path | None,
    Option("--token-file", help="File with the token; otherwise EVERCOUNT_TOKEN, or none for public streams."),
]
DEFAULT_URL = "http://127.0.0.1:8000"


def read_token(file: Path | None) -> str | None:
    """The token of a file or of the environment. It is not an option: other users of the machine could read it."""
    if file is None:
        return os.environ.get("EVERCOUNT_TOKEN") or None
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "not a text")
        raise ParameterError(f"--token-file {file} cannot be read: {why}") from None
    if not token:
        raise ParameterError(f"--token-file {file} is empty")
    return token


@contextmanager
def connected(url: str, token_file: Path | None) -> Iterator[httpx.Client]:
    """A client of a service; what fails becomes a `ServiceRefused` with the way out."""
    import httpx

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError(f"--url {url!r} is not an address such as {DEFAULT_URL}")
    token = read_token(token_file)
    if token is not None and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        typer.echo("warning: the token travels in the clear; use https beyond this machine", err=True)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=SECONDS) as client:
            yield client
    except httpx.TimeoutException as error:
        raise ServiceRefused(f"{url} did not answer within {SECONDS:g} s: try again") from error
    except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
        why = error or type(error).__name__
        raise ServiceRefused(f"{url} cannot be reached: {why}. Is `evercount serve` running?") from None


def answer_of(response: httpx.Response) -> Any:
    """The JSON of an answer."""
    if response.is_success:
        return response.json()
    response.read()
    try:
        error = response.json()["error"]
        message, remedy, events = str(error["message"]), str(error.get("remedy") or ""), error.get("events")
    except (ValueError, KeyError, TypeError):
        message, remedy, events = f"the service answered {response.status_code}", "", None
    if response.status_code in (401, 403):
        remedy = "Give a token by --token-file or EVERCOUNT_TOKEN."
    sentence = message if message.endswith((".", "?", "!")) or not remedy else f"{message}."
    raise ServiceRefused(f"{sentence} {remedy}".strip(), response.status_code, events)


def ask(url: str, token_file: Path | None, method: str, path: str, **more: Any) -> Any:
    """The answer to one request."""
    with connected(url, token_file) as client:
        return answer_of(client.request(method, path, **more))
