"""The simulator against the exact answers, its two backends against each other, and its checkpoints."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evercount.errors import MissingExtra, ParameterError, UnknownName
from evercount.factorizations import factorization
from evercount.reproduce import gpu_bench, simulate_torch
from evercount.reproduce.counting_items import HALF_NORMAL
from evercount.reproduce.simulate import EDGES, Simulation, measure, one_batch, simulate

NAMES = ("binary-tree", "square-root", "balanced", "honaker")
SIGMAS = 4.5
"""A correct simulation leaves this range once in 1.5·10^5 comparisons. Seeds are fixed, so a failure is a change."""


@pytest.fixture(scope="module")
def simulations() -> dict[str, Simulation]:
    return simulate(NAMES, 512, 2000, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_mean_error_agrees_with_the_exact_std(simulations: dict[str, Simulation], name: str) -> None:
    mean, error = simulations[name].mean_normalised
    assert abs(mean - HALF_NORMAL) < SIGMAS * error
    per_tick = (simulations[name].mean_absolute / simulations[name].std - HALF_NORMAL) / np.sqrt((1 - 2 / np.pi) / 2000)
    assert np.abs(per_tick).max() < 5.5  # 512 correlated comparisons


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("level", "score"), [(0.5, 0.6744897), (0.95, 1.9599640), (0.99, 2.5758293)])
def test_quantiles_agree_with_the_normal(
    simulations: dict[str, Simulation], name: str, level: float, score: float
) -> None:
    quantile = simulations[name].quantile(level) / simulations[name].std
    density = 2 * np.exp(-(score**2) / 2) / np.sqrt(2 * np.pi)
    error = np.sqrt(level * (1 - level) / 2000) / density
    assert np.abs(quantile - score).max() < 6 * error


def test_running_maximum_grows_and_ends_at_the_worst_error(simulations: dict[str, Simulation]) -> None:
    for one in simulations.values():
        assert np.all(np.diff(one.running_maximum) >= 0)
        assert one.running_maximum[-1] == pytest.approx(one.worst_error[0])
        assert np.all(one.totals.largest >= one.mean_absolute)


def test_a_wrong_std_is_caught() -> None:
    """Negative control: the same comparison fails for noise that is 2 % too large."""
    engine = factorization("square-root", 512)
    std = engine.row_norms(np.arange(1, 513))
    noise = np.concatenate([one_batch(engine, 500, seed) for seed in range(40)], axis=1)
    for factor, good in ((1.0, True), (1.02, False)):
        mean, error = Simulation("planted", std, measure(noise * factor, std)).mean_normalised
        assert (abs(mean - HALF_NORMAL) < SIGMAS * error) == good


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    one, two, other = (simulate(["square-root"], 64, 100, seed=seed)["square-root"] for seed in (1, 1, 2))
    assert np.array_equal(one.totals.absolute, two.totals.absolute)
    assert not np.array_equal(one.totals.absolute, other.totals.absolute)


def test_an_interrupted_simulation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    uninterrupted = simulate(["binary-tree"], 64, 640, seed=5)["binary-tree"]

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 320:
            raise Stop

    with pytest.raises(Stop):
        simulate(["binary-tree"], 64, 640, seed=5, checkpoint=tmp_path, progress=stop)
    seen: list[int] = []
    again = simulate(["binary-tree"], 64, 640, seed=5, checkpoint=tmp_path, progress=lambda done, _: seen.append(done))[
        "binary-tree"
    ]
    assert min(seen) > 64  # the first batches were not run again
    np.testing.assert_allclose(again.totals.absolute, uninterrupted.totals.absolute, rtol=1e-12)
    assert np.array_equal(again.totals.below, uninterrupted.totals.below)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(UnknownName):
        simulate(["binary"], 64, 10)
    with pytest.raises(UnknownName):
        simulate(["binary-tree"], 64, 10, backend="jax")
    with pytest.raises(ParameterError):
        simulate(["binary-tree"], 64, 1)


# -- torch ---------------------------------------------------------------------------------------------------------


def torch_or_skip() -> None:
    if importlib.util.find_spec("torch") is None:
        reason = "torch is not installed (pip install 'evercount[gpu]'): the torch backend is not tested here"
        print(reason)
        pytest.skip(reason)


def test_torch_without_torch_names_the_extra() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed")
    with pytest.raises(MissingExtra, match=r"evercount\[gpu\]"):
        simulate(["binary-tree"], 64, 10, backend="torch")


@pytest.mark.parametrize("name", ["binary-tree", "square-root", "balanced", "normalized"])
def test_torch_noise_is_the_same_function_of_the_normals(name: str) -> None:
    torch_or_skip()
    torch = simulate_torch.load_torch()
    ticks = 300 if name != "binary-tree" else 512
    engine = factorization(name, ticks)
    z = np.random.default_rng(1).standard_normal((7, ticks))
    plan = simulate_torch.Plan.of(simulate_torch.describe(engine, engine.row_norms(np.arange(1, ticks + 1)), EDGES))
    noise = simulate_torch.noise_of(torch, plan, torch.as_tensor(z.copy())).numpy()
    expected, _ = engine.block(engine.initial(7), np.ascontiguousarray(z.T), ticks)
    np.testing.assert_allclose(noise.T, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["binary-tree", "square-root", "balanced"])
def test_torch_statistics_agree_with_numpy(name: str) -> None:
    torch_or_skip()
    one = simulate([name], 256, 2000, seed=1)[name]
    two = simulate([name], 256, 2000, seed=1, backend="torch")[name]
    for which in range(3):
        (a, error_a), (b, error_b) = one.summary(which), two.summary(which)
        assert abs(a - b) < SIGMAS * np.hypot(error_a, error_b)
    share = two.totals.below / 2000
    spread = np.sqrt(np.maximum(share * (1 - share), 1e-3) / 1000)
    assert np.abs((one.totals.below - two.totals.below) / 2000 / spread).max() < 6


def test_gpu_benchmark_runs_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch_or_skip()
    path = tmp_path / "poles.json"
    assert gpu_bench.main(["--write-parameters", str(path), "--ticks", "256"]) == 0
    arguments = ["--parameters", str(path), "--ticks", "256", "--repetitions", "500", "--device", "cpu"]
    assert gpu_bench.main([*arguments, "--repeats", "1"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["agrees"]
    assert line["repetitions"] == 500


def _as_plain_file(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a new process where the package cannot be imported, as on a machine that has torch only."""
    folder = Path(gpu_bench.__file__).parent
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.modules['evercount'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gpu_benchmark_runs_as_a_plain_file_without_the_package(tmp_path: Path) -> None:
    torch_or_skip()
    path = tmp_path / "poles.json"
    gpu_bench.main(["--write-parameters", str(path), "--ticks", "128"])
    code = "import gpu_bench; raise SystemExit(gpu_bench.main(sys.argv[1:]))"
    sizes = ["--ticks", "128", "--repetitions", "300", "--repeats", "1"]
    line = json.loads(_as_plain_file(code, "--parameters", str(path), "--device", "cpu", *sizes))
    assert line["agrees"]


FUSED = """
import json, numpy as np, gpu_bench, kernel_triton, simulate_torch
described = json.load(open(sys.argv[1]))
plans = [simulate_torch.Plan.of(described[name]) for name in gpu_bench.MECHANISMS]
count = 50
found = kernel_triton.run(plans, count, 5, "cpu")
print(json.dumps({plan.name: gpu_bench.check(plan, found[plan.name], count) for plan in plans}))
"""


def test_fused_kernel_in_tritons_interpreter(tmp_path: Path) -> None:
    torch_or_skip()
    if importlib.util.find_spec("triton") is None:
        reason = "triton is not installed: the fused kernel is not tested here"
        print(reason)
        pytest.skip(reason)
    path = tmp_path / "poles.json"
    gpu_bench.main(["--write-parameters", str(path), "--ticks", "256"])
    for checks in json.loads(_as_plain_file(FUSED, str(path), TRITON_INTERPRET="1")).values():
        assert abs(checks["mean_z"]) < SIGMAS
        assert checks["tick_z"] < 5.5  # 256 comparisons
        assert 0.7 < checks["tick_z_rms"] < 1.3  # correlated ticks: far from 1 only when some ticks are wrong


def test_benchmark_parameters_give_the_exact_std(tmp_path: Path) -> None:
    path = tmp_path / "poles.json"
    gpu_bench.main(["--write-parameters", str(path), "--ticks", "4096"])
    described = json.loads(path.read_text())
    for name in gpu_bench.MECHANISMS:
        plan = simulate_torch.Plan.of(described[name])
        np.testing.assert_allclose(plan.std, factorization(name, 4096).row_norms(np.arange(1, 4097)), rtol=1e-9)


def test_benchmark_check_catches_a_wrong_scale() -> None:
    """Negative control of the check that decides `agrees`."""
    engine = factorization("square-root", 256)
    std = engine.row_norms(np.arange(1, 257))
    plan = simulate_torch.Plan.of(simulate_torch.describe(engine, std, EDGES))
    noise = one_batch(engine, 4000, 1)
    for factor, good in ((1.0, True), (1.05, False)):
        totals = measure(noise * factor, std)
        sums = {key: getattr(totals, key) for key in ("absolute", "largest", "running", "below", "each")}
        assert (abs(gpu_bench.check(plan, sums, 4000)["mean_z"]) < SIGMAS) == good
