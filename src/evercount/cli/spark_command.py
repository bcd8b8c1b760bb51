"""`evercount spark`: a streaming source, read by Spark, into a store."""

from __future__ import annotations

import logging
import os
import re
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any

import typer
from typer import Argument, Option

from evercount.cli.options import Db, Head, KeyFile, Wait, choose_stream, parse_parameters
from evercount.errors import ParameterError

FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "xml")


def spark(
    streams: Path = Argument(..., help="TOML file that declares the stream."),
    source: str = Argument(..., help="Folder or URL that Spark reads; for Kafka: its servers."),
    checkpoint: str = Option(..., help="Folder in which Spark keeps what it has read."),
    stream: str | None = Option(None, help="Name of the stream, where the file declares several."),
    db: Db = "evercount.db",
    form: str = Option("parquet", "--format", help="Spark's name of the source's format."),
    schema: str | None = Option(None, help="Columns of files, such as 'ts string, region string'; files need it."),
    option: list[str] | None = Option(None, help="KEY=VALUE for Spark's reader; may be repeated."),
    wait: Wait = "0s",
    shards: int | None = Option(None, min=1, help="Ranges of cells that executors close separately."),
    lake: str | None = Option(
        None, help="Table that gets every released tick once: delta:FOLDER or iceberg:FOLDER/namespace.table."
    ),
    follow: bool = Option(False, "--follow", help="Continue until the horizon or Ctrl-C."),
    pause: float = Option(1.0, min=0, help="Seconds between two rounds of --follow."),
    skip_bad: bool = Option(False, "--skip-bad", help="Leave out rows that are not events."),
    new_checkpoint: bool = Option(
        False, "--new-checkpoint", help="The checkpoint is new, and the source holds new events only."
    ),
    key_file: KeyFile = None,
    head: Head = None,
    master: str | None = Option(None, help="Where Spark runs, such as local[4]."),
) -> None:
    """Count the events of a streaming source with Spark, and release the ticks that have ended.

    Under spark-submit use the file evercount/cli/spark_submit_script.py with the same arguments.
    """
    from evercount.declarations.cautions import published_line
    from evercount.declarations.schedule import parse_length
    from evercount.files.lake_table import open_lake
    from evercount.spark import open_session, release_stream
    from evercount.spark.count_events import check_declaration
    from evercount.spark.stream_release import Progress, append_released
    from evercount.store import Store, key_from_environment

    declaration, _ = choose_stream(streams, stream)
    check_declaration(declaration)
    _check_schema(declaration, form, schema)
    waiting = parse_length(wait, "--wait")
    if lake is not None:
        open_lake(lake)
    session = open_session(master, f"evercount {declaration.name}")
    _be_quiet(session)
    progress = Progress(lambda line: typer.echo(line, err=True))
    events = _events(session, source, form, schema, option or [])
    with closing(Store(db, key_from_environment(key_file), head)) as store:
        typer.echo(published_line(declaration, new=declaration.name not in store.streams), err=True)
        behind = True  # an earlier run may have ended before it could append
        while True:
            outcome = release_stream(
                events, declaration, store, checkpoint,
                wait=waiting, shards=shards, skip_bad=skip_bad, new_checkpoint=new_checkpoint, progress=progress,
            )  # fmt: skip
            if lake is not None and (behind or outcome.ticks):
                typer.echo(f"{lake}: {append_released(store, declaration.name, lake)} new rows", err=True)
            behind = False
            if not follow or outcome.finished:
                break
            new_checkpoint = False
            sleep(pause)


def _check_schema(declaration: Any, form: str, schema: str | None) -> None:
    """What can be said before Spark starts, which takes seconds."""
    from evercount.files.event_sql import columns_of

    if schema is None and form in FILE_FORMATS:
        raise ParameterError(
            f"a stream of {form} files needs --schema, the columns and their types, such as 'ts string, region string'"
        )
    for name in columns_of(declaration).used:
        word = rf"(?<!\w){re.escape(name.replace('`', '``'))}(?!\w)"
        if schema is not None and not re.search(word, schema, re.IGNORECASE):
            raise ParameterError(f"--schema lacks the column {name!r} of the declaration, got {schema!r:.200}")


def _be_quiet(session: Any) -> None:
    """An error is one line: Spark's stacks are written only under spark-submit or where spark.log.level is set."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or session.sparkContext.getConf().contains("spark.log.level"):
        return
    session.sparkContext.setLogLevel("OFF")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _events(session: Any, source: str, form: str, schema: str | None, options: list[str]) -> Any:
    from evercount.spark.check_source import EVERY_AGE
    from evercount.spark.session import first_line

    reader = session.readStream.format(form)
    if form in (*FILE_FORMATS, "text"):
        reader = reader.option("maxFileAge", EVERY_AGE)
    for key, value in parse_parameters(options).items():
        reader = reader.option(key, value)
    try:
        if form == "kafka":
            return reader.option("kafka.bootstrap.servers", source).load()
        return (reader.schema(schema) if schema else reader).load(source)
    except Exception as error:  # noqa: BLE001 - an unknown format arrives as the JVM's own error, not as PySpark's
        raise ParameterError(f"the source {source} cannot be opened: {first_line(error)}") from None
