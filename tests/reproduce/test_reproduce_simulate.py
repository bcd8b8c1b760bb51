"""The simulator against the exact answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evercount.errors import UnknownName
from evercount.factorizations import factorization
from evercount.reproduce.counting_items import HALF_NORMAL
from evercount.reproduce.item import Progress
from evercount.reproduce.simulator import (
    BATCH,
    Simulation,
    batch_seed,
    measure,
    one_batch,
    simulate,
    with_standard_error,
)

NAMES = ("binary-tree", "square-root", "balanced", "honaker")
SIGMAS = 4.5
"""A correct simulation leaves this range once in 1.5·10^5 comparisons. Seeds are fixed, so a
failure is a change."""


@pytest.fixture(scope="module")
def simulations() -> dict[str, Simulation]:
    return simulate(NAMES, 512, 2000, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_mean_error_agrees_with_the_exact_std(
    simulations: dict[str, Simulation], name: str
) -> None:
    mean, error = simulations[name].mean_normalised
    assert abs(mean - HALF_NORMAL) < SIGMAS * error
    per_tick = (simulations[name].mean_absolute / simulations[name].std - HALF_NORMAL) / np.sqrt(
        (1 - 2 / np.pi) / 2000
    )
    assert np.abs(per_tick).max() < 5.5  # 512 correlated comparisons


def test_running_maximum_grows_and_ends_at_the_worst_error(
    simulations: dict[str, Simulation],
) -> None:
    for one in simulations.values():
        assert np.all(np.diff(one.running_maximum) >= 0)
        assert one.running_maximum[-1] == pytest.approx(one.worst_error[0])


def test_a_wrong_std_is_caught() -> None:
    """Negative control: the same comparison fails for noise that is 2 % too large."""
    engine = factorization("square-root", 512)
    std = engine.row_norms(np.arange(1, 513))
    noise = np.concatenate([one_batch(engine, 500, seed) for seed in range(40)], axis=1)
    for factor, good in ((1.0, True), (1.02, False)):
        mean, error = with_standard_error(measure(noise * factor, std)[2][0])
        assert (abs(mean - HALF_NORMAL) < SIGMAS * error) == good


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    one, two, other = (
        simulate(["square-root"], 64, 100, seed=seed)["square-root"] for seed in (1, 1, 2)
    )
    assert np.array_equal(one.mean_absolute, two.mean_absolute)
    assert not np.array_equal(one.mean_absolute, other.mean_absolute)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName):
        simulate(["binary"], 64, 10)


def interrupt_after(batches: int, calls: list[int]) -> Progress:
    """Progress that notes what was done and interrupts the run before it starts another batch."""

    def progress(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) > batches:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_goes_on_and_gives_the_same_numbers(tmp_path: Path) -> None:
    names, repetitions = ["square-root", "binary-tree"], 3 * BATCH + 5
    whole = simulate(names, 64, repetitions, seed=1)
    with pytest.raises(KeyboardInterrupt):
        simulate(names, 64, repetitions, 1, interrupt_after(2, []), folder=tmp_path)
    calls: list[int] = []
    resumed = simulate(
        names, 64, repetitions, 1, lambda done, total: calls.append(done), folder=tmp_path
    )
    assert calls[0] == 2 * BATCH
    for name in names:
        assert np.array_equal(whole[name].mean_absolute, resumed[name].mean_absolute)
        assert np.array_equal(whole[name].running_maximum, resumed[name].running_maximum)
        assert whole[name].worst_error == resumed[name].worst_error


def test_a_run_with_other_parameters_or_a_broken_file_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(["square-root"], 64, 3 * BATCH, 1, interrupt_after(2, []), folder=tmp_path)
    (file,) = tmp_path.glob("*.partial.npz")
    content = file.read_bytes()
    for seed, stored in ((2, content), (1, content[: len(content) // 2]), (1, b"")):
        file.write_bytes(stored)
        done: list[int] = []
        progress = interrupt_after(99, done)
        simulate(["square-root"], 64, 3 * BATCH, seed, progress, folder=tmp_path)
        assert done == [0, BATCH, 2 * BATCH, 3 * BATCH]


def test_standard_errors_from_sums_are_those_of_the_values() -> None:
    engine = factorization("square-root", 64)
    std = engine.row_norms(np.arange(1, 65)) * engine.column_norm
    each = measure(
        one_batch(engine, BATCH, batch_seed(5, "square-root", 0)) * engine.column_norm, std
    )[2]
    one = simulate(["square-root"], 64, BATCH, seed=5)["square-root"]
    assert one.mean_normalised == pytest.approx(with_standard_error(each[0]), rel=1e-9)
    assert one.worst_error == pytest.approx(with_standard_error(each[1]), rel=1e-9)
