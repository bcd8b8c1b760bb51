"""Declaration: what an operator says about one stream, once and for all, and how its clock divides time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Literal, get_args

from evercount.engine.best import settle_best
from evercount.engine.build import check_postprocess
from evercount.engine.stream import Stream
from evercount.errors import ParameterError, TooLarge, UnknownName
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries import Query, build_query

Late = Literal["drop", "next"]

MANUAL = "manual"
MOST_CELLS = 100_000
"""Cells of one declared stream; each is a row per tick."""
LONGEST_DESCRIPTION = 2000
LARGEST_HORIZON = 2**40
SHORTEST_TICK = Fraction(1, 100)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TICK = re.compile(r"([1-9][0-9]{0,5})(ms|s|m|h|d)")
FIELDS = (
    "name",
    "description",
    "query",
    "budget",
    "tick",
    "start",
    "horizon",
    "late",
    "public",
    "postprocess",
    "factorization",
)


def parse_tick(text: Any) -> Fraction | None:
    """The length of a tick in seconds from "10s", "1h" and the like; None for "manual"."""
    if text == MANUAL:
        return None
    found = TICK.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise ParameterError(f"tick must be 'manual' or a length such as '10s', '15m', '1h' or '1d', got {text!r:.80}")
    number, unit = int(found[1]), found[2]
    seconds = Fraction(number, 1000) if unit == "ms" else Fraction(number * UNITS[unit])
    if seconds < SHORTEST_TICK:
        raise ParameterError(f"a tick lasts at least {SHORTEST_TICK * 1000} ms, got {text!r}")
    return seconds


def parse_time(text: Any, what: str = "time") -> float:
    """Seconds since 1970 from an ISO text or a number of seconds; a time without a zone is UTC."""
    if isinstance(text, datetime):
        moment = text
    elif isinstance(text, int | float) and not isinstance(text, bool):
        if not -1e11 < text < 1e11:
            raise ParameterError(f"{what} must be seconds since 1970 or an ISO time, got {text!r:.80}")
        return float(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except (TypeError, ValueError):
            raise ParameterError(
                f"{what} must be an ISO time such as '2026-01-31T09:00:00Z', got {text!r:.80}"
            ) from None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        raise ParameterError(f"{what} is outside the years that a clock has, got {text!r:.80}") from None


def format_time(seconds: float) -> str:
    """ISO text in UTC."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds" if seconds % 1 else "seconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True)
