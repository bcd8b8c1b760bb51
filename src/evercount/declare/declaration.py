"""StreamDeclaration: all that an operator says about one stream, once and for all. Every door reads the same one.

One TOML form (`streams.toml`, an array of tables named `stream`), one JSON form (the same fields), one validator.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from evercount.declare.columns import Columns
from evercount.declare.file_places import FilePlaces
from evercount.declare.schedule import MANUAL, Schedule, format_utc, parse_time, zone_named
from evercount.declare.view_names import QUANTILE, check_views, noise_views
from evercount.engine.build import Spec, check_postprocess
from evercount.engine.noise_choice import check_noise_for, choose_noise
from evercount.engine.stream import Stream
from evercount.engine.view_widths import PER_TICK, RUNNING
from evercount.errors import MissingExtra, ParameterError, UnknownName
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries import QUERIES, Query, build_query
from evercount.text_rules import check_public_text

Late = Literal["drop", "next"]

LONGEST_DESCRIPTION = 2000
LARGEST_HORIZON = 2**40
STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FIELDS = (
    "name",
    "description",
    "query",
    "budget",
    "tick",
    "start",
    "zone",
    "horizon",
    "factorization",
    "columns",
    "late",
    "public",
    "postprocess",
    "views",
    "noise_for",
)


class Asked(NamedTuple):
    """What a declaration says about its noise, before that is chosen."""

    budget: Budget
    factorization: Spec | None
    noise_for: bool


@dataclass(frozen=True)
class StreamDeclaration:
    """A declared stream. Immutable: another budget, query or schedule is another stream.

    >>> daily = StreamDeclaration.from_dict({"name": "flu", "query": "count", "budget": {"epsilon": 1, "delta": 1e-9},
    ...     "tick": "1d", "zone": "Europe/Vienna", "start": "2026-01-01"})
    >>> daily.schedule.show(daily.schedule.start_of(90))
    '2026-03-31T00:00:00+02:00'
    """

    name: str
    query: Query
    budget: Budget
    schedule: Schedule = field(default_factory=Schedule)
    description: str = ""
    horizon: int | None = None
    factorization: Spec | None = None
    """None for the best for `noise_for`. It is settled here: the budget is then what the noise keeps, with δ = 0 for
    Laplace noise, and a ledger is asked for that. A fitted one is stored with its numbers."""
    columns: Columns | None = None
    late: Late = "drop"
    public: bool = False
    postprocess: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    """What is shown. They may change at any time: they declare no other stream."""
    noise_for: tuple[str, ...] = ()
    """The views that the noise is chosen for: running, per-tick, last-7. They never change. By default those of the
    first declaration's `views`; where it has none, `per-tick` for ticks by the clock, and `running` for manual ones and
    for queries without views."""
    asked: Asked | None = field(default=None, repr=False, compare=False)
    """What was declared before the noise was chosen."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not STREAM_NAME.fullmatch(self.name):
            raise ParameterError(
                "a stream's name is 1 to 64 letters, digits, dots, hyphens and underscores and starts with a letter or "
                f"digit, got {self.name!r:.80}"
            )
        if not isinstance(self.description, str) or len(self.description) > LONGEST_DESCRIPTION:
            raise ParameterError(f"description must be a text of at most {LONGEST_DESCRIPTION} characters")
        lines = self.description.split("\n")
        for line in lines if len(lines) == 1 else map(str.strip, lines):  # lines may be indented
            if line:
                check_public_text("description:", line)
        if self.horizon is not None and (
            isinstance(self.horizon, bool)
            or not isinstance(self.horizon, int)
            or not 1 <= self.horizon <= LARGEST_HORIZON
        ):
            raise ParameterError(
                f"horizon must be a whole number of ticks from 1 to 2^40, or null for none, got {self.horizon!r:.80}"
            )
        if self.late not in get_args(Late):
            raise UnknownName("late rule", self.late, get_args(Late))
        if not isinstance(self.public, bool):
            raise ParameterError(f"public must be true or false, got {self.public!r:.80}")
        if not (self.factorization is None or isinstance(self.factorization, str | dict)):
            raise ParameterError(
                f"factorization must be a name, or null for the default, got {self.factorization!r:.80}"
            )
        if self.columns is not None:
            self._check_columns(self.columns)
        check_views(self.views, self.query, self.schedule, self.postprocess)
        self._settle_noise()

    def _settle_noise(self) -> None:
        """Choose the noise, once: the declaration that is stored says which."""
        if self.asked is None:
            object.__setattr__(self, "asked", Asked(self.budget, self.factorization, bool(self.noise_for)))
        default = () if self.schedule.manual or not self.has_views else (PER_TICK,)
        asked = self.noise_for or noise_views(self.views, self.schedule) or default
        views = check_noise_for(self.query, asked)
        object.__setattr__(self, "noise_for", views)
        kept, engine = choose_noise(self.query, self.budget, self.horizon, self.factorization, views)
        object.__setattr__(self, "budget", kept)
        if self.factorization is not None or views != (RUNNING,):
            object.__setattr__(self, "factorization", engine.spec)

    @property
    def has_views(self) -> bool:
        """Whether differences of its releases are sums over ticks."""
        return self.query.publishing.no_views is None and not self.postprocess

    @property
    def shown(self) -> str:
        """The view that the main output shows: the first of `views`, or of `noise_for`; a quantile is no cell of it."""
        views = [name for name in self.views if not QUANTILE.fullmatch(name)]
        return (*views, *self.noise_for)[0] if self.has_views else RUNNING

    def as_known(self, known: StreamDeclaration) -> StreamDeclaration:
        """This declaration with the noise of a stream that is known, where it does not say what its noise is for."""
        asked = self.asked
        assert asked is not None
        if asked.noise_for or self.noise_for == known.noise_for:
            return self
        fitted = known.factorization if isinstance(known.factorization, dict) else None
        name = fitted if fitted is not None and asked.factorization in (None, "blend", "best") else asked.factorization
        return replace(self, budget=asked.budget, factorization=name, noise_for=known.noise_for, asked=None)

    def _check_columns(self, columns: Columns) -> None:
        rows = self.query.rows
        if rows is None:
            raise ParameterError(
                f"the events of {self.query.name!r} (edges, letters, your own) are no rows of a table: stream them in "
                "Python, or send them to a service"
            )
        for name, column in (("key", columns.key), ("value", columns.value), ("levels", columns.levels or None)):
            if name in rows.columns and column is None:
                raise ParameterError(f"the query {self.query.name!r} needs the column of the {name}")
            if name not in rows.columns and column is not None:
                raise ParameterError(f"the query {self.query.name!r} has no {name}: omit its column")
        if len(columns.levels) != rows.levels:
            raise ParameterError(
                f"events of {self.query.name!r} have {rows.levels} names, and levels has {len(columns.levels)} columns"
            )
        if (columns.user is not None) != (self.budget.unit == "user" or self.query.people is not None):
            raise ParameterError(
                "a column of the user goes with a budget of unit 'user' and with queries that count users, and with no "
                "other"
            )

    # -- one JSON form, one TOML form ------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, data: Any) -> StreamDeclaration:
        table = _table("a stream's declaration", data, FIELDS, required=("name", "query", "budget"))
        tick, zone = table.get("tick", MANUAL), table.get("zone")
        schedule = Schedule(tick, None, "UTC" if zone is None else zone)
        if schedule.calendar and zone is None:
            raise ParameterError(
                f'tick = {tick!r} follows the calendar of a time zone: add zone = "Europe/Vienna" or zone = "UTC"; '
                "for ticks of 86,400 seconds sharp write 24h"
            )
        start = table.get("start")
        if start is not None:
            schedule = Schedule(tick, parse_time(start, zone_named(schedule.zone), "start"), schedule.zone)
        columns = table.get("columns")
        description = table.get("description")
        return cls(
            name=table["name"],
            query=_query(table["query"]),
            budget=_budget(table["budget"]),
            schedule=schedule,
            description="" if description is None else description,
            horizon=table.get("horizon"),
            factorization=table.get("factorization"),
            columns=None if columns is None else Columns.from_dict(columns),
            late=table.get("late", "drop"),
            public=table.get("public", False),
            postprocess=_postprocess(table.get("postprocess") or ()),
            views=_views("views", table.get("views") or ()),
            noise_for=_views("noise_for", table.get("noise_for") or ()),
        )

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with every default written out."""
        start = self.schedule.start
        return {
            "name": self.name,
            "description": self.description,
            "query": {"name": self.query.name, "parameters": self.query.parameters()},
            "budget": self.budget.to_dict(),
            "tick": self.schedule.tick,
            "start": None if start is None else format_utc(start),
            "zone": self.schedule.zone,
            "horizon": self.horizon,
            "factorization": self.factorization,
            "columns": None if self.columns is None else self.columns.to_dict(),
            "late": self.late,
            "public": self.public,
            "postprocess": list(self.postprocess),
            "views": list(self.views),
            "noise_for": list(self.noise_for),
        }

    def to_toml(self) -> str:
        """The declaration as a `[[stream]]` table of `streams.toml`; `read_declarations` is the inverse."""
        try:
            import tomli_w
        except ImportError as error:
            raise MissingExtra("A declaration as TOML", "cli") from error
        return tomli_w.dumps({"stream": [_without_none(self.to_dict())]})

    def canonical(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def differences(self, other: StreamDeclaration) -> list[str]:
        """What makes `other` another stream, in words; empty where it declares this stream again.

        A start may be left open by either. Names, descriptions, views and who may read do not matter here.
        """
        mine, theirs = self.to_dict(), other.as_known(self).to_dict()
        differences = []
        for name in FIELDS:
            if (
                name in ("name", "description", "public", "views", "start", "tick", "zone")
                or mine[name] == theirs[name]
            ):
                continue
            if name == "query" and mine[name]["name"] == theirs[name]["name"]:
                before, after = mine[name]["parameters"], theirs[name]["parameters"]
                changed = [key for key in before if before[key] != after.get(key)]
                differences += [
                    f"{key} holds other {key}, or the same in another order"
                    if key in ("keys", "paths")
                    else f"{key} was {before[key]!r} and is now {after.get(key)!r}"
                    for key in changed
                ]
            elif name == "budget":
                before, after = mine[name], theirs[name]
                differences += [
                    f"{key} was {before[key]!r} and is now {after[key]!r}"
                    for key in before
                    if before[key] != after[key]
                ]
            else:
                differences.append(f"{name} was {mine[name]!r} and is now {theirs[name]!r}")
        if not self.schedule.same_ticks(other.schedule):
            for name in ("tick", "start", "zone"):
                if mine[name] != theirs[name]:
                    differences.append(f"{name} was {mine[name]!r} and is now {theirs[name]!r}")
        return differences

    # -- the engine ------------------------------------------------------------------------------------------------

    def build(
        self,
        noise: str = "exact",
        secret: Secret | None = None,
        seed: int | None = None,
        *,
        replay: bool = False,
        part: range | None = None,
    ) -> Stream:
        """The stream before its first tick; `replay`: to recompute its noise, never to publish; `part`: some cells."""
        return Stream(
            self.query,
            self.budget,
            horizon=self.horizon,
            factorization=self.factorization,
            noise=noise,
            secret=secret,
            seed=seed,
            postprocess=self.postprocess,
            replay=replay,
            part=part,
            views=self.noise_for,
        )

    def started(self, start: int) -> StreamDeclaration:
        """The declaration with the start that the stream really has, in microseconds since 1970."""
        return replace(self, schedule=replace(self.schedule, start=start))

    def same_as(self, other: StreamDeclaration) -> bool:
        """Whether `other` declares this stream again, in every field; it may leave the start open."""
        mine, theirs = self.to_dict(), other.as_known(self).to_dict()
        if theirs["start"] is None:
            theirs["start"] = mine["start"]
        return {**mine, "views": None} == {**theirs, "views": None}

    @property
    def remembers(self) -> bool:
        """Whether the encoder needs the events of a tick together (it has a memory)."""
        return self.query.initial_state() is not None


def read_declarations(path: Path) -> list[StreamDeclaration]:
    """The streams of a TOML file: an array of tables named `stream`."""
    return [declaration for declaration, _ in read_streams(path)]


def read_streams(path: Path) -> list[tuple[StreamDeclaration, FilePlaces]]:
    """As `read_declarations`, each with the files that `evercount release NAME` reads and writes."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} is not TOML: {error}") from None
    tables = data.pop("stream", [])
    if data or not isinstance(tables, list):
        raise ParameterError(f"{path} must hold [[stream]] tables only; it also has {', '.join(data) or 'a [stream]'}")
    streams: dict[str, tuple[StreamDeclaration, FilePlaces]] = {}
    for number, table in enumerate(tables, 1):
        try:
            places = FilePlaces.from_dict(table.pop("files", {}) if isinstance(table, dict) else {}, path.parent)
            declaration = StreamDeclaration.from_dict(table)
            if declaration.name in streams:
                raise ParameterError(f"the name {declaration.name!r} is declared twice")
        except ParameterError as error:
            raise ParameterError(f"{path}, stream {number}: {error}") from None
        streams[declaration.name] = declaration, places
    return list(streams.values())


