"""`evercount consume`: a log, NATS JetStream or Kafka, into a store."""

from __future__ import annotations

import signal
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from evercount.cli.options import Db, KeyFile, Wait, choose_stream

if TYPE_CHECKING:
    from evercount.consume.consume_log import LogConsumer

RETRY_SECONDS = 5.0


def consume(
    log: str = Argument(..., help="nats://host:4222/STREAM?subject=… or kafka://host:9092,…/TOPIC?…"),
    streams: Path = Argument(..., help="TOML file that declares the streams."),
    stream: str | None = Option(None, help="One stream; otherwise all are fed."),
    db: Db = "evercount.db",
    wait: Wait = "0s",
    once: bool = Option(False, "--once", help="End when everything that the log holds is counted."),
    pause: float = Option(1.0, min=0, help="Seconds between two rounds."),
    rejects: Path | None = Option(None, help="File that gets messages that are not events."),
    new_log: bool = Option(False, "--new-log", help="The log is new, and holds new events only."),
    skip_lost: bool = Option(
        False, "--skip-lost", help="Continue where the log has deleted messages that were not counted."
    ),
    metrics_port: int | None = Option(None, min=0, max=65535, help="Port of 127.0.0.1 for Prometheus."),
    key_file: KeyFile = None,
) -> None:
    """Count the messages of a log, and release the ticks that have ended.

    Each message is one event, a JSON object. Where the log goes on is committed with the counts, so that every message
    counts once, whatever crashes. Messages that are not events are set aside and counted.
    """
    from evercount.consume.count_messages import check_declaration
    from evercount.consume.log_metrics import LogMetrics
    from evercount.consume.log_source import LogAddress
    from evercount.declarations.cautions import published_line
    from evercount.declarations.schedule import parse_length
    from evercount.declarations.streams_file import read_declarations
    from evercount.errors import LogUnreachable, ParameterError
    from evercount.store import Store, key_from_environment

    address, waiting = LogAddress.parse(log), parse_length(wait, "--wait")
    declared = read_declarations(streams) if stream is None else [choose_stream(streams, stream)[0]]
    for one in declared:
        check_declaration(one)
    if rejects is not None and len(declared) > 1:
        raise ParameterError("--rejects is for one stream: choose it with --stream")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    metrics = LogMetrics(metrics_port)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evercount-log-")))
        store = stack.enter_context(closing(Store(db, key_from_environment(key_file))))
        for one in declared:
            typer.echo(f"{one.name}: {published_line(one, new=one.name not in store.streams)}", err=True)
        if metrics.port is not None:
            typer.echo(f"metrics: http://127.0.0.1:{metrics.port}/metrics", err=True)
        more: dict[str, Any] = {"new_log": new_log, "skip_lost": skip_lost, "rejects": rejects}
        unreachable = False
        while True:
            try:
                with ExitStack() as session:
                    consumers = [_open(session, address, one, store, scratch, more) for one in declared]
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


def _open(session: ExitStack, address: Any, declaration: Any, store: Any, scratch: Path, more: Any) -> LogConsumer:
    from evercount.consume.consume_log import LogConsumer
    from evercount.declarations.schedule import instant_of

    source = session.enter_context(closing(address.open()))
    return session.enter_context(closing(LogConsumer(source, declaration, store, scratch, instant_of(time()), **more)))


def _round(consumers: list[LogConsumer], waiting: int, metrics: Any) -> bool:
    from evercount.declarations.schedule import instant_of

    over = []
    for consumer in consumers:
        name, bad = consumer.declaration.name, sum(consumer.bad.values())
        done = consumer.round(instant_of(time()), waiting, metrics.progress(name))
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
