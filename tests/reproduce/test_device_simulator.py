"""The simulator in blocks: its matrices without PyTorch, and where PyTorch is installed its numbers
on a CPU."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.errors import MissingExtra, ParameterError
from evercount.factorizations import factorization
from evercount.noise.secret import insecure_generator
from evercount.reproduce.counting_items import HALF_NORMAL
from evercount.reproduce.device_simulator import BLOCK, DeviceBatches, check_device
from evercount.reproduce.simulator import block_matrices, simulate, stds

NAMES = ("binary-tree", "square-root", "balanced", "honaker", "unbounded")
SIGMAS = 4.5
TICKS = 300  # not a multiple of BLOCK
NO_TORCH = (
    "torch is not installed (pip install 'evercount[torch]'): PyTorch's numbers are not tested here"
)


@pytest.fixture
def torch() -> None:
    if importlib.util.find_spec("torch") is None:
        print(NO_TORCH)
        pytest.skip(NO_TORCH)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_matrices_give_the_noise_of_the_factorization(name: str) -> None:
    engine = factorization(name, TICKS)
    z = insecure_generator(1).standard_normal((engine.draws(0, TICKS), 7))
    expected = engine.block(engine.initial(7), z, TICKS)[0] * engine.column_norm
    state = np.zeros((sum(array.size for array in engine.initial(1).arrays), 7))
    rows, drawn = [], 0
    for start, matrix in block_matrices(engine, BLOCK):
        draws = matrix.shape[1] - len(state)
        assert draws == engine.draws(start, min(start + BLOCK, TICKS))
        state, noise = np.split(
            matrix @ np.concatenate([state, z[drawn : drawn + draws]]), [len(state)]
        )
        rows.append(noise)
        drawn += draws
    np.testing.assert_allclose(np.concatenate(rows), expected, rtol=1e-9, atol=1e-9)


def test_without_pytorch_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"evercount\[torch\]"):
        simulate(["square-root"], 64, 10, device="cpu")
    with pytest.raises(MissingExtra, match=r"evercount\[torch\]"):
        check_device("cpu")


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", NAMES)
def test_pytorch_agrees_with_the_exact_std(name: str) -> None:
    one = simulate([name], TICKS, 3000, seed=3, device="cpu")[name]
    mean, error = one.mean_normalised
    assert abs(mean - HALF_NORMAL) < SIGMAS * error
    per_tick = (one.mean_absolute / one.std - HALF_NORMAL) / np.sqrt((1 - 2 / np.pi) / 3000)
    assert np.abs(per_tick).max() < 5.5  # 300 correlated comparisons
    assert np.all(np.diff(one.running_maximum) >= 0)
    assert one.running_maximum[-1] == pytest.approx(one.worst_error[0])
    other = simulate([name], TICKS, 3000, seed=4)[name]
    apart = one.worst_error[0] - other.worst_error[0]
    assert abs(apart) < SIGMAS * math.hypot(one.worst_error[1], other.worst_error[1])
    # the first block has every running maximum, later ones those at their ends
    np.testing.assert_allclose(one.running_maximum, other.running_maximum, rtol=0.12)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", NAMES)
def test_shares_of_errors_are_those_of_normals(name: str) -> None:
    engine = factorization(name, TICKS)
    std = stds(engine)
    runner = DeviceBatches(engine, std, "cpu")
    noise = np.concatenate([block.numpy().copy() for _, block in runner.noise(4000, 1)])
    for edge in (0.25, 0.6745, 1.0, 1.96, 2.5758):
        expected = math.erf(edge / math.sqrt(2))
        shares = (np.abs(noise) <= edge * std[:, np.newaxis]).mean(axis=1)
        assert np.abs(shares - expected).max() < 5.5 * math.sqrt(expected * (1 - expected) / 4000)
    wrong = (np.abs(noise) <= 1.1 * std[:, np.newaxis]).mean(axis=1)  # the comparison sees 10 %
    assert np.abs(wrong - math.erf(1 / math.sqrt(2))).max() > 5.5 * math.sqrt(0.2166 / 4000)


@pytest.mark.usefixtures("torch")
def test_numbers_do_not_depend_on_the_cores() -> None:
    engine = factorization("square-root", TICKS)
    runner = DeviceBatches(engine, stds(engine), "cpu", part=100)
    found = []
    for workers in (1, 3):
        runner.workers = workers
        found.append(runner(450, 7).moments)
    assert np.array_equal(*found)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("device", ["cuda:77", "nonsense", "meta"])
def test_a_missing_device_is_one_sentence(device: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="there is no device") as caught:
        check_device(device)
    assert "\n" not in str(caught.value)
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["reproduce", "figure-1", "--quick", "--device", device, "--out", str(out)]
    )
    assert done.exit_code != 0
    assert not out.exists()


SHORT = """
import resource, sys
import numpy as np, torch
from evercount.factorizations import factorization
from evercount.reproduce.device_simulator import DeviceBatches
from evercount.reproduce.simulator import stds

engine = factorization("square-root", 128)
runner = DeviceBatches(engine, stds(engine), "cpu", part=2**20)
runner(8, 1)
runner.workers = 1
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
totals = runner(10**6, 1)
assert 10**3 < totals.repetitions <= runner.part < 10**6, totals.repetitions
print(totals.repetitions, totals.simulation(stds(engine)).mean_normalised[0])
"""


@pytest.mark.usefixtures("torch")
@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_batches_shrink_where_memory_is_short() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[1]) == pytest.approx(HALF_NORMAL, abs=0.01)
