"""The client of a running service: `evercount streams`, `tail`, `push` and `tokens`."""

from __future__ import annotations

import csv
import json
import sys
import time as system_time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evercount.cli.http_client import DEFAULT_URL, TokenFile, Url, answer_of, connected
from evercount.cli.options import Missing
from evercount.errors import ParameterError, ServiceRefused
from evercount.text_rules import csv_text

if TYPE_CHECKING:
    import httpx

EVENTS_OF_A_BATCH = 1000
BYTES_OF_A_BATCH = 1_000_000
LONGEST_PAUSE = 30.0
"""Seconds between two attempts of `tail` to connect again."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

tokens = typer.Typer(help="Make, list and revoke the tokens of a running service (admin).", no_args_is_help=True)


streams = typer.Typer(help="List the streams of a running service, open them, write notes on their ticks.")


@streams.callback(invoke_without_command=True)
def list_streams(
    ctx: typer.Context, url: Url = DEFAULT_URL, token_file: TokenFile = None, json_output: Json = False
) -> None:
    """List the streams of a running service; without a token the public ones. Commands below change one of them."""
    if ctx.invoked_subcommand is not None:
        return
    with connected(url, token_file) as client:
        answer = answer_of(client.get("/v1/streams"))
    if json_output:
        typer.echo(json.dumps(answer, indent=1))
        return
    rows = [("name", "query", "tick", "released", "state", "epsilon", "delta")]
    rows += [
        (
            one["name"],
            one["query"]["name"],
            one["tick"],
            str(one["released"]) + ("" if one["horizon"] is None else f"/{one['horizon']}"),
            one["state"],
            f"{one['budget']['epsilon']:g}",
            f"{one['budget']['delta']:g}",
        )
        for one in answer["streams"]
    ]
    _echo_table(rows)


@streams.command("open")
def open_stream(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Start the clock of a stream that waits for its history: all of it is sent, or there is none.

    Its ticks that have ended are released now, with what was sent for them, and never again.
    """
    with connected(url, token_file) as client:
        answer_of(client.post(f"/v1/streams/{stream}/open"))
    typer.echo(f"{stream} is open: its ticks that have ended are being released", err=True)


