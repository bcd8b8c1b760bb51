"""The quick reproduction, all items: exact numbers asserted tightly, simulated ones by their
standard error.

All of them together take minutes: `make soak` runs those whose exact numbers are tested elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import bounds
from evercount.factorizations import factorization
from evercount.privacy import Budget
from evercount.privacy.gaussian import multiplier
from evercount.reproduce.baseline_items import simulated_sparse
from evercount.reproduce.counting_items import simulated_errors
from evercount.reproduce.proof_items import OURS, REDUCTIONS, fresh_noise, true_answers
from evercount.reproduce.runner import ITEMS, run_items
from evercount.reproduce.simulator import stds

pytestmark = pytest.mark.slow

SIGMAS = 4.5
"""Seeds are fixed; a correct simulation leaves this range once in 1.5·10^5 comparisons."""

Record = dict[str, Any]


class Records(dict[str, Record]):
    """The record of each item, which runs when it is asked for first."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self.out = out

    def __missing__(self, item: str) -> Record:
        (self[item],) = run_items([item], self.out, quick=True)
        return self[item]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return Records(tmp_path_factory.mktemp("reproduction"))


def rows(records: Records, item: str, table: str, key: str = "") -> Any:
    found = records[item]["tables"][table]
    return {row[key]: row for row in found} if key else found


@pytest.mark.soak
def test_every_item_ran_and_says_what_it_found(records: Records) -> None:
    for record in map(records.__getitem__, ITEMS):
        assert record["verdict"]
        if record["item"] not in (
            "local-learning",
            "reductions",
            "yardstick",
            "related-work",
        ):  # tables without a figure
            assert record["paper"]
            assert any(name.endswith(".png") for name in record["figures"])


@pytest.mark.soak
def test_figure_1_is_exact_and_simulation_agrees(records: Records) -> None:
    summary = rows(records, "figure-1", "summary", "mechanism")
    C = multiplier("paper", 0.8, 1e-10)
    assert summary["binary-tree"]["worst std, exact"] == pytest.approx(
        C * float(bounds.binary_norm(2**16)), rel=1e-6
    )
    assert summary["square-root"]["worst std, exact"] == pytest.approx(
        C * float(bounds.landau(2**16)), rel=1e-5
    )
    assert (
        summary["balanced"]["worst std, exact"] < 0.94 * summary["square-root"]["worst std, exact"]
    )
    for row in summary.values():
        assert abs(row["agreement in standard errors"]) < SIGMAS
    apart = (
        summary["binary-tree"]["l-infinity error, mean"]
        - summary["square-root"]["l-infinity error, mean"]
    )
    assert apart > 10 * summary["binary-tree"]["l-infinity error, standard error"]
    jump = "jumps: largest std change between ticks"
    assert summary["binary-tree"][jump] > 100 > 20 > summary["square-root"][jump]
    for row in rows(records, "figure-1", "curve"):
        error = row["square-root: std"] * math.sqrt((1 - 2 / math.pi) / 64)
        exact = row["square-root: std"] * math.sqrt(2 / math.pi)
        assert abs(row["square-root: mean |error|"] - exact) < 5.5 * error  # about 400 comparisons


@pytest.mark.soak
def test_figure_2_psi_is_no_upper_bound_and_the_true_gap_is_above_a_half(records: Records) -> None:
    for row in rows(records, "figure-2", "gaps"):
        assert row["paper's Ψ (no upper bound) − Mathias"] < 0.5
        assert (
            row["paper's Ψ (no upper bound)"] < row["square root, true norm"] <= row["Ψ′ (proved)"]
        )
        assert 0.5 < row["square root, true norm − Mathias"] < 0.586
        assert (
            row["nuclear-norm lower bound"]
            < row["balanced"]
            < row["normalized"]
            < row["square root, true norm"]
        )
        assert row["nuclear-norm lower bound"] > row["Mathias' lower bound"]


