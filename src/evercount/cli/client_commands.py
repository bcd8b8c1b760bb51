"""The client of a running service: `evercount streams`, `tail`, `push` and `tokens`."""

from __future__ import annotations

import csv
import json
import sys
import time as system_time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from evercount._validate import aligned, csv_text
from evercount.cli.http_client import DEFAULT_URL, TokenFile, Url, answer_of, ask, connected
from evercount.cli.options import FirstTick, Json, LastTick, Missing, NoteText, StreamName
from evercount.errors import ParameterError, ServiceRefused

if TYPE_CHECKING:
    import httpx

    from evercount.cli.http_client import PushedFile

EVENTS_OF_A_BATCH = 500
BYTES_OF_A_BATCH = 1_000_000  # the service takes twice as many
ATTEMPTS = 8
LONGEST_PAUSE = 30.0  # seconds between two attempts of `tail` to connect again

tokens = typer.Typer(
    help="Make, list and revoke the tokens of a running service (admin).", no_args_is_help=True
)
streams = typer.Typer(
    help="List the streams of a running service, open them, write notes on their ticks."
)


@streams.callback(invoke_without_command=True)
def list_streams(
    ctx: typer.Context,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    json_output: Json = False,
) -> None:
    """List the streams of a running service; without a token the public ones. Commands below change
    one of them."""
    if ctx.invoked_subcommand is not None:
        return
    answer = ask(url, token_file, "GET", "/v1/streams")
    rows = [["name", "query", "tick", "released", "state", "epsilon", "delta"]]
    for one in answer["streams"]:
        released = str(one["released"])
        if one["horizon"] is not None:
            released += f"/{one['horizon']}"
        spent = [f"{one['budget'][name]:g}" for name in ("epsilon", "delta")]
        rows.append(
            [one["name"], one["query"]["name"], one["tick"], released, one["state"], *spent]
        )
    _show(answer, rows, json_output)


def _show(answer: Any, rows: list[list[str]], json_output: bool) -> None:
    """Print an answer as JSON, or as a table."""
    if json_output:
        typer.echo(json.dumps(answer, indent=1))
        return
    for line in aligned(rows, left=len(rows[0])):
        typer.echo(line.rstrip())


