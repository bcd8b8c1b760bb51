"""Stream: query + budget + horizon → step() and run(). The thin mutable shell around
`state.advance`.

events ──encode──► increments ──advance──► published numbers with their errors
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from evercount._validate import IntArray
from evercount.engine.add_keys import GrowingStream, advance_keys
from evercount.engine.build import Spec
from evercount.engine.build_parameters import build_parameters
from evercount.engine.frame_events import plain_events, plain_ticks
from evercount.engine.release import Release, Releases
from evercount.engine.retries import TickDigest, check_tick, replay_last
from evercount.engine.snapshot_format import pack, unpack
from evercount.engine.state import (
    Capped,
    Counting,
    StreamParameters,
    StreamState,
    advance,
    choose_counting,
)
from evercount.engine.stream_facts import spend_for
from evercount.engine.stream_snapshot import dump_stream, load_stream
from evercount.engine.user_counting import CappedTicks, PeriodOf, UserChanges, Users, check_users
from evercount.errors import EvercountError, InputError, ParameterError
from evercount.factorizations import Factorization
from evercount.noise import Secret
from evercount.privacy import Budget, Ledger, TimeRange
from evercount.queries.base import Query, V_co
from evercount.queries.user_cap import Caps, Used, UserState


class Stream(GrowingStream[V_co]):
    """Running sums of a query, released after every tick under one budget for all ticks together.

    Guarantee. The sequence of all releases of one stream is (ε, δ)-DP for the budget's adjacency
    and unit: noise is one Gaussian vector z of std σ = multiplier(ε, δ − numeric_delta)·√S·c
    through L (c ≥ ‖R‖_{1→2}, S from the query; `factorizations/sensitivity.proof.md`), drawn once
    per tick; everything after it is post-processing. This holds on a real computer
    (`mechanisms/exact/exact_noise.proof.md`). Tests: tests/engine/test_stream_privacy.py.

    The noise is chosen for `views`, what will be published (`engine/noise_choice.py`): other views
    can be asked for, with a larger error, which is stated as always. With δ = 0 the noise is
    Laplace (`mechanisms/laplace_noise.proof.md`), and so it may be for δ > 0 where its error is
    much smaller; a stream that runs on such a mechanism has a budget with δ = 0, a stronger
    promise. A factorization can be named; "best" takes the one of least error.

    A stream is for one thread at a time, and for the process that made it. One secret may serve
    several streams if their declarations differ: each has a key of its own. A second live stream of
    the same secret and declaration is refused.

    Args:
        query: what is asked.
        budget: what all releases together may reveal.
        horizon: the number of ticks; None for a stream without end, or for that of a factorization
            that is given.
        factorization: how noise is correlated: a name, an object such as
            `factorizations.Dense(L, R)`, or None for the best for `views`.
        secret: the key of the noise; a fresh one if left out.
        postprocess: any of "nonnegative", "integer" and "monotone", for what is published. It never
            revises the past.
        replay: whether to repeat the noise of another live stream, for an audit. A replay says that
            it must not be published, and gives no snapshot, so that no store can take it.
        ledger: where the budget is spent when the stream is built (`stream_facts.spend_for`).
        part: a range of cells. The stream then releases these cells only, with the numbers that the
            stream of all cells has there: streams of disjoint parts together are that stream
            (`engine/cell_range.py`).
        views: what will be published, for which the noise is chosen: any of "running" (the total so
            far, the default), "per-tick" (new in each tick) and "last-7" (the last 7 ticks). Part
            of the declaration: it never changes.
        during: the time range whose events the stream counts; a declaration with a start gives it.
            It is part of the key of the noise, and a ledger charges streams over disjoint ranges
            only once where that is proved. The caller promises that events outside of it are not
            counted.
        period_of: from a tick to the number of its period, where the budget's period is a length of
            the calendar: a schedule knows it.
        revise_for: for how many ticks the number of each tick is published again, as late events
            come in. A tick is then a list: the events of its own, those of the tick before, and so
            on. The noise is that of `revise_for` + 1 ticks, for any number of ticks
            (`engine/revisions.proof.md`).

    Raises:
        ParameterError: parameters that do not fit each other.
        BudgetExceeded: the ledger has not enough left.

    >>> from evercount import Budget, Count
    >>> Stream(Count(), Budget(epsilon=1.0, delta=1e-6), horizon=24).std([24]).round(3).tolist()
    [[5.031]]
    >>> daily = Stream(Count(), Budget(epsilon=1.0, delta=1e-6), views=["per-tick", "last-7"])
    >>> daily.std([24], view="last-7").round(2).tolist()
    [[3.59]]
    """

    _owner_noun: ClassVar[str] = "stream"

    def __init__(
        self,
        query: Query[V_co],
        budget: Budget,
        horizon: int | None = None,
        factorization: Spec | Factorization | None = None,
        *,
        secret: Secret | None = None,
        postprocess: Iterable[str] = (),
        replay: bool = False,
        ledger: Ledger | None = None,
        part: range | None = None,
        views: Iterable[str] = (),
        during: TimeRange | None = None,
        period_of: PeriodOf | None = None,
        revise_for: int | None = None,
    ) -> None:
        if part is not None and ledger is not None:
            raise ParameterError(
                "the streams of all parts together spend one budget: omit `ledger` where `part` is "
                "given, and enter the stream once: ledger.spend(name, stream.cost)"
            )
        parameters = build_parameters(
            query,
            budget,
            horizon=horizon,
            factorization=factorization,
            postprocess=postprocess,
            replay=replay,
            part=part,
            views=views,
            during=during,
            period_of=period_of,
            revise_for=revise_for,
            secret=secret,
        )
        self._open(parameters, StreamState.initial(parameters.query), restored=False)
        # last: a stream that cannot be built spends nothing, and one that is built has spent
        if ledger is not None:
            spend_for(self, ledger)

    def _open(self, parameters: StreamParameters, state: StreamState, *, restored: bool) -> None:
        """Become the stream of these parameters in this state, and the owner of its noise."""
        self._parameters = parameters
        self._state = state
        if parameters.thresholds is None:
            self._advance = advance
        else:
            self._advance = advance_keys

        key = None
        if not parameters.replay:
            key = parameters.noise.key
        self._own(key, cells=parameters.part, restored=restored)

    # -- the flow ----------------------------------------------------------------------------------

    def step(
        self,
        events: Any,
        tick: int | None = None,
        users: Iterable[str] | None = None,
        *,
        capped: bool = False,
    ) -> Release[V_co]:
        """Release the next tick.

        Where the budget protects users, every tick names them, or the caller promises with `capped`
        that the ticks hold no more of each user than the budget's caps; the guarantee then says so.
        Events beyond the caps are dropped (`queries/user_cap.proof.md`).

        Args:
            events: what the query takes as one tick: a sequence, or a column or frame of pandas,
                Polars or Arrow.
            tick: the 1-based number of the tick. It makes a retry safe: the last tick again with
                the same events reads back its release.
            users: the user of each event; for `Count`, events may then be None (one event per user
                named).
            capped: the caller's promise about the events of each user.

        Returns:
            What the tick publishes.

        Raises:
            InputError: the events are not legal, or the tick is out of turn; the stream is
                unchanged.
            AlreadyReleased: the tick was released with other events.
            HorizonReached: all ticks are released.

        >>> from evercount import Budget, Count
        >>> Stream(Count(), Budget(epsilon=1.0, delta=1e-6), horizon=24).step(3).tick
        1
        """
        if isinstance(users, str | bytes):
            raise InputError(
                "users name the user of each event: a sequence of strings, not one string"
            )
        named = None
        if users is not None:
            named = list(plain_events(users))
        # the fingerprint reads them, too
        read = list(events) if isinstance(events, Iterator) else plain_events(events)

        digest = TickDigest(read if named is None else [named, read])
        counting = self._account(named is not None, capped)
        self._check_owner()
        if tick is not None:
            check_tick(tick)
            if tick != self._state.tick + 1:
                return replay_last(self._state.tick, self._state.last, tick, digest)
        self._parameters.check_limit(self._state.tick, 1)
        self._state = self._state.with_users()
        query = self._parameters.query
        self._torn = query.in_place
        try:
            (counted,), changes = self._capped([read], None if named is None else [named], counting)
            row, encoder = query.encode(self._state.encoder, counted)
        except EvercountError:
            self._torn = False  # a refusal comes before anything is changed
            raise
        return self._release(row[np.newaxis], encoder, counting, changes, digest)[0]

    def _release(
        self,
        increments: IntArray,
        encoder: Any,
        counting: Counting,
        changes: UserChanges,
        digest: TickDigest | None = None,
    ) -> Releases[V_co]:
        """Add noise and commit. With `digest`, a retry can read the tick back."""
        self._parameters.check_limit(self._state.tick, len(increments))
        first = self._state.tick + 1
        rows, after = self._advance(self._parameters, self._state, increments, encoder=encoder)
        releases = self._parameters.releases(first, rows, counting)
        last = None if digest is None else (digest, releases[0])
        users = UserState() if changes.forget else after.users
        # the commit
        self._state = replace(
            after, counting=counting, users=users, last_users=changes.users, last=last
        )
        self._torn = False
        return releases

    def _capped(self, ticks: Sequence[Any], users: Users | None, counting: Counting) -> CappedTicks:
        """Drop the events of the next ticks beyond the caps of users, where the stream sees to
        them."""
        caps = self._parameters.user_caps
        if caps is None or not (
            counting == "named" or (counting == "by query" and caps.caps != Caps())
        ):
            return ticks, UserChanges()
        if users is not None:
            check_users(ticks, users)
        return caps.cap(ticks, users, self.tick + 1, self._state.users)

    def _account(self, named: bool, capped: Capped) -> Counting:
        """Say how the next ticks account for users: as all ticks before did."""
        before = None
        if self._state.tick:
            before = self._state.counting
        return choose_counting(
            self._parameters.budget, before, named, capped, self._parameters.query
        )

    def prepare(self, events: Any = ()) -> None:
        """Draw the noise of the next ticks now, so that the next `step` is fast; it changes no
        number.

        Args:
            events: Events of the next tick that have come already: keys that nobody listed get
                their noise. They are not counted.

        Raises:
            EvercountError: the noise belongs to another process, or the stream is closed.
        """
        self._check_owner()
        noise = self._parameters.noise.stream
        discovery = self.query.discovery
        # at another tick a step has failed after its noise was drawn, and will ask for it again
        if discovery is not None and noise.tick == self.tick:
            noise.expect(discovery.expected_names(self._state.encoder, events))
        noise.prepare()
        if self.horizon is None or self.tick < self.horizon:
            self._errors.prepare(self.tick + 1)

    def run(
        self,
        ticks: Iterable[Any],
        users: Iterable[Iterable[str]] | None = None,
        *,
        capped: Capped = False,
    ) -> Releases[V_co]:
        """Release many ticks: the same numbers as one `step` for each.

        Args:
            ticks: what the query takes as a tick, for each tick.
            users: the users of the events, tick by tick.
            capped: as in `step`.

        Returns:
            What the ticks publish.

        Raises:
            InputError: as in `step`; no tick is released.
            HorizonReached: as in `step`; no tick is released.
        """
        if not isinstance(ticks, Iterable) or isinstance(ticks, Mapping):
            raise InputError(
                f"a run is a sequence of ticks, not {type(ticks).__name__}; for one tick use step"
            )
        ticks = plain_ticks(list(ticks) if isinstance(ticks, Iterator) else ticks)
        self._check_owner()
        counting = self._account(users is not None, capped)
        self._state = self._state.with_users()
        encoder = self._state.encoder
        changes = UserChanges()
        if self.query.in_place:  # a later tick may be refused
            encoder = self.query.load_state(self.query.dump_state(encoder))
        named = None
        if users is not None:
            named = list(plain_ticks(list(users)))
        if self._parameters.user_caps is not None:
            ticks, changes = self._capped(list(ticks), named, counting)
        increments, encoder = self.query.encode_run(encoder, ticks)
        return self._release(increments, encoder, counting, changes)

    def run_totals(self, totals: Any, *, capped: Capped = False) -> Releases[V_co]:
        """As `run`, for ticks that were already added up, shape (ticks, cells): see
        `Query.encode_totals`.

        Args:
            totals: One row of whole numbers for each tick.
            capped: As in `step`.

        Returns:
            What the ticks publish.

        Raises:
            InputError: The totals do not fit the query; no tick is released.
            HorizonReached: There are more ticks than the horizon has left; no tick is released.
        """
        self._check_owner()
        counting = self._account(False, capped)
        self._state = self._state.with_users()
        increments = self.query.encode_totals(totals)
        return self._release(increments, self._state.encoder, counting, UserChanges())

    def _inherit_caps(self, caps: Mapping[str, tuple[int, int]]) -> None:
        """Begin with what persons have used of their caps in earlier streams: counted events, and
        ticks."""
        users = {user: Used(events, ticks) for user, (events, ticks) in caps.items()}
        self._state = replace(self._state, users=users)

    def _used_caps(self) -> dict[str, tuple[int, int]]:
        """What persons have used of their caps so far: counted events, and ticks."""
        users = self._state.with_users().users
        return {user: (used[0], used[1]) for user, used in users.items()}

    # -- snapshots ---------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything needed to continue identically, as `load` takes it. Secret: see `snapshot`.

        Returns:
            Data for `load`.

        Raises:
            ParameterError: The stream is a replay.
        """
        self._check_owner()
        if self.replay:
            raise ParameterError(
                "a replay gives no snapshot: it repeats the noise of another stream, for audits "
                "only"
            )
        return dump_stream(self._parameters, self._state.with_users())

    @classmethod
    def load(cls, data: Mapping[str, Any], period_of: PeriodOf | None = None) -> Stream[Any]:
        """The stream of `dump`, with every check that a new one passes; SnapshotError says what
        does not fit.

        Args:
            data: A result of `dump`.
            period_of: As for `Stream`.

        Returns:
            The stream, which goes on with the same numbers.

        Raises:
            SnapshotError: The data do not fit.
        """
        stream = cls.__new__(cls)
        stream._open(*load_stream(data, period_of), restored=True)
        return stream

    def snapshot(self) -> bytes:
        """Everything needed to continue identically. Secret: it holds raw sums and the noise of the
        future.

        Keep the newest snapshot only, and store it before its release is shown: a stream that goes
        on from an older one releases the same ticks again with the same noise, and if their data
        differ (late events, say), the difference of the two releases reveals it exactly. The store
        of `evercount serve` sees to both.

        Returns:
            The bytes for `restore`.

        Raises:
            ParameterError: The stream is a replay.
        """
        return pack(self.dump())

    @classmethod
    def restore(cls, blob: bytes, period_of: PeriodOf | None = None) -> Stream[Any]:
        """The stream of `snapshot`; what is corrupt, truncated, foreign or of another format is
        refused.

        Restore the newest snapshot only (see there). The restored stream takes the place of any
        other with this noise that lives in this process: that one releases nothing more, and says
        so. Other processes are not seen (but for the one that this one was forked from, which must
        have closed its stream): end the one that had it before.

        Args:
            blob: A result of `snapshot`.
            period_of: As for `Stream`.

        Returns:
            The stream, which goes on with the same numbers.

        Raises:
            SnapshotError: The bytes are anything else.
        """
        return cls.load(unpack(blob), period_of)


class TaskStream(Stream[V_co]):
    """The stream of a task that may run twice, beside others with the same noise.

    It takes nobody's place and nobody takes its own. Only for a caller that counts the same data
    each time and whose commit accepts one of the equal results: shards of a store, tasks of Spark,
    runs over a stream of a store.
    """

    _exclusive: ClassVar[bool] = False