@streams.command()
def note(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    first: Annotated[str, typer.Argument(help="First tick: its number, or a day or time in it.")],
    last: Annotated[str, typer.Argument(help="Last tick, in the same way.")],
    text: Annotated[str, typer.Argument(help="Public text.")] = "",
    missing: Missing = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Write a public note on ticks, or declare ticks missing before they close (admin).

    It is published as it is: write nothing that you know from the events only.
    """
    asked = {"first": first, "last": last, "text": text, "missing": missing}
    with connected(url, token_file) as client:
        made = answer_of(client.post(f"/v1/streams/{stream}/notes", json=asked))
    typer.echo(f"noted on ticks {made['first']} to {made['last']} of {stream}", err=True)


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# -- tail -------------------------------------------------------------------------------------------------------------


def tail(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Number of earlier ticks to begin with.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new releases.")] = True,
    json_output: Json = False,
) -> None:
    """Print the releases of a stream as CSV, and new ones as they are made; a lost connection is made again."""
    with connected(url, token_file) as client:
        facts = answer_of(client.get(f"/v1/streams/{stream}"))
        after, labels = max(0, facts["released"] - last), [csv_text(label) for label in facts["labels"]]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if not json_output:
            writer.writerow(("tick", "start", "cell", "value", "std", "low", "high"))
        source = _live(client, stream, after) if follow else _pages(client, stream, after, facts["released"])
        for release in source:
            if json_output:
                typer.echo(json.dumps(release))
            else:
                # a tick that is missing has no numbers
                numbers = zip(labels, *(release[name] for name in ("values", "std", "low", "high")), strict=False)
                writer.writerows((release["tick"], release["start"], *row) for row in numbers)
            sys.stdout.flush()


def _pages(client: httpx.Client, stream: str, after: int, last: int) -> Iterator[dict[str, Any]]:
    """Releases after a tick, page by page."""
    while after < last:
        page = answer_of(client.get(f"/v1/streams/{stream}/releases", params={"after": after}))["releases"]
        if not page:
            return
        yield from page
        after = page[-1]["tick"]


def _live(client: httpx.Client, stream: str, after: int) -> Iterator[dict[str, Any]]:
    """Releases after a tick as they are made, each once; a lost connection is made again where it stopped."""
    import httpx

    pause = 0.0
    while True:
        system_time.sleep(pause)
        try:
            with client.stream("GET", f"/v1/streams/{stream}/live", params={"after": after}, timeout=60.0) as response:
                if response.status_code not in (429, 503):
                    if not response.is_success:
                        answer_of(response)
                    for line in response.iter_lines():
                        if line.startswith("data: "):
                            release = json.loads(line.removeprefix("data: "))
                            if release["tick"] > after:
                                yield release
                                after, pause = release["tick"], 0.0
        except httpx.TransportError:
            pass
        pause = min(LONGEST_PAUSE, 2 * pause or 0.5)


# -- push -------------------------------------------------------------------------------------------------------------


def push(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSONL of events as the service takes them, or CSV with a header, plain or compressed (gzip, zstd), "
            "or Parquet."
        ),
    ],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    time: Annotated[
        str | None, typer.Option(help="CSV, Parquet: column with the time; without it events count when they arrive.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="CSV, Parquet: column with the key.")] = None,
    value: Annotated[str | None, typer.Option(help="CSV, Parquet: column with the value.")] = None,
    user: Annotated[str | None, typer.Option(help="CSV, Parquet: column with the person's id.")] = None,
    name: Annotated[
        str | None, typer.Option("--id", help="Name of this file, for retries (default: from its first lines).")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="These files are all of the stream's past: start its clock after them.")
    ] = False,
) -> None:
    """Send the events of files to a running service. Run it again after a failure: nothing is counted twice.

    That holds for the same token within 30 days: the service keeps the keys of different tokens apart. Batches carry an
    idempotency key made of the stream, the file's first two lines (or --id; of a Parquet file its first row) and their
    place in the file. Of a file that has grown since it was sent, the new rows are sent.
    """
    from evercount.cli.pushed_events import opened

    if name is not None and len(files) > 1:
        raise ParameterError("--id names one file: send files one by one, or omit it")
    columns = {"time": time, "key": key, "value": value, "user": user}
    with connected(url, token_file) as client:
        for file in files:
            with opened(file, columns) as events:
                sent = Sent()
                for number, batch in enumerate(_batches(events.lines())):
                    sending = Sending(client, stream, (name or events.identity, str(number)), batch)
                    try:
                        sending.send(sent)
                    except ServiceRefused as error:
                        where = f"lines {sent.events + 1} to {sent.events + len(batch)} of the events in {file}"
                        raise ServiceRefused(f"{where} were not accepted: {error}", error.status) from None
            typer.echo(f"{file} to {stream}: {sent}; all of it is durable", err=True)
        if history:
            answer_of(client.post(f"/v1/streams/{stream}/open"))
            typer.echo(f"{stream} is open: its ticks that have ended are being released", err=True)


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
            after = "they are dropped" if self.dropped else "they count in the open tick"
            parts.append(f"{self.late} came after their tick had closed: {after}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Sending:
    """A batch of a file, on its way. Where it was sent before with fewer rows, its new rows are sent by themselves."""

    client: httpx.Client
    stream: str
    place: tuple[str, ...]
    lines: list[str]

    def send(self, sent: Sent) -> None:
        """Send it, and add what became of it."""
        try:
            answer = self._post(self.lines)
        except ServiceRefused as error:
            before = error.events
            if error.status != 409 or before is None or not 0 < before < len(self.lines):
                raise
            self._post_again(before)
            sent.events += before
            sent.repeated += before
            Sending(self.client, self.stream, (*self.place, str(before)), self.lines[before:]).send(sent)
            return
        sent.events += len(self.lines)
        if answer.get("repeated"):
            sent.repeated += len(self.lines)
        sent.late += answer.get("late", 0)
        sent.dropped += answer.get("dropped", 0)

    def _post_again(self, before: int) -> None:
        """The rows that were sent, under the same key: the service says whether they are the same. None is counted."""
        try:
            self._post(self.lines[:before])
        except ServiceRefused as error:
            if error.status != 409:
                raise
            changed = "rows that were sent before have changed; they stay counted as they were sent"
            raise ServiceRefused(f"{changed}. Send new rows in a separate file", 409) from None

    def _post(self, lines: list[str]) -> Any:
        headers = {
            "Idempotency-Key": _digest(self.stream, *self.place),
            "Content-Type": "application/x-ndjson",
        }
        path = f"/v1/streams/{self.stream}/events"
        return _post_patiently(self.client, path, "\n".join(lines).encode(), headers)


def _post_patiently(client: httpx.Client, path: str, body: bytes, headers: dict[str, str], attempts: int = 8) -> Any:
    """Post, and again after the pause that a busy service asks for; the idempotency key makes that safe."""
    for attempt in range(attempts):
        response = client.post(path, content=body, headers=headers)
        if response.status_code not in (425, 429, 503) or attempt == attempts - 1:
            break
        system_time.sleep(min(LONGEST_PAUSE, float(response.headers.get("Retry-After", 1))))
    return answer_of(response)


def _digest(*parts: str) -> str:
    import hashlib

    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16, person=b"evercount.push").hexdigest()


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines in batches of a size that the service takes."""
    batch: list[str] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == EVENTS_OF_A_BATCH or size + len(line) > BYTES_OF_A_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.encode()) + 1
    if batch:
        yield batch


