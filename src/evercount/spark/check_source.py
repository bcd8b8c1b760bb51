"""What Spark's readers of files do to events without a word, refused: files and rows skipped, and times shifted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, types

from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import InputError, ParameterError
from evercount.files.event_sql import columns_of
from evercount.spark.session import first_line

TEXT_FORMATS = ("json", "csv", "xml")
TIMESTAMPS = (types.TimestampType, types.TimestampNTZType)
EVERY_AGE = "36500d"  # a `maxFileAge` that no file has
SKIPPING = ("ignoreCorruptFiles", "ignoreMissingFiles")


@dataclass(frozen=True)
class FileSource:
    """A reader of files in the plan of a DataFrame."""

    form: str
    options: dict[str, str]
    schema: types.StructType
    files: tuple[str, ...] = ()  # the files of a table; a stream has its folder in the options

    def has_text_times(self) -> bool:
        """Whether Spark itself parses the texts of a TIMESTAMP."""
        parsed = any(isinstance(field.dataType, types.TimestampType) for field in self.schema)
        return parsed and any(name in self.form.lower() for name in TEXT_FORMATS)

    def inferred(self, session: SparkSession, files: Sequence[str]) -> types.StructType:
        """The columns as the files themselves say, all of them; they must agree."""
        paths = list(files or self.files)
        options = {name: value for name, value in self.options.items() if not paths or name != "path"}
        return session.read.format("parquet").options(**options, mergeSchema="true").load(paths or None).schema


def file_sources(events: DataFrame) -> Iterator[FileSource]:
    """The readers of files that a DataFrame comes from. Spark Connect does not show them."""
    if type(events).__module__.startswith("pyspark.sql.connect"):
        return
    as_java = events.sparkSession._jvm.scala.jdk.javaapi.CollectionConverters.asJava  # type: ignore[union-attr]
    for leaf in as_java(events._jdf.queryExecution().analyzed().collectLeaves()):
        schema = types.StructType.fromJson(json.loads(leaf.schema().json()))
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelation" and leaf.sourceName().startswith("FileSource["):
            source = leaf.dataSource()
            yield FileSource(source.className(), dict(as_java(source.options())), schema)
        elif kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
            relation: Any = leaf.relation()
            options = dict(as_java(relation.options()))
            yield FileSource(relation.fileFormat().toString(), options, schema, tuple(relation.inputFiles()))


def check_source(events: DataFrame, declaration: StreamDeclaration) -> None:
    """Refuse what can be known before anything is read."""
    time = check_columns(events, declaration)
    conf = events.sparkSession.conf
    refuse_skipping({name: conf.get(f"spark.sql.files.{name}", "false") or "" for name in SKIPPING})
    for source in file_sources(events):
        refuse_skipping(source.options)
        if isinstance(time, types.TimestampType) and source.has_text_times():
            raise ParameterError(
                f"Spark reads a TIMESTAMP from {source.form.upper()} in the session's time zone where the text has no "
                "offset, and the declaration has its own zone: give the time as string in the schema, such as "
                "'ts string'. Texts in ISO 8601 are then read in the declared zone"
            )
        if events.isStreaming and "maxfileage" not in map(str.lower, source.options):
            raise ParameterError(
                "Spark silently skips files that are more than 7 days older than the newest it has seen: give "
                f"the reader the option maxFileAge, such as .option('maxFileAge', '{EVERY_AGE}') for files of every age"
            )


def refuse_skipping(options: Mapping[str, str]) -> None:
    """Refuse readers that leave out files or rows which they cannot read."""
    given = {name.lower(): value.lower() for name, value in options.items()}
    found = [name for name in SKIPPING if given.get(name.lower()) == "true"]
    if given.get("mode") == "dropmalformed":
        found.append("mode DROPMALFORMED")
    if found:
        raise ParameterError(
            f"Spark would silently leave out what it cannot read ({found[0]}): remove the option. Unreadable "
            "rows are then reported, and left out with a count if you allow it (skip_bad, --skip-bad)"
        )


def check_columns(events: DataFrame, declaration: StreamDeclaration) -> types.DataType:
    """Refuse a table that lacks a column; returns the type of its times."""
    columns = columns_of(declaration)
    missing = [name for name in columns.used if name not in events.columns]
    if missing:
        raise InputError(f"the events have no column {missing[0]!r}; their columns are {', '.join(events.columns)}")
    return events.schema[columns.time].dataType


def check_parquet_times(events: DataFrame, declaration: StreamDeclaration, files: Sequence[str] = ()) -> None:
    """Refuse Parquet files whose times have a zone where the schema says none, or the other way round. Spark takes
    either as the other in UTC, so nothing is wrong where that is the declared zone. `files` are those of a micro-batch;
    else all are looked at."""
    if declaration.schedule.zone == "UTC":
        return
    for source in file_sources(events):
        told = {field.name: field.dataType for field in source.schema if isinstance(field.dataType, TIMESTAMPS)}
        if "parquet" not in source.form.lower() or not told:
            continue
        try:
            found = source.inferred(events.sparkSession, files)
        except AnalysisException:  # no file is left
            continue
        except (PySparkException, Py4JError) as error:
            raise InputError(
                f"the Parquet files cannot be read together: {first_line(error)} Where some have times with a zone and "
                "others without, Spark would shift one kind: read them separately"
            ) from None
        for field in found:
            if isinstance(field.dataType, TIMESTAMPS) and told.get(field.name, field.dataType) != field.dataType:
                raise InputError(
                    f"the files have {field.name!r} as {field.dataType.simpleString()}, and the schema says "
                    f"{told[field.name].simpleString()}: Spark would shift the times. Write "
                    f"'{field.name} {field.dataType.simpleString()}' in the schema"
                )
