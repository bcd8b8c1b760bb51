"""Snapshots that were made before keys were derived from declarations: they go on bit for bit, or say why not."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from evercount import Episodes, SparseCount, Stream
from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import SnapshotError

OLD = json.loads((Path(__file__).parents[1] / "fixtures/keys1/streams.json").read_text())
REFUSED = "sum-too-little-noise"
TEXTS = json.loads((Path(__file__).parents[1] / "fixtures/texts/streams.json").read_text())
"""Snapshots of the last version whose state of exact noise is a text: formats 2 and, with rows, 3."""


def blob(name: str) -> bytes:
    return base64.b85decode(OLD[name]["snapshot"])


@pytest.mark.parametrize("name", [name for name in OLD if not name.startswith("sparse") and name != REFUSED])
def test_old_streams_continue_bit_for_bit(name: str) -> None:
    stream = Stream.restore(blob(name))
    values = []
    for events in OLD[name]["ticks"]:
        values.append(stream.step(events).values.tolist())
        stream = Stream.restore(stream.snapshot())
    assert values == OLD[name]["values"]
    assert "derivation" not in unpack(stream.snapshot())["noise"], "the key is the secret itself, as before"


@pytest.mark.parametrize("name", TEXTS)
def test_streams_whose_noise_is_a_text_continue_bit_for_bit(name: str) -> None:
    old = TEXTS[name]
    stream = Stream.restore(base64.b85decode(old["snapshot"]))
    values = []
    for events in old["ticks"]:
        values.append(stream.step(events).values.tolist())
        stream = Stream.restore(stream.snapshot())
    if "sha256" in old:
        assert hashlib.sha256(json.dumps(values).encode()).hexdigest() == old["sha256"]
    else:
        assert values == old["values"]


@pytest.mark.parametrize("name", ["sparse", "sparse-pure"])
def test_old_sparse_counters_continue_bit_for_bit(name: str) -> None:
    counter = SparseCount.restore(blob(name))
    assert [release.value for release in counter.run(OLD[name]["ticks"])] == OLD[name]["values"]


def test_a_stream_with_too_little_noise_is_refused() -> None:
    """Its sensitivity was rounded down by 1.6e-10 of itself; the message says what became of the budget."""
    with pytest.raises(SnapshotError, match=r"rounded its sensitivity down.*start a new stream"):
        Stream.restore(blob(REFUSED))


@pytest.mark.parametrize("factor", [0.5, 1 - 1e-11])
def test_a_snapshot_cannot_lower_the_noise(factor: float) -> None:
    data = unpack(blob("count"))
    data["noise"]["sigma"] *= factor
    with pytest.raises(SnapshotError):
        Stream.restore(pack(data))


def test_old_streams_of_unnamed_users_go_on_and_say_what_was_promised() -> None:
    stream = Stream.restore(blob("users-without-names"))
    assert "the caller promised that at most 2 of its events are counted in all" in stream.step(3).guarantee
    assert stream.step(4, capped=True).tick == 4


def test_old_keys_are_shown_escaped() -> None:
    assert Stream.restore(blob("odd-keys")).query.labels == (r"\u202eevil", "café", r"cafe\u0301")


def test_a_newer_derivation_is_refused() -> None:
    data = unpack(blob("count"))
    data["noise"]["derivation"] = 3
    with pytest.raises(SnapshotError, match="newer"):
        Stream.restore(pack(data))


def test_an_old_stream_of_long_episodes_keeps_its_larger_noise() -> None:
    """It was calibrated to S = 13,267 for episodes of up to 7 letters; a new one needs 2,051.."""
    old = json.loads((Path(__file__).parents[1] / "fixtures/keys1/episodes.json").read_text())["episodes-7"]
    needed = Episodes(["a", "b"], 7).squared_sensitivity("replace")
    assert needed == 2051 < old["sensitivity"] == 13267
    stream = Stream.restore(base64.b85decode(old["snapshot"]))
    values = []
    for letter in old["ticks"]:
        values.append(stream.step(letter).values)
        stream = Stream.restore(stream.snapshot())
    assert stream.sigma == old["sigma"]
    assert values[-1][-8:].tolist() == old["last"]
    assert hashlib.sha256(np.ascontiguousarray(values, "<f8").tobytes()).hexdigest() == old["sha256"]
    fresh = Stream(Episodes(["a", "b"], 7), stream.budget, 64)
    assert fresh.sigma < stream.sigma / 2.5
