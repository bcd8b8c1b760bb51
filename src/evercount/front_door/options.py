"""The options of `declare`, `plan` and `release`: their names, types, defaults and descriptions.

Everything that shows an option follows from these models: the signatures and the `Args` of the
three functions (`make reference` writes them), the command `evercount release`, and the reference
pages. `import evercount` does not load this module, because it needs pydantic.

The type of an option with an example is checked here. All others are read by a parser or by the
declaration itself, whose refusals say more. Names in backquotes are options; the command shows them
as it spells them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from evercount._validate import wrong_kind
from evercount.errors import UnknownName
from evercount.noise import Secret
from evercount.queries import Query

Moment = str | date | datetime | float
"""A time as texts, Python and pandas have it; without an offset it is a time of the stream's
zone."""
FLAG = "True or False"
# how the command shows an option
REPEATABLE: JsonDict = {"repeatable": True}
PYTHON_ONLY: JsonDict = {"python_only": True}


class Options(BaseModel):
    """Options of a function, by name. None stands for the default."""

    model_config = ConfigDict(
        strict=True, frozen=True, arbitrary_types_allowed=True, defer_build=True
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Read options by name; refuse an unknown name and a value of a wrong type."""
        for name in given:
            if name not in cls.model_fields:
                raise UnknownName("option", name, cls.model_fields)
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
        name = str(wrong["loc"][0])
        field = cls.model_fields[name]
        raise wrong_kind(f"`{name}`", given[name], field.annotation, (field.examples or [""])[0])

    @field_validator("*", mode="wrap")
    @classmethod
    def _check(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Check the type of an option that has an example; take any value of the others."""
        field = cls.model_fields[str(info.field_name)]
        if value is None:
            return field.default
        if field.examples is None:
            return value
        return check(value)


class DeclareOptions(Options):
    """The options of `declare` and `plan`: what is counted, for whom it is private, and when it is
    published."""

    time: str | None = Field(None, description="Column with the time of an event.")
    every: str | None = Field(
        None,
        description="Tick length: 15m, 1h; 1d and 1w by the calendar of `zone`.",
    )
    start: Moment | None = Field(None, description="Start of the first tick, ISO 8601.")
    zone: str | None = Field(
        None,
        description=(
            "Time zone of days, weeks and times without offset (default: UTC; days and weeks need"
            " one)."
        ),
    )
    late: str | None = Field(
        None,
        description=(
            "Rows whose tick is closed: drop, next (count in the next tick), or revise (files "
            "that only grow)."
        ),
    )
    wait: str | None = Field(
        None,
        description=(
            "How long after its end a tick is closed, such as 12h, for rows that come late "
            "(default: 0s)."
        ),
    )
    revise_for: int | None = Field(
        None,
        description="With `late` revise: for how many ticks each number is published again.",
    )
    query: str | Query | None = Field(
        None,
        description=(
            "count, histogram (`key`), discovered-keys (`key`), rollup (`rollup`), sum or "
            "quantiles (`value`), active-users or distinct-users (`user`)."
        ),
    )
    key: str | Sequence[str] | None = Field(
        None,
        description="Column with the key; several columns together make one key.",
        json_schema_extra=REPEATABLE,
    )
    rollup: str | Sequence[str] | None = Field(
        None,
        description="Columns of a rollup from the top, as in state,county.",
    )
    keys: str | Path | Sequence[Any] | None = Field(
        None,
        description=(
            "File with the public list of keys, one per line (of several columns or a rollup: CSV"
            " lines such as Tyrol,Innsbruck)."
        ),
    )
    unknown: str | None = Field(
        None,
        description="Keys not in the list: refuse (default), or count as 'other'.",
    )
    weights: str | Path | Mapping[str, int] | None = Field(
        None,
        description=(
            "File with lines such as Vienna,3: this key of a histogram has a third of the noise "
            "of keys without a line. The noise of all keys is made for the largest weight."
        ),
    )
    minimum: int | None = Field(
        None,
        description="discovered-keys: true count below which a key is never listed.",
    )
    value: str | None = Field(None, description="Column with the value to sum.")
    low: float | None = Field(None, description="Smallest legal value.")
    high: float | None = Field(None, description="Largest legal value.")
    grid: float | None = Field(
        None,
        description=(
            "Values are rounded to multiples of this. With 1, the default, they are whole numbers."
        ),
    )
    bins: int | None = Field(
        None,
        description="Number of bins for quantiles of `value` (a power of two).",
    )
    epsilon: float | None = Field(None, description="ε of all releases together.")
    delta: float | None = Field(
        None,
        description="δ of all releases together (default: 0, which is Laplace noise).",
    )
    unit: str | None = Field(
        None,
        description="What is protected: event, or user (the default with `user`).",
    )
    user: str | None = Field(None, description="Column with the person's id.")
    period: int | str | None = Field(
        None,
        description=(
            "Protect what a person does in one period: 1d, 1w, 4w, or ticks (default: all time)."
        ),
    )
    max_per_tick: int | None = Field(None, description="Events counted per person and tick.")
    max_ticks: int | None = Field(None, description="Ticks in which a person counts, per period.")
    max_events: int | None = Field(None, description="Events counted per person and period.")
    carry_caps: bool = Field(
        False,
        description=(
            "What persons have used of their caps stays used when the stream is renewed, which "
            "then costs nothing more."
        ),
    )
    adjacency: str | None = Field(None, description="add-remove (default) or replace.")
    horizon: int | str | None = Field(
        None,
        description="Number of ticks such as 8760 or 2^16, or none (default).",
    )
    factorization: str | None = Field(
        None,
        description="How noise is correlated, or best: the least error.",
    )
    views: str | Sequence[str] | None = Field(
        None,
        description=(
            "Publish this view, repeatable: per-tick, running, last-24, per-day, per-week, "
            "quantile-0.5. The output shows the first one; each of the others has a file next to "
            "it."
        ),
        json_schema_extra={**REPEATABLE, "spelled": "view"},
    )
    postprocess: str | Sequence[str] | None = Field(
        None,
        description=(
            "nonnegative, integer, or both with a comma: what the views show is made so (or "
            "single ticks, if no view is named)."
        ),
    )
    name: str | None = Field(
        None,
        description="Name of the stream, for charts and for streams.toml.",
    )


class ReleaseOptions(DeclareOptions):
    """The options of `release`: those of `declare`, and those of one run."""

    out: str | PathLike[str] | None = Field(
        None,
        description=(
            "Release file: .csv, .jsonl or .parquet. The command also accepts -, with `state`: "
            "all rows so far, as CSV on standard output."
        ),
        examples=['"daily.csv"'],
    )
    state: str | PathLike[str] | None = Field(
        None,
        description="State file (default: next to the output). Secret.",
        examples=['"daily.state"'],
    )
    end: Moment | None = Field(None, description="Release no tick that ends after this.")
    now: Moment | None = Field(
        None,
        description="Use this as the present time (default: the clock).",
    )
    delimiter: str | None = Field(
        None,
        description="Separator of the columns of a CSV (default: a comma).",
        examples=['";"'],
    )
    skip_bad: bool = Field(
        False,
        description="Leave bad rows out.",
        examples=[FLAG],
    )
    rejects: str | PathLike[str] | None = Field(
        None,
        description="Write all bad and all late rows to this private file.",
        examples=['"daily.rejects"'],
    )
    check: bool = Field(
        False,
        description="Check options, files and state; publish nothing.",
        examples=[FLAG],
    )
    new_noise_stream: bool = Field(
        False,
        description="Start again with new noise over the same data; the budgets add up.",
        examples=[FLAG],
    )
    db: str | PathLike[str] | None = Field(
        None,
        description=(
            "Store that keeps the stream in place of a state file, and that `evercount serve "
            "--read-only` shows: an SQLite file or postgresql://… The budget is spent once; files"
            " are exports of the store."
        ),
        examples=['"daily.db"'],
    )
    renew: bool = Field(
        False,
        description=(
            "When the horizon is complete, the next run continues from there with a new stream "
            "and new noise."
        ),
        examples=[FLAG],
    )
    carry_totals: bool = Field(
        False,
        description=(
            "With `renew`: running totals continue from the last published ones, and the errors "
            "add up."
        ),
        examples=[FLAG],
    )
    ledger: str | PathLike[str] | None = Field(
        None,
        description=(
            "Ledger file of all streams over the same events: the stream is entered, or refused."
        ),
        examples=['"daily.ledger"'],
    )
    total: str | tuple[float, float] | None = Field(
        None,
        description="ε,δ that all streams of a new ledger keep together, such as 1,1e-6.",
    )
    plot: str | PathLike[str] | None = Field(
        None,
        description="Chart of all releases: .png, .svg or .pdf.",
        examples=['"daily.png"'],
    )
    add_keys: str | Path | Sequence[Any] | None = Field(
        None,
        description=(
            "File with keys that join from the next tick on, as in `keys`: no history, their own "
            "noise, no new budget. Keys that are there already are left alone. Do not choose them"
            " by looking at the events."
        ),
    )
    add_keys_from: Moment | None = Field(
        None,
        description=(
            "Day or time from which on the keys of `add_keys` count, such as 2026-03-20 (default:"
            " the first tick that is not released). They have no number before it. Do not choose "
            "it by looking at the events."
        ),
    )
    remove_keys: str | Path | Sequence[Any] | None = Field(
        None,
        description="File with keys that are no longer shown from the next tick on.",
    )
    full_digits: bool = Field(
        False,
        description="All digits in the output, instead of as many as the error allows.",
        examples=[FLAG],
    )
    notes: str | Sequence[Any] | None = Field(
        None,
        description=(
            "Public notes on ticks, each as FIRST,LAST,TEXT, such as "
            '"2026-03-05,2026-03-06,reporting system down": a column of the output, and in '
            "charts. Write nothing that you know only from the events."
        ),
        json_schema_extra={**REPEATABLE, "spelled": "note"},
    )
    lake: str | PathLike[str] | None = Field(
        None,
        description=(
            "Table that gets each released tick once: delta:FOLDER or "
            "iceberg:FOLDER/namespace.table."
        ),
        examples=['"delta:daily"'],
    )
    secret: Secret | None = Field(
        None,
        description=(
            "The secret of a new stream. None draws one; one secret serves one stream only."
        ),
        examples=["Secret.generate()"],
        json_schema_extra=PYTHON_ONLY,
    )
    progress: Callable[[str, int, int], None] | None = Field(
        None,
        description="Called with (task, done, total): what is being done, and how far it is.",
        examples=["print"],
        json_schema_extra=PYTHON_ONLY,
    )


GROUPS: Mapping[str, tuple[str, ...]] = {
    "What is counted": (
        *("time", "every", "start", "zone", "late", "wait", "revise_for"),
        *("query", "key", "rollup", "keys", "unknown", "weights", "minimum"),
        *("value", "low", "high", "grid", "bins", "delimiter", "skip_bad"),
    ),
    "Protection": (
        *("epsilon", "delta", "unit", "user", "period", "max_per_tick", "max_ticks"),
        *("max_events", "carry_caps", "adjacency", "ledger", "total"),
    ),
    "Noise and views": ("horizon", "factorization", "views", "postprocess", "full_digits"),
    "Where it goes": ("out", "state", "db", "plot", "lake", "rejects", "name", "notes"),
    "Going on": (
        *("end", "now", "check", "renew", "carry_totals", "add_keys", "add_keys_from"),
        *("remove_keys", "new_noise_stream"),
    ),
    "For programs": ("secret", "progress"),
}
"""The groups in which help shows options; each option is in one."""


def is_run_option(name: str) -> bool:
    """Tell whether an option belongs to a run of `release`, and not to a declaration."""
    return name in ReleaseOptions.model_fields and name not in DeclareOptions.model_fields


def describe(name: str) -> str:
    """Describe an option, as the help of a function and of a command does."""
    return ReleaseOptions.model_fields[name].description or ""


def command_name(name: str) -> str:
    """Return the name of an option in a command: that of one value where it is repeated."""
    return str(_shown(ReleaseOptions.model_fields[name]).get("spelled", name))


def is_repeatable(field: FieldInfo) -> bool:
    """Tell whether a command takes the option several times, each with one value."""
    return "repeatable" in _shown(field)


def is_python_only(field: FieldInfo) -> bool:
    """Tell whether only the functions take the option, and no command."""
    return "python_only" in _shown(field)


def _shown(field: FieldInfo) -> JsonDict:
    """Return how a command shows the option of a field."""
    return cast(JsonDict, field.json_schema_extra or {})
