"""`evercount store`: look after the durable store."""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Argument, Option

from evercount.cli.options import (
    Db,
    FirstTick,
    Head,
    KeyFile,
    LastTick,
    Missing,
    NoteText,
    StreamName,
    open_store,
)

if TYPE_CHECKING:
    from evercount.store import LiveStream, Reading, Store
    from evercount.store.rollback_guard import HeadFile

store = typer.Typer(
    help="Verify, copy and export the durable store of `evercount serve`.", no_args_is_help=True
)

Keys = Annotated[Path, Argument(help="File with the keys, one per line (for a rollup: CSV lines).")]
Yes = Annotated[bool, Option("--yes", help="Do not ask.")]


@store.command()
def verify(
    db: Db = "evercount.db",
    head: Head = None,
    adopt: bool = Option(
        False, "--adopt", help="Accept this copy as the newest; only if no later release exists."
    ),
) -> None:
    """Recompute every release chain and compare it with the head file.

    --adopt is for a head file that was lost. If the head file is there and names releases that this
    copy lacks, the copy is refused.
    """
    from evercount.store import Reading
    from evercount.store.database import Database
    from evercount.store.rollback_guard import HeadFile, default_path

    # no other process may write between the check and the new head
    with closing(Reading.open(db)) as reading, closing(Database(db)) if adopt else nullcontext():
        file = HeadFile(head or default_path(reading.database))
        wrong = reading.verify(None if adopt else file)
        if adopt and not wrong:
            wrong = _adopt(reading, file)
        names = reading.names()
    for line in wrong:
        typer.echo(f"WRONG  {line}")
    if wrong:
        raise typer.Exit(1)
    streams = "1 stream" if len(names) == 1 else f"{len(names)} streams"
    typer.echo(f"all is well: {streams}, every release chain is whole")
    if adopt:
        typer.echo(f"the head {file.path} now names this copy as the newest")


def _adopt(reading: Reading, file: HeadFile) -> list[str]:
    """Write a head file that names this copy as the newest; return why not if it is an older
    one."""
    from dataclasses import replace

    from evercount.store.rollback_guard import OLDER

    before = file.read()
    now = reading.current_head()
    if before is None:
        file.write(now)
        return []
    older = [one for one in reading.check_head(file).values() if one.reason == OLDER]
    if older:
        return [f"{one.name}: {one.reason} (the head is at tick {one.tick})" for one in older]
    # a retirement is for ever
    file.write(replace(now, retired=now.retired | before.retired))
    return []


@store.command()
def backup(
    target: Path = Argument(..., help="File to write."),
    db: str = Option("evercount.db", help="SQLite file."),
) -> None:
    """Copy an SQLite store, even while the service runs. The copy holds raw sums and secrets: guard
    it.

    A copy that is put back later than the last release is refused by the service: it would use the
    same noise again.
    """
    from evercount.store import Reading

    with closing(Reading.open(db)) as reading:
        reading.backup(target)
    typer.echo(f"copied to {target}")


@store.command()
def restore(
    copy: Path = Argument(..., help="File that `evercount store backup` wrote."),
    db: str = Option("evercount.db", help="SQLite file that it replaces."),
    head: Head = None,
) -> None:
    """Replace an SQLite store with a copy of it; the store as it was is kept next to it.

    The head file stays as it is: it knows what was released since. Streams that have released since
    the copy was made are then in quarantine; the others go on. The service must be stopped.
    """
    from evercount.store.reader import restore_copy

    previous, quarantined = restore_copy(copy, Path(db), head)
    if previous is not None:
        typer.echo(f"the previous database is kept as {previous}")
    typer.echo(f"restored {copy} to {db}")
    for one in quarantined:
        typer.echo(f"QUARANTINE  {one.name}: {one.reason} (the head is at tick {one.tick})")
        if not one.lost:
            typer.echo(
                f"            continue with: evercount store retire {one.name} --successor NAME "
                f"--db {db}"
            )


@store.command()
def retire(
    stream: StreamName,
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
    successor: str | None = Option(
        None, help="Declare this stream in its place: the same declaration, a new secret."
    ),
    reason: str = Option("", help="Shown to readers."),
    yes: Yes = False,
) -> None:
    """End a stream for good: its history stays readable, nothing is released again, its budget
    stays spent.

    With --successor a new stream goes on in its place, and what both cost together is stated. While
    a service runs on the store, ask the service: DELETE /v1/streams/STREAM?successor=NAME with the
    admin token.
    """
    import time

    from evercount.store import retire_stream
    from evercount.store.stream_life import explain

    with open_store(db, key_file, head) as opened:
        now = time.time()
        typer.echo(explain(opened, stream, now, successor))
        if not yes:
            typer.confirm("Go on?", abort=True)
        retire_stream(opened, stream, now, reason=reason, successor=successor)
        totals = opened.ledger()["totals"]
    if successor is None:
        typer.echo(f"retired {stream!r}")
    else:
        typer.echo(f"retired {stream!r}, declared {successor!r}")
    for total in totals:
        unit = f"{total['unit']}, {total['adjacency']}"
        if total["period"] is not None:
            unit += f", period {total['period']}"
        typer.echo(
            f"spent together by {total['streams']} streams ({unit}): "
            f"epsilon {total['epsilon']:.6g}, delta {total['delta']:.3g}"
        )


