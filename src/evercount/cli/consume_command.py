"""`evercount consume`: a log, NATS JetStream or Kafka, into a store."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evercount.consume.consume_log import LogConsumer

RETRY_SECONDS = 5.0


def consume(
    log: Annotated[str, typer.Argument(help="nats://host:4222/STREAM?subject=… or kafka://host:9092,…/TOPIC?…")],
    streams: Annotated[Path, typer.Argument(help="TOML file that declares the streams.")],
    stream: Annotated[str | None, typer.Option(help="One stream; otherwise all are fed.", show_default=False)] = None,
    db: Annotated[str, typer.Option(help="Store: an SQLite file, or a URL such as postgresql://user@host/name.")] = (
        "evercount.db"
    ),
    wait: Annotated[str, typer.Option(help="How long after its end a tick is closed, such as 30s.")] = "0s",
    once: Annotated[bool, typer.Option("--once", help="End when everything that the log holds is counted.")] = False,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between two rounds.")] = 1.0,
    rejects: Annotated[
        Path | None, typer.Option(help="File that gets messages that are not events.", show_default=False)
    ] = None,
    new_log: Annotated[bool, typer.Option("--new-log", help="The log is new, and holds new events only.")] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue where the log has deleted messages that were not counted.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 for Prometheus.", show_default=False)
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the key that encrypts the store.")] = None,
) -> None:
    """Count the messages of a log, and release the ticks that have ended.

    Each message is one event, a JSON object. Where the log goes on is committed with the counts, so that every message
    counts once, whatever crashes. Messages that are not events are set aside and counted.
    """
    from evercount.cli.spark_command import _chosen
    from evercount.consume.count_messages import check_declaration
    from evercount.consume.log_metrics import LogMetrics
    from evercount.consume.log_source import LogAddress
    from evercount.declarations.cautions import published_line
    from evercount.declarations.schedule import parse_length
    from evercount.declarations.streams_file import read_declarations
    from evercount.errors import LogUnreachable, ParameterError
    from evercount.store import Store, key_from_environment

    address, waiting = LogAddress.parse(log), parse_length(wait, "--wait")
    declared = read_declarations(streams) if stream is None else [_chosen(streams, stream)]
    for one in declared:
        check_declaration(one)
    if rejects is not None and len(declared) > 1:
        raise ParameterError("--rejects is for one stream: choose it with --stream")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    metrics = LogMetrics(metrics_port)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evercount-log-")))
        store = Store(db, key_from_environment(key_file))
        stack.callback(store.close)
        for one in declared:
            typer.echo(f"{one.name}: {published_line(one, new=one.name not in store.streams)}", err=True)
        if metrics.port is not None:
            typer.echo(f"metrics: http://127.0.0.1:{metrics.port}/metrics", err=True)
        more: dict[str, Any] = {"new_log": new_log, "skip_lost": skip_lost, "rejects": rejects}
        unreachable = False
        while True:
            try:
                with ExitStack() as session:
                    consumers = []
                    for one in declared:
                        consumers.append(_open(session, address, one, store, scratch, more))
                    more.update(new_log=False, skip_lost=False)
                    unreachable = False
                    while not _round(consumers, waiting, metrics) and not once:
                        sleep(pause)
                    return
            except LogUnreachable as error:
                if once:
                    raise
                if not unreachable:
                    typer.echo(f"{error}; trying again every {RETRY_SECONDS:g} s", err=True)
                unreachable = True
                sleep(RETRY_SECONDS)


def _open(
    session: ExitStack, address: Any, declaration: Any, store: Any, scratch: Path, more: dict[str, Any]
) -> LogConsumer:
    from evercount.consume.consume_log import LogConsumer
    from evercount.declarations.schedule import instant_of

    source = address.open()
    session.callback(source.close)
    consumer = LogConsumer(source, declaration, store, scratch, instant_of(time()), **more)
    session.callback(consumer.close)
    return consumer


def _round(consumers: list[LogConsumer], waiting: int, metrics: Any) -> bool:
    """One round of each stream; whether all are over."""
    from evercount.declarations.schedule import instant_of

    over = []
    for consumer in consumers:
        name, bad = consumer.declaration.name, sum(consumer.bad.values())
        told: Callable[[int, int], None] = metrics.progress(name)
        done = consumer.round(instant_of(time()), waiting, told)
        metrics.after_round(name, done.bad, consumer.lost, len(done.ticks))
        if done.messages or done.ticks:
            more = sum(done.bad.values()) - bad
            aside = f", {more} set aside because they are not events ({sum(done.bad.values())} in all)" if more else ""
            ticks = f"; released {_named(done.ticks)}" if done.ticks else ""
            typer.echo(f"{name}: counted {done.messages} messages{aside}{ticks}", err=True)
        over.append(done.finished)
    return all(over)


def _named(ticks: range) -> str:
    return f"tick {ticks[0]}" if len(ticks) == 1 else f"ticks {ticks[0]} to {ticks[-1]}"
