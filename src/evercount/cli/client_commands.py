"""The client of a running service: `evercount streams`, `tail`, `push` and `tokens`."""

from __future__ import annotations

import csv
import json
import sys
import time as system_time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evercount.cli.http_client import DEFAULT_URL, TokenFile, Url, answer_of, connected
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


def streams(url: Url = DEFAULT_URL, token_file: TokenFile = None, json_output: Json = False) -> None:
    """List the streams of a running service; without a token the public ones."""
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
                numbers = zip(labels, *(release[name] for name in ("values", "std", "low", "high")), strict=True)
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
    file: Annotated[
        Path,
        typer.Argument(
            help="JSONL of events as the service takes them, or a CSV with a header, plain or compressed (gzip, zstd), "
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
    user: Annotated[str | None, typer.Option(help="CSV, Parquet: column with the user.")] = None,
    name: Annotated[
        str | None, typer.Option("--id", help="Name of this file, for retries (default: from its first lines).")
    ] = None,
) -> None:
    """Send the events of a file to a running service. Run it again after a failure: nothing is counted twice.

    That holds for the same token within 30 days: the service keeps the keys of different tokens apart. Batches carry an
    idempotency key made of the stream, the file's first two lines (or --id; of a Parquet file its first row) and the
    number of the batch. So a file that was sent and has grown since is refused instead of counted again: send the new
    rows only.
    """
    from evercount.cli.pushed_events import opened

    columns = {"time": time, "key": key, "value": value, "user": user}
    with opened(file, columns) as events, connected(url, token_file) as client:
        identity = name or events.identity
        sent = 0
        for number, batch in enumerate(_batches(events.lines())):
            headers = {
                "Idempotency-Key": _digest(stream, identity, str(number)),
                "Content-Type": "application/x-ndjson",
            }
            path = f"/v1/streams/{stream}/events"
            try:
                _post_patiently(client, path, "\n".join(batch).encode(), headers)
            except ServiceRefused as error:
                hint = ""
                if error.status == 409:
                    hint = ". A file that begins like this one was sent before: send its new rows only, or give --id"
                where = f"lines {sent + 1} to {sent + len(batch)} of the events in {file}"
                raise ServiceRefused(f"{where} were not accepted: {error}{hint}", error.status) from None
            sent += len(batch)
    typer.echo(f"sent {file} to {stream}; all of it is durable", err=True)


def _post_patiently(client: httpx.Client, path: str, body: bytes, headers: dict[str, str], attempts: int = 8) -> None:
    """Post, and again after the pause that a busy service asks for; the idempotency key makes that safe."""
    for attempt in range(attempts):
        response = client.post(path, content=body, headers=headers)
        if response.status_code not in (425, 429, 503) or attempt == attempts - 1:
            answer_of(response)
            return
        system_time.sleep(min(LONGEST_PAUSE, float(response.headers.get("Retry-After", 1))))


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
