"""Stream: step = run = any split = restored, refusals that change nothing, post-processing,
retries."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Secret, Stream, Sum
from evercount.errors import (
    AlreadyReleased,
    HorizonReached,
    InputError,
    ParameterError,
    SnapshotError,
    UnknownName,
)
from evercount.factorizations import FACTORIZATIONS, factorization
from evercount.factorizations.blend import BlendFilter, make_blend
from evercount.words import Substrings
from product_internals import forget_fitted_noise

BUDGET = Budget(1.0, 1e-9)
SECRET = "5e" * 32

CASES = {
    "count": (Count(), 100, {}, list(range(100))),
    "count-unbounded": (Count(), None, {}, list(range(100))),
    "sum": (Sum(-1, 2, 0.5), 100, {}, [[0.5, 2], [], [-1]] * 33),
    "average": (Average(0, 1, 0.25), 100, {}, [0.5, 1, 0] * 33),
    "average-event": (Average(0, 1, 0.25, per="event"), 100, {}, [[0.5, 1], [], [0]] * 33),
    "periods": (Count(), None, {"factorization": "periods-7"}, [1] * 99),
    "histogram": (Histogram(["a", "b", "c"]), 100, {}, [["a"], ["b", "b"], []] * 33),
    "substrings": (Substrings("ab", 2), 100, {}, ["ab", "", "b"] * 33),
    **{name: (Count(), 100, {"factorization": name}, [2] * 100) for name in FACTORIZATIONS},
}


def make(case, **more_arguments):
    query, horizon, more, ticks = CASES[case]
    return Stream(
        query, BUDGET, horizon, secret=Secret.from_hex(SECRET), **more, **more_arguments
    ), ticks


def state(stream):
    return Stream.snapshot(stream)


@pytest.mark.parametrize("case", CASES)
def test_step_run_split_and_restore_release_the_same(case):
    stream, ticks = make(case, replay=True)
    whole = stream.run(ticks)
    values = whole.values.reshape(len(ticks), -1)
    other, _ = make(case)
    stepped = []
    for t, events in enumerate(ticks):
        if t in (1, 31, 32, 33, 64, 70):
            other = Stream.restore(other.snapshot())
        release = other.step(events)
        assert release.tick == t + 1
        stepped.append(release.values)
        assert np.allclose(release.stds, whole.stds[t], rtol=1e-6)
    split, _ = make(case, replay=True)
    pieces = [split.run(ticks[:5]), split.run(ticks[5:50]), split.run(ticks[50:])]
    pieces = np.concatenate([p.values.reshape(len(p), -1) for p in pieces])
    assert np.array_equal(np.stack(stepped), values), "bit for bit"
    assert np.array_equal(pieces, values)
    assert whole.noise == "exact"


@pytest.mark.parametrize("case", ["count", "sum", "histogram", "periods", "substrings"])
def test_noise_is_added_to_the_true_answer(case):
    """With the same secret, two data sets differ by exactly the difference of their true
    answers."""
    query, horizon, more, ticks = CASES[case]
    busy = Stream(query, BUDGET, horizon, secret=Secret.from_hex(SECRET), **more).run(ticks)
    empty = ["" if isinstance(t, str) else ([] if isinstance(t, list) else 0) for t in ticks]
    quiet = Stream(query, BUDGET, horizon, secret=Secret.from_hex(SECRET), **more).run(empty)
    difference = (busy.values - quiet.values).reshape(len(ticks), -1)
    increments, _ = query.encode_run(query.initial_state(), ticks)
    assert np.allclose(difference, np.cumsum(increments, axis=0) * query.grid)


def test_two_streams_have_different_noise():
    first = Stream(Count(), BUDGET, 50).run([0] * 50).values
    second = Stream(Count(), BUDGET, 50).run([0] * 50).values
    assert np.mean(first == second) < 0.3


def test_past_the_horizon():
    stream = Stream(Count(), BUDGET, 3)
    stream.run([1, 1])
    before = state(stream)
    with pytest.raises(HorizonReached, match="3 ticks"):
        stream.run([1, 1])
    assert state(stream) == before
    stream.step(1)
    with pytest.raises(HorizonReached):
        stream.step(1)


BAD_INPUT = [
    (Count(), [float("nan"), float("inf"), -1, 1.5, "x", [1, -1], [[1, 2]], None, 2**60, {}]),
    (Count(most_per_tick=5), [6, [3, 3]]),
    (Sum(0, 1, 0.5), [[0.5, 1.5], float("nan"), ["x"], [[1.0], [2.0]], -0.1]),
    (Histogram(["a", "b"]), [["c"], "a", 3, [["a", "b"]], [1]]),
    (Substrings("ab", 2), ["abc", 3]),
]


@pytest.mark.parametrize(("query", "bad"), [(q, b) for q, items in BAD_INPUT for b in items])
def test_bad_input_is_a_typed_error_and_changes_nothing(query, bad):
    stream = Stream(query, BUDGET, 10)
    good = "ab" if isinstance(query, Substrings) else (["a"] if isinstance(query, Histogram) else 1)
    stream.step(good)
    before = state(stream)
    with pytest.raises(InputError):
        stream.step(bad)
    with pytest.raises(InputError):
        stream.run([good, bad])
    assert state(stream) == before
    assert stream.step(good).tick == 2


def test_retry_reads_back_and_change_of_the_past_is_refused():
    stream = Stream(Count(), BUDGET, 10)
    first = stream.step(4, tick=1)
    assert stream.step(4, tick=1).value == first.value
    assert stream.tick == 1
    stream = Stream.restore(stream.snapshot())
    assert stream.step(4, tick=1).value == first.value, "also after a crash"
    with pytest.raises(AlreadyReleased, match="already released"):
        stream.step(5, tick=1)
    with pytest.raises(InputError, match="out of turn"):
        stream.step(5, tick=3)
    stream.step(5, tick=2)
    with pytest.raises(AlreadyReleased):
        stream.step(4, tick=1)


def test_forked_snapshots_agree():
    stream = Stream(Histogram(3), BUDGET, 100)
    stream.run([[0], [1]])
    blob = stream.snapshot()
    one = Stream.restore(blob).step([2])
    two = Stream.restore(blob).step([2])
    assert np.array_equal(one.values, two.values)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b[:40],
        lambda b: b"",
        lambda b: b"PK\x03\x04" + b,
        lambda b: b[:-3] + bytes([b[-3] ^ 1]) + b[-2:],
        lambda b: b[:25] + bytes([b[25] ^ 1]) + b[26:],
        lambda b: b[:19] + b"\x00\x63" + b[21:],
        lambda b: b.decode("latin1"),
    ],
)
def test_damaged_snapshots_are_refused(damage):
    stream = Stream(Count(), BUDGET, 10)
    stream.step(1)
    with pytest.raises(SnapshotError):
        Stream.restore(damage(stream.snapshot()))


@pytest.mark.parametrize("version", [0, 2, 9])
def test_snapshots_of_other_formats_are_refused(version):
    blob = Stream(Count(), BUDGET, 10).snapshot()
    with pytest.raises(
        SnapshotError, match=f"format {version} and this program reads format 1 only"
    ):
        Stream.restore(blob[:19] + version.to_bytes(2, "big") + blob[21:])


def test_postprocessing_never_revises_and_is_declared():
    names = ("monotone", "integer", "nonnegative")
    plain = Stream(Sum(0, 1, 0.25), BUDGET, 200).run([0.25] * 200)
    tidy = Stream(Sum(0, 1, 0.25), BUDGET, 200, postprocess=names)
    first = tidy.run([0.25] * 80)
    tidy = Stream.restore(tidy.snapshot())
    second = tidy.run([0.25] * 120)
    values = np.concatenate([first.values, second.values])
    assert np.all(values >= 0)
    assert np.all(values == np.rint(values))
    assert np.all(np.diff(values) >= 0)
    assert first.postprocessed == second[0].postprocessed == ("nonnegative", "integer", "monotone")
    assert plain.postprocessed == ()
    with pytest.raises(UnknownName, match="monotone"):
        Stream(Count(), BUDGET, 10, postprocess=["monotonic"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("count", BUDGET, 10), ParameterError),
        ((Count(), (1.0, 1e-9), 10), ParameterError),
        ((Count(), BUDGET, 0), ParameterError),
        ((Count(), BUDGET, 1.5), ParameterError),
        ((Count(), BUDGET, -4), ParameterError),
        ((Count(), BUDGET, 10, "sqare-root"), UnknownName),
        ((Count(), BUDGET, None, "balanced"), ParameterError),
        ((Count(), BUDGET, 10, "periods-0"), UnknownName),
        ((Count(), BUDGET, 2000, "optimal"), ParameterError),
    ],
)
def test_bad_parameters(arguments, error):
    with pytest.raises(error):
        Stream(*arguments)


def test_secret_is_not_shown():
    stream = Stream(Count(), BUDGET, 10, secret=Secret.from_hex(SECRET))
    release = stream.step(1)
    for text in (repr(stream), repr(release), str(release), repr(vars(stream))):
        assert SECRET not in text


def test_totals_fast_path_equals_events():
    one = Stream(Histogram(["a", "b"]), BUDGET, 10, secret=Secret.from_hex(SECRET))
    two = Stream(Histogram(["a", "b"]), BUDGET, 10, secret=Secret.from_hex(SECRET), replay=True)
    three = Stream(Histogram(["a", "b"]), BUDGET, 10, secret=Secret.from_hex(SECRET), replay=True)
    a = one.step(["a", "a", "b"])
    b = two.run_totals([np.asarray([2, 1])])[0]
    c = three.run_totals(np.asarray([[2, 1], [0, 0]]))
    assert np.array_equal(a.values, b.values)
    assert np.array_equal(c.values[0], b.values)
    with pytest.raises(InputError, match="whole numbers"):
        two.run_totals([[0.5, 1]])[0]
    with pytest.raises(InputError, match="events themselves"):
        Stream(Substrings("ab", 2), BUDGET, 10).run_totals([np.zeros(6, int)])[0]


def test_empty_run():
    assert len(Stream(Count(), BUDGET, 10).run([])) == 0


def test_users_are_capped_over_the_whole_stream():
    budget = Budget(1.0, 1e-9, unit="user", max_events=2)
    secret = Secret.from_hex(SECRET)
    capped = Stream(Histogram(["a", "b"]), budget, 10, secret=secret)
    plain = Stream(Histogram(["a", "b"]), budget, 10, secret=secret, replay=True)
    one = capped.step(["a", "a", "a", "b"], users=["u", "u", "u", "v"])
    assert np.array_equal(one.values, plain.step(["a", "a", "b"], capped=True).values)
    capped = Stream.restore(capped.snapshot())
    two = capped.step(["b", "b", "b"], users=["u", "v", "v"])
    assert np.array_equal(two.values, plain.step(["b"], capped=True).values)
    with pytest.raises(InputError, match="one user for each"):
        capped.step(["a"], users=["u", "v"])
    with pytest.raises(InputError):
        capped.step(["zzz"], users=["w"])
    assert capped.step([], users=[]).tick == 3
    count = Stream(Count(), budget, 10, secret=secret)
    other = Stream(Count(), budget, 10, secret=secret, replay=True)
    assert count.step(None, users=["u"] * 5).value == other.step(2, capped=True).value
    with pytest.raises(ParameterError, match="protects events"):
        Stream(Count(), BUDGET, 10).step(None, users=["u"])


def test_refused_tick_does_not_use_up_a_users_cap():
    budget = Budget(1.0, 1e-9, unit="user", max_events=1)
    stream = Stream(Histogram(["a"]), budget, 10, secret=Secret.from_hex(SECRET))
    with pytest.raises(InputError):
        stream.step(["a", "x"], users=["u", "v"])
    plain = Stream(Histogram(["a"]), budget, 10, secret=Secret.from_hex(SECRET), replay=True)
    assert stream.step(["a"], users=["u"]).value == plain.step(["a"], capped=True).value


def test_preparing_changes_no_number():
    plain = Stream(Histogram(60), BUDGET, 100, secret=Secret.from_hex(SECRET), replay=True)
    early = Stream(Histogram(60), BUDGET, 100, secret=Secret.from_hex(SECRET))
    expected = plain.run([[1]] * 100).values
    for t in range(100):
        early.prepare()
        if t in (0, 31, 32, 33, 64, 96):
            early = Stream.restore(early.snapshot())
            early.prepare()
        assert np.array_equal(early.step([1]).values, expected[t]), t
    early.prepare()


@pytest.mark.parametrize(
    ("delta", "horizon", "name"),
    [
        (1e-6, None, None),
        (1e-6, None, "blend"),
        (1e-6, 365, None),
        (1e-6, 365, "blend"),
        (0.0, None, "endless-bridge"),
    ],
)
def test_equal_streams_share_their_tables(delta, horizon, name):
    """200 KiB for each stream without a horizon; a service has thousands of small ones, and
    restores each by itself."""
    streams = [Stream(Count(), Budget(1.0, delta), horizon, name) for _ in range(2)]
    for stream in streams:
        stream.step(1)
    blobs = [stream.snapshot() for stream in streams]
    first = streams[0].factorization
    forget_fitted_noise()
    again = [Stream.restore(blob) for blob in blobs]
    assert all(stream.factorization is first for stream in [*streams, *again])
    other = Stream(Count(), Budget(1.0, delta), 366 if horizon else 1000)
    assert other.factorization is not first


def test_tables_that_nobody_uses_leave_the_memory():
    kept = weakref.ref(factorization("anytime", 12_345))
    blend = weakref.ref(make_blend(12_345, BlendFilter((0.25,), (0.5,))))
    gc.collect()
    assert (kept(), blend()) == (None, None)
