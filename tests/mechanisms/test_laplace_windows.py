"""Windows under pure privacy: trees without end against dense matrices, exact stds, noise in any
pieces, the choice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evercount import Budget, Count, Stream
from evercount.bounds.tails import continuous_std, laplace_factor
from evercount.engine.build import make_noise
from evercount.errors import HorizonReached, ParameterError
from evercount.factorizations.laplace_choice import WindowTree, window_tree
from evercount.factorizations.laplace_trees import DigitTree
from evercount.mechanisms import noise_stream
from evercount.mechanisms.laplace_noise import PureStream
from evercount.noise import Secret
from evercount.noise.laplace_sampler import variance
from product_internals import source_of

SECRET = Secret.from_hex("5" * 64)
SHAPES = [(3, 1), (3, 2), (3, 3), (5, 2), (5, 3), (7, 2), (9, 2)]


@pytest.mark.parametrize(("base", "levels"), SHAPES)
def test_every_tick_lies_in_at_most_levels_nodes(base: int, levels: int) -> None:
    """All nodes that any of 200 prefixes uses: L·R is the running sum, and a column of R has at
    most `levels` ones."""
    tree = WindowTree(10, None, base, levels)
    left, right = tree.dense(200)
    assert np.array_equal(left @ right, np.tril(np.ones((200, 200))))
    assert right.sum(axis=0).max() == levels


@pytest.mark.parametrize(("base", "levels"), SHAPES)
@pytest.mark.parametrize("width", [1, 4, 10, 37, 150, 500])
def test_window_norms_against_dense_matrices(base: int, levels: int, width: int) -> None:
    tree = WindowTree(width, 200, base, levels)
    left, _ = tree.dense(200)
    rows = np.vstack([np.zeros(left.shape[1]), left])
    want = [np.linalg.norm(rows[t] - rows[max(t - width, 0)]) for t in range(1, 201)]
    ticks = np.arange(1, 201)
    assert np.sqrt(tree.apart(np.maximum(ticks - width, 0), ticks)) == pytest.approx(
        np.asarray(want)
    )
    assert tree.worst_window() == pytest.approx(max(want))
    assert tree.row_norms(ticks) == pytest.approx(np.linalg.norm(left, axis=1))
    assert tree.worst_row()[1] == pytest.approx(np.linalg.norm(left, axis=1).max())


@pytest.mark.parametrize("tree", [DigitTree(90), DigitTree(90, 3), DigitTree(90, 7)])
def test_nodes_of_a_difference_by_walking(tree: DigitTree) -> None:
    """The closed form against the walks themselves, for all pairs."""
    nodes, signs, _ = tree.matrix(np.arange(91))
    walks = [set(nodes[row != 0].tolist()) for row in signs]
    for earlier in range(91):
        later = np.arange(earlier, 91)
        want = [len(walks[earlier] ^ walks[t]) for t in later]
        assert tree.apart(np.full(len(later), earlier), later).tolist() == want


def stream(tree: WindowTree, cells: int = 2) -> PureStream:
    return PureStream(tree, 1.0, 1.0, 1.0, cells, SECRET)


@pytest.mark.parametrize(("base", "levels"), SHAPES)
def test_noise_is_that_of_the_matrix_in_any_pieces(base: int, levels: int) -> None:
    tree = WindowTree(10, None, base, levels)
    whole = stream(tree).take(300)
    source = source_of(stream(tree))
    for tick in (1, 2, 17, 120, 299, 300):
        nodes, signs, shares = tree.matrix(np.asarray([tick]))
        assert (signs @ source.draw(nodes, shares) == whole[tick - 1]).all()
    single, mixed, paused = stream(tree), stream(tree), stream(tree)
    assert (np.concatenate([single.take(1) for _ in range(300)]) == whole).all()
    assert (np.concatenate([mixed.take(k) for k in (0, 7, 130, 1, 162)]) == whole).all()
    paused.take(111)
    again = stream(tree).resume(paused.dump())
    assert (again.take(189) == whole[111:]).all()
    assert (stream(tree).resume(stream(tree).dump()).take(300) == whole).all()
    back = source_of(stream(tree))
    for tick in (300, 10, 170):  # an interrupted call may go back
        assert (back.rows(tick, 1)[0] == whole[tick - 1]).all()


def test_the_horizon_and_the_largest_noise_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stream(WindowTree(3, 10, 3, 2))
    made.take(9)
    with pytest.raises(HorizonReached):
        made.take(2)
    monkeypatch.setattr(noise_stream, "LARGEST_NOISE", 3)
    with pytest.raises(ParameterError, match="coarser grid"):
        stream(WindowTree(3, None, 3, 1)).take(100)


@pytest.mark.parametrize(
    "tree",
    [
        window_tree(5, 60),
        window_tree(100, 60),
        WindowTree(24, None, 5, 2),
        WindowTree(40, 60, 3, 3),
    ],
    ids=lambda tree: tree.name,
)
def test_published_windows_have_the_stated_std_and_coverage(tree: WindowTree) -> None:
    """6,000 cells as independent streams of 60 ticks, epsilon 0.7.

    Variances of what is published lie within 5 standard errors (kurtosis ≤ 6: the variance of a
    sample variance is below 5·var²/cells), 90 % intervals cover 90 % less 5 standard errors, and
    noise that forgets a level is caught.
    """
    cells, epsilon, width = 6000, 0.7, tree.width
    made = PureStream(tree, epsilon, 1.0, 1.0, cells, SECRET)
    assert made.rate * tree.levels <= epsilon
    noisy = np.concatenate([np.zeros((1, cells)), made.take(60)])
    ticks = np.arange(1, 61)
    before = np.maximum(ticks - width, 0)
    published = noisy[ticks] - noisy[before]
    std = math.sqrt(variance(made.rate)) * np.sqrt(tree.apart(before, ticks))
    ratio = published.var(axis=1) / std**2
    assert (np.abs(ratio - 1) < 5 * math.sqrt(5 / cells)).all()
    inside = (np.abs(published) <= laplace_factor(0.1) * std[:, np.newaxis]).mean(axis=1)
    assert (inside > 0.9 - 5 * math.sqrt(0.09 / cells)).all()
    planted = std * (tree.levels - 1) / tree.levels
    assert not (
        np.abs(published.var(axis=1) / np.maximum(planted, 1e-9) ** 2 - 1)
        < 5 * math.sqrt(5 / cells)
    ).any()


def test_the_choice_has_the_least_exact_error() -> None:
    """Against every base and number of levels for small windows; noise on every tick is best only
    for short ones."""
    for width, horizon in ((1, None), (10, None), (24, 1000), (100, None), (100, 50), (300, 2000)):
        chosen = window_tree(width, horizon)
        every = [(3, 1)] + [
            (b, m) for m in (2, 3, 4) for b in range(3, 60, 2) if b ** (m - 1) <= 4 * width
        ]
        best = min(m * WindowTree(width, horizon, b, m).worst_window() for b, m in every)
        assert chosen.levels * chosen.worst_window() <= best * 1.03
    assert window_tree(10, None).levels == 1
    assert window_tree(1000, None).levels > 1


def test_errors_do_not_grow_with_the_stream_and_beat_the_running_count() -> None:
    tree = window_tree(168, None)
    late = np.arange(10**6, 10**6 + tree.size)
    assert math.sqrt(tree.apart(late - 168, late).max()) <= tree.worst_window()
    running = DigitTree(2**20, 19)
    ticks = np.arange(10**6, 10**6 + 1000)
    plain = running.levels * math.sqrt(running.apart(ticks - 168, ticks).max())
    assert tree.levels * tree.worst_window() < 0.6 * plain


def test_a_tree_longer_than_its_numbers_is_refused() -> None:
    with pytest.raises(ParameterError, match="2\\^40"):
        WindowTree(5, 2**41, 3, 2)


def test_noise_for_a_budget() -> None:
    tree = window_tree(24, 500)
    made = make_noise(
        Count(), tree, Budget(1.0, 0.0, unit="user", max_events=3), 500, secret=SECRET
    )
    assert isinstance(made.stream, PureStream)
    assert made.stream.rate == pytest.approx(1 / (3 * tree.levels))
    assert made.numeric_delta == 0.0
    assert made.limit == 500


@pytest.mark.parametrize("horizon", [1500, None])
def test_a_stream_of_windows(horizon: int | None) -> None:
    """Restored in the middle it goes on identically; stds are exact at every tick; intervals have
    Laplace tails."""
    counts = [(7 * t) % 5 for t in range(1500)]
    budget = Budget(1.0, 0.0)
    whole = Stream(Count(), budget, horizon, "pure-window-100", secret=SECRET).run(counts)
    steps = Stream(Count(), budget, horizon, "pure-window-100", secret=SECRET)
    for number in range(300):
        if number == 170:
            steps = Stream.restore(steps.snapshot())
        assert steps.step(counts[number]).value == whole.values[number]
    tree, view = window_tree(100, horizon), whole.last(100)
    assert view.std[:, 0] == pytest.approx(
        steps.sigma * np.sqrt(tree.apart(view.last - 100, view.last))
    )
    truth = np.convolve(counts, np.ones(100))[99:1500, np.newaxis]
    low, high = view.interval(0.9)
    assert np.mean((low <= truth) & (truth <= high)) > 0.8
    wider = continuous_std(steps.sigma) / steps.sigma
    number = window_tree(100, horizon).apart(view.last - 100, view.last).tolist()
    factors = np.asarray([[laplace_factor(0.1, one)] for one in number])
    assert (high - low) / 2 == pytest.approx(factors * wider * view.std + 0.5)
    assert "delta=0" in whole.guarantee
