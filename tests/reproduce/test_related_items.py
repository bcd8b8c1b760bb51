"""What the page on newer work is computed from."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.factorizations import factorization
from evercount.reproduce.related_items import (
    banded_inverse_root,
    banded_roots,
    comings_and_goings,
    running_means,
)

SMALL = {"horizon": 48, "days": 40, "bands": [4, 16], "max_ticks": 5, "events": [2, 8]}


def test_all_bands_are_the_square_root_and_fewer_have_more_error() -> None:
    """`Dense` itself refuses matrices whose product is not M."""
    whole = banded_inverse_root(48, 48)
    exact = factorization("square-root", 48)
    np.testing.assert_allclose(
        whole.row_norms(np.arange(1, 49)), exact.row_norms(np.arange(1, 49)), rtol=2e-4
    )
    assert whole.column_norm == pytest.approx(exact.column_norm, rel=2e-4)
    left, right = banded_inverse_root(48, 4).dense()
    inverse = np.linalg.inv(right)
    assert np.allclose(np.tril(inverse, -4), 0)
    assert inverse[3, 0] == pytest.approx(-1 / 16)  # of √(1−z)
    assert np.linalg.norm(left, axis=1).max() * np.linalg.norm(
        right, axis=0
    ).max() > 1.05 * exact.worst_row()[1] * (exact.column_norm)


def test_the_defaults_have_less_error_than_bands() -> None:
    *bands, defaults = banded_roots(SMALL)
    for column in ("an event", "a person with 5 of 40 days"):
        assert all(row[column] > 1.05 * defaults[column] for row in bands)


def test_no_factorization_of_ours_is_below_the_bound_for_means() -> None:
    for row in running_means(SMALL):
        assert 1.0 < row["ratio"] < 2.5


def test_changes_that_take_turns_cost_the_root_of_their_number() -> None:
    for row in comings_and_goings(SMALL):
        assert row["by the l1 change"] / row["ours"] == pytest.approx(
            np.sqrt(row["events of a person"]), rel=1e-3
        )