class Declaration:
    """A declared stream. Immutable: another budget, query or clock is another stream.

    `start` is None where the declaration leaves it open; the store then starts the stream when it is declared.
    `factorization` is None for the default. The name "best" is settled here: the budget is then the one that the
    mechanism of least error keeps, with δ = 0 where that is a pure one, and a ledger is asked for that.
    """

    name: str
    query: Query
    budget: Budget
    tick: str = MANUAL
    description: str = ""
    start: float | None = None
    horizon: int | None = None
    late: Late = "drop"
    public: bool = False
    postprocess: tuple[str, ...] = ()
    factorization: str | None = None
    seconds: Fraction | None = field(init=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ParameterError(
                "a stream's name is 1 to 64 letters, digits, dots, hyphens and underscores and starts with a letter or "
                f"digit, got {self.name!r:.80}"
            )
        if not isinstance(self.description, str) or len(self.description) > LONGEST_DESCRIPTION:
            raise ParameterError(f"description must be a text of at most {LONGEST_DESCRIPTION} characters")
        object.__setattr__(self, "seconds", parse_tick(self.tick))
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
        if max(self.query.cells, self.query.outputs) > MOST_CELLS:
            raise TooLarge(f"a declared stream has at most {MOST_CELLS} cells; this query has {self.query.cells}")
        if not (self.factorization is None or isinstance(self.factorization, str)):
            raise ParameterError(
                f"factorization must be a name, or null for the default, got {self.factorization!r:.80}"
            )
        kept, name = settle_best(self.query, self.budget, self.horizon, self.factorization)
        object.__setattr__(self, "budget", kept)
        object.__setattr__(self, "factorization", name)

    @classmethod
    def from_dict(cls, data: Any) -> Declaration:
        """The declaration of a JSON or TOML table, with every field checked."""
        table = _table("a stream's declaration", data, FIELDS, required=("name", "query", "budget"))
        query = table["query"]
        if isinstance(query, str):
            query = {"name": query}
        query = _table("query", query, ("name", "parameters"), required=("name",))
        name, parameters = query["name"], query.get("parameters") or {}
        if not isinstance(name, str) or not isinstance(parameters, dict):
            raise ParameterError("query must be {name: text, parameters: table}")
        built = _build(name, parameters)
        budget = table["budget"]
        if not isinstance(budget, dict):
            raise ParameterError("budget must be a table with epsilon and delta")
        start = table.get("start")
        description = table.get("description")
        postprocess = table.get("postprocess") or ()
        if not isinstance(postprocess, list | tuple) or not all(isinstance(item, str) for item in postprocess):
            raise ParameterError("postprocess must be a list of names")
        try:
            promised = Budget.from_dict(budget)
        except TypeError as error:
            raise ParameterError(f"budget: {error}") from None
        return cls(
            name=table["name"],
            query=built,
            budget=promised,
            tick=table.get("tick", MANUAL),
            description="" if description is None else description,
            start=None if start is None else parse_time(start, "start"),
            horizon=table.get("horizon"),
            late=table.get("late", "drop"),
            public=table.get("public", False),
            postprocess=check_postprocess(postprocess),
            factorization=table.get("factorization"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with every default written out (but a default factorisation)."""
        data = {
            "name": self.name,
            "description": self.description,
            "query": {"name": self.query.name, "parameters": self.query.parameters()},
            "budget": self.budget.to_dict(),
            "tick": self.tick,
            "start": None if self.start is None else format_time(self.start),
            "horizon": self.horizon,
            "late": self.late,
            "public": self.public,
            "postprocess": list(self.postprocess),
        }
        return data if self.factorization is None else {**data, "factorization": self.factorization}

    def canonical(self) -> str:
        """One text for one declaration."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def same_as(self, other: Declaration, start: float | None) -> bool:
        """Whether `other` declares this stream again; it may leave the start open or name the actual one."""
        mine, theirs = self.to_dict(), other.to_dict()
        mine.pop("start"), theirs.pop("start")
        return mine == theirs and (other.start is None or other.start == start)

    # -- the engine and the clock --------------------------------------------------------------------------------

    def build(self, noise: str = "exact", secret: Secret | None = None, seed: int | None = None) -> Stream:
        """The engine of this stream before its first tick."""
        return Stream(
            self.query,
            self.budget,
            horizon=self.horizon,
            factorization=self.factorization,
            noise=noise,
            secret=secret,
            seed=seed,
            postprocess=self.postprocess,
        )

    @property
    def remembers(self) -> bool:
        """Whether the encoder needs the events of a tick together (it has a memory)."""
        return self.query.initial_state() is not None

    def first_moment(self, now: float) -> float:
        """The start that is used where none was declared: now, back to a whole tick (whole second if manual)."""
        if self.start is not None:
            return self.start
        if self.seconds is None:
            return float(int(now))
        return float(Fraction(now) // self.seconds * self.seconds)

    def tick_at(self, moment: float, start: float) -> int:
        """The 1-based tick that holds a moment; 0 or less before the start."""
        if self.seconds is None:
            raise ParameterError("a manually clocked stream has no times")
        return int((Fraction(moment) - Fraction(start)) // self.seconds) + 1

    def tick_start(self, tick: int, start: float) -> float | None:
        """When a tick begins; None for a manual clock."""
        return None if self.seconds is None else float(Fraction(start) + (tick - 1) * self.seconds)


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
