"""What a Spark session must have: Java, pandas, the secret of a batch, and readers that skip and
shift nothing.

The secret never travels with a job: driver and executors compute it for themselves. Readers of
files that would leave out files or rows, or shift times, without a word are refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, types

from evercount._safe_files import read_secret_file
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import EvercountError, InputError, MissingExtra, ParameterError
from evercount.files.event_sql import columns_of
from evercount.noise import Secret
from evercount.store.accept_totals import check_fed

VARIABLE, FILE_VARIABLE = "EVERCOUNT_SECRET", "EVERCOUNT_SECRET_FILE"


def root_secret() -> Secret:
    path, text = os.environ.get(FILE_VARIABLE), os.environ.get(VARIABLE)
    if path:
        text = read_secret_file(FILE_VARIABLE, Path(path))
    try:
        return Secret.from_hex((text or "").strip())
    except ValueError:
        raise ParameterError(
            f"the driver and every executor need {FILE_VARIABLE} (a file) or {VARIABLE} in their "
            "environment, with 64 hexadecimal digits (`openssl rand -hex 32`): the secret of the "
            "noise never travels with a job"
        ) from None


def run_secret(run: str) -> Secret:
    """The secret of one run.

    **Guarantee.** Runs with different names have independent noise, if keyed BLAKE2b is a
    pseudorandom function; so a job that is started again publishes no difference of two data sets,
    and its budget adds to that of the first. Every task of one run computes the same secret. Test:
    tests/spark/test_batch_release.py::test_two_runs_are_independent.
    """
    return root_secret().derive(f"evercount/spark/run/{run}")


def proof_of(secret: Secret) -> str:
    """A public text by which an executor knows that it has the driver's secret."""
    return secret.derive("evercount/spark/proof").hex()[:32]


OLDEST_JAVA = 17
# from the name of Spark's error on, as in [FAILED_READ_FILE.NO_HINT]
NAMED = re.compile(r"\[[A-Z0-9_.]+\] .*")


def open_session(master: str | None = None, name: str = "evercount") -> SparkSession:
    """The running session, or a new one.

    Args:
        master: where Spark runs, such as local[2]; None for what spark-submit or the configuration
            says.
        name: shown in Spark's own pages.

    Returns:
        The session; `stop` ends it.

    Raises:
        ParameterError: Java is missing or too old.
    """
    if SparkSession.getActiveSession() is None:
        check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    try:
        return builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise EvercountError(
            f"Spark does not start: {str(error).strip().splitlines()[0][:200]}"
        ) from None