@store.command()
def renew(
    stream: StreamName,
    horizon: int | None = Option(
        None, help="Ticks of the new stream (default: as many as before)."
    ),
    carry_totals: bool = Option(
        False,
        "--carry-totals",
        help="Its running totals continue from the old ones; errors add up.",
    ),
    name: str | None = Option(None, help="Its name (default: the next number, flu-2 after flu)."),
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
    yes: Yes = False,
) -> None:
    """Let a stream go on when its horizon ends: the same declaration, new noise, from that instant
    on.

    It may be done before or after the end. What both cost together is stated, and the cap of the
    store applies. Events that are sent to the old name after its end go to the new stream.
    """
    import time

    from evercount.privacy import successor_text
    from evercount.store.stream_life import renew_stream

    with open_store(db, key_file, head) as opened:
        live = opened.find(stream)
        if live.successor is None:
            typer.echo(successor_text(live.stream.cost))
            if not yes:
                typer.confirm("Go on?", abort=True)
        renewed = renew_stream(
            opened, stream, time.time(), horizon=horizon, new_name=name, carry_totals=carry_totals
        )
    typer.echo(f"{renewed.name!r} continues {stream!r}")


@store.command()
def cap(
    epsilon: float | None = Option(None, help="The largest total epsilon."),
    delta: float | None = Option(None, help="The largest total delta."),
    remove: bool = Option(False, "--remove", help="Remove the cap."),
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
) -> None:
    """Cap what all streams about the same unit spend together; a declaration beyond it is refused.

    Without options it shows the cap. What is spent already stays spent.
    """
    from evercount.errors import ParameterError
    from evercount.store import BudgetCap, Reading, set_cap

    if (epsilon is None) != (delta is None) or (remove and epsilon is not None):
        raise ParameterError(
            "give both --epsilon and --delta, or --remove, or nothing to see the cap"
        )
    if epsilon is not None or remove:
        new_cap = None
        if epsilon is not None and delta is not None:
            new_cap = BudgetCap(epsilon, delta)
        with open_store(db, key_file, head) as opened:
            set_cap(opened.database, new_cap)
    with closing(Reading.open(db)) as reading:
        shown = reading.ledger().get("cap")
    if shown is None:
        typer.echo("no cap")
    else:
        typer.echo(f"cap: epsilon {shown['epsilon']:g}, delta {shown['delta']:g}")


@store.command("add-keys")
def add_keys(
    stream: StreamName,
    keys: Keys,
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
) -> None:
    """Let keys join a stream from its open tick on: a new region. They have no history and noise of
    their own.

    It spends nothing: the privacy is that of the stream with all keys from the start. Do not choose
    the keys, or the day, by looking at the events. Keys that are there already are left alone. The
    service must be stopped.
    """
    from evercount.front_door.key_lists import listed_keys
    from evercount.store.stream_life import join_keys

    with open_store(db, key_file, head) as opened:
        live = _find(opened, stream)
        joined = join_keys(opened, stream, listed_keys(keys, live.declaration, "keys"))
        tick = live.open_tick
    if not joined:
        typer.echo("all of these keys already exist")
        return
    names = ", ".join(joined[:8])
    if len(joined) > 8:
        names += ", …"
    typer.echo(f"keys that join {stream!r} with tick {tick}: {names}. Nothing is spent.")


@store.command("remove-keys")
def remove_keys(
    stream: StreamName,
    keys: Keys,
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
) -> None:
    """Show no numbers of these keys from the open tick on. What was published stays; add-keys shows
    them again.

    They are counted as before. The service must be stopped.
    """
    from evercount.engine.add_keys import label_of
    from evercount.front_door.key_lists import listed_keys
    from evercount.store.stream_life import hide_keys

    with open_store(db, key_file, head) as opened:
        live = _find(opened, stream)
        labels = [label_of(key) for key in listed_keys(keys, live.declaration, "keys")]
        hidden = hide_keys(opened, stream, labels)
        tick = live.open_tick
    typer.echo(
        f"no longer shown in {stream!r} from tick {tick} on: "
        f"{', '.join(hidden) or 'no further key'}"
    )


def _find(opened: Store, stream: str) -> LiveStream:
    """Find a stream of the store; suggest the nearest name if there is none."""
    from evercount._validate import check_name

    if not opened.name_is_spent(stream):
        check_name("stream", stream, tuple(opened.streams))
    return opened.find(stream)


