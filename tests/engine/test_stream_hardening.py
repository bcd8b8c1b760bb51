"""What must not go wrong at the edges: refusals that would reveal, copies, interrupts, caps, stated
errors."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Secret, Stream, Sum
from evercount.engine import state as state_module
from evercount.engine.release import Releases
from evercount.engine.retries import fingerprint
from evercount.engine.snapshot_format import pack, unpack
from evercount.engine.state import postprocessed
from evercount.errors import (
    AlreadyReleased,
    EvercountError,
    InputError,
    ParameterError,
    SnapshotError,
)
from evercount.factorizations import BinaryTree, Honaker
from evercount.graphs import Edges
from evercount.local import LocalClient, LocalPlan
from evercount.sparse import SparseCount
from many_streams import least_share, noise_of, smooth_stream

BUDGET = Budget(1.0, 1e-9)
USERS = Budget(1.0, 1e-9, unit="user", max_events=1)
SECRET = Secret.from_hex("7" * 64)


def test_one_user_cannot_add_more_than_the_cap_to_a_count():
    for name in ("balanced", "periods-3"):
        stream = Stream(Count(), USERS, 8, name)
        for events in ([1000], [2], [0.5], ["x"]):
            with pytest.raises(InputError, match="is 1"):
                stream.step(events, users=["alice"])
        with pytest.raises(InputError, match="sequence of events"):
            stream.step(5, users=["alice"])
        assert stream.step([1, 0], users=["alice", "bob"]).tick == 1


def test_users_are_named_always_or_never():
    stream = Stream(Count(), USERS, 8)
    stream.step(None, users=["a"])
    for attempt in (
        lambda: stream.step(3),
        lambda: stream.run([3]),
        lambda: stream.run_totals([[3]]),
    ):
        with pytest.raises(ParameterError, match="every tick must do the same"):
            attempt()
    assert Stream.restore(stream.snapshot()).step(None, users=["b"]).tick == 2
    plain = Stream(Count(), USERS, 8)
    plain.step(3, capped=True)
    with pytest.raises(ParameterError, match="every tick must do the same"):
        plain.step(None, users=["a"])


def test_no_refusal_depends_on_how_large_a_running_sum_is():
    """A refusal at some total would tell it apart from its neighbour for certain."""
    stream = Stream(Histogram(2), BUDGET, 10)
    for _ in range(4):
        release = stream.run_totals([np.asarray([2**53, 0])])[0]
    assert release.values[0] == pytest.approx(4 * 2**53)
    with pytest.raises(ParameterError, match="too fine"):
        Sum(0, 1, 2.0**-40)


def test_errors_do_not_show_counts():
    stream = Stream(Count(most_per_tick=10), BUDGET, 5)
    for attempt in (lambda: stream.step(1234567), lambda: stream.run([1, 1234567])):
        with pytest.raises(InputError) as caught:
            attempt()
        assert "1234567" not in str(caught.value)


def test_streams_are_not_copied_or_pickled():
    stream = Stream(Count(), BUDGET, 5)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ParameterError):
            attempt(stream)


@pytest.mark.parametrize("place", ["_running_sums", "postprocessed", "_advance_block"])
def test_an_interrupted_tick_did_not_happen(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no half-changed state: the same tick can be tried again, and its noise is the
    same."""
    twin = Stream(Count(), BUDGET, 50, secret=SECRET, replay=True)
    stream = Stream(Count(), BUDGET, 50, secret=SECRET)
    for either in (twin, stream):
        either.step(1)
    blob = stream.snapshot()

    def interrupted(*given: object) -> None:
        real(*given)
        raise KeyboardInterrupt

    real = getattr(state_module, place)
    for attempt in (lambda: stream.step(1000), lambda: stream.run([7, 8, 9])):
        with monkeypatch.context() as patch:
            patch.setattr(state_module, place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                attempt()
        assert stream.tick == 1
    assert stream.step(5).value == twin.step(5).value
    assert stream.run([5] * 9).values.tolist() == twin.run([5] * 9).values.tolist()
    stream.snapshot()
    assert Stream.restore(blob).step(1).tick == 2


def test_an_interrupted_encoder_is_rolled_back(monkeypatch):
    stream = Stream(Edges(5), BUDGET, 50)
    stream.step([(0, 1)])
    original = Edges.encode

    def late(self, state, events):
        if events == [(2, 3)]:
            raise KeyboardInterrupt
        return original(self, state, events)

    with monkeypatch.context() as patch:
        patch.setattr(Edges, "encode", late)
        with pytest.raises(KeyboardInterrupt):
            stream.run([[(1, 2)], [(2, 3)]])
    assert stream.step([(1, 2)]).tick == 2, "the edge is not there twice"


def test_snapshots_that_lack_something_are_refused():
    data = unpack(Stream(Count(), BUDGET, 5).snapshot())
    for missing in data:
        damaged = {key: value for key, value in data.items() if key != missing}
        with pytest.raises(SnapshotError):
            Stream.restore(pack(damaged))


@pytest.mark.parametrize("factor", [0.5, 1 - 1e-11, math.nan])
def test_a_snapshot_cannot_lower_the_noise(factor: float) -> None:
    data = unpack(Stream(Count(), BUDGET, 5, "balanced").snapshot())
    data["noise"]["sigma"] *= factor
    with pytest.raises(SnapshotError, match="std"):
        Stream.restore(pack(data))


def test_a_snapshot_says_how_its_ticks_account_for_users():
    stream = Stream(Count(), USERS, 5)
    stream.step(1, capped=True)
    data = unpack(stream.snapshot())
    for counting in (None, "unnamed", 3):
        with pytest.raises(SnapshotError, match="account for users"):
            Stream.restore(pack({**data, "counting": counting}))


def test_fingerprints_see_every_event():
    long = np.arange(2000)
    changed = long.copy()
    changed[1000] = -1
    assert fingerprint([long]) != fingerprint([changed])
    assert fingerprint([{"a", "b"}]) == fingerprint([{"b", "a"}])
    assert fingerprint([{np.int64(0): 1}]) == fingerprint([{0: 1}])
    assert fingerprint(np.asarray(["a", None], dtype=object)) == fingerprint(
        np.asarray(["a", None], dtype=object)
    )
    assert fingerprint(3) != fingerprint("3")


def test_a_tick_may_be_an_iterator():
    """It is read once: the fingerprint must not use up the events."""
    listed = Stream(Histogram(["a", "b"]), BUDGET, 5, secret=SECRET)
    lazy = Stream(Histogram(["a", "b"]), BUDGET, 5, secret=SECRET, replay=True)
    assert (
        lazy.step(iter(["a"] * 1000)).values.tolist() == listed.step(["a"] * 1000).values.tolist()
    )
    assert lazy.step(iter(["a"] * 1000), tick=1).tick == 1, "a retry with the same events"
    named, plain = (
        Stream(Histogram(["a", "b"]), USERS, 5, secret=SECRET, replay=True) for _ in range(2)
    )
    released = named.step(iter(["a", "b"]), users=iter("xy"))
    assert released.values.tolist() == plain.step(["a", "b"], users=["x", "y"]).values.tolist()


@pytest.mark.parametrize(
    "events", [dict.fromkeys("ab").keys(), {1: "a", 2: "b"}.values(), memoryview(b"\0\1")]
)
def test_a_tick_may_be_what_cannot_be_copied(events) -> None:
    stream = Stream(Histogram(2 if isinstance(events, memoryview) else ["a", "b"]), BUDGET, 5)
    first = stream.step(events, tick=1)
    assert stream.step(events, tick=1).values.tolist() == first.values.tolist(), (
        "a retry with the same events"
    )


def test_a_retry_is_told_by_the_numbers_of_its_time():
    """An array that its owner changes afterwards is not what was released."""
    stream = Stream(Histogram(4), BUDGET, 5)
    events = np.asarray([0, 1, 2])
    first = stream.step(events, tick=1)
    events[0] = 3
    with pytest.raises(AlreadyReleased):
        stream.step(events, tick=1)
    events[0] = 0
    assert stream.step(events, tick=1).values.tolist() == first.values.tolist()
    again = Stream.restore(stream.snapshot())
    assert again.step(np.asarray([0, 1, 2]), tick=1).values.tolist() == first.values.tolist()


def test_narrow_integer_keys_find_their_cell():
    query = Histogram(300, unknown="other")
    increments, _ = query.encode(None, np.array([-1, 5], np.int8))
    assert np.flatnonzero(increments).tolist() == [5, 300]
    increments, _ = query.encode(None, np.array([2**63 + 5, 7], np.uint64))
    assert np.flatnonzero(increments).tolist() == [7, 300]
    increments, _ = Histogram(200, unknown="other").encode(None, np.array([-1, 100], np.int8))
    assert np.flatnonzero(increments).tolist() == [100, 200]


@pytest.mark.parametrize("name", ["periods-700", "fresh"])
def test_stated_errors_agree_one_by_one_and_in_bulk(name):
    stream = Stream(Count(), BUDGET, 3000, name)
    bulk = stream.run([0] * 3000).std
    some = [
        1,
        2,
        5,
        699,
        700,
        701,
        702,
        710,
        900,
        1399,
        1400,
        1401,
        1402,
        1450,
        2100,
        2101,
        2999,
        3000,
    ]
    for tick in some:
        assert bulk[tick - 1] == pytest.approx(stream.std([tick])[0, 0], rel=2e-3)


@pytest.mark.parametrize("kind", [BinaryTree, Honaker])
def test_worst_row_of_trees_is_exact(kind):
    for horizon in (1, 2, 3, 4, 5, 6, 7, 100, 1000, 1023, 1024, 1025, 99_999):
        f = kind(horizon)
        norms = f.row_norms(np.arange(1, horizon + 1))
        tick, worst = f.worst_row()
        assert worst == pytest.approx(norms.max())
        assert norms[tick - 1] == pytest.approx(worst)


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_monotone_releases_have_valid_intervals(delta):
    """4,000 streams; the error of one number, or a bound that is half as wide, would be wrong
    here."""
    streams, ticks = 4_000, 300
    stream = smooth_stream(Count(), Budget(1.0, delta), ticks, seed=1, postprocess=["monotone"])
    releases = stream.run([0] * ticks)
    off = np.abs(postprocessed(("monotone",), noise_of(stream, streams, ticks)[..., 0], None)[0])
    low, high = releases.interval(0.9)
    assert releases[-1].interval(0.9) == pytest.approx((low[-1], high[-1]))
    half, least = (high - low) / 2, least_share(0.9, streams)
    for tick in (0, 9, 99, ticks - 1):
        assert np.mean(off[tick] <= half[tick]) >= least
    assert np.mean(np.all(off <= releases.bound(0.9)[:, np.newaxis], axis=0)) >= least
    assert np.mean(np.all(off <= releases.bound(0.9)[:, np.newaxis] / 2, axis=0)) < least
    naive = 1.645 * releases.std[-1]
    assert np.mean(off[-1] <= naive) < 0.75, "a one-number interval would be wrong here"


def test_queries_that_may_fall_are_not_monotone():
    for query in (Average(), Sum(-1, 1), Histogram(2, removals=True)):
        with pytest.raises(ParameterError, match="can decrease"):
            Stream(query, BUDGET, 10, postprocess=["monotone"])


@pytest.mark.parametrize("epsilon", [8.0, 14.0, 30.0])
def test_intervals_hold_when_noise_is_narrower_than_the_grid(epsilon):
    budget = Budget(epsilon, 1e-3)
    release = Stream(Histogram(4000), budget, 1, secret=Secret.from_hex("1f" * 32)).step([])
    low, high = release.interval(0.9)
    assert np.mean((low <= 0) & (high >= 0)) >= 0.9 - 4 * np.sqrt(0.09 / 4000)


def test_ratios_offer_no_bound_for_all_ticks():
    releases = Stream(Average(0, 1, 0.5, per="event"), BUDGET, 10).run([[0.5], [1.0]])
    with pytest.raises(ParameterError, match="ratio"):
        releases.bound()


def test_users_under_replace_are_not_offered_for_graphs():
    budget = Budget(1.0, 1e-9, adjacency="replace", unit="user", max_events=2)
    with pytest.raises(ParameterError, match="add-remove"):
        Stream(Edges(4), budget, 10)


def test_one_stream_per_thread_is_independent():
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        stream = Stream(Count(), BUDGET, 64, secret=Secret.from_hex(f"{number:02x}" * 32))
        results[number] = [stream.step(1).value for _ in range(64)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, values in results.items():
        again = Stream(Count(), BUDGET, 64, secret=Secret.from_hex(f"{number:02x}" * 32)).run(
            [1] * 64
        )
        assert values == again.values.tolist()


def test_a_snapshot_of_an_interrupted_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """try: step() finally: save(snapshot()) must not bring back a tick that was added but not
    released."""
    for query, events in ((Count(), 1000), (Edges(4), [(1, 2)])):
        stream = Stream(query, BUDGET, 8)
        stream.step(0 if isinstance(query, Count) else [])
        good = stream.snapshot()

        def stop(*given: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(state_module, "postprocessed", stop)
            with pytest.raises(KeyboardInterrupt):
                stream.step(events)
        with pytest.raises(EvercountError, match="interrupted"):
            stream.snapshot()
        if query.in_place:  # its encoder has advanced: nothing but a restore helps
            for tick in (1, 2, None):
                with pytest.raises(EvercountError, match="interrupted"):
                    stream.step(events, tick=tick)
        else:
            assert stream.step(events).tick == 2
            stream.snapshot()
        assert Stream.restore(good).step(events).tick == 2


def test_an_interrupt_at_any_line_never_leaves_a_half_advanced_stream() -> None:
    """Ctrl-C is raised before every line of a step in turn: the stream is then as before, or it
    refuses."""
    import sys
    from types import FrameType
    from typing import Any

    def fresh() -> Stream:
        stream = smooth_stream(Edges(5), Budget(1.0, 1e-9, unit="user", max_events=2), 8, seed=1)
        stream.step([(0, 1)], users=["a"])
        return stream

    def state(stream: Stream) -> tuple[Any, ...]:
        now = stream._state.with_users()
        encoder = stream.query.dump_state(now.encoder)
        return now.tick, now.totals.tolist(), dict(now.users), repr(encoder)

    twin = fresh()
    before = state(twin)
    twin.step([(1, 2), (2, 3)], users=["a", "b"])
    after = state(twin)
    line, finished, refused = 0, False, 0
    while not finished:
        stream, seen = fresh(), 0

        def trace(frame: FrameType, event: str, argument: object, limit: int = line) -> Any:
            nonlocal seen
            if "evercount" not in frame.f_code.co_filename:
                return None
            if event == "line":
                seen += 1
                if seen > limit:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            stream.step([(1, 2), (2, 3)], users=["a", "b"])
            finished = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        try:
            stream.snapshot()
        except EvercountError:
            refused += 1
        else:
            assert state(stream) in (before, after), f"after line {line}"
        line += 1
    assert line > 100
    assert refused > 20


def test_empty_runs_change_nothing() -> None:
    for query, postprocess in (
        (Count(), ["monotone"]),
        (Histogram(3), []),
    ):
        stream = Stream(query, BUDGET, 100, postprocess=postprocess)
        assert len(stream.run([])) == 0
        assert len(stream.run([[0] if isinstance(query, Histogram) else 1])) == 1


def test_one_text_is_not_a_list_of_users() -> None:
    with pytest.raises(InputError, match="not one string"):
        Stream(Histogram(["a", "b"]), USERS, 4).step(["a"] * 5, users="alice")


def test_what_is_published_cannot_be_changed() -> None:
    release = Stream(Histogram(3), BUDGET, 5).step([0, 1], tick=1)
    with pytest.raises(ValueError, match="read-only"):
        release.values[0] = 999
    assert release.values.base is None or release.values.base.size <= 3, (
        "no noise of later ticks behind it"
    )


def test_errors_are_the_same_from_several_threads() -> None:
    """Exact errors are built up when they are asked for, by the service's readers and writer
    alike."""
    expected = Stream(Count(), BUDGET, 10**6).std([999_999])[0, 0]
    for _ in range(5):
        stream = Stream(Count(), BUDGET, 10**6)
        stream.factorization._covariance = None  # type: ignore[attr-defined]
        found: list[float] = []
        barrier = threading.Barrier(4)

        def ask(
            stream: Stream = stream,
            found: list[float] = found,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            found.append(float(stream.std([999_999])[0, 0]))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 4


def test_monotone_intervals_do_not_depend_on_how_ticks_were_called() -> None:
    releases = Stream(Count(), BUDGET, 300, postprocess=["monotone"], secret=SECRET).run([1] * 300)
    low, high = releases.interval(0.9)
    for i in (0, 1, 7, 100, 299):
        assert releases[i].interval(0.9) == (low[i], high[i])
    steps = Stream(Count(), BUDGET, 300, postprocess=["monotone"], secret=SECRET)
    for i in range(3):
        assert steps.step(1).interval(0.9) == pytest.approx((low[i], high[i]))


@pytest.mark.parametrize(
    ("name", "delta"),
    [
        *((name, 1e-6) for name in ("binary-tree", "honaker", "honaker-full", "balanced", None)),
        *((name, 0.0) for name in ("pure-binary", "pure-tree", "bridge", None)),
    ],
)
def test_monotone_releases_state_the_largest_std_of_all_ticks_so_far(
    name: str | None, delta: float
) -> None:
    """The std of a tree jumps: no tick before may be left out."""
    ticks = 2500
    stream = Stream(
        Count(), Budget(1.0, delta), ticks if name else None, name, postprocess=["monotone"]
    )
    one_by_one = np.maximum.accumulate(stream._errors.errors(np.arange(1, ticks + 1)), axis=1)
    for tick in (1, 2, 511, 512, 513, 545, 1023, 1024, 1025, 2047, 2048, 2049, ticks, 600):
        found = Releases(tick, np.zeros((1, 1)), stream._errors, "", ("monotone",))._errors_all
        assert np.asarray(found)[:, 0, 0] == pytest.approx(one_by_one[:, tick - 1, 0], rel=1e-12), (
            tick
        )


def test_exports_say_what_they_are(tmp_path) -> None:
    import csv

    releases = Stream(Count(), BUDGET, 5, postprocess=["integer"]).run([1, 2])
    releases.to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["postprocessed"] == "integer"
    plain = Stream(Count(), BUDGET, 5).run([1, 2])
    assert list(plain.table().columns()) == ["tick", "cell", "value", "std", "low", "high"]


@pytest.mark.parametrize(
    "attempt",
    [
        lambda s: s.run(5),
        lambda s: s.run(None),
        lambda s: s.run({1: 2}),
        lambda s: s.run_totals(5),
        lambda s: s.step(np.timedelta64(3, "s")),
        lambda s: s.step(3, tick="a"),
        lambda s: s.step(3, tick=0),
        lambda s: s.step(3, tick=2.0),
        lambda s: s.std("a"),
        lambda s: s.std([1.5]),
        lambda s: s.std([0]),
        lambda s: s.std([101]),
        lambda s: s.run([1, 2]).between(1.5, 2),
        lambda s: s.run([1, 2]).between("a", 2),
        lambda s: s.run([1, 2]).bound("a"),
    ],
)
def test_bad_arguments_are_typed(attempt) -> None:
    with pytest.raises(EvercountError):
        attempt(Stream(Count(), BUDGET, 100))


def test_half_precision_counts_are_counts() -> None:
    assert Stream(Count(), BUDGET, 100).step(np.float16(3)).tick == 1


def test_snapshots_with_other_contents_are_refused() -> None:
    stream = Stream(Count(), BUDGET, 5)
    stream.step(1)
    data = unpack(stream.snapshot())
    for change in (
        {"tick": -3},
        {"tick": "x"},
        {"postprocess": ["zz"]},
        {"horizon": -1},
        {"query": 3},
    ):
        with pytest.raises(SnapshotError):
            Stream.restore(pack({**data, **change}))
    for tick in (0, 2):
        with pytest.raises(SnapshotError, match="another tick than its sums"):
            Stream.restore(pack({**data, "tick": tick}))
    with pytest.raises(SnapshotError):
        Stream.restore(pack({**data, "totals": np.zeros(5, np.int64)}))
    with pytest.raises(SnapshotError):
        Stream.restore(pack({**data, "noise": {**data["noise"], "name": "zz"}}))


def test_an_interrupted_sparse_counter_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = SparseCount(1.0, 100, max_ones=50, method="partition")
    counter.run([1, 2])
    good = counter.snapshot()

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SparseCount, "_release", stop)
        with pytest.raises(KeyboardInterrupt):
            counter.step(7)
    for attempt in (counter.snapshot, lambda: counter.step(7)):
        with pytest.raises(EvercountError, match="interrupted"):
            attempt()
    assert SparseCount.restore(good).step(7).tick == 3


def test_a_local_client_is_neither_copied_nor_pickled() -> None:
    client = LocalClient(LocalPlan(0.5, 1e-6, 1000))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ParameterError, match="client is not"):
            attempt(client)


def test_a_local_client_answers_one_of_two_threads() -> None:
    for _ in range(20):
        client = LocalClient(LocalPlan(0.5, 1e-6, 1000))
        answers: list[object] = []
        barrier = threading.Barrier(2)

        def ask(
            value: float, client: LocalClient = client, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            try:
                answers.append(client.message(value))  # noqa: B023 - joined below
            except AlreadyReleased as error:
                answers.append(error)  # noqa: B023

        threads = [threading.Thread(target=ask, args=(value,)) for value in (0.1, 0.9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(isinstance(answer, bytes) for answer in answers) == [False, True]


@pytest.mark.parametrize(
    ("events", "change"),
    [
        (["a", "b"], lambda e: e.append("a")),
        ([["a"], ["b"]], lambda e: e[0].append("b")),
        ((["a"], ["b"]), lambda e: e[0].append("b")),
        ([("a",), ("b",)], lambda e: e.append(("a",))),
        ([{"a"}, {"b"}], lambda e: e[0].add("b")),
        (np.asarray(["a", "b"], dtype=object), lambda e: e.__setitem__(0, "b")),
    ],
)
def test_events_that_their_owner_changes_are_another_tick(events, change) -> None:
    stream = Stream(Histogram(["a", "b"], max_keys_per_event=2), BUDGET, 5)
    same = copy.deepcopy(events)
    first = stream.step(events, tick=1)
    change(events)
    with pytest.raises(AlreadyReleased):
        stream.step(events, tick=1)
    assert stream.step(same, tick=1).values.tolist() == first.values.tolist()
    assert (
        Stream.restore(stream.snapshot()).step(same, tick=1).values.tolist()
        == first.values.tolist()
    )


@pytest.mark.parametrize("name", ["balanced", "periods-3"])
def test_errors_that_were_prepared_are_those_that_are_computed(name: str) -> None:
    """Those of the next tick are computed ahead: the same numbers, the same refusals, and nobody
    can change them."""
    stream = smooth_stream(Count(), Budget(1.0, 1e-6), 20, name, seed=1)
    want = stream._errors.errors(np.arange(1, 21))
    for tick in range(1, 20):
        stream.prepare()
        ready = stream._errors.errors([tick])
        assert ready is stream._errors.errors(np.asarray(tick))
        for part, whole in zip(ready, want, strict=True):
            assert part.tolist() == whole[tick - 1 : tick].tolist()
            with pytest.raises(ValueError, match="read-only"):
                part += 1
        with pytest.raises(ParameterError, match="whole numbers"):
            stream._errors.errors([tick + 0.5])
        stream.step(1)
