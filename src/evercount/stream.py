"""Stream: query + budget + horizon → step() and run(). The whole flow of a release is on this page.

events ──encode──► increments ──add──► running sums ──+ noise──► noisy sums ──decode──► Release
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from evercount.errors import AlreadyReleased, HorizonReached, InputError, ParameterError, UnknownName
from evercount.factorizations import Factorization, check_horizon, factorization
from evercount.mechanisms import NOISES, build_noise
from evercount.mechanisms.exact import PrecisionReached
from evercount.mechanisms.snapshots import pack, unpack
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import LARGEST_TOTAL, FloatArray, IntArray, Query
from evercount.queries.counts import Count
from evercount.queries.units import UserState, cap_per_user, initial_users
from evercount.queries.window import Window
from evercount.release import ErrorModel, Release, Releases

POSTPROCESSES = ("nonnegative", "integer", "monotone")
CHUNK = 1 << 18
"""Numbers of a run that are processed at a time."""


class Stream:
    """Running sums of a query, released after every tick under one budget for all ticks together.

    Guarantee. The sequence of all releases of one stream is (ε, δ)-DP for the budget's adjacency and unit: noise is one
    Gaussian vector z of std σ = multiplier(ε, δ − numeric_delta)·√S·c through L (c ≥ ‖R‖_{1→2}, S from the query;
    `factorizations/sensitivity.proof.md`), drawn once per tick; everything after it is post-processing. With exact
    noise this holds on a real computer (`mechanisms/exact.proof.md`); with noise="insecure-float" it holds for
    real-number arithmetic only. Tests: tests/test_stream_privacy.py.

    `postprocess` may name "nonnegative", "integer" and "monotone": applied to what is published, never revising the
    past.
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
        self.query, self.factorization = choose_engine(query, self.horizon, factorization)
        self.budget = budget
        self.postprocess = check_postprocess(postprocess)
        self._noise = build_noise(
            noise,
            self.factorization,
            cells=self.query.cells,
            grid=self.query.grid,
            squared_sensitivity=budget.scale_sensitivity(self.query.squared_sensitivity(budget.adjacency)),
            budget=budget,
            horizon=self.horizon,
            restart=self.query.restart,
            seed=seed,
            secret=secret,
        )
        self._errors = ErrorModel(self.query, self.factorization, self.sigma, self._noise.stream.rounded)
        self._tick = 0
        self._totals = np.zeros(self.query.cells, np.int64)
        self._encoder = self.query.initial_state()
        self._memory = np.zeros((self.query.memory, self.query.cells))
        self._last: tuple[str, Release] | None = None
        self._highest: FloatArray | None = None
        self._users = initial_users()
        self._reach = 0  # an upper bound of every |running sum|

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

    def step(self, events: Any, tick: int | None = None, users: Sequence[str] | None = None) -> Release:
        """Release the next tick. With `tick`, a retry of the last tick with the same events reads back its release.

        A tick that is already released with different events is refused (AlreadyReleased), as is a tick out of turn.
        `users` names the user of each event (for `Count`, events may then be None: one event per user named); events
        beyond a user's first `budget.max_events` of the whole stream are dropped (`queries/units.proof.md`).
        """
        digest = fingerprint(events if users is None else [list(users), events])
        if tick is not None and tick != self._tick + 1:
            return self._again(tick, digest)
        self._check_room(1)
        changes: UserState = {}
        if users is not None:
            events, changes = self._capped(events, users)
        row, encoder = self.query.encode(self._encoder, events)
        release = self._close(row, encoder, digest)
        self._users.update(changes)
        return release

    def _capped(self, events: Any, users: Sequence[str]) -> tuple[Any, UserState]:
        if self.budget.unit != "user":
            raise ParameterError("users are given but the budget protects events; use Budget(..., unit='user')")
        counted = isinstance(self.query, Count) and events is None
        listed = [1] * len(users) if counted else list(events)
        if len(listed) != len(users):
            raise InputError(f"{len(listed)} events but {len(users)} users: there must be one user for each event")
        kept, changes = cap_per_user(zip(users, listed, strict=True), self.budget.max_events, self._users)
        return (len(kept) if counted else kept), changes

    def step_totals(self, totals: Any, tick: int | None = None) -> Release:
        """As `step`, for events that were already added up per cell (grid units): see `Query.encode_totals`."""
        digest = fingerprint(totals)
        if tick is not None and tick != self._tick + 1:
            return self._again(tick, digest)
        self._check_room(1)
        row, encoder = self.query.encode_totals(self._encoder, totals)
        return self._close(row, encoder, digest)

    def run(self, ticks: Iterable[Any]) -> Releases:
        """Release many ticks: the same numbers as one `step` for each."""
        if isinstance(ticks, Iterator):
            ticks = list(ticks)
        before = self.query.dump_state(self._encoder) if self._encoder is not None else None
        try:
            increments, encoder = self.query.encode_run(self._encoder, ticks)
            self._check_room(len(increments))
            self._check_totals(increments)
        except Exception:
            if before is not None:  # an encoder may have advanced in place before a later tick was refused
                self._encoder = self.query.load_state(before)
            raise
        self._encoder = encoder
        return self._close_run(increments)

    def run_totals(self, totals: Any) -> Releases:
        """As `run`, for ticks that were already added up, shape (ticks, cells): see `Query.encode_totals`."""
        rows = [self.query.encode_totals(self._encoder, row)[0] for row in totals]
        increments = np.stack(rows) if rows else np.empty((0, self.query.cells), np.int64)
        self._check_room(len(increments))
        self._check_totals(increments)
        return self._close_run(increments)

    def _close_run(self, increments: IntArray) -> Releases:
        first = self._tick + 1
        scales = []
        rows = max(1, CHUNK // self.query.cells)
        out = np.empty((len(increments), self.query.outputs))
        for start in range(0, len(increments), rows):
            part = slice(start, start + rows)
            out[part], scale = self._publish(increments[part])
            if scale is not None:
                scales.append(scale)
        self._last = None
        return Releases(
            first,
            out,
            self._errors,
            self.noise,
            self.guarantee,
            self.postprocess,
            np.concatenate(scales) if scales else None,
        )

    def _close(self, row: IntArray, encoder: Any, digest: str) -> Release:
        increments = row[np.newaxis]
        self._check_totals(increments)
        published, scale = self._publish(increments)
        self._encoder = encoder
        std = self._errors.std([self._tick])[0]
        if scale is not None:
            std = std[:1] * scale[0]
        release = Release(
            self._tick,
            published[0],
            np.broadcast_to(std, published[0].shape),
            self.query.labels,
            self.noise,
            self.guarantee,
            self.postprocess,
            self.query,
        )
        self._last = (digest, release)
        return release

    def _publish(self, increments: IntArray) -> tuple[FloatArray, FloatArray | None]:
        """Noisy sums and published numbers of the next ticks; the only place where noise meets data."""
        noisy = self._noise.stream.take(len(increments))
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
                self._totals = increments[0] + self._totals
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
            self._highest = published[-1].copy()
        return published

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _check_room(self, ticks: int) -> None:
        limit = self._noise.limit
        if limit is not None and self._tick + ticks > limit:
            raise HorizonReached(limit) if self.horizon is not None else PrecisionReached(limit)

    def _check_totals(self, increments: IntArray) -> None:
        if not increments.size:
            return
        step = max(-int(increments.min()), int(increments.max()))  # cheap, and nearly always enough
        if self._reach + step * len(increments) < LARGEST_TOTAL:
            self._reach += step * len(increments)
            return
        largest = np.abs(increments).sum(axis=0, dtype=np.float64) + np.abs(self._totals)
        if float(largest.max()) >= LARGEST_TOTAL:
            raise InputError("a running sum would pass 2^53 grid units, beyond which sums are no longer exact")
        self._reach = int(largest.max()) + 1

    def _again(self, tick: int, digest: str) -> Release:
        if tick == self._tick and self._last is not None and self._last[0] == digest:
            return self._last[1]
        if tick > self._tick:
            raise InputError(f"tick {tick} is out of turn: the next tick is {self._tick + 1}")
        raise AlreadyReleased(
            f"tick {tick} is already released and cannot be released again with other events: the difference of two "
            "releases with the same noise would reveal them. Late events belong to the next tick."
        )

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything needed to continue identically. Secret: it holds raw sums and the noise of the future."""
        last = None
        if self._last is not None:
            digest, release = self._last
            last = {"digest": digest, "values": release.values.tolist(), "std": release.std_all.tolist()}
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
            },
            {"totals": self._totals, "memory": self._memory, "highest": self._highest},
        )

    @classmethod
    def restore(cls, blob: bytes) -> Stream:
        """The stream of `snapshot`; a corrupt, truncated, foreign or newer one is refused with SnapshotError."""
        from evercount.queries import build_query

        data, arrays = unpack(blob)
        query = build_query(data["query"]["name"], data["query"]["parameters"])
        stream = cls.__new__(cls)
        stream.query = query
        stream.horizon = data["horizon"]
        stream.budget = Budget.from_dict(data["budget"])
        name = data["factorization"]
        stream.factorization = (
            query.engine(stream.horizon) if isinstance(query, Window) else (factorization(name, stream.horizon))
        )
        stream.postprocess = tuple(data["postprocess"])
        stream._noise = build_noise(
            data["noise"]["name"],
            stream.factorization,
            cells=query.cells,
            grid=query.grid,
            squared_sensitivity=stream.budget.scale_sensitivity(query.squared_sensitivity(stream.budget.adjacency)),
            budget=stream.budget,
            horizon=stream.horizon,
            restart=query.restart,
            dumped=data["noise"],
        )
        stream._errors = ErrorModel(query, stream.factorization, stream.sigma, stream._noise.stream.rounded)
        stream._tick = data["tick"]
        stream._totals = arrays["totals"]
        stream._memory = arrays["memory"]
        stream._highest = arrays["highest"]
        stream._encoder = query.load_state(data["encoder"]) if data["encoder"] is not None else None
        stream._users = data["users"]
        stream._reach = int(np.abs(stream._totals).max())
        stream._last = None
        if data["last"] is not None:
            last = data["last"]
            release = Release(
                stream._tick,
                np.asarray(last["values"]),
                np.asarray(last["std"]),
                query.labels,
                stream.noise,
                stream.guarantee,
                stream.postprocess,
                query,
            )
            stream._last = (last["digest"], release)
        return stream


def choose_engine(query: Query, horizon: int | None, name: str | None) -> tuple[Query, Factorization]:
    """The query with its way of counting settled, and the factorisation that it runs on."""
    if isinstance(query, Window):
        if name is not None:
            raise ParameterError("a Window chooses its own factorisation; choose its method instead")
        query = query.resolved(horizon)
        return query, query.engine(horizon)
    return query, factorization(name, horizon)


def check_postprocess(names: Iterable[str]) -> tuple[str, ...]:
    """The names in their fixed order, or UnknownName."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in POSTPROCESSES:
            raise UnknownName("post-processing", name, POSTPROCESSES)
    return tuple(name for name in POSTPROCESSES if name in given)


def fingerprint(events: Any) -> str:
    """A digest of a tick's events, to tell a retry from an attempt to change the past. It stays inside the stream."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(events, np.ndarray):
        digest.update(str(events.dtype).encode() + str(events.shape).encode() + events.tobytes())
    else:
        digest.update(json.dumps(events, default=repr, sort_keys=True).encode())
    return digest.hexdigest()