@store.command()
def forget(
    person: Annotated[
        str, Argument(help="Id of the person, as events have it; - reads it from standard input.")
    ],
    stream: Annotated[
        str | None, Option(help="Only this stream; default: all that know ids of persons.")
    ] = None,
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
) -> None:
    """Delete what the store still holds of a person: events of open ticks, and what caps know of
    them.

    What was released stays. It says what else stays and why, in the same words whether or not the
    person was there. The service must be stopped. Backups keep what they held.
    """
    from evercount.store.forget_person import forget_person, forgets_in

    if person == "-":
        person = sys.stdin.readline().rstrip("\r\n")
    with open_store(db, key_file, head) as opened:
        if stream is None:
            names = forgets_in(opened)
        else:
            names = [_find(opened, stream).name]
        if not names:
            typer.echo(
                "no stream of this store takes ids of persons through the service: nothing is kept "
                "under an id"
            )
        for one in names:
            lines = forget_person(opened, one, person)
            typer.echo(f"{one}: nothing in its open ticks is under this id.")
            for line in lines:
                typer.echo(f"  {line}")


@store.command()
def note(
    stream: StreamName,
    first: FirstTick,
    last: LastTick,
    text: NoteText = "",
    missing: Missing = None,
    db: Db = "evercount.db",
    head: Head = None,
    key_file: KeyFile = None,
) -> None:
    """Write a public note on ticks, or declare ticks missing before they close.

    It is published as it is, in charts, tables and exports: write nothing that you know only from
    the events, and do not call ticks missing because of their counts. While a service runs on the
    store, use `evercount streams note`.
    """
    from evercount.declarations.tick_marks import NewMark
    from evercount.store.stream_life import mark_ticks

    with open_store(db, key_file, head) as opened:
        new = NewMark(first=first, last=last, text=text, missing=cast(Any, missing))
        schedule = opened.find_any(stream).declaration.schedule
        stored = mark_ticks(opened, stream, new.on(schedule))
    typer.echo(f"noted on ticks {stored.first} to {stored.last} of {stream}", err=True)


@store.command("export-releases")
def export_releases(
    stream: StreamName,
    db: Db = "evercount.db",
    output: Path | None = Option(None, help="File to write; otherwise standard output."),
    form: str = Option("csv", "--format", help="csv, json, jsonl or parquet."),
    lake: str | None = Option(
        None, help="Append new ticks to delta:FOLDER or iceberg:FOLDER/namespace.table."
    ),
    full_digits: bool = Option(
        False, "--full-digits", help="All digits, instead of as many as the error allows."
    ),
    head: Head = None,
) -> None:
    """Write all releases of a stream: tick, start, cell, value, std, low, high. Published numbers
    only.

    The description of a CSV is written next to it, as NAME.csv.meta.json.

    With --lake only the ticks that the table lacks are written, each once, however often the
    command runs.

    A history that differs from the published one (the database was put back from another copy) is
    refused.
    """
    from evercount._safe_files import refuse_link
    from evercount._validate import check_name
    from evercount.declarations.cautions import declared_text, public_facts
    from evercount.engine.write_table import MEDIA_TYPES, Kind, round_table, write_tables
    from evercount.files.view_files import describe_file
    from evercount.store import Reading

    check_name("format", form, tuple(MEDIA_TYPES))
    with closing(Reading.open(db)) as reading:
        _refuse_other_history(reading, stream, head)
        stored, tables = reading.tables_of(stream)
        declaration = stored.declaration
        if output:
            refuse_link("--output", output)
        guarantee = declared_text(declaration).sentence
        if lake is not None:
            from evercount.files.lake_table import append_new

            rows = append_new(lake, stream, tables, declaration.schedule, guarantee)
            typer.echo(f"{lake}: {rows} new rows", err=True)
            return
        if not full_digits:
            tables = map(round_table, tables)
        metadata = {"evercount.guarantee": guarantee}
        with output.open("wb") if output else nullcontext(sys.stdout.buffer) as file:
            write_tables(cast(Kind, form), file, tables, declaration.schedule, metadata)
        if output and form == "csv":
            facts = public_facts(
                declaration, guarantee, reading.marks(stored.id), full_digits=full_digits
            )
            describe_file(output, facts)


def _refuse_other_history(reading: Reading, stream: str, head: Path | None) -> None:
    """Refuse a stream whose history differs from the published one, as the head file knows it."""
    from evercount.errors import StoreError
    from evercount.store.rollback_guard import HeadFile, default_path

    newest = HeadFile(head or default_path(reading.database))
    if newest.read() is None:
        return
    difference = reading.check_head(newest).get(stream)
    if difference is not None and not difference.readable:
        raise StoreError(
            "the history in this database is not the one that was published; nothing was written"
        )