def _query(data: Any) -> Query:
    """The declared query, with defaults under which no event is refused because of earlier ones."""
    table = {"name": data} if isinstance(data, str) else data
    table = _table("query", table, ("name", "parameters"), required=("name",))
    name, parameters = table["name"], table.get("parameters") or {}
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise ParameterError("query must be {name: text, parameters: table}")
    if name in QUERIES:
        parameters = QUERIES[name].quiet_parameters(parameters)
    return _build(name, parameters)


def _budget(data: Any) -> Budget:
    if not isinstance(data, dict):
        raise ParameterError("budget must be a table with epsilon and delta")
    try:
        return Budget.from_dict(data)
    except TypeError as error:
        raise ParameterError(f"budget: {error}") from None


def _postprocess(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list | tuple) or not all(isinstance(item, str) for item in data):
        raise ParameterError("postprocess must be a list of names")
    return check_postprocess(data)


def _views(what: str, data: Any) -> tuple[str, ...]:
    if not isinstance(data, list | tuple):
        raise ParameterError(f'{what} must be a list of names such as ["per-tick", "last-24"]')
    return tuple(data)


def _build(name: str, parameters: Mapping[str, Any]) -> Query:
    try:
        return build_query(name, dict(parameters))
    except ParameterError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        # a parameter of a wrong type that a query's own checks did not foresee
        raise ParameterError(f"parameters of {name!r}: {type(error).__name__}: {error!s:.200}") from None


def _table(what: str, data: Any, known: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ParameterError(f"{what} must be a table, got {type(data).__name__}")
    for key in data:
        if key not in known:
            raise UnknownName(f"field of {what}", key, known)
    missing = [key for key in required if key not in data]
    if missing:
        raise ParameterError(f"{what} lacks {', '.join(missing)}")
    return data


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a field that is not given is omitted."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
