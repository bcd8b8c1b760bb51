"""Streams whose keys change while they run: keys that are added or hidden, and keys that nobody
listed.

Unlisted keys become public by themselves, and `advance_keys` is the only place where their counts
meet noise:

keys of a tick ──add──► exact counts ──+ noise by name──► noisy counts ──≥ threshold──► public,
and published
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.engine.build import squared_norm
from evercount.engine.error_model import JoinedCells
from evercount.engine.key_views import evidence_at
from evercount.engine.state import (
    Advanced,
    PublishedRows,
    StreamParameters,
    StreamState,
    postprocessed,
)
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.stream_snapshot import dump_stream, load_stream
from evercount.errors import ParameterError
from evercount.mechanisms.composed_noise import NamedNoise
from evercount.mechanisms.noise_stream import join_cells
from evercount.queries.base import Query, V_co
from evercount.queries.discovered_keys import RESERVED
from evercount.queries.key_counts import KeyCounts, Thresholds, frequent_keys
from evercount.queries.rollup import SEPARATOR, path_key
from evercount.queries.sensitivities import protected_l1

TICKS_AT_A_TIME = 32  # ticks whose noise is drawn together; a block that fails can be tried again

# the numbers of a tick, and how clearly each key is above its threshold
Published = tuple[FloatArray, FloatArray]


def advance_keys(
    parameters: StreamParameters, state: StreamState, increments: IntArray, *, encoder: KeyCounts
) -> Advanced:
    """Release the next ticks: as `state.advance`, with `encoder.pending` for what each tick adds to
    each key.

    **Guarantee.** What is published is a function of the noisy counts of all possible keys, of the
    public thresholds and of whether a key has reached the minimum; nothing else of the data enters,
    not even the order in which keys came. Proof: `queries/discovered_keys.proof.md`. Tests:
    tests/engine/test_discover.py::test_against_a_plain_oracle and
    tests/engine/test_discover.py::test_only_public_facts_order_the_keys.
    """
    assert len(increments) == len(encoder.pending)
    if parameters.query.publishing.own_ticks:
        return _advance_own_ticks(parameters, state, increments[:, 0], encoder)
    table = encoder.changeable()
    ticks = encoder.pending
    published: list[Published] = []
    totals = state.totals
    for start in range(0, len(ticks), TICKS_AT_A_TIME):
        part = slice(start, start + TICKS_AT_A_TIME)
        rows, table = _block(
            parameters, state.tick + start, int(totals[0]), increments[part, 0], ticks[part], table
        )
        published += rows
        totals = totals + increments[part].sum(axis=0)
    assert parameters.query.discovery is not None
    labels = parameters.query.discovery.labels_now(table)
    values, sums = (_padded([row[side] for row in published], len(labels)) for side in (0, 1))
    values, _ = postprocessed(parameters.postprocess, values, None)
    after = replace(state, tick=state.tick + len(ticks), totals=totals, encoder=table)
    return PublishedRows(values, sums, labels), after


def _advance_own_ticks(
    parameters: StreamParameters, state: StreamState, numbers: IntArray, encoder: KeyCounts
) -> Advanced:
    """Release the keys of the day: nothing of one tick enters another.

    **Guarantee.** The release of a tick is a function of its own counts and of the noise of its own
    keys at this tick. Proof: `queries/discovered_keys.proof.md`, Theorem 9. Test:
    tests/queries/test_keys_of_the_day.py::test_against_a_dense_oracle.
    """
    noise, thresholds = _by_name(parameters)
    totals = numbers + noise.rows(state.tick + 1, len(numbers))[:, noise.place[""]]
    released: list[dict[str, int]] = []
    for tick, more in enumerate(encoder.pending, state.tick + 1):
        names, counts = frequent_keys(more, thresholds.minimum)
        noisy = counts + noise.at(tick, names)
        passed = np.flatnonzero(noisy >= thresholds.at(tick)).tolist()
        released.append({names[place]: int(noisy[place]) for place in passed})
    keys = sorted({key for day in released for key in day})
    place = {key: number for number, key in enumerate(keys, 2)}
    values = np.full((len(released), 2 + len(keys)), np.nan)
    for row, day in enumerate(released):
        values[row, :2] = totals[row], totals[row] - sum(day.values())
        values[row, [place[key] for key in day]] = list(day.values())
    sums = evidence_at(
        np.arange(state.tick + 1, state.tick + 1 + len(released)),
        values,
        thresholds,
        parameters.errors,
    )
    sums[:, :2] = 0.0
    if released:
        last = KeyCounts.of_published(list(released[-1]), state.tick + len(released))
    else:
        last = replace(encoder, pending=())
    published, _ = postprocessed(parameters.postprocess, values, None)
    after = replace(state, tick=state.tick + len(released), encoder=last)
    return PublishedRows(published, sums, [*RESERVED, *keys]), after


def _by_name(parameters: StreamParameters) -> tuple[NamedNoise, Thresholds]:
    """Take the noise by name and the thresholds of a stream whose keys are discovered."""
    noise = parameters.noise.stream
    thresholds = parameters.thresholds
    assert isinstance(noise, NamedNoise)
    assert thresholds is not None
    return noise, thresholds


def _block(
    parameters: StreamParameters,
    before: int,
    total: int,
    numbers: IntArray,
    ticks: tuple[Any, ...],
    table: KeyCounts,
) -> tuple[list[Published], KeyCounts]:
    """Release some ticks after tick `before`; return what they publish, and the counts then."""
    noise, thresholds = _by_name(parameters)
    drawn = noise.rows(before + 1, len(ticks))
    columns = _columns(noise, table, np.empty(0, np.int64))
    published = []
    for number, more in enumerate(ticks):
        tick = before + 1 + number
        table = table.add(more, thresholds.minimum)
        if noise.join(table.keys[len(columns) :], before):
            drawn = noise.rows(before + 1, len(ticks))
        columns = _columns(noise, table, columns)
        noisy = table.counts + drawn[number, columns]
        if thresholds.discovers(tick):
            table = _discover(parameters, table, noisy, tick)
        total += int(numbers[number])
        noisy_total = total + int(drawn[number, noise.place[""]])
        keys = noisy[table.listed]
        values = np.concatenate([[noisy_total, noisy_total - int(keys.sum())], keys]).astype(
            np.float64
        )
        published.append((values, np.concatenate([np.zeros(2), table.evidence])))
    return published, table


def _discover(
    parameters: StreamParameters, table: KeyCounts, noisy: IntArray, tick: int
) -> KeyCounts:
    """List the keys that pass the threshold of a discovery tick; note how clearly each public key
    is above it."""
    threshold = _by_name(parameters)[1].at(tick)
    passed = noisy >= threshold
    passed[table.listed] = False
    if passed.any():
        table = table.list_keys(np.flatnonzero(passed), tick)
    std = float(parameters.errors.std([tick])[0, 0])
    return replace(table, evidence=(noisy[table.listed] - threshold - 1) / std)


def _columns(noise: NamedNoise, table: KeyCounts, earlier: IntArray) -> IntArray:
    """Find the columns of noise of the counted keys; those of the first ones are `earlier`."""
    fresh = [noise.place[key] for key in table.keys[len(earlier) :] if key in noise.place]
    return np.concatenate([earlier, np.asarray(fresh, np.int64)])


def _padded(rows: list[FloatArray], width: int) -> FloatArray:
    """Stack one row for each tick; NaN where a key was not public yet."""
    out = np.full((len(rows), width), np.nan)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out


def add_keys(
    parameters: StreamParameters, state: StreamState, keys: Sequence[Any]
) -> tuple[StreamParameters, StreamState]:
    """The stream with more keys from its next tick on; nothing of it is changed.

    **Guarantee.** All releases together are a function of those of the stream that had all keys
    from the start, so they have its guarantee, at no further cost, if the keys and the tick do not
    depend on the events. Where that stream would need more noise than this one has, the keys are
    refused. Numbers of other cells are what they would have been. Proof:
    `mechanisms/joined_noise.proof.md`. Tests: tests/engine/test_add_keys.py.
    """
    query = parameters.query.with_keys(list(keys))
    old = parameters.query
    if parameters.part is not None:
        raise ParameterError("keys cannot join a part of the cells: add them to the whole stream")
    if "monotone" in parameters.postprocess:
        raise ParameterError(
            "keys cannot join a stream with monotone releases: their errors depend on earlier ticks"
        )
    _check_noise(parameters, query)
    data = dump_stream(parameters, replace(state, last=None))
    more = query.cells - old.cells
    data["query"] = {"name": query.name, "parameters": query.parameters()}
    data["noise"]["state"] = join_cells(parameters.noise.stream, old.cells, more)
    data["totals"] = np.concatenate([state.totals, np.zeros(more, state.totals.dtype)])
    data["joined"] = [*data["joined"], list(JoinedCells(state.tick, old.cells, old.outputs))]
    period_of = None
    if parameters.user_caps is not None:
        period_of = parameters.user_caps.period_of
    grown, after = load_stream(data, period_of)
    return replace(grown, replay=parameters.replay), replace(
        after, encoder=state.encoder, users=state.users, last_users=state.last_users
    )


def _in_rows(key: Any) -> str:
    """Write a key as `queries.base.Rows` lists it: what else has a label, such as a total, is none
    of these."""
    if isinstance(key, tuple):
        return path_key(list(map(str, key)))
    return str(key)


def label_of(key: Any) -> str:
    """How a key is shown; a path by all its names."""
    if isinstance(key, tuple | list):
        return SEPARATOR.join(map(str, key))
    return str(key)


def _check_noise(parameters: StreamParameters, query: Query) -> None:
    """Refuse keys with which one protected unit could change more than the noise was made for."""
    budget = parameters.budget
    horizon = parameters.horizon
    norm = partial(squared_norm, parameters.factorization, budget=budget, horizon=horizon)
    if budget.pure:
        norm = partial(protected_l1, budget=budget, horizon=horizon)
    needed = norm(query)
    has = norm(parameters.query)
    if needed > has * (1 + 1e-12):
        raise ParameterError(
            f"with these keys one {budget.unit} could change the counts by more ({needed:g}) than "
            f"the stream has noise for ({has:g}). Declare a successor with all keys (for people "
            "under several keys: with max_keys)"
        )


def hide_keys(
    parameters: StreamParameters, state: StreamState, labels: Sequence[str], hide: bool
) -> StreamState:
    """The stream that shows no numbers of these labels from its next tick on, or shows them again.
    They are counted as before, so what is shown again has no gap in its sums. It is
    post-processing."""
    places = {label: place for place, label in enumerate(parameters.query.labels)}
    unknown = [label for label in labels if label not in places]
    if unknown or parameters.query.discovery is not None:
        raise ParameterError(
            f"there is no key {', '.join(map(repr, unknown))} in the list of this stream"
        )
    chosen = {places[label] for label in labels}
    hidden = set(state.hidden) - chosen
    if hide:
        hidden |= chosen
    if len(hidden) == len(places):
        raise ParameterError("nothing would be left to show; end the stream instead")
    return replace(state, hidden=tuple(sorted(hidden)))


F = TypeVar("F", bound="GrowingStream[Any]")


def with_joined(stream: F, joined: Sequence[tuple[int, Sequence[Any]]]) -> F:
    """A replay before its first tick with the facts of a stream that keys have joined after some
    ticks. Its errors are those of that stream; its noise is not."""
    for after, keys in joined:
        cells = stream.query.cells
        outputs = stream.query.outputs
        stream.add_keys(keys)
        errors = stream._parameters.errors
        cohorts = (*errors.joined[:-1], JoinedCells(after, cells, outputs))
        stream._parameters = replace(stream._parameters, errors=replace(errors, joined=cohorts))
    return stream


class GrowingStream(StreamFacts[V_co]):
    """What a stream can do with its keys while it runs."""

    def add_keys(self, keys: Iterable[Any]) -> list[str]:
        """Let keys join from the next tick on: of a histogram, a rollup (paths), distinct or active
        users.

        They have no history, and noise of their own. It costs nothing: the privacy is that of the
        stream that had all keys from the start. The choice of keys and of the tick must not depend
        on the events.

        Args:
            keys: The keys; one that is hidden is shown again, and one that is there already is left
                alone.

        Returns:
            The labels of those that join.

        Raises:
            ParameterError: A key is not legal, the query has no list of keys, or one event or user
                could then change more than the noise was made for; the stream is unchanged.

        >>> from evercount import Budget, Histogram, Stream
        >>> stream = Stream(Histogram(["north"]), Budget(epsilon=1.0, delta=1e-6), horizon=24)
        >>> stream.add_keys(["south"])
        ['south']
        >>> stream.labels
        ('north', 'south')
        """
        self._check_owner()
        self._state = self._state.with_users()
        self._parameters, self._state, labels = self._with_keys(keys)
        return labels

    def _with_keys(self, keys: Iterable[Any]) -> tuple[StreamParameters, StreamState, list[str]]:
        """Return what `add_keys` makes of the stream, which stays as it is, and the labels of the
        keys that join."""
        hidden = self.hidden_labels
        rows = self.query.rows
        listed: set[Any] = set()
        if rows is not None and rows.keyed:
            listed = set(rows.keys[0])
        named = list(dict.fromkeys(tuple(key) if isinstance(key, list) else key for key in keys))
        again = [label_of(key) for key in named if label_of(key) in hidden]
        new = [key for key in named if label_of(key) not in hidden and _in_rows(key) not in listed]
        parameters = self._parameters
        state = self._state
        if new:
            parameters, state = add_keys(parameters, state, new)
        if again:
            state = hide_keys(parameters, state, again, hide=False)
        return parameters, state, [*again, *map(label_of, new)]

    def _joining(self, keys: Iterable[Any]) -> tuple[Query[V_co], list[str]]:
        """Check that keys can join, and return the query with them and the labels of those that
        would."""
        parameters, _, labels = self._with_keys(keys)
        return parameters.declared, labels

    @property
    def hidden_labels(self) -> tuple[str, ...]:
        """Labels of numbers that are not shown any more."""
        return tuple(self.labels[place] for place in self._state.hidden)

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Show no numbers of these keys from the next tick on. What was published stays published.

        Their events are counted as before, and `add_keys` shows them again.

        Args:
            keys: Labels of published numbers.

        Raises:
            ParameterError: A label is not known, or none would be left; the stream is unchanged.
        """
        self._check_owner()
        self._state = hide_keys(self._parameters, self._state, list(keys), hide=True)
