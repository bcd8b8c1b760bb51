"""The server: rejection, poisoning, merging, constant memory and dumps."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import InputError, MessageRejected, ParameterError, SnapshotError
from evercount.local import LocalClient, LocalPlan, LocalServer, simulate
from evercount.local.message_server import ENTRY, HEAD
from evercount.noise import Secret
from product_internals import sums_of

SECRET = Secret.from_hex("7" * 64)
DATA = np.random.default_rng(1).beta(2, 5, 500)


def server(form: str = "one-counter") -> LocalServer:
    return LocalServer(LocalPlan(0.5, 1e-6, 1000, form))  # type: ignore[arg-type]


def messages(form: str = "one-counter") -> list[bytes]:
    plan = server(form).plan
    return [plan.header + row.astype(ENTRY).tobytes() for row in simulate(plan, DATA, SECRET)]


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_one_by_one_in_batches_merged_and_unpacked_agree(form: str) -> None:
    made = messages(form)
    single, batch, left, right, raw = (server(form) for _ in range(5))
    for message in made:
        single.add(message)
    assert batch.add_many(iter(made)) == len(made)
    left.add_many(made[:123])
    right.add_many(made[123:])
    left.merge(right)
    raw.add_entries(simulate(raw.plan, DATA, SECRET))
    for other in (batch, left, raw, LocalServer.load(single.dump())):
        assert (sums_of(other) == sums_of(single)).all()
        assert (other.accepted, other.rejected) == (len(made), 0)


def bad_messages() -> list[object]:
    plan = server().plan
    good = messages()[0]
    huge = np.full(plan.entries, 30000, np.int16)
    return [
        None,
        "text",
        b"",
        good[:-1],
        good + b"\0",
        b"xx" + good[2:],
        good[:2] + bytes([9]) + good[3:],
        good[:3] + bytes([2]) + good[4:],
        good[:4] + b"\0\0\0\0" + good[8:],
        plan.header + huge.tobytes(),
        LocalClient(LocalPlan(0.4, 1e-6, 1000)).message(0.5),
        LocalClient(LocalPlan(0.5, 1e-6, 1000, "two-counter")).message(0.5),
    ]


def test_malformed_and_out_of_range_messages_are_rejected_and_counted() -> None:
    one, many = server(), server()
    bad = bad_messages()
    for number, message in enumerate(bad):
        with pytest.raises(MessageRejected):
            one.add(message)
        assert one.rejected == number + 1
    assert not sums_of(one).any()
    assert one.accepted == 0
    assert many.add_many([*bad, *messages(), *bad]) == len(DATA)
    assert many.rejected == 2 * len(bad)
    clean = server()
    clean.add_many(messages())
    assert (sums_of(many) == sums_of(clean)).all()


def test_all_bytes_like_messages_are_taken_in_both_ways() -> None:
    """bytes, bytearray and memoryview: one by one and in batches the same sums and the same
    rejections."""
    made = messages()[:30]
    gone = memoryview(made[0])
    gone.release()
    wide = memoryview(made[3]).cast("h")  # as many bytes, but half as many items
    kinds: list[object] = [
        *made[:10],
        *map(bytearray, made[10:20]),
        *map(memoryview, made[20:]),
        wide,
    ]
    bad: list[object] = [
        gone,
        bytearray(made[0][:-1]),
        memoryview(b"xx" + made[0][2:]),
        list(made[0]),
    ]
    one, many, plain = server(), server(), server()
    for message in kinds:
        one.add(message)
    for message in bad:
        with pytest.raises(MessageRejected):
            one.add(message)
    assert many.add_many([*kinds, *bad]) == len(kinds)
    plain.add_many([*made, made[3]])
    assert (sums_of(one) == sums_of(many)).all()
    assert (sums_of(one) == sums_of(plain)).all()
    assert (one.accepted, one.rejected) == (many.accepted, many.rejected) == (len(kinds), len(bad))
    for batch in (made[0], bytearray(made[0]), "text", 5):
        with pytest.raises(InputError, match="batch"):
            many.add_many(batch)  # type: ignore[arg-type]


def test_every_flipped_header_bit_is_rejected() -> None:
    good = messages()[0]
    for bit in range(8 * HEAD):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MessageRejected):
            server().add(bytes(damaged))


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_a_poisoned_message_moves_no_more_than_its_share(form: str) -> None:
    """The worst accepted message, aligned with the most sensitive row of x̂, against the stated
    bound."""
    made = messages(form)
    honest = server(form)
    honest.add_many(made)
    plan = honest.plan
    rows = honest.estimate().rows.reshape(plan.w + 1, plan.counters, plan.w)
    worst = 0.0
    for t in range(1, plan.w + 1):
        vector = np.zeros((plan.counters, plan.w))
        for c in range(plan.counters):
            norm = np.linalg.norm(rows[t, c])
            if norm > 1e-9:
                vector[c] = rows[t, c] / norm * (plan.radius - np.sqrt(plan.w))
        poisoned = server(form)
        poisoned.add_many(made[1:])
        poisoned.add(plan.header + np.trunc(vector).astype(ENTRY).tobytes())
        worst = max(worst, float(np.abs(poisoned.estimate().x - honest.estimate().x).max()))
    limit = honest.poison_bound() / honest.accepted
    assert 0.3 * limit < worst <= limit


def test_memory_is_constant_and_sums_are_exact() -> None:
    keeper = server()
    before = sums_of(keeper).nbytes
    for _ in range(5):
        keeper.add_many(messages())
    assert sums_of(keeper).nbytes == before
    once = server()
    once.add_many(messages())
    assert (sums_of(keeper) == 5 * sums_of(once)).all()


def test_refusals() -> None:
    with pytest.raises(InputError, match="no message"):
        server().estimate()
    with pytest.raises(ParameterError, match="one kind and plan"):
        server().merge(server("two-counter"))
    keeper = server()
    with pytest.raises(ParameterError, match="itself"):
        keeper.merge(keeper)
    with pytest.raises(ParameterError, match="one kind and plan"):
        keeper.merge(5)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        keeper.add_entries(np.zeros((2, 3), np.int16))
    for blob in (
        b"",
        b"{}",
        b"\xff",
        server().dump()[:-5],
        server().dump().replace(b'"format": 1', b'"format": 2'),
    ):
        with pytest.raises(SnapshotError):
            LocalServer.load(blob)
