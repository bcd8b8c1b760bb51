"""StreamDeclaration: all that an operator says about one stream, once and for all. Every door reads
the same one.

It is data: defaults are filled in and all is checked, and no noise is chosen or fitted. `settle.py`
does that, once. One TOML form (`streams.toml`, an array of tables named `stream`), one JSON form
and one schema with the same fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
)

from evercount._validate import check_kind
from evercount.declarations import fields
from evercount.declarations.fields import Columns, table
from evercount.declarations.schedule import MANUAL, Schedule, format_utc, parse_length
from evercount.declarations.unit_periods import period_of, periods_named, with_period_ticks
from evercount.declarations.view_names import QUANTILE, check_views, noise_views
from evercount.engine.build import DECAYED, PER_TICK, RUNNING, Spec, check_postprocess
from evercount.engine.build_parameters import check_revised_stream
from evercount.engine.noise_choice import check_named_noise, check_noise_for, check_view_count
from evercount.engine.revisions import MOST_LAGS, Revisions, day_budget
from evercount.engine.stream import Stream, TaskStream
from evercount.engine.user_counting import PeriodOf, UserCaps
from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.privacy import Budget, Cost, Ledger, TimeRange
from evercount.privacy.composition import costs_more
from evercount.privacy.time_range import lies_in_one_range
from evercount.queries import Query


@table("a stream's declaration")
class StreamDeclaration:
    """A declared stream. Immutable: another budget, query or schedule is another stream.

    >>> daily = StreamDeclaration.from_dict({"name": "flu", "query": "count", "tick": "1d",
    ...     "zone": "Europe/Vienna", "start": "2026-01-01",
    ...     "budget": {"epsilon": 1, "delta": 1e-9}})
    >>> daily.schedule.show(daily.schedule.start_of(90))
    '2026-03-31T00:00:00+02:00'
    """

    name: Annotated[
        fields.Name,
        Field(
            description=(
                "1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or "
                "digit"
            )
        ),
    ]
    query: Annotated[
        Query,
        PlainValidator(fields.read_query, json_schema_input_type=str | fields.QueryTable),
        PlainSerializer(lambda query: {"name": query.name, "parameters": query.parameters()}),
        Field(
            description=(
                'a name, or a table such as {name = "histogram", parameters = {keys = ["North", '
                '"South"]}}'
            )
        ),
    ]
    budget: Annotated[
        Budget,
        PlainValidator(fields.read_budget, json_schema_input_type=fields.BudgetTable),
        PlainSerializer(fields.declared_budget),
        Field(
            description=(
                "a table such as {epsilon = 1.0, delta = 1e-9}, with epsilon above 0 and delta "
                "below 1"
            )
        ),
    ]
    tick: Annotated[
        str, Field(description="the length of a tick, such as 15m, 1h or 1d, or 'manual'")
    ] = MANUAL
    start: Annotated[
        Any,
        PlainValidator(lambda time: time, json_schema_input_type=str | float | None),
        Field(
            description=(
                "the time at which the first tick begins; if omitted, the stream begins when it is "
                "declared"
            )
        ),
    ] = None  # as text in UTC once the declaration is made
    zone: Annotated[
        str | None, Field(description="the name of a time zone, such as Europe/Vienna or UTC")
    ] = None
    description: Annotated[
        fields.Description, Field(description="a string of at most 2000 characters")
    ] = ""
    horizon: Annotated[
        Annotated[int, Field(ge=1, le=2**40)] | None,
        Field(
            description="a whole number of ticks from 1 to 2^40, or null for a stream without end"
        ),
    ] = None
    factorization: Annotated[Spec | None, Field(description="a name, or null for the default")] = (
        None
    )
    """None is for the best for `noise_for`. `settle` chooses it, and fits the numbers of "blend"
    and "terrace"."""
    columns: Annotated[
        Columns | None,
        BeforeValidator(lambda value: Columns(**value) if isinstance(value, dict) else value),
        Field(description='a table such as {time = "when", key = "region"}'),
    ] = None
    late: Annotated[
        Literal["drop", "next", "revise"], Field(description="drop, next or revise")
    ] = "drop"
    """What becomes of an event whose tick is closed. It may change between drop and next for the
    events to come."""
    revise_for: Annotated[
        Annotated[int, Field(ge=1, lt=MOST_LAGS)] | None,
        Field(
            description=f"a whole number of ticks from 1 to {MOST_LAGS - 1}, with late = 'revise'"
        ),
    ] = None  # for how many ticks the number of a tick is published again, with late = "revise"
    wait: Annotated[str, Field(description="a length of time such as 30s or 12h")] = "0s"
    """How long after its end a tick is closed, for events that take a while to arrive. It may
    change at any time."""
    # caps that are used stay used next year
    carry_caps: Annotated[bool, Field(description="true or false")] = False
    public: Annotated[bool, Field(description="true or false")] = False
    postprocess: Annotated[
        fields.Names,
        AfterValidator(check_postprocess),
        Field(description='a list of names such as ["nonnegative", "integer"]'),
    ] = ()
    views: Annotated[
        fields.Names, Field(description='a list of names such as ["per-day", "last-24"]')
    ] = ()
    """What is shown. They may change at any time: they declare no other stream."""
    noise_for: Annotated[
        fields.Names, Field(description='a list of names such as ["per-tick", "last-24"]')
    ] = ()
    """The views that the noise is chosen for: running, per-tick, last-7. They never change. By
    default those of the first declaration's `views`; where it has none, `per-tick` for ticks by the
    clock, and `running` for manual ones and for queries without views."""
    schedule: Schedule = field(init=False, repr=False, compare=False)
    # of a renewed stream: the first start; rows in between are legal
    earliest: ClassVar[int | None] = None
    # of a renewed stream: the name of the first one, which a store may have given another name
    first_name: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        schedule = Schedule.of(self.tick, self.start, "UTC" if self.zone is None else self.zone)
        if schedule.calendar and self.zone is None:
            raise ParameterError(
                f"tick = {self.tick!r} follows the calendar of a time zone: add zone = "
                '"Europe/Vienna" or zone = "UTC"; for ticks of exactly 86,400 seconds write 24h'
            )
        self._schedule_is(schedule)
        self._check_late(schedule)
        if self.columns is not None:
            self.columns.check_fit(self.query, self.budget)
        check_views(self.views, self.query.for_views(()), schedule, self.stream_postprocess)
        self._check_noise()
        released = self.shows_releases and self.revise_for is None
        if self.view_postprocess and ("monotone" in self.postprocess or released):
            raise ParameterError(
                "views are made nonnegative or whole, not monotone; and running totals and keys of "
                "the day have no post-processed views. To post-process running totals declare no "
                "views"
            )

    @property
    def waits(self) -> int:
        """`wait` in microseconds."""
        return parse_length(self.wait, "wait")

    def _check_late(self, schedule: Schedule) -> None:
        """Refuse a rule for late events that does not fit the schedule, or lacks its number of
        ticks."""
        if (self.waits or self.late == "revise") and schedule.manual:
            raise ParameterError(
                "a manual stream closes its ticks by hand, and its events have no times: no event "
                "is late, so omit wait and late = 'revise'"
            )
        if (self.late == "revise") != (self.revise_for is not None):
            raise ParameterError(
                "late = 'revise' and revise_for = 14 (how many ticks a number is revised) go "
                "together"
            )

    def _schedule_is(self, schedule: Schedule) -> None:
        """Set the schedule, and the fields that say the same."""
        start = None
        if schedule.start is not None:
            start = format_utc(schedule.start)
        self._set(schedule=schedule, start=start, tick=schedule.tick, zone=schedule.zone)

    def _set(self, **fields: Any) -> None:
        """Complete a declaration that is being made; afterwards nothing in it changes."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _check_noise(self) -> None:
        """Complete what noise is chosen from, and refuse what can be refused before a choice or a
        fit."""
        if isinstance(self.factorization, dict) and "left" in self.factorization:
            raise ParameterError(
                "a declaration names its factorization: give matrices a name "
                "(register_factorization)"
            )
        self._set(budget=with_period_ticks(self.budget, self.schedule))
        if self.revise_for is not None:
            if self.carry_caps:
                raise ParameterError(
                    "caps are not carried over with late = 'revise': omit one of the two"
                )
            lags = check_revised_stream(
                self.query, self.budget, self.stream_postprocess, self.noise_for, self.revise_for
            )
            check_named_noise(
                self.query, day_budget(self.budget), lags, self.factorization, (RUNNING,)
            )
            return
        views = self.views_of_noise
        if self.noise_for:
            self._set(noise_for=views)  # each once
        else:  # a declaration that is read back has it
            check_view_count(self.views)
        if any(DECAYED.fullmatch(view) for view in views):
            raise ParameterError(
                "decayed sums are views of streams in Python (Stream(views=...), "
                "Releases.weighted): declare per-tick and running, and compute them from what is "
                "published"
            )
        self._set(query=self.query.for_views(views))
        check_views(self.views, self.query, self.schedule, self.stream_postprocess)
        self.query.check_budget(self.budget)
        check_named_noise(self.query, self.budget, self.horizon, self.factorization, views)

    @property
    def views_of_noise(self) -> tuple[str, ...]:
        """The views that the noise is for: those of `noise_for`, or what follows from what is
        shown."""
        if self.revise_for is not None:
            return (RUNNING,)
        asked = self.noise_for or noise_views(self.views, self.schedule) or self._default_views
        return check_noise_for(self.query, asked)

    @property
    def _default_views(self) -> tuple[str, ...]:
        """The views that noise is chosen for where none are declared."""
        if self.schedule.manual or not self.has_views:
            return ()
        with suppress(ParameterError):
            self.query.for_views((PER_TICK,))
            return (PER_TICK,)
        return ()

    @property
    def has_views(self) -> bool:
        """Whether differences of its releases are sums over ticks."""
        return self.query.publishing.why_no_views is None and not self.stream_postprocess

    @property
    def stream_postprocess(self) -> tuple[str, ...]:
        """What running totals are post-processed with as they are released: with declared views,
        nothing."""
        if self.views:
            return ()
        return self.postprocess

    @property
    def view_postprocess(self) -> tuple[str, ...]:
        """What the declared views are post-processed with when they are shown."""
        if self.views:
            return self.postprocess
        return ()

    @property
    def main_view(self) -> str:
        """The view that the main output shows: the first of `views`, or of what the noise is for,
        but for quantiles."""
        views = [name for name in self.views if not QUANTILE.fullmatch(name)]
        if self.revise_for is not None:
            return (*views, PER_TICK)[0]
        if self.has_views:
            return (*views, *self.views_of_noise)[0]
        return RUNNING

    @property
    def shows_releases(self) -> bool:
        """Whether the main output shows what the stream releases: running totals, keys of the day,
        or revised days."""
        return (
            self.main_view == RUNNING
            or self.query.publishing.own_ticks
            or self.revise_for is not None
        )

    # -- one JSON form, one TOML form --------------------------------------------------------------

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        if not isinstance(data, dict):
            raise ParameterError(
                f"a stream's declaration must be a table, got {type(data).__name__}"
            )
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with every default written out; without keys that joined
        later."""
        written: dict[str, Any] = MODEL.dump_python(self.as_declared, mode="json")
        return written

    @property
    def declared_query(self) -> Query:
        """What was declared, without keys that joined later."""
        first: Query = vars(self).get("_first_query", self.query)
        return first

    @property
    def as_declared(self) -> Self:
        """The declaration without keys that joined later."""
        return self.with_query(self.declared_query)

    def with_query(self, query: Query) -> Self:
        """The stream as it counts now, with the keys that have joined it. What it declares stays as
        it is."""
        # no keys join a revised stream, whose query has lags
        if query == self.query or self.revise_for is not None:
            return self
        return self._changed(_first_query=self.declared_query, query=query)

    def _changed(self, **fields: Any) -> Self:
        """The same declaration but for these fields; nothing is checked or chosen again."""
        other = copy(self)
        other._set(**fields)
        return other

    def to_toml(self) -> str:
        """The declaration as a `[[stream]]` table of `streams.toml`; `read_declarations` is the
        inverse."""
        from evercount.declarations.streams_file import write_stream

        return write_stream(self)

    @classmethod
    def from_toml(cls, source: str | Path) -> StreamDeclaration:
        """The inverse of `to_toml`: the stream of a TOML text, or of a file with one stream."""
        from evercount.declarations.streams_file import read_stream

        return read_stream(source)

    def canonical(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    # -- the engine --------------------------------------------------------------------------------

    def build(
        self,
        secret: Secret | None = None,
        *,
        replay: bool = False,
        part: range | None = None,
        ledger: Ledger | None = None,
        task: bool = False,
        inherited_caps: Mapping[str, tuple[int, int]] | None = None,
    ) -> Stream:
        """The stream before its first tick, with noise of its own for all that it counts
        (`noise_secret`).

        `replay`: to recompute its noise, never to publish; `part`: some cells; `task`: for a task
        that may run twice (`TaskStream`).

        `inherited_caps` are for a home that hands caps on from stream to stream: the counted events
        and ticks of each person in the streams before this one. Nobody else may build a stream with
        `carry_caps`, which is charged as one whose persons begin with what is left of their caps.

        **Guarantee.** A stream that is built with its start has the noise of its time range: the
        same declaration on the same secret for the next year has independent noise. Test:
        `tests/engine/test_successor_streams.py::test_next_year_on_the_same_secret_has_independent_noise`.
        With `carry_caps` no stream that could publish begins with fresh caps in the middle of its
        chain. Tests: tests/files/test_carry_caps.py.
        """
        if self.carry_caps and inherited_caps is None and not replay:
            raise ParameterError(
                "carry_caps is kept by `evercount release` with a state file (in Python "
                "`release(data, declaration, state=…)`): only there does a stream begin with what "
                "persons have used of their caps before. Use that, or omit carry_caps; budgets of "
                "streams over the same persons then add up"
            )
        from evercount.declarations.settle import settle

        settled = settle(self)
        made = TaskStream if task else Stream
        stream = made(
            settled.query,
            settled.budget,
            horizon=self.horizon,
            factorization=settled.factorization,
            secret=self.noise_secret(Secret.generate() if secret is None else secret),
            postprocess=self.stream_postprocess,
            replay=replay,
            part=part,
            views=settled.noise_for,
            during=self.during,
            period_of=self.period_of,
            ledger=ledger,
            revise_for=self.revise_for,
        )
        # other caps are kept by the home, next to the stream
        if inherited_caps and self.query.people is not None:
            stream._inherit_caps(inherited_caps)
        return stream

    def noise_secret(self, secret: Secret) -> Secret:
        """The secret from which the noise of this declaration follows, where the operator has given
        `secret`.

        **Guarantee.** Two declarations that count other rows, or other ticks of them, have
        independent noise on one secret: the columns, and the zone in which times without an offset
        are read, belong to the key as all else does that `Stream` knows. What may change while a
        stream runs does not. Test:
        tests/declarations/test_noise_key.py::test_every_field_is_in_the_key_or_has_a_reason.
        """
        check_kind("secret", secret, Secret, "Secret.generate()")
        columns = None
        if self.columns is not None:
            columns = COLUMNS.dump_python(self.columns, mode="json")
        zone = None
        if not self.schedule.manual:
            zone = self.schedule.zone
        if columns is None and zone is None:
            return secret
        rows = json.dumps({"columns": columns, "zone": zone}, sort_keys=True, separators=(",", ":"))
        return secret.derive(f"evercount/rows/1/{rows}")

    @property
    def released_query(self) -> Query:
        """What the stream releases: the query, or for each of the last ticks where they are
        revised."""
        if self.revise_for is None:
            return self.query
        return Revisions(self.query, self.revise_for + 1)

    @property
    def during(self) -> TimeRange | None:
        """The instants whose events are counted; None before the start is known."""
        schedule = self.schedule
        if schedule.start is None:
            return None
        end = None
        if not schedule.manual and self.horizon is not None:
            end = schedule.start_of(self.horizon + 1)
        chain = ""
        if self.carry_caps:
            chain = f"{self.chain_name} {self.first_begin}"
        return TimeRange(
            schedule.start, end, schedule.divided, periods_named(self.budget, schedule), chain
        )

    @property
    def renews_for_free(self) -> bool:
        """Whether the stream that goes on for this one at its horizon costs nothing more; true if
        it has no end.

        **Guarantee.** As `privacy.composition.costs_more` says of both time ranges. Test:
        `tests/files/test_renewal_costs.py::test_a_horizon_that_cuts_a_period_is_not_renewed_for_free`.
        """
        if self.horizon is None or self.schedule.manual:
            return self.carry_caps or lies_in_one_range(self.budget)
        during = None
        if self.released_query.starts_empty:
            during = self.during
        cost = Cost(self.budget, 0.0, during)
        if during is None:
            return not costs_more(cost, cost)
        following = self.going_on(self.schedule.start_of(self.horizon + 1), self)
        return not costs_more(cost, replace(cost, during=following.during))

    def ended(self, now: int) -> int:
        """The last tick that may close at an instant: it ended `wait` ago, and the horizon has it.
        0: none."""
        at = now - self.waits
        ended = 0
        if at > self.schedule.begin:
            ended = self.schedule.tick_of(at) - 1
        if self.horizon is None:
            return ended
        return min(ended, self.horizon)

    def closes(self, tick: int) -> int:
        """The instant from which a tick may close."""
        return self.schedule.start_of(tick + 1) + self.waits

    @property
    def user_caps(self) -> UserCaps | None:
        """What is counted of a user, where users are protected."""
        return UserCaps.of(self.query, self.budget, self.period_of, self.revise_for)

    @property
    def period_of(self) -> PeriodOf | None:
        """From a tick to the number of its period, where persons are protected in periods of the
        calendar."""
        return period_of(self.budget, self.schedule)

    def started(self, start: int) -> Self:
        """The declaration with the start that the stream really has, in microseconds since 1970."""
        return self.with_schedule(replace(self.schedule, start=start))

    def with_schedule(self, schedule: Schedule) -> Self:
        """The declaration on another schedule, with the noise that it has."""
        other = self._changed(budget=with_period_ticks(self.budget, schedule))
        other._schedule_is(schedule)
        return other

    def renewed(self, horizon: int | None = None, name: str | None = None) -> StreamDeclaration:
        """The stream that goes on when the horizon of this one ends: it starts at that instant."""
        if self.horizon is None or self.schedule.manual:
            raise ParameterError(
                f"stream {self.name!r} has no end by the clock: there is nothing to renew"
            )
        end = self.schedule.start_of(self.horizon + 1)
        horizon = horizon or self.horizon
        before = self if horizon == self.horizon else self.unfitted()
        return replace(before, name=name or self.name, horizon=horizon).going_on(end, self)

    def unfitted(self) -> StreamDeclaration:
        """The declaration without numbers that are fitted to its horizon, for a stream with another
        one."""
        if isinstance(self.factorization, dict):
            return replace(self, factorization=None)
        return self

    def going_on(self, start: int, first: StreamDeclaration) -> Self:
        """The declaration from `start` on, for a stream that goes on for another one: rows of that
        one are no fault."""
        return self.started(start)._follows(first.first_begin, first.chain_name)

    def _follows(self, earliest: int | None, first_name: str | None) -> Self:
        """The declaration of a stream that goes on for one of this start and name."""
        return self._changed(earliest=earliest, first_name=first_name)

    @property
    def chain_name(self) -> str:
        """The name of the first of the streams that this one goes on for, or its own."""
        return self.name if self.first_name is None else self.first_name

    def named(self, name: str) -> Self:
        """The same declaration under another name."""
        return self if name == self.name else self._changed(name=name)

    @property
    def first_begin(self) -> int:
        """The start of the first of the streams that this one goes on for, or its own."""
        if self.earliest is None:
            return self.schedule.begin
        return self.earliest

    def unstarted(self) -> Self:
        """The declaration with its start left open."""
        return self.with_schedule(replace(self.schedule, start=None))

    def with_rules(self, late: Any, wait: str) -> Self:
        """The declaration with another rule for late events; from and to `revise` it is another
        stream.

        **Guarantee.** Which tick counts an event, and whether one does, still depends on its own
        time, on when it comes, and on public facts: `engine/revisions.proof.md`, Changing the rule.
        Test: tests/contracts/test_late_rules.py::test_rules_change_for_events_to_come.
        """
        if self.revise_for is not None:
            late = self.late
        return self._changed(late=late, wait=wait)

    @property
    def remembers(self) -> bool:
        """Whether the encoder needs the events of a tick together."""
        return self.query.initial_state() is not None or self.query.whole_ticks


MODEL = TypeAdapter(StreamDeclaration)
COLUMNS = TypeAdapter(Columns)
