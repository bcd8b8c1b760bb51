"""Sources into a store: `evercount consume` (NATS JetStream, Kafka) and `evercount spark`."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from evercount.cli.options import Db, Head, KeyFile, choose_stream, open_store, parse_parameters
from evercount.errors import LogUnreachable, ParameterError

if TYPE_CHECKING:
    from evercount.consume.consume_log import LogConsumer


RETRY_SECONDS = 5.0


def consume(
    log: str = Argument(
        ..., help="nats://host:4222/STREAM?subject=… or kafka://host:9092,…/TOPIC?…"
    ),
    streams: Path = Argument(..., help="TOML file that declares the streams."),
    stream: str | None = Option(None, help="One stream; otherwise all are fed."),
    db: Db = "evercount.db",
    wait: str = Option("0s", help="How long after its end a tick is closed, such as 30s."),
    once: bool = Option(False, "--once", help="End when everything that the log holds is counted."),
    pause: float = Option(1.0, min=0, help="Seconds between two rounds."),
    rejects: Path | None = Option(None, help="File that gets messages that are not events."),
    new_log: bool = Option(False, "--new-log", help="The log is new, and holds new events only."),
    skip_lost: bool = Option(
        False, "--skip-lost", help="Accept that the log has deleted uncounted messages."
    ),
    metrics_port: int | None = Option(
        None, min=0, max=65535, help="Port on 127.0.0.1 for Prometheus metrics."
    ),
    key_file: KeyFile = None,
) -> None:
    """Count the messages of a log, and release the ticks that have ended.

    Each message is one event, a JSON object. The position in the log is committed with the counts,
    so every message counts once, whatever crashes. Messages that are not events are set aside and
    counted.
    """
    from evercount.consume.consume_log import LogMetrics, check_declaration
    from evercount.consume.log_sources import LogAddress
    from evercount.declarations.cautions import published_line
    from evercount.declarations.schedule import parse_length
    from evercount.declarations.streams_file import read_declarations

    address = LogAddress.parse(log)
    waiting = parse_length(wait, "--wait")
    if stream is None:
        declarations = read_declarations(streams)
    else:
        declarations = [choose_stream(streams, stream)[0]]
    for one in declarations:
        check_declaration(one)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    metrics = LogMetrics(metrics_port)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evercount-log-")))
        store = stack.enter_context(open_store(db, key_file))
        for one in declarations:
            typer.echo(
                f"{one.name}: {published_line(one, new=one.name not in store.streams)}", err=True
            )
        if metrics.port is not None:
            typer.echo(f"metrics: http://127.0.0.1:{metrics.port}/metrics", err=True)
        more: dict[str, Any] = {"new_log": new_log, "skip_lost": skip_lost, "rejects": rejects}
        unreachable = False
        while True:
            try:
                with ExitStack() as session:
                    consumers = [
                        _open_consumer(session, address, one, store, scratch, more)
                        for one in declarations
                    ]
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


def _open_consumer(
    session: ExitStack, address: Any, declaration: Any, store: Any, scratch: Path, more: Any
) -> LogConsumer:
    """Open the log of a stream for one session."""
    from evercount.consume.consume_log import LogConsumer
    from evercount.declarations.schedule import instant_of

    source = session.enter_context(closing(address.open()))
    return session.enter_context(
        closing(LogConsumer(source, declaration, store, scratch, instant_of(time()), **more))
    )


def _round(consumers: list[LogConsumer], waiting: int, metrics: Any) -> bool:
    """Count what each log holds and release the ticks that have ended; return whether all streams
    are finished."""
    from evercount.declarations.schedule import instant_of

    finished = []
    for consumer in consumers:
        name = consumer.declaration.name
        bad_before = sum(consumer.bad.values())
        ticks, messages = consumer.round(
            instant_of(time()), waiting, partial(metrics.progress, name)
        )
        metrics.after_round(name, consumer.bad, consumer.lost, len(ticks))
        if messages or ticks:
            line = f"{name}: counted {messages} messages"
            bad = sum(consumer.bad.values())
            if bad > bad_before:
                line += f", {bad - bad_before} set aside because they are not events ({bad} in all)"
            if ticks:
                line += f"; released {_name_ticks(ticks)}"
            typer.echo(line, err=True)
        finished.append(consumer.finished)
    return all(finished)


def _name_ticks(ticks: range) -> str:
    """Name ticks by their numbers."""
    if len(ticks) == 1:
        return f"tick {ticks[0]}"
    return f"ticks {ticks[0]} to {ticks[-1]}"


FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "xml")


def spark(
    streams: Path = Argument(..., help="TOML file that declares the stream."),
    source: str = Argument(..., help="Folder or URL that Spark reads; for Kafka: its servers."),
    checkpoint: str = Option(..., help="Folder in which Spark keeps what it has read."),
    stream: str | None = Option(None, help="Name of the stream, if the file declares several."),
    db: Db = "evercount.db",
    form: str = Option("parquet", "--format", help="Spark's name for the format of the source."),
    schema: str | None = Option(
        None, help="Columns of files, such as 'ts string, region string'; required for files."
    ),
    option: list[str] | None = Option(None, help="KEY=VALUE for Spark's reader; may be repeated."),
    shards: int | None = Option(
        None, min=1, help="Number of ranges of cells that executors close separately."
    ),
    lake: str | None = Option(
        None, help="Append released ticks to delta:FOLDER or iceberg:FOLDER/namespace.table."
    ),
    follow: bool = Option(False, "--follow", help="Continue until the horizon or Ctrl-C."),
    pause: float = Option(1.0, min=0, help="Seconds between two rounds of --follow."),
    skip_bad: bool = Option(False, "--skip-bad", help="Leave out rows that are not events."),
    new_checkpoint: bool = Option(
        False, "--new-checkpoint", help="The checkpoint is new, with new events only."
    ),
    key_file: KeyFile = None,
    head: Head = None,
    master: str | None = Option(None, help="Where Spark runs, such as local[4]."),
) -> None:
    """Count the events of a streaming source with Spark, and release the ticks that have ended.

    Under spark-submit use the file evercount/cli/spark_submit_script.py with the same arguments.
    """
    from evercount.declarations.cautions import published_line
    from evercount.files.lake_table import open_lake
    from evercount.spark import open_session, release_stream
    from evercount.spark.session import check_declaration
    from evercount.spark.stream_release import append_released

    declaration, _ = choose_stream(streams, stream)
    check_declaration(declaration)
    if schema is None and form in FILE_FORMATS:
        raise ParameterError(
            f"a stream of {form} files needs --schema, the columns and their types, such as 'ts "
            "string, region string'"
        )
    if lake is not None:
        open_lake(lake)
    session = open_session(master, f"evercount {declaration.name}")
    _be_quiet(session)
    events = _events(session, source, form, schema, option or [])
    with open_store(db, key_file, head) as store:
        typer.echo(published_line(declaration, new=declaration.name not in store.streams), err=True)
        behind = True  # an earlier run may have ended before it could append
        while True:
            outcome = release_stream(
                events, declaration, store, checkpoint,
                shards=shards, skip_bad=skip_bad, new_checkpoint=new_checkpoint,
                say=partial(typer.echo, err=True),
            )  # fmt: skip
            if lake is not None and (behind or outcome.ticks):
                typer.echo(
                    f"{lake}: {append_released(store, declaration.name, lake)} new rows", err=True
                )
            behind = False
            if not follow or outcome.finished:
                break
            new_checkpoint = False
            sleep(pause)


def _be_quiet(session: Any) -> None:
    """Print an error as one line: Spark's stacks are written only under spark-submit or if
    spark.log.level is set."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    if session.sparkContext.getConf().contains("spark.log.level"):
        return
    session.sparkContext.setLogLevel("OFF")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _events(session: Any, source: str, form: str, schema: str | None, options: list[str]) -> Any:
    """Open the source as a frame of Spark."""
    from evercount.spark.session import EVERY_AGE, first_line

    reader = session.readStream.format(form)
    if form in (*FILE_FORMATS, "text"):
        reader = reader.option("maxFileAge", EVERY_AGE)
    for key, value in parse_parameters(options).items():
        reader = reader.option(key, value)
    try:
        if form == "kafka":
            return reader.option("kafka.bootstrap.servers", source).load()
        if schema:
            reader = reader.schema(schema)
        return reader.load(source)
    except Exception as error:  # noqa: BLE001
        # an unknown format arrives as the JVM's own error, not as PySpark's
        raise ParameterError(f"the source {source} cannot be opened: {first_line(error)}") from None