def check_java() -> None:
    """Refuse with a clear message before Spark fails with an unclear one. Most Javas have a file
    `release` with their version."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    remedy = (
        f"install Java {OLDEST_JAVA} or newer (Debian: apt install openjdk-17-jre-headless), or "
        "set JAVA_HOME"
    )
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java is on the PATH"
        raise ParameterError(f"Spark needs Java, and {where}: {remedy}")
    with suppress(OSError, IndexError):
        text = (Path(java).resolve().parents[1] / "release").read_text(encoding="utf-8")
        major = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
        if major is not None and int(major[1]) < OLDEST_JAVA:
            raise ParameterError(
                f"Spark needs Java {OLDEST_JAVA}, and {java} is Java {major[1]}: {remedy}"
            )


def check_pandas() -> None:
    try:
        installed = version("pandas")
    except PackageNotFoundError as error:
        raise MissingExtra("Spark's Arrow functions", "spark") from error
    if int(installed.split(".")[0]) >= 3:
        raise ParameterError(
            f"Spark needs pandas below 3, this is {installed}: pip install 'pandas<3'"
        )


def first_line(error: BaseException) -> str:
    """What Spark says, without its stack: our own error on an executor, else a named one, else the
    first line."""
    lines = str(error).strip().splitlines()
    ours = [line.split(": ", 1)[-1] for line in lines if line.startswith("evercount.errors.")]
    named = [match[0] for match in map(NAMED.search, lines) if match]
    return (ours[-1:] + named + lines + [type(error).__name__])[0][:400]


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
        elif (
            kind == "LogicalRelation"
            and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation"
        ):
            relation: Any = leaf.relation()
            options = dict(as_java(relation.options()))
            yield FileSource(
                relation.fileFormat().toString(), options, schema, tuple(relation.inputFiles())
            )


def check_declaration(declaration: StreamDeclaration) -> None:
    """ParameterError for what Spark cannot serve; it needs no session."""
    check_fed(declaration, "Spark")
    if declaration.carry_caps:
        raise ParameterError(
            "carry_caps is for `evercount release` with a state file: Spark hands no caps on from "
            "one stream to the next. Omit it; budgets of streams over the same persons then add up"
        )
    columns = columns_of(declaration)
    people = declaration.query.people
    ordered = declaration.budget.unit == "user"
    if people is not None:
        ordered = people.order_matters
    if ordered and columns.order is None:
        raise ParameterError(
            f"{declaration.query.name!r} counts the first events of each user, and Spark's rows "
            "have no order: name a column of whole numbers that orders the events of one user at "
            "one time (columns.order), or use `evercount release`, which takes rows in the order "
            "of the file"
        )


def check_source(events: DataFrame, declaration: StreamDeclaration) -> None:
    """Refuse what can be known before anything is read."""
    time = check_columns(events, declaration)
    conf = events.sparkSession.conf
    refuse_skipping({name: conf.get(f"spark.sql.files.{name}", "false") or "" for name in SKIPPING})
    for source in file_sources(events):
        refuse_skipping(source.options)
        text = any(name in source.form.lower() for name in TEXT_FORMATS)
        parsed = any(isinstance(field.dataType, types.TimestampType) for field in source.schema)
        if text and parsed and isinstance(time, types.TimestampType):
            raise ParameterError(
                f"Spark reads a TIMESTAMP from {source.form.upper()} in the session's time zone "
                "where the text has no offset, and the declaration has its own zone: give the time "
                "as string in the schema, such as 'ts string'. Texts in ISO 8601 are then read in "
                "the declared zone"
            )
        if events.isStreaming and "maxfileage" not in map(str.lower, source.options):
            raise ParameterError(
                "Spark silently skips files that are more than 7 days older than the newest it has "
                "seen: give the reader the option maxFileAge, such as .option('maxFileAge', "
                f"'{EVERY_AGE}') for files of every age"
            )


def refuse_skipping(options: Mapping[str, str]) -> None:
    """Refuse readers that leave out files or rows which they cannot read."""
    given = {name.lower(): value.lower() for name, value in options.items()}
    skipping = [name for name in SKIPPING if given.get(name.lower()) == "true"]
    if given.get("mode") == "dropmalformed":
        skipping.append("mode DROPMALFORMED")
    if skipping:
        raise ParameterError(
            f"Spark would silently leave out what it cannot read ({skipping[0]}): remove the "
            "option. Unreadable rows are then reported, and left out with a count if you allow it "
            "(skip_bad, --skip-bad)"
        )


def check_columns(events: DataFrame, declaration: StreamDeclaration) -> types.DataType:
    """Refuse a table that lacks a column; returns the type of its times."""
    columns = columns_of(declaration)
    missing = [name for name in columns.used if name not in events.columns]
    if missing:
        raise InputError(
            f"the events have no column {missing[0]!r}; their columns are "
            f"{', '.join(events.columns)}"
        )
    return events.schema[columns.time].dataType


def check_parquet_times(
    events: DataFrame, declaration: StreamDeclaration, files: Sequence[str] = ()
) -> None:
    """Refuse Parquet files whose times have a zone where the schema says none, or the other way
    round. Spark takes either as the other in UTC, so nothing is wrong where that is the declared
    zone. `files` are those of a micro-batch; else all are looked at."""
    if declaration.schedule.zone == "UTC":
        return
    for source in file_sources(events):
        declared = {
            field.name: field.dataType
            for field in source.schema
            if isinstance(field.dataType, TIMESTAMPS)
        }
        if "parquet" not in source.form.lower() or not declared:
            continue
        paths = list(files or source.files)
        options = {
            name: value for name, value in source.options.items() if not paths or name != "path"
        }
        reader = events.sparkSession.read.format("parquet").options(**options, mergeSchema="true")
        try:
            # as the files themselves say; they must agree
            stored = reader.load(paths or None).schema
        except AnalysisException:  # no file is left
            continue
        except (PySparkException, Py4JError) as error:
            raise InputError(
                f"the Parquet files cannot be read together: {first_line(error)} Where some have "
                "times with a zone and others without, Spark would shift one kind: read them "
                "separately"
            ) from None
        for field in stored:
            if (
                isinstance(field.dataType, TIMESTAMPS)
                and declared.get(field.name, field.dataType) != field.dataType
            ):
                raise InputError(
                    f"the files have {field.name!r} as {field.dataType.simpleString()}, and the "
                    f"schema says {declared[field.name].simpleString()}: Spark would shift the "
                    f"times. Write '{field.name} {field.dataType.simpleString()}' in the schema"
                )
