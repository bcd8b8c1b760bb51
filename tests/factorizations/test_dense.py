"""Matrices of your own: the norm that noise is calibrated to holds for every change, and what is
wrong is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from evercount.errors import HorizonReached, ParameterError, TooLarge
from evercount.factorizations import (
    BUILT_IN,
    FACTORIZATIONS,
    Balanced,
    BinaryTree,
    Dense,
    Optimal,
    SquareRoot,
    factorization,
    register_factorization,
)
from evercount.factorizations.dense import as_dense
from evercount.factorizations.participation import participation

ODD = np.array([[0.75**0.5, 0.0], [-0.5, 1.0]])
"""Columns of norm 1, and a Gram entry of −½."""


def of_right(R: np.ndarray) -> Dense:
    return Dense(np.tril(np.tri(len(R)) @ np.linalg.inv(R)), R)


def random_right(T: int, seed: int) -> np.ndarray:
    """Lower triangular, of either sign, far from singular."""
    generator = np.random.default_rng(seed)
    return np.tril(generator.normal(0, 0.4, (T, T)), -1) + np.diag(generator.uniform(0.6, 1.2, T))


def exact_right(L: np.ndarray) -> list[list[Fraction]]:
    """L⁻¹·M of the doubles in L, without rounding."""
    T = len(L)
    rows: list[list[Fraction]] = []
    for t in range(T):
        done = [
            sum((Fraction(L[t, k]) * rows[k][j] for k in range(t)), Fraction(0)) for j in range(T)
        ]
        rows.append([(Fraction(int(j <= t)) - done[j]) / Fraction(L[t, t]) for j in range(T)])
    return rows


def largest_excess(engine: Dense, norm: float) -> float:
    """The largest ‖R*·d‖²/(norm²·(P² + N²)) over all changes of −1, 0 and 1, in exact arithmetic;
    above 1: a breach."""
    R = exact_right(engine.dense()[0])
    T, worst = len(R), Fraction(0)
    for d in itertools.product((-1, 0, 1), repeat=T):
        plus, minus = sum(x for x in d if x > 0), sum(-x for x in d if x < 0)
        if plus + minus:
            cost = sum(sum(R[t][j] * d[j] for j in range(T)) ** 2 for t in range(T))
            worst = max(worst, cost / (plus**2 + minus**2))
    return float(worst / Fraction(norm) ** 2)


CASES = {
    "two ticks": of_right(ODD),
    **{f"random {seed}": of_right(random_right(5, seed)) for seed in range(6)},
    "balanced": Dense(*Balanced(5).dense()),
    "computed R": Dense(SquareRoot(5).dense()[0]),
    "of a tree": Dense.of_noise(BinaryTree(5).dense()[0]),
    "R with six digits": Dense(
        SquareRoot(5).dense()[0], SquareRoot(5).dense()[1] + 1e-10 * np.tri(5)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_change_beats_the_norm(case):
    assert largest_excess(CASES[case], CASES[case].column_norm) <= 1


def test_planted_norms_are_caught():
    """The rule of columns alone, right where all Gram entries are ≥ 0, and a norm that is 2 % too
    small."""
    engine = of_right(ODD)
    assert largest_excess(engine, 1.0) == pytest.approx(1.5)
    assert engine.column_norm**2 == pytest.approx(1.5), "and no smaller norm would do"
    assert largest_excess(CASES["balanced"], CASES["balanced"].column_norm * 0.98) > 1
    beaten = [case for case, one in CASES.items() if largest_excess(one, _columns(one)) > 1]
    assert {"two ticks", "random 3"} <= set(beaten), (
        "without the negative entries the rule must fail somewhere"
    )


def _columns(engine: Dense) -> float:
    return float(np.linalg.norm(engine.dense()[1], axis=0).max()) * (1 + 1e-9)


def test_a_right_factor_that_is_off_is_paid_for():
    """R* is what L hides: an R that is smaller than it by what the tolerance allows must not lower
    the noise."""
    L, R = SquareRoot(20).dense()
    shrunk = R * (1 - 2e-11)
    engine, right = Dense(L, shrunk), exact_right(L)
    true = max(sum(float(row[j]) ** 2 for row in right) ** 0.5 for j in range(20))
    assert float(np.linalg.norm(shrunk, axis=0).max()) < true <= engine.column_norm
    with pytest.raises(ParameterError, match="L·R is"):
        Dense(L, R * (1 - 1e-7))


@pytest.mark.parametrize("seed", range(4))
def test_units_of_several_ticks(seed):
    """‖R*·D‖² ≤ B for all rows of ±1 at up to q ticks, also where Gram entries are negative."""
    engine = of_right(random_right(6, seed))
    R = np.asarray(exact_right(engine.dense()[0]), dtype=np.float64)
    for q in (1, 2, 3, 6):
        changes = (d for d in itertools.product((-1, 0, 1), repeat=6) if sum(map(abs, d)) <= q)
        worst = max(float(np.sum((R @ np.asarray(d, float)) ** 2)) for d in changes)
        assert worst <= participation(engine, q) <= q * q * engine.column_norm**2


def test_falling_rows_are_checked_on_the_matrix():
    bands = np.eye(9) + 0.5 * np.eye(9, k=-1) + 0.25 * np.eye(9, k=-2)
    assert of_right(bands).falling_gram
    assert Dense(*Optimal(20).dense()).falling_gram
    rises = np.eye(9) + 0.5 * np.eye(9, k=-2)  # G(1, 2) = 0 < G(1, 3)
    assert not of_right(rises).falling_gram
    assert not of_right(ODD).falling_gram
    # changes of a value that is 0 or 1: c² for each, if rows fall
    for R, holds in ((bands, True), (rises, False)):
        values = np.asarray(list(itertools.product((0.0, 1.0), repeat=9))[1:])
        d = np.diff(values, axis=1, prepend=0.0)
        costs = np.sum((d @ R.T) ** 2, axis=1) / (
            of_right(R).column_norm ** 2 * np.count_nonzero(d, axis=1)
        )
        assert (costs.max() <= 1) == holds


def test_it_is_a_factorization_like_others():
    given = Optimal(33)
    L, R = given.dense()
    engine = Dense(L, R, "mine")
    assert (engine.name, engine.horizon) == ("mine", 33)
    assert np.array_equal(engine.row_norms([1, 33]), given.row_norms([1, 33]))
    assert engine.difference_norm(3, 20) == given.difference_norm(3, 20)
    assert engine.difference_norms(np.array([0, 3]), np.array([20, 20])) == pytest.approx(
        [given.difference_norm(0, 20), given.difference_norm(3, 20)]
    )
    z = np.random.default_rng(1).standard_normal((33, 4))
    noise, state = engine.block(engine.initial(4), z[:20], 20)
    rest, state = engine.block(state, z[20:], 13)
    assert np.allclose(np.concatenate([noise, rest]), L @ z)
    with pytest.raises(HorizonReached):
        engine.block(state, z[:1], 1)
    with pytest.raises(ValueError, match="read-only"):
        engine.public_parameters()[0][0, 0] = 7.0


def test_noise_of_any_matrix():
    """A tree has more normals than ticks and an R that is not triangular: its noise has a
    triangular factorization."""
    tree = BinaryTree(21)
    L, _ = tree.dense()
    engine = Dense.of_noise(L)
    C, R = engine.dense()
    assert np.allclose(C @ C.T, L @ L.T)
    assert np.allclose(C @ R, np.tri(21))
    assert not np.triu(R, 1).any()
    assert as_dense(tree, 21).row_norms([21]) == pytest.approx(tree.row_norms([21]))


BAD = {
    "L·R ≠ M": (lambda: Dense(np.eye(3), np.eye(3)),
                "L·R is 0 at row 2, column 1, where the counting matrix has 1"),
    "R not triangular": (lambda: Dense(np.eye(2), [[1, 1], [0, 1]]),
                         "R is not lower triangular .* react to releases"),
    "L not triangular": (lambda: Dense([[1, 1], [0, 1]], np.eye(2)), "L is not lower triangular"),
    "L not triangular, R computed": (lambda: Dense([[1, 1], [0, 1]]), "normals of later ticks"),
    "NaN": (lambda: Dense(np.tri(2), [[1, 0], [np.nan, 1]]), "R has nan at row 2, column 1"),
    "infinite": (lambda: Dense([[np.inf, 0], [1, 1]], np.eye(2)), "L has inf at row 1"),
    "complex": (lambda: Dense(np.tri(2) * 1j, np.eye(2)), "real numbers"),
    "text": (lambda: Dense("abc", np.eye(2)), "real numbers"),
    "not square": (lambda: Dense(np.ones((2, 3)), np.ones((3, 2))), "must be square"),
    "other shapes": (lambda: Dense(np.tri(2), np.eye(3)), "a row for each tick"),
    "empty": (lambda: Dense(np.zeros((0, 0)), np.zeros((0, 0))), "a row for each tick"),
    "singular": (lambda: Dense(np.zeros((2, 2))), "L·R is"),
    "scale": (lambda: Dense(np.tri(2) * 1e12, np.eye(2) / 1e12), "scale it to about 1"),
    "nearly singular": (lambda: of_right(np.eye(60) - 3 * np.eye(60, k=-1)), "L·R is|singular"),
    "rows not independent": (lambda: Dense.of_noise(np.ones((2, 2))), "not independent"),
    "name": (lambda: Dense(np.tri(2), np.eye(2), ""), "1 to 80 characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_refused_with_the_reason(case):
    build, reason = BAD[case]
    with pytest.raises(ParameterError, match=reason):
        build()


def test_too_many_ticks_are_refused():
    with pytest.raises(TooLarge, match="at most 2048 ticks"):
        Dense(np.eye(2049), np.eye(2049))


@pytest.mark.parametrize(
    "name", ["balanced", "periods-7", "pure-tree", "bridge", "best", "blend", "", 3]
)
def test_taken_names_are_refused(name):
    with pytest.raises(ParameterError, match="name"):
        register_factorization(name, lambda horizon: Dense(np.tri(horizon), np.eye(horizon)))
    assert tuple(FACTORIZATIONS) == BUILT_IN


def test_builders_that_fail_say_so():
    def fails(horizon):
        raise ZeroDivisionError("no")

    try:
        register_factorization("fails", fails)
        with pytest.raises(ParameterError, match="could not be built for 8 ticks"):
            factorization("fails", 8)
        register_factorization("fails", lambda horizon: Dense(np.tri(5), np.eye(5)))
        with pytest.raises(ParameterError, match="5 ticks and the stream 8"):
            factorization("fails", 8)
        register_factorization("fails", lambda horizon: np.eye(horizon))
        with pytest.raises(ParameterError, match="instance of Factorization"):
            factorization("fails", 8)
        with pytest.raises(ParameterError, match="known horizon"):
            factorization("fails", None)
    finally:
        del FACTORIZATIONS["fails"]
    with pytest.raises(ParameterError, match="function of the horizon"):
        register_factorization("fails", 3)  # type: ignore[arg-type]
