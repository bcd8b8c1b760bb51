"""Every query and every factorization: step, run, snapshot, restore, retry and refusals agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount import Budget, Secret, Stream
from evercount.errors import (
    AlreadyReleased,
    EvercountError,
    HorizonReached,
    InputError,
    ParameterError,
)
from evercount.factorizations import ENDLESS, FACTORIZATIONS
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS
from evercount.queries import QUERIES
from small_queries import SMALL, TICKS, small, ticks_of

GAUSSIAN = Budget(1.0, 1e-6)
PURE_BUDGET = Budget(1.0, 0.0)
REFUSALS = (
    "l1 sensitivity",
    "is not private",
    "values",
    "cannot have noise of",
    "omit the factorization",
)


def source(text: str) -> dict[str, Any]:
    return {"secret": Secret.from_hex("c0" * 32).derive(text), "replay": True}


DEFAULTS = {False: "balanced", True: "bridge"}
CELLS = ("count", "histogram", "discovered-keys")
"""One cell, some, and cells that get names: they run on every factorization, all others on the
defaults."""


def combinations() -> list[tuple[str, str, bool]]:
    engines = {
        False: (*FACTORIZATIONS, "periods-3"),
        True: (*PURE, "terrace", *PURE_ENDLESS, "pure-window-3"),
    }
    return [
        (query, engine, pure)
        for query in QUERIES
        for pure, named in engines.items()
        for engine in named
        if engine == DEFAULTS[pure] or query in CELLS
    ]


def opened(query: str, engine: str, pure: bool, replay: bool = True) -> Stream:
    endless = engine in PURE_ENDLESS
    given = source(f"{query} {engine}") | {"replay": replay}
    return Stream(
        small(query), PURE_BUDGET if pure else GAUSSIAN, None if endless else TICKS, engine, **given
    )


@pytest.mark.parametrize(("query", "engine", "pure"), combinations())
def test_one_way_to_release_a_tick(query: str, engine: str, pure: bool) -> None:
    try:
        stream = opened(query, engine, pure, replay=False)
    except ParameterError as error:
        if any(reason in str(error) for reason in REFUSALS):
            return  # refused with its reason: no such sensitivity is declared
        raise
    ticks = ticks_of(stream.query)
    whole = opened(query, engine, pure).run(ticks)
    assert whole.rows.shape == (TICKS, stream.query.outputs)
    assert np.isfinite(whole.rows).all()
    # step by step, with a retry of each tick and a snapshot in the middle
    for number, tick in enumerate(ticks, 1):
        release = stream.step(tick, tick=number)
        assert release.values.tolist() == whole.rows[number - 1].tolist()
        assert release.stds.tolist() == whole.stds[number - 1].tolist()
        assert stream.step(tick, tick=number).values.tolist() == release.values.tolist(), (
            "a retry reads it back"
        )
        if number == 3:
            blob = stream.snapshot()
            stream.close()
            stream = Stream.restore(blob)
            assert stream.step(tick, tick=number).values.tolist() == release.values.tolist(), (
                "also after a restore"
            )
    # refusals change nothing
    state = stream.snapshot()
    with pytest.raises(AlreadyReleased):
        stream.step(ticks[0], tick=1)
    with pytest.raises(InputError):
        stream.step(ticks[0], tick=TICKS + 2)
    if stream.horizon is not None:
        with pytest.raises(HorizonReached):
            stream.step(ticks_of(stream.query, 1)[0])
    with pytest.raises(EvercountError):
        stream.step(object())
    assert stream.snapshot() == state
    stream.close()


@pytest.mark.parametrize(
    ("query", "engine"),
    [
        (name, engine)
        for name in QUERIES
        for engine in ENDLESS
        if name in CELLS or engine == ENDLESS[0]
    ],
)
def test_streams_without_end(query: str, engine: str) -> None:
    if "stream" in SMALL[query]:
        return  # mixed graphs need a horizon
    if (query, engine) == ("discovered-keys", "fresh"):
        with pytest.raises(ParameterError, match="omit the factorization"):
            Stream(small(query), GAUSSIAN, None, engine)
        return
    stream = Stream(small(query), GAUSSIAN, None, engine, **source(f"endless {query} {engine}"))
    ticks = ticks_of(stream.query)
    assert stream.run(ticks[:3]).rows.shape == (3, stream.query.outputs)
    assert stream.run(ticks[3:]).first_tick == 4


@pytest.mark.parametrize("query", QUERIES)
def test_totals_and_events_are_the_same_tick(query: str) -> None:
    """Where a query takes totals: those of its own encoder give the same release."""
    one = small(query)
    if one.initial_state() is not None or one.whole_ticks:
        with pytest.raises(InputError):
            Stream(one, GAUSSIAN, TICKS).run_totals(np.zeros((1, one.cells), np.int64))
        return
    if "stream" in SMALL[query]:
        return
    ticks = ticks_of(one)
    increments = np.stack([one.encode(None, tick)[0] for tick in ticks])
    events, totals = (Stream(one, GAUSSIAN, TICKS, **source(f"totals {query}")) for _ in range(2))
    assert totals.run_totals(increments).rows.tolist() == events.run(ticks).rows.tolist()
