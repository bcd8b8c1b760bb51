"""What the client commands share: requests to a running service, and the events of a file as `push`
sends them."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Option

from evercount.errors import InputError, ParameterError, ServiceRefused

if TYPE_CHECKING:
    import httpx

    from evercount.files.source import Source


LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS = 30.0  # how long an answer may take

Url = Annotated[
    str, Option("--url", envvar="EVERCOUNT_URL", help="Address of the service.", show_default=True)
]
TokenFile = Annotated[
    Path | None,
    Option(
        "--token-file",
        help="File with the token; otherwise EVERCOUNT_TOKEN, or none for public streams.",
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"


def read_token(file: Path | None) -> str | None:
    """The token of a file or of the environment. It is not an option: other users of the machine
    could read it."""
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
    """A client of a service; what fails becomes a `ServiceRefused` with a suggested fix."""
    import httpx

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError(f"--url {url!r} is not an address such as {DEFAULT_URL}")
    token = read_token(token_file)
    if token is not None and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        typer.echo(
            "warning: the token travels in the clear; use https beyond this machine", err=True
        )
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=SECONDS) as client:
            yield client
    except httpx.TimeoutException as error:
        raise ServiceRefused(f"{url} did not answer within {SECONDS:g} s: try again") from error
    except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
        why = error or type(error).__name__
        raise ServiceRefused(
            f"{url} cannot be reached: {why}. Is `evercount serve` running?"
        ) from None


def answer_of(response: httpx.Response) -> Any:
    """The JSON of an answer; ServiceRefused if it is an error."""
    if response.is_success:
        return response.json()
    response.read()
    message = f"the service answered {response.status_code}"
    remedy = ""
    events = None
    with suppress(ValueError, KeyError, TypeError):
        error = response.json()["error"]
        message = str(error["message"])
        remedy = str(error.get("remedy") or "")
        events = error.get("events")
    if response.status_code in (401, 403):
        remedy = "Give a token with --token-file or EVERCOUNT_TOKEN."
    if remedy and not message.endswith((".", "?", "!")):
        message += "."
    raise ServiceRefused(f"{message} {remedy}".strip(), response.status_code, events)


def ask(url: str, token_file: Path | None, method: str, path: str, **more: Any) -> Any:
    """The answer to one request."""
    with connected(url, token_file) as client:
        return answer_of(client.request(method, path, **more))


ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class PushedFile:
    """An event file, and which of its columns holds the time, key, value and user of an event;
    JSONL has none."""

    source: Source
    columns: Mapping[str, str]
    scratch: Path

    @property
    def identity(self) -> str:
        """Identify this file also after it has grown: by its first two lines, or its first row."""
        if self.source.kind == "parquet":
            return json.dumps([self.source.columns, next(self.lines(), "")])
        with _open_text(self.source) as text:
            return text.readline() + text.readline()

    def lines(self) -> Iterator[str]:
        """The events in the order of the file, each as a line of JSON."""
        if self.source.empty:
            return
        if self.source.kind == "jsonl":
            with _open_text(self.source) as text:
                yield from (line.strip() for line in text if line.strip())
            return
        self.source.require(*self.columns.values())
        if self.source.kind == "parquet":
            yield from self._table_lines()
        else:
            yield from self._csv_lines()

    def _csv_lines(self) -> Iterator[str]:
        """Yield the rows of a CSV."""
        with _open_text(self.source) as text:
            for row in csv.DictReader(text, strict=True):
                event: dict[str, Any] = {name: row[column] for name, column in self.columns.items()}
                if "value" in event:
                    event["value"] = _number(event["value"])
                yield json.dumps(event)

    def _table_lines(self) -> Iterator[str]:
        """Yield the rows of a Parquet file."""
        from evercount.files.source import connect, library

        chosen = ", ".join(self._field(name, column) for name, column in self.columns.items())
        try:
            with connect(self.scratch) as connection:
                rows = connection.execute(f"SELECT {chosen} FROM {self.source.scan()}")
                while part := rows.fetchmany(ROWS_AT_ONCE):
                    yield from (
                        json.dumps(dict(zip(self.columns, row, strict=True))) for row in part
                    )
        except library("duckdb").Error as error:
            raise InputError(f"{self.source.name} is a damaged Parquet file") from error

    def _field(self, name: str, column: str) -> str:
        """SQL: a column as the service takes it. A time without a zone is one of the stream's zone,
        in every interface."""
        from evercount.files.event_sql import AWARE_TYPES, NAIVE_TYPES, user_text

        place = self.source.column(column)
        kind = self.source.type_of(column)
        if name == "value":
            return f"{place}::DOUBLE"
        if name == "user":
            return user_text(self.source, column)
        if name != "time":
            return f"{place}::VARCHAR"
        if kind in AWARE_TYPES:
            return (
                f"strftime(make_timestamp(epoch_us({place}::TIMESTAMPTZ)), '%Y-%m-%dT%H:%M:%S.%fZ')"
            )
        if kind in NAIVE_TYPES:
            return f"strftime({place}::TIMESTAMP, '%Y-%m-%dT%H:%M:%S.%f')"
        return place


NAME_COLUMNS = "name the columns of a table with --time, --key, --value or --user"


@contextmanager
def open_pushed(file: Path, columns: Mapping[str, str | None]) -> Iterator[PushedFile]:
    """The file, ready to be read; what cannot be read is an InputError.

    Text is a table if columns are named; that is never guessed: `3` begins a list of counts as well
    as a CSV, and a row without a named column would count as one event whatever it holds.
    """
    from evercount.files.source import open_source

    with tempfile.TemporaryDirectory(prefix="evercount-push-") as folder:
        scratch = Path(folder)
        named = {name: column for name, column in columns.items() if column is not None}
        source = open_source(str(file), scratch, json_lines=None if named else True)
        pushed = PushedFile(source, named, scratch)
        if named and source.json_lines:
            raise InputError(f"{file} is JSON lines: omit --time, --key, --value and --user")
        if not named and source.kind == "parquet":
            raise InputError(f"{file} is Parquet: {NAME_COLUMNS}")
        if not named and not _is_json(next(pushed.lines(), "0")):
            raise InputError(f"{file} is not JSON lines: {NAME_COLUMNS}")
        yield pushed


@contextmanager
def _open_text(source: Source) -> Iterator[IO[str]]:
    """Open the text of a file; every failure to read it becomes an InputError, with its name."""
    try:
        with source.open_bytes() as raw:
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{source.name} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def _is_json(line: str) -> bool:
    """Tell whether a line is JSON."""
    with suppress(ValueError, RecursionError):
        json.loads(line)
        return True
    return False


def _number(text: str) -> float | str:
    """Read a number; leave other text, which the service refuses."""
    with suppress(TypeError, ValueError):
        return float(text)
    return text
