"""Stream: query + budget + horizon → step() and run(). The whole flow of a release is on this page.

events ──encode──► increments ──add──► running sums ──+ noise──► noisy sums ──decode──► Release
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.best import settle_best
from evercount.engine.build import check_fit, check_postprocess, choose_engine, make_noise
from evercount.engine.error_model import ErrorModel
from evercount.engine.release import Release, Releases
from evercount.engine.retry import Seen
from evercount.engine.snapshot_format import pack, unpack
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
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.counts import Count
from evercount.queries.user_cap import UserState, cap_per_user, initial_users
from evercount.queries.window import Window

CHUNK = 1 << 18
"""Numbers of a run that are processed at a time."""


class Stream:
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
    past. A stream is for one thread at a time.
    """

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
    ) -> None:
        if not isinstance(query, Query):
            raise ParameterError(f"the first argument must be a query such as Count(), got {query!r}")
        if not isinstance(budget, Budget):
            raise ParameterError(f"the second argument must be a Budget, got {budget!r}")
        if noise not in NOISES:
            raise UnknownName("noise", noise, NOISES)
        self.horizon = check_horizon(horizon, unbounded=True)
        self.budget, factorization = settle_best(query, budget, self.horizon, factorization)
        self.query, self.factorization = choose_engine(query, self.budget, self.horizon, factorization)
        self.postprocess = check_postprocess(postprocess)
        check_fit(self.query, self.budget, self.postprocess)
        self._noise = make_noise(
            noise, self.query, self.factorization, self.budget, self.horizon, seed=seed, secret=secret
        )
        self._errors = ErrorModel(self.query, self.factorization, self.sigma, self._noise.stream.rounded)
        self._tick = 0
        self._totals = np.zeros(self.query.cells, np.int64)
        self._encoder = self.query.initial_state()
        self._memory = np.zeros((self.query.memory, self.query.cells))
        self._last: tuple[Seen, Release] | None = None
        self._highest: FloatArray | None = None
        self._users = initial_users()
        self._named = False  # whether ticks name the users of their events
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

    @cached_property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        sentence = self.budget.sentence()
        if self.noise != "exact":
            sentence += f" Noise: {self.noise}; this holds for real-number arithmetic only: do not publish."
        return sentence

    def std(self, ticks: Any) -> FloatArray:
        """Exact std of what is published at 1-based ticks, past or future, shape (ticks, outputs or 1)."""
        return self._errors.std(ticks)

    def __repr__(self) -> str:
        return (
            f"Stream({self.query!r}, epsilon={self.budget.epsilon:g}, delta={self.budget.delta:g}, "
            f"horizon={self.horizon}, factorization={self.factorization.name!r}, "
            f"noise={self.noise!r}, tick={self.tick})"
        )

    # -- the flow ---------------------------------------------------------------------------------------------------

    def step(self, events: Any, tick: int | None = None, users: Iterable[str] | None = None) -> Release:
        """Release the next tick. With `tick`, a retry of the last tick with the same events reads back its release.

        A tick that is already released with different events is refused (AlreadyReleased), as is a tick out of turn.
        `users` names the user of each event (for `Count`, events may then be None: one event per user named); events
        beyond a user's first `budget.max_events` of the whole stream are dropped (`queries/user_cap.proof.md`).
        """
        if hasattr(events, "__next__"):  # an iterator can be read once only, and the fingerprint reads it too
            events = list(events)
        if isinstance(users, str | bytes):
            raise InputError("users name the user of each event: a sequence of texts, not one text")
        named = None if users is None else list(users)
        seen = Seen(events if named is None else [named, events])
        return self._step(seen, tick, named is not None, lambda: self._encoded(events, named))

    def _step(
        self, seen: Seen, tick: int | None, named: bool, encode: Callable[[], tuple[IntArray, Any, UserState]]
    ) -> Release:
        """The next tick, or what a retry reads back. `encode` gives its increments and the states after it."""
        if tick is not None:
            if isinstance(tick, bool) or not isinstance(tick, int | np.integer) or tick < 1:
                raise InputError(f"tick must be a whole number of at least 1, got {tick!r}")
            if tick != self._tick + 1:
                return self._again(tick, seen)
        self._check_room(1)
        self._check_users(named)
        self._torn = True  # from here to the end of the tick an interruption leaves the stream refusing
        try:
            row, encoder, changes = encode()
        except Exception as error:
            # a refusal comes before anything is changed; other failures harm only encoders that work in place
            self._torn = self.query.in_place and not isinstance(error, EvercountError)
            raise
        release = self._releases(row[np.newaxis])[0]
        self._encoder, self._last = encoder, (seen, release)
        self._users.update(changes)
        self._torn = False
        return release

    def _encoded(self, events: Any, users: Sequence[str] | None) -> tuple[IntArray, Any, UserState]:
        changes: UserState = {}
        if users is not None:
            events, changes = self._capped(events, users)
        return *self.query.encode(self._encoder, events), changes

    def _capped(self, events: Any, users: Sequence[str]) -> tuple[Any, UserState]:
        """The tick without events beyond their user's cap; for Count, how many events of value 1 are left."""
        counting = isinstance(self.query, Count)
        if events is None and counting:
            listed: list[Any] = [1] * len(users)
        elif isinstance(events, Iterable):
            listed = list(events)
        else:
            raise InputError("with users, a tick is a sequence of events, one for each user named")
        if len(listed) != len(users):
            raise InputError(f"{len(listed)} events but {len(users)} users: there must be one user for each event")
        if counting and any(isinstance(event, str) or event not in (0, 1) for event in listed):
            raise InputError("with users, each event of a count is 1 (or 0); leave events out to count them all")
        kept, changes = cap_per_user(zip(users, listed, strict=True), self.budget.max_events, self._users)
        return (sum(int(event) for event in kept) if counting else kept), changes

    def _check_users(self, named: bool) -> None:
        """Refuse users where none are protected, and ticks without users once users were named."""
        if named and self.budget.unit != "user":
            raise ParameterError("users are given but the budget protects events; use Budget(..., unit='user')")
        if self._tick and self.budget.unit == "user" and named != self._named:
            raise ParameterError(
                "this stream "
                + ("names users" if self._named else "does not name users")
                + " from its first tick on, so every tick must do the same: the cap counts events of the whole stream"
            )
        self._named = named

    def prepare(self) -> None:
        """Make the noise of the next ticks now, so that the next `step` is fast; it changes no number."""
        self._noise.stream.prepare()

    def step_totals(self, totals: Any, tick: int | None = None) -> Release:
        """As `step`, for events that were already added up per cell (grid units): see `Query.encode_totals`."""
        return self._step(Seen(totals), tick, False, lambda: (*self.query.encode_totals(self._encoder, totals), {}))

    def run(self, ticks: Iterable[Any]) -> Releases:
        """Release many ticks: the same numbers as one `step` for each."""
        if not isinstance(ticks, Iterable) or isinstance(ticks, Mapping):
            raise InputError(f"a run is a sequence of ticks, not {type(ticks).__name__}; for one tick use step")
        if isinstance(ticks, Iterator):
            ticks = list(ticks)
        self._check_room(0)
        before = self.query.dump_state(self._encoder) if self._encoder is not None else None
        self._torn = True
        try:
            increments, encoder = self.query.encode_run(self._encoder, ticks)
            self._check_limit(len(increments))
            self._check_users(False)
        except BaseException:
            if before is not None:  # an encoder may have advanced in place before a later tick was refused
                self._encoder = self.query.load_state(before)
            self._torn = False
            raise
        return self._close_run(increments, encoder)

    def run_totals(self, totals: Any) -> Releases:
        """As `run`, for ticks that were already added up, shape (ticks, cells): see `Query.encode_totals`."""
        if not isinstance(totals, Iterable):
            raise InputError(f"totals are a sequence of ticks, not {type(totals).__name__}")
        rows = [self.query.encode_totals(self._encoder, row)[0] for row in totals]
        increments = np.stack(rows) if rows else np.empty((0, self.query.cells), np.int64)
        self._check_room(len(increments))
        self._check_users(False)
        return self._close_run(increments, self._encoder)

    def _close_run(self, increments: IntArray, encoder: Any) -> Releases:
        self._torn = True
        releases = self._releases(increments)
        self._encoder, self._last = encoder, None
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

    def __copy__(self) -> NoReturn:
        raise ParameterError("a stream is not copied: two streams with one noise would reveal how their data differ")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ParameterError("a stream is not pickled: keep snapshot() where passwords are kept")

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
        self._check_whole()
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
                "named": self._named,
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

        query = build_query(data["query"]["name"], data["query"]["parameters"])
        stream = cls.__new__(cls)
        stream.query = query
        stream.horizon = data["horizon"]
        stream.budget = Budget.from_dict(data["budget"])
        name = None if isinstance(query, Window) else data["factorization"]
        _, stream.factorization = choose_engine(query, stream.budget, stream.horizon, name)
        stream.postprocess = check_postprocess(data["postprocess"])
        if data["noise"]["name"] not in NOISES:
            raise UnknownName("noise", data["noise"]["name"], NOISES)
        stream._noise = make_noise(
            data["noise"]["name"], query, stream.factorization, stream.budget, stream.horizon, dumped=data["noise"]
        )
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
        stream._named = data["named"]
        stream._torn = False
        stream._last = None
        if data["last"] is not None:
            last = data["last"]
            values = np.asarray(last["values"], dtype=np.float64)[np.newaxis]
            scale = None if last["scale"] is None else np.asarray(last["scale"], dtype=np.float64)
            release = stream._as_releases(stream._tick, values, scale)[0]
            stream._last = (Seen(digest=last["digest"]), release)
        return stream