@pytest.mark.soak
def test_figure_3_signal_to_noise(records: Records) -> None:
    table = rows(records, "figure-3", "snr")
    runs = records["figure-3"]["parameters"]["repetitions"]
    first = {row["mechanism"]: row["expected, paper's C"] for row in table if row["p"] == "2^-4"}
    assert first["binary-tree"] == pytest.approx(9.03, rel=2e-3)
    assert first["square-root"] == pytest.approx(23.5, rel=2e-3)
    for row in table:
        apart = row["this stream, paper's C"] - row["expected, paper's C"]
        assert abs(apart) < SIGMAS * row["stream's standard error"]
        apart = row["this stream, simulated"] - row["this stream, paper's C"]
        # of one over a root mean square of so many runs: 3/4 of that
        bias = row["this stream, paper's C"] / runs
        assert abs(apart) < SIGMAS * row["simulation's standard error"] + bias
        # averages of outputs have as many times the SNR as the root of the number of runs, up to
        # chance
        times = row["average of all runs, simulated"] / row["this stream, paper's C"] / runs**0.5
        assert 0.4 < times < 2.5
    crossing = rows(records, "figure-3", "crossings", "mechanism")
    assert (
        2.5
        < crossing["square-root"]["ours, paper's C"] / crossing["binary-tree"]["ours, paper's C"]
        < 2.7
    )
    assert crossing["balanced"]["ours, tight"] > 1.6 * crossing["balanced"]["ours, paper's C"]


def test_simulated_errors_have_the_exact_size_and_their_average_less() -> None:
    horizon, runs = 256, 640
    truths = np.stack([np.arange(1.0, horizon + 1), np.ones(horizon)])
    errors = simulated_errors("square-root", horizon, runs, truths, 1)
    std = stds(factorization("square-root", horizon))
    assert np.abs(errors.size / std - 1).max() < 5.5 / math.sqrt(2 * runs)
    apart = (truths / errors.size - truths / std).mean(axis=1)
    assert np.all(np.abs(apart) < SIGMAS * errors.snr_errors + (truths / std).mean(axis=1) / runs)
    assert 0.4 < errors.average_size * math.sqrt(runs) < 2.5
    assert errors.shown.shape == (horizon, runs)


@pytest.mark.slow
def test_figure_4_top_one(records: Records) -> None:
    table = rows(records, "figure-4", "snr", "mechanism")
    assert (
        2.2 < table["square-root"]["SNR, paper's C"] / table["binary-tree"]["SNR, paper's C"] < 2.7
    )
    assert table["balanced"]["SNR, paper's C"] > table["square-root"]["SNR, paper's C"]
    # the maximum is biased upwards
    assert table["square-root"]["published maximum: mean error, last quarter"] > 0
    published = "SNR of the published maximum, simulated"
    assert table["binary-tree"][published] < 0.8 * table["binary-tree"]["SNR, paper's C"]
    assert 2.5 < table["square-root"][published] / table["binary-tree"][published] < 4


@pytest.mark.slow
def test_binary_suboptimality(records: Records) -> None:
    table = rows(records, "binary-suboptimality", "norms", "T")
    ratios = [row["ratio"] for row in table.values()]
    assert ratios == sorted(ratios)
    assert ratios[-1] < math.pi * math.log2(math.e)
    assert table["2^16"]["ratio"] == pytest.approx(3.588, abs=1e-3)
    for row in rows(records, "binary-suboptimality", "error at t = 2^i − 1"):
        assert abs(row["ratio, simulated"] - row["ratio, exact"]) < SIGMAS * row["standard error"]


@pytest.mark.slow
def test_honaker_is_better_than_binary_in_both_norms(records: Records) -> None:
    table = rows(records, "honaker", "errors")
    for size in {row["T"] for row in table}:
        here = {row["mechanism"]: row for row in table if row["T"] == size}
        for column in ("worst std", "root mean square"):
            order = [
                here[name][column]
                for name in ("square-root", "honaker-full", "honaker", "binary-tree")
            ]
            assert order == sorted(order)
    drawn = rows(records, "honaker", "simulated", "mechanism")
    apart = (
        drawn["binary-tree"]["mean l-infinity error"] - drawn["honaker"]["mean l-infinity error"]
    )
    assert apart > SIGMAS * math.hypot(
        drawn["binary-tree"]["standard error"], drawn["honaker"]["standard error"]
    )


