"""advance_keys: `advance` for queries whose keys nobody listed. Counts of keys meet their noise here and nowhere else.

keys of a tick ──add──► exact counts ──+ noise by name──► noisy counts ──≥ threshold──► public, and published
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.state import Advanced, Rows, StreamParameters, StreamState, postprocessed
from evercount.mechanisms.named_noise import NamedNoise
from evercount.queries.discovered_keys import RESERVED
from evercount.queries.discovery_threshold import Thresholds
from evercount.queries.key_counts import KeyCounts

TICKS_AT_A_TIME = 32  # ticks whose noise is drawn together; a block that fails can be tried again

Published = tuple[FloatArray, FloatArray]  # the numbers of a tick, and how clearly each key is above its threshold


def advance_keys(
    parameters: StreamParameters, state: StreamState, increments: IntArray, *, encoder: KeyCounts
) -> Advanced:
    """Release the next ticks: as `state.advance`, with `encoder.pending` for what each tick adds to each key.

    **Guarantee.** What is published is a function of the noisy counts of all possible keys, of the public thresholds
    and of whether a key has reached the minimum; nothing else of the data enters, not even the order in which keys
    came. Proof: `queries/discovered_keys.proof.md`. Tests: tests/engine/test_discover.py::test_against_a_plain_oracle
    and tests/engine/test_discover.py::test_only_public_facts_order_the_keys.
    """
    assert len(increments) == len(encoder.pending)
    if parameters.query.publishing.own_ticks:
        return _advance_own_ticks(parameters, state, increments[:, 0], encoder)
    table, ticks = encoder.opened(), encoder.pending
    published: list[Published] = []
    totals = state.totals
    for start in range(0, len(ticks), TICKS_AT_A_TIME):
        part = slice(start, start + TICKS_AT_A_TIME)
        rows, table = _block(parameters, state.tick + start, int(totals[0]), increments[part, 0], ticks[part], table)
        published += rows
        totals = totals + increments[part].sum(axis=0)
    assert parameters.query.discovery is not None
    labels = parameters.query.discovery.labels_now(table)
    values, sums = (_padded([row[side] for row in published], len(labels)) for side in (0, 1))
    values, _ = postprocessed(parameters.postprocess, values, None)
    after = replace(
        state, tick=state.tick + len(ticks), totals=totals, encoder=table, last_sums=sums[-1:] if len(sums) else None
    )
    return Rows(values, sums, labels), after


def _advance_own_ticks(
    parameters: StreamParameters, state: StreamState, numbers: IntArray, encoder: KeyCounts
) -> Advanced:
    """Release the keys of the day: nothing of one tick enters another.

    **Guarantee.** The release of a tick is a function of its own counts and of the noise of its own keys at this tick.
    Proof: `queries/discovered_keys.proof.md`, Theorem 9. Test:
    tests/queries/test_keys_of_the_day.py::test_against_a_dense_oracle.
    """
    noise, thresholds = _by_name(parameters)
    totals = numbers + noise.rows(state.tick + 1, len(numbers))[:, noise.place[""]].astype(np.int64)
    found: list[dict[str, int]] = []
    for tick, more in enumerate(encoder.pending, state.tick + 1):
        names = sorted(key for key, count in more.items() if count >= thresholds.minimum)
        noisy = np.asarray([more[key] for key in names], np.int64) + noise.at(tick, names).astype(np.int64)
        passed = np.flatnonzero(noisy >= thresholds.at(tick)).tolist()
        found.append({names[place]: int(noisy[place]) for place in passed})
    keys = sorted({key for day in found for key in day})
    place = {key: number for number, key in enumerate(keys, 2)}
    values, sums = (np.full((len(found), 2 + len(keys)), np.nan) for _ in range(2))
    for row, day in enumerate(found):
        values[row, :2] = totals[row], totals[row] - sum(day.values())
        values[row, [place[key] for key in day]] = list(day.values())
    if found:
        std = parameters.errors.std(range(state.tick + 1, state.tick + 1 + len(found)))[:, :1]
        sums = np.where(np.isnan(values), np.nan, (values - thresholds.at(state.tick + 1) - 1) / std)
        sums[:, :2] = 0.0
    last = KeyCounts.shown(list(found[-1]), state.tick + len(found)) if found else replace(encoder, pending=())
    published, _ = postprocessed(parameters.postprocess, values, None)
    after = replace(
        state, tick=state.tick + len(found), encoder=last, last_sums=sums[-1:, ~np.isnan(values[-1])] if found else None
    )
    return Rows(published, sums, [*RESERVED, *keys]), after


def _by_name(parameters: StreamParameters) -> tuple[NamedNoise, Thresholds]:
    noise, thresholds = parameters.noise.stream, parameters.thresholds
    assert isinstance(noise, NamedNoise)
    assert thresholds is not None
    return noise, thresholds


def _block(
    parameters: StreamParameters, before: int, total: int, numbers: IntArray, ticks: tuple[Any, ...], table: KeyCounts
) -> tuple[list[Published], KeyCounts]:
    """Some ticks after tick `before`: what they publish, and the counts after them."""
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
        noisy = table.counts + drawn[number, columns].astype(np.int64)
        if thresholds.discovers(tick):
            table = _discover(parameters, table, noisy, tick)
        total += int(numbers[number])
        noisy_total = total + int(drawn[number, noise.place[""]])
        keys = noisy[table.listed]
        values = np.concatenate([[noisy_total, noisy_total - int(keys.sum())], keys]).astype(np.float64)
        published.append((values, np.concatenate([np.zeros(2), table.evidence])))
    return published, table


def _discover(parameters: StreamParameters, table: KeyCounts, noisy: IntArray, tick: int) -> KeyCounts:
    """List the keys that pass the threshold of a discovery tick; note how clearly each public key is above it."""
    threshold = _by_name(parameters)[1].at(tick)
    passed = noisy >= threshold
    passed[table.listed] = False
    if passed.any():
        table = table.list_keys(np.flatnonzero(passed), tick)
    std = float(parameters.errors.std([tick])[0, 0])
    return replace(table, evidence=(noisy[table.listed] - threshold - 1) / std)


def _columns(noise: NamedNoise, table: KeyCounts, known: IntArray) -> IntArray:
    """The columns of noise of the counted keys; those of the first ones are known."""
    fresh = [noise.place[key] for key in table.keys[len(known) :] if key in noise.place]
    return np.concatenate([known, np.asarray(fresh, np.int64)])


def _padded(rows: list[FloatArray], width: int) -> FloatArray:
    """One row for each tick; NaN where a key was not public yet."""
    out = np.full((len(rows), width), np.nan)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out