# -- tokens -----------------------------------------------------------------------------------------------------------


@tokens.command()
def create(
    role: Annotated[str, typer.Argument(help="read, write or admin.")],
    label: Annotated[str, typer.Option(help="What the token is for.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write it to this new file, for its owner only.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Make a token. It is shown this once, on standard output, or written to --out."""
    from evercount._safe_files import new_private, refuse_link

    if out is not None:
        refuse_link("--out", out)
        if out.exists():
            raise ParameterError(f"--out {out} exists: name a new file")
    with connected(url, token_file) as client:
        token = answer_of(client.post("/v1/tokens", json={"role": role, "label": label}))
    if out is None:
        typer.echo(token["token"])
    else:
        with new_private(out) as file:
            file.write(f"{token['token']}\n".encode())
    typer.echo(f"token {token['id']} with the role {token['role']}" + (f" is in {out}" if out else ""), err=True)


@tokens.command("list")
def list_tokens(url: Url = DEFAULT_URL, token_file: TokenFile = None, json_output: Json = False) -> None:
    """List the tokens, without the tokens themselves."""
    with connected(url, token_file) as client:
        answer = answer_of(client.get("/v1/tokens"))
    if json_output:
        typer.echo(json.dumps(answer, indent=1))
        return
    rows = [("id", "role", "created", "label")]
    for one in answer["tokens"]:
        created = datetime.fromtimestamp(one["created"], UTC)
        rows.append((str(one["id"]), one["role"], f"{created:%Y-%m-%dT%H:%M:%SZ}", one["label"]))
    _echo_table(rows)


@tokens.command()
def revoke(
    number: Annotated[int, typer.Argument(help="Id of the token, from `tokens list`.", min=1)],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Revoke a token: it is refused from now on."""
    with connected(url, token_file) as client:
        answer_of(client.delete(f"/v1/tokens/{number}"))
    typer.echo(f"token {number} is revoked", err=True)