@pytest.mark.slow
def test_table_1_corrected_bounds_hold(records: Records) -> None:
    table = rows(records, "table-1", "rows", "row")
    assert table["substrings"]["S, paper"] == 9 < table["substrings"]["S, true"] == 20
    assert table["histogram"]["S, paper"] == 1 < table["histogram"]["S, true"] == 2
    assert table["graph function"]["S, paper"] == 6 < table["graph function"]["S, true"] == 8
    for row in [*table.values(), *rows(records, "table-1", "other rows")]:
        # the bound is for probability 2/3 at least; fewer by 4.5 standard errors would refute it
        assert row["share within corrected bound"] > 2 / 3 - SIGMAS * math.sqrt(2 / 9 / row["runs"])
    # what the paper prints for histograms, and for running averages at all ticks, is no bound at
    # probability 2/3
    for name in ("histogram", "running average"):
        short = table[name]["paper's noise: share within paper's bound"]
        assert short < 2 / 3 - SIGMAS * math.sqrt(2 / 9 / table[name]["runs"])


@pytest.mark.slow
def test_attacks_break_the_paper_and_not_us(records: Records) -> None:
    for row in rows(records, "privacy-failures", "attacks"):
        apart = row["delta reached"] - row["delta, exact for this pair"]
        assert abs(apart) < SIGMAS * row["standard error"]
        if row["what"] == OURS:
            assert row["delta, exact for this pair"] <= row["delta promised"]
            assert not row["broken"]
        else:
            assert row["delta, exact for this pair"] > 1.2 * row["delta promised"]
            assert row["broken"]


def test_fresh_noise_attack_has_the_overspend_of_the_bounds() -> None:
    budget = Budget(0.5, 0.01)
    attack = fresh_noise(1024, budget)[0]
    from evercount.bounds.counting_error import fresh_noise_overspend

    assert attack.mu == pytest.approx(budget.mu * fresh_noise_overspend(1024), rel=1e-9)


@pytest.mark.slow
def test_constants(records: Records) -> None:
    table = rows(records, "constants", "constants", "T")
    expected = {
        "2^8": (1.0660, 0.8799, 0.7839),
        "2^10": (1.0662, 0.8744, 0.7708),
        "2^12": (1.0663, 0.8704, 0.7624),
    }
    for size, numbers in expected.items():
        found = [table[size][name] for name in ("square-root", "normalized", "balanced")]
        np.testing.assert_allclose(found, numbers, atol=2e-4)
    for row in table.values():
        assert (
            row["lower bound (Mathias)"]
            < row["lower bound (nuclear)"]
            < row["balanced"]
            < row["normalized"]
        )
        if row["optimal"] is not None:
            assert row["lower bound (nuclear)"] < row["optimal"] < row["balanced"]
    ratios = [row["ratio"] for row in rows(records, "constants", "unbounded")]
    np.testing.assert_allclose(ratios, [1.142, 1.135, 1.131, 1.128, 1.126, 1.124], atol=1.5e-3)


def test_a_partition_has_more_error_at_a_tick_than_a_bridge_and_keeps_its_bound() -> None:
    row = simulated_sparse(1.0, 2**12, 100, 3, seed=0)
    assert (
        row["partition: root mean square error of a tick"]
        > 1.1 * row["bridge: root mean square error of a tick"]
    )
    assert row["partition: largest error of all runs"] <= row["partition: bound for all ticks"]


@pytest.mark.soak
def test_the_index_names_every_item_and_its_pictures(records: Records, tmp_path: Path) -> None:
    from evercount.reproduce.runner import index_page

    every = [records[item] for item in ITEMS]
    text = index_page(every)
    for record in every:
        assert f"## {record['item']}" in text
        assert record["verdict"] in text
        for name in record["figures"]:
            assert (f"{record['item']}/{name}" in text) == name.endswith(".png")


@pytest.mark.slow
def test_reductions_give_counts_and_keep_neighbours(records: Records) -> None:
    found = rows(records, "reductions", "reductions")
    assert {row["harder problem"] for row in found} == {"counting", "substrings", "smallest cut"}
    for row in found:
        assert (
            row["answers that are the running counts"]
            == row["neighbours that stay neighbours"]
            == row["inputs"]
        )
        assert (
            row["our worst std for the harder problem"] >= row["lower bound for the easier problem"]
        )


def test_a_wrong_reduction_is_caught() -> None:
    """Planted: edges inside the clique, which is complete already, do not count."""
    right = next(reduction for reduction in REDUCTIONS if reduction.harder == "smallest cut")
    bits = np.ones(6, np.int64)
    wrong = replace(right, stream=lambda ones: [[(0, t + 1, 1)] for t in range(len(ones))])
    assert true_answers(right, bits).tolist() == [1, 2, 3, 4, 5, 6]
    assert true_answers(wrong, bits).tolist() == [0] * 6
