"""Stream: query + budget + horizon → step() and run(). The thin mutable shell around `state.advance`.

events ──encode──► increments ──advance──► published numbers with their errors
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.build_parameters import build_parameters
from evercount.engine.release import Release, Releases
from evercount.engine.retry import Seen
from evercount.engine.snapshot_format import pack, unpack
from evercount.engine.spend import spend_for
from evercount.engine.state import Rows, StreamParameters, StreamState, advance
from evercount.engine.stored_stream import dump_stream, load_stream
from evercount.engine.user_counting import Counting, cap_run, cap_tick, choose_counting, guarantee_sentence
from evercount.errors import (
    AlreadyReleased,
    EvercountError,
    HorizonReached,
    InputError,
    ParameterError,
    PrecisionReached,
)
from evercount.factorizations import Factorization
from evercount.noise import NoiseOwner, Secret
from evercount.privacy import Budget, Ledger
from evercount.queries.base import Query, V_co

Encoded = tuple[IntArray, Any, Mapping[str, int]]
"""Increments of a tick, the encoder's state after it, and users whose number of events changes."""


class Stream(NoiseOwner, Generic[V_co]):
    """Running sums of a query, released after every tick under one budget for all ticks together.

    Guarantee. The sequence of all releases of one stream is (ε, δ)-DP for the budget's adjacency and unit: noise is one
    Gaussian vector z of std σ = multiplier(ε, δ − numeric_delta)·√S·c through L (c ≥ ‖R‖_{1→2}, S from the query;
    `factorizations/sensitivity.proof.md`), drawn once per tick; everything after it is post-processing. With exact
    noise this holds on a real computer (`mechanisms/exact/exact_noise.proof.md`); with noise="insecure-float" it holds
    for real-number arithmetic only. Tests: tests/engine/test_stream_privacy.py.

    With δ = 0 the noise is Laplace on a tree (`mechanisms/laplace_noise.proof.md`). `factorization="best"` takes the
    mechanism of least worst std, and a pure one may be named for any δ: both keep the promise, and a stream that runs
    on a pure mechanism has a budget with δ = 0.

    `postprocess` may name "nonnegative", "integer" and "monotone": applied to what is published, never revising the
    past. A stream is for one thread at a time, and for the process that made it. One secret may serve several streams
    if their declarations differ: each has a key of its own. A second live stream of the same secret and declaration is
    refused; `replay=True` allows it for an audit: such a stream says that it must not be published, and gives no
    snapshot, so that no store can take it. With `ledger` its budget is spent there when it is built (`spend.py`).
    """

    owner_noun: ClassVar[str] = "stream"

    def __init__(
        self,
        query: Query[V_co],
        budget: Budget,
        horizon: int | None = None,
        factorization: str | None = None,
        noise: str = "exact",
        *,
        seed: int | None = None,
        secret: Secret | None = None,
        postprocess: Iterable[str] = (),
        replay: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        parameters = build_parameters(
            query, budget, horizon, factorization, noise, postprocess, replay, seed=seed, secret=secret
        )
        self._open(parameters, StreamState.initial(parameters.query), restored=False)
        if ledger is not None:  # last: a stream that cannot be built spends nothing, and one that is built has spent
            spend_for(self, ledger, secret)

    def _open(self, parameters: StreamParameters, state: StreamState, *, restored: bool) -> None:
        self._parameters = parameters
        self._state = state
        self._torn = False  # whether an interruption left an encoder that works in place between two ticks
        self._own(None if parameters.replay else parameters.noise.key, restored=restored)

    # -- public facts ---------------------------------------------------------------------------------------------

    @property
    def query(self) -> Query:
        """What is asked."""
        return self._parameters.query

    @property
    def budget(self) -> Budget:
        """What all releases together may reveal."""
        return self._parameters.budget

    @property
    def horizon(self) -> int | None:
        """The number of ticks, or None for a stream without end."""
        return self._parameters.horizon

    @property
    def factorization(self) -> Factorization:
        """How noise is correlated."""
        return self._parameters.factorization

    @property
    def postprocess(self) -> tuple[str, ...]:
        """The post-processing that is applied."""
        return self._parameters.postprocess

    @property
    def replay(self) -> bool:
        """Whether it repeats the noise of another stream, for an audit."""
        return self._parameters.replay

    @property
    def tick(self) -> int:
        """How many ticks have been released."""
        return self._state.tick

    @property
    def sigma(self) -> float:
        """Std of the normals z, in the query's units."""
        return self._parameters.noise.sigma

    @property
    def numeric_delta(self) -> float:
        """The part of δ that pays for finite arithmetic."""
        return self._parameters.noise.numeric_delta

    @property
    def noise(self) -> str:
        """The kind of noise, as every release states it."""
        return self._parameters.noise.stream.name

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence, with what the caller promised for it."""
        return guarantee_sentence(self.budget, self._state.counting, self.replay, self.noise)

    def std(self, ticks: Any) -> FloatArray:
        """Exact std of what is published at 1-based ticks, past or future, shape (ticks, outputs or 1)."""
        return self._parameters.errors.std(ticks)

    def read_back(self, values: FloatArray, first_tick: int = 1) -> Releases:
        """Numbers that this stream published before, shape (ticks, outputs), as releases with their errors."""
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.query.outputs or not 1 <= first_tick <= self.tick - len(rows) + 1:
            raise ParameterError(f"published numbers of released ticks have the shape (ticks, {self.query.outputs})")
        return self._parameters.releases(first_tick, Rows(rows, None), self._state.counting)

    def __repr__(self) -> str:
        return (
            f"Stream({self.query!r}, epsilon={self.budget.epsilon:g}, delta={self.budget.delta:g}, "
            f"horizon={self.horizon}, factorization={self.factorization.name!r}, "
            f"noise={self.noise!r}, tick={self.tick})"
        )

    # -- the flow ---------------------------------------------------------------------------------------------------

    def step(
        self, events: Any, tick: int | None = None, users: Iterable[str] | None = None, *, capped: bool = False
    ) -> Release[V_co]:
        """Release the next tick.

        Where the budget protects users, every tick names them, or the caller promises with `capped` that all ticks
        together hold at most `budget.max_events` events of each user; the guarantee then says so. Events beyond a
        user's first `budget.max_events` of the whole stream are dropped (`queries/user_cap.proof.md`).

        Args:
            events: what the query takes as one tick.
            tick: the 1-based number of the tick. It makes a retry safe: the last tick again with the same events
                reads back its release.
            users: the user of each event; for `Count`, events may then be None (one event per user named).
            capped: the caller's promise about the events of each user.

        Returns:
            What the tick publishes.

        Raises:
            InputError: the events are not legal, or the tick is out of turn; the stream is unchanged.
            AlreadyReleased: the tick was released with other events.
            HorizonReached: all ticks are released.

        >>> from evercount import Budget, Count
        >>> stream = Stream(Count(), Budget(epsilon=1.0, delta=1e-6), horizon=24)
        >>> stream.step(3).tick
        1
        """
        if hasattr(events, "__next__"):  # an iterator can be read once only, and the fingerprint reads it too
            events = list(events)
        if isinstance(users, str | bytes):
            raise InputError("users name the user of each event: a sequence of texts, not one text")
        named = None if users is None else list(users)
        seen = Seen(events if named is None else [named, events])
        counting = self._account(named is not None, capped)
        return self._step(seen, tick, counting, lambda: self._encoded(events, named))

    def step_totals(self, totals: Any, tick: int | None = None, *, capped: bool = False) -> Release[V_co]:
        """As `step`, for events that were already added up per cell (grid units): see `Query.encode_totals`."""
        counting = self._account(False, capped)
        encoder = self._state.encoder
        return self._step(Seen(totals), tick, counting, lambda: (*self.query.encode_totals(encoder, totals), {}))

    def _step(
        self,
        seen: Seen,
        tick: int | None,
        counting: Counting,
        encode: Callable[[], tuple[IntArray, Any, Mapping[str, int]]],
    ) -> Release[V_co]:
        """The next tick, or what a retry reads back. `encode` gives its increments, the encoder after it, and users."""
        self._check_owner()
        if tick is not None:
            if isinstance(tick, bool) or not isinstance(tick, int | np.integer) or tick < 1:
                raise InputError(f"tick must be a whole number of at least 1, got {tick!r}")
            if tick != self.tick + 1:
                return self._again(tick, seen)
        self._check_torn()
        self._check_limit(1)
        self._torn = self.query.in_place
        try:
            row, encoder, users = encode()
        except EvercountError:
            self._torn = False  # a refusal comes before anything is changed
            raise
        rows, after = advance(self._parameters, self._state, row[np.newaxis], encoder=encoder)
        release = self._parameters.releases(after.tick, rows, counting)[0]
        self._state = replace(after, counting=counting, last_users=users, last=(seen, release))  # the commit
        self._torn = False
        return release

    def _encoded(self, events: Any, users: Sequence[str] | None) -> Encoded:
        changes: Mapping[str, int] = {}
        if users is not None:
            self._state = self._state.with_users()
            events, changes = cap_tick(self.query, events, users, self.budget.max_events, self._state.users)
        return *self.query.encode(self._state.encoder, events), changes

    def _account(self, named: bool, capped: bool) -> Counting:
        """How the next ticks account for users, as all ticks before did."""
        before = self._state.counting if self.tick else None
        return choose_counting(self.budget, before, named, capped, self.query.names_users)

    def prepare(self) -> None:
        """Draw the noise of the next ticks now, so that the next `step` is fast; it changes no number."""
        self._check_owner()
        self._parameters.noise.stream.prepare()

    def run(
        self, ticks: Iterable[Any], users: Iterable[Iterable[str]] | None = None, *, capped: bool = False
    ) -> Releases[V_co]:
        """Release many ticks: the same numbers as one `step` for each.

        Args:
            ticks: what the query takes as a tick, for each tick.
            users: the users of the events, tick by tick.
            capped: as in `step`.

        Returns:
            What the ticks publish.

        Raises:
            InputError, HorizonReached: as in `step`; no tick is released.
        """
        if not isinstance(ticks, Iterable) or isinstance(ticks, Mapping):
            raise InputError(f"a run is a sequence of ticks, not {type(ticks).__name__}; for one tick use step")
        if isinstance(ticks, Iterator):
            ticks = list(ticks)
        self._check_owner()
        counting = self._account(users is not None, capped)
        self._check_torn()
        self._check_limit(0)
        before = self.query.dump_state(self._state.encoder) if self.query.in_place else None
        self._torn = self.query.in_place
        changes: Mapping[str, int] = {}
        try:
            if users is not None:
                self._state = self._state.with_users()
                ticks, changes = cap_run(self.query, ticks, users, self.budget.max_events, self._state.users)
            increments, encoder = self.query.encode_run(self._state.encoder, ticks)
            self._check_limit(len(increments))
        except BaseException:
            if before is not None:  # it may have advanced in place before a later tick was refused
                self._state = replace(self._state, encoder=self.query.load_state(before))
            self._torn = False
            raise
        return self._close(increments, encoder, counting, changes)

    def run_totals(self, totals: Any, *, capped: bool = False) -> Releases[V_co]:
        """As `run`, for ticks that were already added up, shape (ticks, cells): see `Query.encode_totals`."""
        if not isinstance(totals, Iterable):
            raise InputError(f"totals are a sequence of ticks, not {type(totals).__name__}")
        self._check_owner()
        counting = self._account(False, capped)
        self._check_torn()
        try:
            rows = totals if isinstance(totals, np.ndarray) else np.asarray(list(totals))
        except ValueError as error:
            raise InputError("totals must be rows of one length, one row for each tick") from error
        rows = rows if len(rows) else np.empty((0, self.query.cells), np.int64)
        increments = self.query.encode_totals_run(self._state.encoder, rows)
        self._check_limit(len(increments))
        return self._close(increments, self._state.encoder, counting, {})

    def _close(
        self, increments: IntArray, encoder: Any, counting: Counting, users: Mapping[str, int]
    ) -> Releases[V_co]:
        first = self.tick + 1
        rows, after = advance(self._parameters, self._state.with_users(), increments, encoder=encoder)
        releases = self._parameters.releases(first, rows, counting)
        self._state = replace(after, counting=counting, last_users=users, last=None)  # the commit
        self._torn = False
        return releases

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _check_torn(self) -> None:
        if self._torn:
            raise EvercountError(
                "this stream was interrupted in the middle of a tick and cannot go on; restore its newest snapshot"
            )

    def _check_limit(self, ticks: int) -> None:
        limit = self._parameters.noise.limit
        if limit is not None and self.tick + ticks > limit:
            raise HorizonReached(limit) if self.horizon is not None else PrecisionReached(limit)

    def _again(self, tick: int, seen: Seen) -> Release[V_co]:
        self._check_torn()
        last = self._state.last
        if tick == self.tick and last is not None and last[0].digest == seen.digest:
            return last[1]
        if tick > self.tick:
            raise InputError(f"tick {tick} is out of turn: the next tick is {self.tick + 1}")
        raise AlreadyReleased(
            f"tick {tick} is already released and cannot be released again with other events: the difference of two "
            "releases with the same noise would reveal them. Late events belong to the next tick."
        )

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything needed to continue identically, as `load` takes it. Secret: see `snapshot`."""
        self._check_owner()
        self._check_torn()
        if self.replay:
            raise ParameterError("a replay gives no snapshot: it repeats the noise of another stream, for audits only")
        return dump_stream(self._parameters, self._state.with_users())

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Stream[Any]:
        """The stream of `dump`, with every check that a new one passes; SnapshotError says what does not fit."""
        stream = cls.__new__(cls)
        stream._open(*load_stream(data), restored=True)
        return stream

    def snapshot(self) -> bytes:
        """Everything needed to continue identically. Secret: it holds raw sums and the noise of the future.

        Keep the newest snapshot only, and store it before its release is shown: a stream that goes on from an older
        one releases the same ticks again with the same noise, and if their data differ (late events, say), the
        difference of the two releases reveals it exactly. The store of `evercount serve` sees to both.
        """
        return pack(self.dump())

    @classmethod
    def restore(cls, blob: bytes) -> Stream[Any]:
        """The stream of `snapshot`; a corrupt, truncated, foreign or newer one is refused with SnapshotError.

        Restore the newest snapshot only (see there), and only once: two streams from one snapshot share their noise.
        """
        return cls.load(unpack(blob))