@streams.command("open")
def open_stream(stream: StreamName, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Start the clock of a stream that waits for its history: all of it has been sent, or there is
    none.

    Its ticks that have ended are released now, with what was sent for them, and never again.
    """
    ask(url, token_file, "POST", f"/v1/streams/{stream}/open")
    typer.echo(f"{stream} is open: its ticks that have ended are being released", err=True)


@streams.command()
def note(
    stream: StreamName,
    first: FirstTick,
    last: LastTick,
    text: NoteText = "",
    missing: Missing = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Write a public note on ticks, or declare ticks missing before they close (admin).

    It is published as it is: write nothing that you know only from the events.
    """
    new = {"first": first, "last": last, "text": text, "missing": missing}
    stored = ask(url, token_file, "POST", f"/v1/streams/{stream}/notes", json=new)
    typer.echo(f"noted on ticks {stored['first']} to {stored['last']} of {stream}", err=True)


def tail(
    stream: StreamName,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    last: int = Option(10, "--last", "-n", min=0, help="Number of earlier ticks to begin with."),
    json_output: Json = False,
) -> None:
    """Print the releases of a stream as CSV, and new ones as they come; a lost connection is
    restored."""
    with connected(url, token_file) as client:
        facts = answer_of(client.get(f"/v1/streams/{stream}"))
        after = max(0, facts["released"] - last)
        labels = [csv_text(label) for label in facts["labels"]]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if not json_output:
            writer.writerow(("tick", "start", "cell", "value", "std", "low", "high"))
        for release in _live(client, stream, after):
            if json_output:
                typer.echo(json.dumps(release))
            else:
                # a tick that is missing has no numbers
                numbers = zip(
                    labels,
                    *(release[name] for name in ("values", "std", "low", "high")),
                    strict=False,
                )
                writer.writerows((release["tick"], release["start"], *row) for row in numbers)
            sys.stdout.flush()


def _live(client: httpx.Client, stream: str, after: int) -> Iterator[dict[str, Any]]:
    """Yield releases after a tick as they are made, each once; a lost connection continues where it
    stopped."""
    import httpx

    pause = 0.0
    while True:
        system_time.sleep(pause)
        live = client.stream(
            "GET", f"/v1/streams/{stream}/live", params={"after": after}, timeout=60.0
        )
        with suppress(httpx.TransportError), live as response:
            for release in _releases_of(response):
                if release["tick"] > after:
                    yield release
                    after = release["tick"]
                    pause = 0.0
        pause = min(LONGEST_PAUSE, 2 * pause or 0.5)


def _releases_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the releases of one live connection; none if the service is busy."""
    if response.status_code in (429, 503):
        return
    if not response.is_success:
        answer_of(response)
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def push(
    stream: StreamName,
    files: list[Path] = Argument(
        ..., help="JSONL of events, CSV with a header (both also gzip, zstd), or Parquet."
    ),
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    time: str | None = Option(
        None, help="CSV, Parquet: column with the time (default: the time of arrival)."
    ),
    key: str | None = Option(None, help="CSV, Parquet: column with the key."),
    value: str | None = Option(None, help="CSV, Parquet: column with the value."),
    user: str | None = Option(None, help="CSV, Parquet: column with the person's id."),
    name: str | None = Option(
        None, "--id", help="Name of this file, for retries (default: from its first lines)."
    ),
    history: bool = Option(
        False, "--history", help="These files are the stream's whole past; then start its clock."
    ),
) -> None:
    """Send the events of files to a running service. Run it again after a failure: nothing is
    counted twice.

    That holds for the same token within 30 days: the service keeps the keys of different tokens
    apart. Batches carry an idempotency key made of the stream, the file's first two lines (or --id;
    of a Parquet file its first row) and their place in the file. If a file has grown since it was
    sent, only its new rows are sent.
    """
    from evercount.cli.http_client import open_pushed

    if name is not None and len(files) > 1:
        raise ParameterError("--id names one file: send files one by one, or omit it")
    columns = {"time": time, "key": key, "value": value, "user": user}
    with connected(url, token_file) as client:
        for file in files:
            with open_pushed(file, columns) as events:
                sent = _send_file(client, stream, name or events.identity, events, file)
            typer.echo(f"{file} to {stream}: {sent}; all of it is durable", err=True)
    if history:
        open_stream(stream, url, token_file)


def _send_file(
    client: httpx.Client, stream: str, identity: str, events: PushedFile, file: Path
) -> Sent:
    """Send the events of a file in batches; say which lines were not accepted."""
    sent = Sent()
    for number, batch in enumerate(_batches(events.lines())):
        try:
            _send(client, (stream, identity, str(number)), batch, sent)
        except ServiceRefused as error:
            first = sent.events + 1
            last = sent.events + len(batch)
            raise ServiceRefused(
                f"lines {first} to {last} of the events in {file} were not accepted: {error}",
                error.status,
            ) from None
    return sent


@dataclass
class Sent:
    """What became of the events of a file."""

    events: int = 0
    repeated: int = 0
    late: int = 0
    dropped: int = 0

    def __str__(self) -> str:
        parts = [f"{self.events - self.repeated} events sent"]
        if self.repeated:
            parts.append(f"{self.repeated} were sent before")
        if self.late:
            if self.dropped:
                treatment = "they are dropped"
            else:
                treatment = "they count in the open tick"
            parts.append(f"{self.late} came after their tick had closed: {treatment}")
        return ", ".join(parts)


def _send(client: httpx.Client, place: tuple[str, ...], lines: list[str], sent: Sent) -> None:
    """Send a batch; `place` is its stream, file and number. If it was sent before with fewer rows,
    send its new rows by themselves."""
    try:
        answer = _post(client, place, lines)
    except ServiceRefused as error:
        before = error.events
        if error.status != 409 or before is None or not 0 < before < len(lines):
            raise
        try:  # under the same key: the service compares them, and counts none
            _post(client, place, lines[:before])
        except ServiceRefused as refusal:
            if refusal.status != 409:
                raise
            raise ServiceRefused(
                "rows that were sent before have changed; they stay counted as they were sent. "
                "Send new rows in a separate file",
                409,
            ) from None
        sent.events += before
        sent.repeated += before
        _send(client, (*place, str(before)), lines[before:], sent)
        return
    sent.events += len(lines)
    if answer.get("repeated"):
        sent.repeated += len(lines)
    sent.late += answer.get("late", 0)
    sent.dropped += answer.get("dropped", 0)


def _post(client: httpx.Client, place: tuple[str, ...], lines: list[str]) -> Any:
    """Post a batch, and again after the pause that a busy service asks for; the idempotency key
    makes that safe."""
    key = blake2b("\0".join(place).encode(), digest_size=16, person=b"evercount.push").hexdigest()
    headers = {"Idempotency-Key": key, "Content-Type": "application/x-ndjson"}
    body = "\n".join(lines).encode()
    for attempt in range(ATTEMPTS):
        response = client.post(f"/v1/streams/{place[0]}/events", content=body, headers=headers)
        if response.status_code not in (425, 429, 503) or attempt == ATTEMPTS - 1:
            break
        system_time.sleep(min(LONGEST_PAUSE, float(response.headers.get("Retry-After", 1))))
    return answer_of(response)


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """Divide lines into batches of limited length and size."""
    batch: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode()) + 1
        if batch and (len(batch) == EVENTS_OF_A_BATCH or size + length > BYTES_OF_A_BATCH):
            yield batch
            batch = []
            size = 0
        batch.append(line)
        size += length
    if batch:
        yield batch


@tokens.command()
def create(
    role: str = Argument(..., help="read, write or admin."),
    label: str = Option("", help="What the token is for."),
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Make a token. It is shown only once, on standard output."""
    token = ask(url, token_file, "POST", "/v1/tokens", json={"role": role, "label": label})
    typer.echo(token["token"])
    typer.echo(f"token {token['id']} with the role {token['role']}", err=True)


@tokens.command("list")
def list_tokens(
    url: Url = DEFAULT_URL, token_file: TokenFile = None, json_output: Json = False
) -> None:
    """List the ids, roles and labels of the tokens, not the tokens themselves."""
    answer = ask(url, token_file, "GET", "/v1/tokens")
    rows = [["id", "role", "created", "label"]]
    for one in answer["tokens"]:
        created = datetime.fromtimestamp(one["created"], UTC)
        rows.append([str(one["id"]), one["role"], f"{created:%Y-%m-%dT%H:%M:%SZ}", one["label"]])
    _show(answer, rows, json_output)


@tokens.command()
def revoke(
    number: int = Argument(..., help="Id of the token, from `tokens list`.", min=1),
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Revoke a token: it is refused from now on."""
    ask(url, token_file, "DELETE", f"/v1/tokens/{number}")
    typer.echo(f"token {number} is revoked", err=True)
