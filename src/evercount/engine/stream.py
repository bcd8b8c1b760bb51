"""Stream: query + budget + horizon → step() and run(). The whole flow of a release is on this page.

events ──encode──► increments ──add──► running sums ──+ noise──► noisy sums ──decode──► Release
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.build import check_fit, check_postprocess, choose_engine, make_noise
from evercount.engine.error_model import ErrorModel
from evercount.engine.release import Release, Releases
from evercount.engine.retry import Seen
from evercount.engine.snapshot_format import pack, unpack
from evercount.engine.user_counting import (
    Counting,
    cap_run,
    cap_tick,
    choose_counting,
    guarantee_sentence,
    stored_counting,
)
from evercount.errors import (
    AlreadyReleased,
    EvercountError,
    HorizonReached,
    InputError,
    ParameterError,
    SnapshotError,
    UnknownName,
)
from evercount.factorizations import check_horizon
from evercount.mechanisms import NOISES
from evercount.mechanisms.exact.exact_noise import PrecisionReached
from evercount.noise import NoiseOwner, Secret
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.user_cap import UserState, initial_users
from evercount.queries.window import Window

CHUNK = 1 << 18
"""Numbers of a run that are processed at a time."""


class Stream(NoiseOwner):
    """Running sums of a query, released after every tick under one budget for all ticks together.

    Guarantee. The sequence of all releases of one stream is (ε, δ)-DP for the budget's adjacency and unit: noise is one
    Gaussian vector z of std σ = multiplier(ε, δ − numeric_delta)·√S·c through L (c ≥ ‖R‖_{1→2}, S from the query;
    `factorizations/sensitivity.proof.md`), drawn once per tick; everything after it is post-processing. With exact
    noise this holds on a real computer (`mechanisms/exact/exact_noise.proof.md`); with noise="insecure-float" it holds
    for real-number arithmetic only. Tests: tests/engine/test_stream_privacy.py.

    `postprocess` may name "nonnegative", "integer" and "monotone": applied to what is published, never revising the
    past. A stream is for one thread at a time, and for the process that made it. One secret may serve several streams
    if their declarations differ: each has a key of its own. A second live stream of the same secret and declaration is
    refused; `replay=True` allows it for an audit: such a stream says that it must not be published, and gives no
    snapshot, so that no store can take it.
    """

    owner_noun: ClassVar[str] = "stream"

    def __init__(
        self,
        query: Query,
        budget: Budget,
        horizon: int | None = None,
        factorization: str | None = None,
        noise: str = "exact",
        *,
        seed: int | None = None,
        secret: Secret | None = None,
        postprocess: Iterable[str] = (),
        replay: bool = False,
    ) -> None:
        if not isinstance(query, Query):
            raise ParameterError(f"the first argument must be a query such as Count(), got {query!r}")
        if not isinstance(budget, Budget):
            raise ParameterError(f"the second argument must be a Budget, got {budget!r}")
        if noise not in NOISES:
            raise UnknownName("noise", noise, NOISES)
        self.horizon = check_horizon(horizon, unbounded=True)
        self.query, self.factorization = choose_engine(query, self.horizon, factorization, budget.pure)
        self.budget = budget
        self.postprocess = check_postprocess(postprocess)
        check_fit(self.query, budget, self.postprocess)
        self._noise = make_noise(
            noise, self.query, self.factorization, budget, self.horizon, self.postprocess, seed=seed, secret=secret
        )
        self.replay = replay
        self._own(None if replay else self._noise.key)
        self._errors = ErrorModel(self.query, self.factorization, self.sigma, self._noise.stream.rounded)
        self._tick = 0
        self._totals = np.zeros(self.query.cells, np.int64)
        self._encoder = self.query.initial_state()
        self._memory = np.zeros((self.query.memory, self.query.cells))
        self._last: tuple[Seen, Release] | None = None
        self._highest: FloatArray | None = None
        self._users = initial_users()
        self._counting: Counting | None = None
        self._torn = False  # whether an interruption left it between two ticks
        self._last_scale: list[Any] | None = None

    # -- public facts ---------------------------------------------------------------------------------------------

    @property
    def tick(self) -> int:
        """How many ticks have been released."""
        return self._tick

    @property
    def sigma(self) -> float:
        """Std of the normals z, in the query's units."""
        return self._noise.sigma

    @property
    def numeric_delta(self) -> float:
        """The part of δ that pays for finite arithmetic."""
        return self._noise.numeric_delta

    @property
    def noise(self) -> str:
        """The kind of noise, as every release states it."""
        return self._noise.stream.name

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence, with what the caller promised for it."""
        return guarantee_sentence(self.budget, self._counting, self.replay, self.noise)

    def std(self, ticks: Any) -> FloatArray:
        """Exact std of what is published at 1-based ticks, past or future, shape (ticks, outputs or 1)."""
        return self._errors.std(ticks)

    def read_back(self, values: FloatArray, first_tick: int = 1) -> Releases:
        """Numbers that this stream published before, shape (ticks, outputs), as releases with their errors."""
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.query.outputs or not 1 <= first_tick <= self._tick - len(rows) + 1:
            raise ParameterError(f"published numbers of released ticks have the shape (ticks, {self.query.outputs})")
        return Releases(first_tick, rows, self._errors, self.noise, self.guarantee, self.postprocess)

    def __repr__(self) -> str:
        return (
            f"Stream({self.query!r}, epsilon={self.budget.epsilon:g}, delta={self.budget.delta:g}, "
            f"horizon={self.horizon}, factorization={self.factorization.name!r}, "
            f"noise={self.noise!r}, tick={self.tick})"
        )

    # -- the flow ---------------------------------------------------------------------------------------------------

    def step(
        self, events: Any, tick: int | None = None, users: Iterable[str] | None = None, *, capped: bool = False
    ) -> Release:
        """Release the next tick. With `tick`, a retry of the last tick with the same events reads back its release.

        A tick that is already released with different events is refused (AlreadyReleased), as is a tick out of turn.
        `users` names the user of each event (for `Count`, events may then be None: one event per user named); events
        beyond a user's first `budget.max_events` of the whole stream are dropped (`queries/user_cap.proof.md`).
        Where the budget protects users, every tick names them, or the caller promises with `capped` that all ticks
        together hold at most `budget.max_events` events of each user; the guarantee then says so.
        """
        if hasattr(events, "__next__"):  # an iterator can be read once only, and the fingerprint reads it too
            events = list(events)
        if isinstance(users, str | bytes):
            raise InputError("users name the user of each event: a sequence of texts, not one text")
        named = None if users is None else list(users)
        seen = Seen(events if named is None else [named, events])
        way = self._account(named is not None, capped)
        return self._step(seen, tick, way, lambda: self._encoded(events, named))

    def _step(
        self, seen: Seen, tick: int | None, way: Counting, encode: Callable[[], tuple[IntArray, Any, UserState]]
    ) -> Release:
        """The next tick, or what a retry reads back. `encode` gives its increments and the states after it."""
        self._check_owner()
        if tick is not None:
            if isinstance(tick, bool) or not isinstance(tick, int | np.integer) or tick < 1:
                raise InputError(f"tick must be a whole number of at least 1, got {tick!r}")
            if tick != self._tick + 1:
                return self._again(tick, seen)
        self._check_room(1)
        self._torn = True  # from here to the end of the tick an interruption leaves the stream refusing
        try:
            row, encoder, changes = encode()
        except Exception as error:
            # a refusal comes before anything is changed; other failures harm only encoders that work in place
            self._torn = self.query.in_place and not isinstance(error, EvercountError)
            raise
        self._counting = way
        release = self._releases(row[np.newaxis])[0]
        self._encoder, self._last = encoder, (seen, release)
        self._users.update(changes)
        self._torn = False
        return release

    def _encoded(self, events: Any, users: Sequence[str] | None) -> tuple[IntArray, Any, UserState]:
        changes: UserState = {}
        if users is not None:
            events, changes = cap_tick(self.query, events, users, self.budget.max_events, self._users)
        return *self.query.encode(self._encoder, events), changes

    def _account(self, named: bool, capped: bool) -> Counting:
        """How the next ticks account for users, as all ticks before did."""
        before = self._counting if self._tick else None
        return choose_counting(self.budget, before, named, capped, self.query.names_users)

    def prepare(self) -> None:
        """Make the noise of the next ticks now, so that the next `step` is fast; it changes no number."""
        self._check_owner()
        self._noise.stream.prepare()

    def step_totals(self, totals: Any, tick: int | None = None, *, capped: bool = False) -> Release:
        """As `step`, for events that were already added up per cell (grid units): see `Query.encode_totals`."""
        way = self._account(False, capped)
        return self._step(Seen(totals), tick, way, lambda: (*self.query.encode_totals(self._encoder, totals), {}))

    def run(
        self, ticks: Iterable[Any], users: Iterable[Iterable[str]] | None = None, *, capped: bool = False
    ) -> Releases:
        """Release many ticks: the same numbers as one `step` for each. `users` names the users, tick by tick."""
        if not isinstance(ticks, Iterable) or isinstance(ticks, Mapping):
            raise InputError(f"a run is a sequence of ticks, not {type(ticks).__name__}; for one tick use step")
        if isinstance(ticks, Iterator):
            ticks = list(ticks)
        self._check_owner()
        way = self._account(users is not None, capped)
        self._check_room(0)
        before = self.query.dump_state(self._encoder) if self._encoder is not None else None
        self._torn = True
        changes: UserState = {}
        try:
            if users is not None:
                ticks, changes = cap_run(self.query, ticks, users, self.budget.max_events, self._users)
            increments, encoder = self.query.encode_run(self._encoder, ticks)
            self._check_limit(len(increments))
        except BaseException:
            if before is not None:  # an encoder may have advanced in place before a later tick was refused
                self._encoder = self.query.load_state(before)
            self._torn = False
            raise
        return self._close_run(increments, encoder, way, changes)

    def run_totals(self, totals: Any, *, capped: bool = False) -> Releases:
        """As `run`, for ticks that were already added up, shape (ticks, cells): see `Query.encode_totals`."""
        if not isinstance(totals, Iterable):
            raise InputError(f"totals are a sequence of ticks, not {type(totals).__name__}")
        self._check_owner()
        way = self._account(False, capped)
        try:
            rows = totals if isinstance(totals, np.ndarray) else np.asarray(list(totals))
        except ValueError as error:
            raise InputError("totals must be rows of one length, one row for each tick") from error
        rows = rows if len(rows) else np.empty((0, self.query.cells), np.int64)
        increments = self.query.encode_totals_run(self._encoder, rows)
        self._check_room(len(increments))
        return self._close_run(increments, self._encoder, way, {})

    def _close_run(self, increments: IntArray, encoder: Any, way: Counting, changes: UserState) -> Releases:
        self._torn = True
        self._counting = way
        releases = self._releases(increments)
        self._encoder, self._last = encoder, None
        self._users.update(changes)
        self._torn = False
        return releases

    def _releases(self, increments: IntArray) -> Releases:
        """Publish the next ticks."""
        first = self._tick + 1
        scales = []
        rows = max(1, CHUNK // self.query.cells)
        if len(increments) <= rows:
            out, scale = self._publish(increments)
            return self._as_releases(first, out, scale)
        out = np.empty((len(increments), self.query.outputs))
        for start in range(0, len(increments), rows):
            part = slice(start, start + rows)
            out[part], scale = self._publish(increments[part])
            if scale is not None:
                scales.append(scale)
        return self._as_releases(first, out, np.concatenate(scales) if scales else None)

    def _as_releases(self, first: int, values: FloatArray, scale: FloatArray | None) -> Releases:
        self._last_scale = None if scale is None else scale[-1:].tolist()
        values.flags.writeable = False  # what is published stays as it is
        return Releases(first, values, self._errors, self.noise, self.guarantee, self.postprocess, scale)

    def _publish(self, increments: IntArray) -> tuple[FloatArray, FloatArray | None]:
        """Noisy sums and published numbers of the next ticks; the only place where noise meets data."""
        noisy = self._noise.stream.take(len(increments))
        if self._noise.stream.whole:  # whole numbers are added as such: no sum is ever too large to be private
            noisy = (noisy.astype(np.int64) + self._running(increments)).astype(np.float64)
        else:
            noisy += self._running(increments)
        if self.query.grid != 1.0:
            noisy *= self.query.grid
        if self.query.memory:
            window = np.concatenate([self._memory, noisy])
            self._memory = window[-self.query.memory :].copy()
        else:
            window = noisy
        published = self.query.decode_run(self._tick + 1, window)
        scale = self.query.output_scale(noisy, published)
        self._tick += len(increments)
        return self._tidy(published), scale

    def _running(self, increments: IntArray) -> IntArray:
        """Exact running sums, which start again from zero where the query says so."""
        period = self.query.restart
        if period is None:
            if len(increments) == 1:  # one tick of many cells: no need to add along time
                self._totals += increments[0]
                return self._totals[np.newaxis]
            sums = np.cumsum(increments, axis=0)
            sums += self._totals
            self._totals = sums[-1].copy() if len(sums) else self._totals
            return sums
        sums = np.empty_like(increments)
        done = 0
        while done < len(increments):
            into = (self._tick + done) % period
            part = slice(done, min(len(increments), done + period - into))
            sums[part] = np.cumsum(increments[part], axis=0) + (self._totals if into else 0)
            self._totals = sums[part.stop - 1].copy()
            done = part.stop
        return sums

    def _tidy(self, published: FloatArray) -> FloatArray:
        """The declared post-processing, in the order nonnegative, integer, monotone."""
        if not self.postprocess:
            return published
        if "nonnegative" in self.postprocess:
            published = np.maximum(published, 0.0)
        if "integer" in self.postprocess:
            published = np.rint(published)
        if "monotone" in self.postprocess:
            published = np.maximum.accumulate(published, axis=0)
            if self._highest is not None:
                published = np.maximum(published, self._highest)
            if len(published):
                self._highest = published[-1].copy()
        return published

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _check_room(self, ticks: int) -> None:
        self._check_whole()
        self._check_limit(ticks)

    def _check_whole(self) -> None:
        if self._torn:
            raise EvercountError(
                "this stream was interrupted in the middle of a tick and cannot go on; restore its newest snapshot"
            )

    def _check_limit(self, ticks: int) -> None:
        limit = self._noise.limit
        if limit is not None and self._tick + ticks > limit:
            raise HorizonReached(limit) if self.horizon is not None else PrecisionReached(limit)

    def _again(self, tick: int, seen: Seen) -> Release:
        self._check_whole()
        if tick == self._tick and self._last is not None and self._last[0].digest == seen.digest:
            return self._last[1]
        if tick > self._tick:
            raise InputError(f"tick {tick} is out of turn: the next tick is {self._tick + 1}")
        raise AlreadyReleased(
            f"tick {tick} is already released and cannot be released again with other events: the difference of two "
            "releases with the same noise would reveal them. Late events belong to the next tick."
        )

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything needed to continue identically. Secret: it holds raw sums and the noise of the future.

        Keep the newest snapshot only, and store it before its release is shown: a stream that goes on from an older
        one releases the same ticks again with the same noise, and if their data differ (late events, say), the
        difference of the two releases reveals it exactly. The store of `evercount serve` sees to both.
        """
        self._check_owner()
        self._check_whole()
        if self.replay:
            raise ParameterError("a replay gives no snapshot: it repeats the noise of another stream, for audits only")
        last = None
        if self._last is not None:
            seen, release = self._last
            last = {"digest": seen.digest, "values": release.values.tolist(), "scale": self._last_scale}
        return pack(
            {
                "query": {"name": self.query.name, "parameters": self.query.parameters()},
                "budget": self.budget.to_dict(),
                "horizon": self.horizon,
                "factorization": self.factorization.name,
                "postprocess": list(self.postprocess),
                "noise": self._noise.dump(),
                "tick": self._tick,
                "encoder": self.query.dump_state(self._encoder),
                "last": last,
                "users": self._users,
                "named": self._counting == "named",
                "counting": self._counting,
            },
            {"totals": self._totals, "memory": self._memory, "highest": self._highest},
        )

    @classmethod
    def restore(cls, blob: bytes) -> Stream:
        """The stream of `snapshot`; a corrupt, truncated, foreign or newer one is refused with SnapshotError.

        Restore the newest snapshot only (see there), and only once: two streams from one snapshot share their noise.
        """
        data, arrays = unpack(blob)
        try:
            return cls._restored(data, arrays)
        except SnapshotError:
            raise
        except EvercountError as error:
            raise SnapshotError(f"the snapshot's stream cannot be built here: {error}") from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SnapshotError(f"the snapshot lacks something or holds something else: {error!r}") from error

    @classmethod
    def _restored(cls, data: dict[str, Any], arrays: dict[str, Any]) -> Stream:
        from evercount.queries import build_query

        query = build_query(data["query"]["name"], data["query"]["parameters"], stored=True)
        stream = cls.__new__(cls)
        stream.query = query
        stream.horizon = data["horizon"]
        stream.budget = Budget.from_dict(data["budget"])
        name = None if isinstance(query, Window) else data["factorization"]
        _, stream.factorization = choose_engine(query, stream.horizon, name, stream.budget.pure)
        stream.postprocess = check_postprocess(data["postprocess"])
        if data["noise"]["name"] not in NOISES:
            raise UnknownName("noise", data["noise"]["name"], NOISES)
        stream._noise = make_noise(
            data["noise"]["name"], query, stream.factorization, stream.budget, stream.horizon, dumped=data["noise"]
        )
        stream.replay = False
        stream._own(stream._noise.key, restored=True)
        stream._errors = ErrorModel(query, stream.factorization, stream.sigma, stream._noise.stream.rounded)
        stream._tick = data["tick"]
        if stream._noise.stream.tick != stream._tick:
            raise SnapshotError("the snapshot's noise stands at another tick than its sums")
        stream._totals, stream._memory = arrays["totals"], arrays["memory"]
        if stream._totals.shape != (query.cells,) or stream._memory.shape != (query.memory, query.cells):
            raise SnapshotError("the snapshot's sums do not belong to its query")
        stream._highest = arrays["highest"]
        stream._encoder = query.load_state(data["encoder"]) if data["encoder"] is not None else None
        stream._users = data["users"]
        stream._counting = stored_counting(data, stream.budget)
        stream._torn = False
        stream._last = None
        if data["last"] is not None:
            last = data["last"]
            values = np.asarray(last["values"], dtype=np.float64)[np.newaxis]
            scale = None if last["scale"] is None else np.asarray(last["scale"], dtype=np.float64)
            release = stream._as_releases(stream._tick, values, scale)[0]
            stream._last = (Seen(digest=last["digest"]), release)
        return stream
