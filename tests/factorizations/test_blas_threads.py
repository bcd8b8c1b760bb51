"""The number of BLAS threads is that of the whole process: threads that want different ones do not
disturb others."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize  # its library is loaded before threads are counted
from threadpoolctl import threadpool_info, threadpool_limits

from evercount.factorizations import optimal
from evercount.factorizations.blas_threads import blas_threads
from evercount.factorizations.fit_blend import fit_blend


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """A number that nobody asks for here, so that a forgotten one is seen."""
    with threadpool_limits(3, user_api="blas"):
        assert threads() == {3}
        yield


def threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_what_was_set_before_is_set_again_whoever_leaves_first() -> None:
    before = threads()
    first, second = blas_threads(1), blas_threads(1)
    first.__enter__()
    second.__enter__()
    assert threads() == {1}
    first.__exit__(None, None, None)
    assert threads() == {1}, "the second is still inside"
    second.__exit__(None, None, None)
    assert threads() == before
    with pytest.raises(ValueError, match="inside"), blas_threads(1):
        raise ValueError("inside")
    assert threads() == before


def test_the_solver_of_optimal_has_its_threads_while_others_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last digits depend on their number, and snapshots on these digits."""
    inside, leave, seen = threading.Event(), threading.Event(), []

    def draw() -> None:
        with blas_threads(1):
            inside.set()
            leave.wait()

    maximiser = optimal.dual_maximiser

    def solve(ticks: int) -> object:
        seen.append(threads())
        leave.set()
        drawing.join()  # it leaves while the solver works
        seen.append(threads())
        return maximiser(ticks)

    monkeypatch.setattr(optimal, "dual_maximiser", solve)
    before = threads()
    drawing = threading.Thread(target=draw)
    drawing.start()
    inside.wait()
    solution = optimal._solve
    solution.cache_clear()
    left = solution(40)[0]
    assert seen == [{optimal.BLAS_THREADS}] * 2
    assert threads() == before
    monkeypatch.undo()
    solution.cache_clear()
    assert np.array_equal(left, solution(40)[0])


LATER = """
import numpy
from evercount.factorizations.blas_threads import blas_threads
from threadpoolctl import threadpool_info, threadpool_limits

with blas_threads(2):
    before = len(threadpool_info())
import scipy.linalg

with threadpool_limits(3, user_api="blas"), blas_threads(1):
    found = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
print(len(found) - before, set(found))
"""


def test_a_library_that_was_loaded_after_the_first_use_is_seen() -> None:
    """SciPy has a BLAS of its own, and is imported when it is needed."""
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=True)
    more, numbers = done.stdout.split(maxsplit=1)
    assert int(more) >= 0
    assert numbers == "{1}\n"


@pytest.mark.parametrize(
    ("views", "ticks", "q"), [((1, "running"), 50, 1), ((1, "running"), 70, 7)]
)
def test_a_fit_has_one_thread(
    monkeypatch: pytest.MonkeyPatch, views: tuple[int | str, ...], ticks: int, q: int
) -> None:
    """Its matrices are small: with two threads it takes many times as long."""
    seen, minimize = [], scipy.optimize.minimize

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(threads())
        return minimize(*arguments, **options)

    monkeypatch.setattr(scipy.optimize, "minimize", watched)
    fit_blend(views, ticks, q)
    assert seen
    assert all(one == {1} for one in seen)
    assert threads() == {3}
