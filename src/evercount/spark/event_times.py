"""Times in Spark: a column of any type → microseconds since 1970, by the rules of `declarations/schedule.py`."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, types
from pyspark.sql import functions as fn

from evercount.declarations.schedule import (
    EARLIEST_NUMBER,
    INSTANT_PATTERN,
    LATEST_NUMBER,
    NUMBER_PATTERN,
    SECOND,
    UNITS,
    WALL_PATTERN,
)
from evercount.errors import InputError
from evercount.files.event_sql import FARTHEST

WALL_TYPES = (types.StringType, types.TimestampNTZType, types.DateType)
NUMBER_TYPES = (types.IntegerType, types.LongType, types.FloatType, types.DoubleType)


def instants(time: Column, kind: types.DataType, name: str) -> tuple[Column, Column]:
    """`wall` for a time without an offset, `exact` for one with it, in microseconds; NULL for what is not a time."""
    none = fn.lit(None).cast("long")
    wall, exact = none, none
    if isinstance(kind, types.StringType):
        wall = fn.when(matches(time, WALL_PATTERN), _wall(time.try_cast("timestamp_ntz")))
        exact = fn.when(matches(time, INSTANT_PATTERN), fn.unix_micros(_spelled_out(time).try_cast("timestamp")))
        exact = exact.when(matches(time, NUMBER_PATTERN), _epoch(time.try_cast("double")))
    elif isinstance(kind, types.TimestampType):
        exact = fn.unix_micros(time)
    elif isinstance(kind, types.TimestampNTZType):
        wall = _wall(time)
    elif isinstance(kind, types.DateType):
        wall = fn.unix_date(time).cast("long") * UNITS["d"]
    elif isinstance(kind, NUMBER_TYPES):
        exact = _epoch(time.cast("double"))
    else:
        raise InputError(
            f"the column {name!r} is of type {kind.simpleString()}; a time is a TIMESTAMP, a DATE, a text in ISO 8601 "
            "or a number of seconds since 1970"
        )
    return wall.alias("wall"), exact.alias("exact")


def matches(text: Column, pattern: str) -> Column:
    """Whether the whole text fits a pattern."""
    return text.rlike(rf"\A(?:{pattern})\z")


def within(instant: Column) -> Column:
    """The instant, or NULL where it is farther away than any tick may be."""
    return fn.when(instant.between(-FARTHEST, FARTHEST), instant)


def _spelled_out(time: Column) -> Column:
    """The text with seconds and `Z`, which Spark's cast needs."""
    zulu = fn.regexp_replace(time, " UTC$", "Z")
    return fn.regexp_replace(zulu, r"^(.{10}[T ]\d\d:\d\d)(Z|[+-].*)$", "$1:00$2")


def _wall(moment: Column) -> Column:
    """Microseconds of a wall time. The difference of two times without a zone is the same in every session's zone."""
    epoch = fn.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")  # a literal from Python would be a time of the session's zone
    return fn.call_function("div", moment - epoch, fn.lit(timedelta(microseconds=1)))


def _epoch(seconds: Column) -> Column:
    """The instant of seconds since 1970, NULL where the number is none."""
    within = (seconds >= fn.lit(EARLIEST_NUMBER)) & (seconds < fn.lit(LATEST_NUMBER))
    return fn.when(within, fn.rint(seconds * SECOND).cast("long"))
