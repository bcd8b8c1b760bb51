"""Other programs, in one run, on the same work: noise for running counts of T ticks × cells at one
(ε, δ).

Error is exact (from norms), not sampled. Time is the processor time of a whole run, of all its
threads, divided by ticks × cells, the best of a few repetitions, over the time that numpy takes to
draw as many float normals in the same process. Memory is what a stream must keep between two ticks,
for each cell. Run it by `make peers`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evercount import Budget, Count, Histogram, Stream
from evercount.factorizations import factorization
from peers_page import FEW_TICKS, SIZES, Row, charts, page

BUDGET = Budget(1.0, 1e-6)
ENOUGH = 0.3
"""Seconds after which a measurement is not repeated."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """One mechanism. `prepare(ticks, cells)` returns the run to be timed and the numbers of ticks
    that it makes."""

    name: str
    kind: str
    streaming: str
    endless: str
    exact: str
    prepare: Callable[[int, int], tuple[Run, int]] | None
    worst_std: Callable[[int], float] | None
    state: Callable[[int], float] | None
    """Bytes per cell between two ticks."""


# -- evercount -------------------------------------------------------------------------------------


def _stream(name: str | None, endless: bool = False, budget: Budget = BUDGET) -> Any:
    def prepare(ticks: int, cells: int) -> tuple[Run, int]:
        zeros = np.zeros((ticks, cells), np.int64)

        def run() -> Any:
            query = Count() if cells == 1 else Histogram(cells)
            stream = Stream(query, budget, None if endless else ticks, name)
            return stream.run(zeros[:, 0]) if cells == 1 else stream.run_totals(zeros)

        return run, ticks

    def worst(ticks: int) -> float:
        stream = Stream(Count(), budget, None if endless else ticks, name)
        places = np.unique(
            np.concatenate(
                [np.arange(1, min(ticks, 2000) + 1), np.linspace(1, ticks, 2000).astype(int)]
            )
        )
        return float(stream.std(places).max())

    def state(ticks: int) -> float:
        cells = 1000
        stream = Stream(Histogram(cells), budget, None if endless else ticks, name)
        stream.run_totals([np.zeros(cells, np.int64)])[0]
        # exact noise keeps limbs, several for each number
        exact = vars(stream._parameters.noise.stream).get("_state")
        return float(stream.factorization.state_bytes if exact is None else exact.nbytes / cells)

    return prepare, worst, state


def evercount_peers() -> Iterator[Peer]:
    """Ours."""
    yield Peer("evercount balanced", "Gaussian", "yes", "no", "yes", *_stream("balanced"))
    yield Peer("evercount unbounded", "Gaussian", "yes", "yes", "yes", *_stream("unbounded", True))
    pure = Budget(1.0, 0.0)
    yield Peer(
        "evercount bridge (δ = 0)", "Laplace", "yes", "no", "yes", *_stream(None, False, pure)
    )


# -- numpy -----------------------------------------------------------------------------------------


def numpy_peers() -> Iterator[Peer]:
    """The floor: drawing alone, and a plain binary tree."""
    generator = np.random.default_rng(1)

    def draw(ticks: int, cells: int) -> tuple[Run, int]:
        return lambda: generator.standard_normal((ticks, cells)), ticks

    def tree(ticks: int, cells: int) -> tuple[Run, int]:
        def run() -> Any:
            levels = ticks.bit_length()
            sums = np.zeros((ticks + 1, cells))
            # nodes of this level that a prefix of a tick uses: one for each set bit
            for level in range(levels):
                size = 1 << level
                nodes = generator.standard_normal(((ticks + size) // size, cells))
                used = np.flatnonzero(np.arange(ticks + 1) & size)
                sums[used] += nodes[used // size - 1]
            return sums[1:]

        return run, ticks

    yield Peer("numpy, drawing only", "Gaussian", "–", "–", "no", draw, None, None)
    yield Peer(
        "plain binary tree, numpy",
        "Gaussian",
        "no",
        "no",
        "no",
        tree,
        _tree_std,
        lambda t: 8.0 * t.bit_length(),
    )


def _tree_std(ticks: int) -> float:
    """σ·√(nodes of the worst prefix), σ for an event in every level."""
    most = max(int(t).bit_count() for t in range(1, ticks + 1))
    return BUDGET.noise_multiplier() * math.sqrt(ticks.bit_length() * most)


# -- jax_privacy -----------------------------------------------------------------------------------


def jax_peers() -> Iterator[Peer]:
    """BLT and Toeplitz strategies of jax_privacy, as whole arrays and through its privatizer."""
    jax: Any = importlib.import_module("jax")
    jnp: Any = importlib.import_module("jax.numpy")
    blt_module: Any = importlib.import_module("jax_privacy.matrix_factorization.buffered_toeplitz")
    toeplitz: Any = importlib.import_module("jax_privacy.matrix_factorization.toeplitz")
    noise_addition: Any = importlib.import_module("jax_privacy.noise_addition")
    jax.config.update("jax_enable_x64", True)
    built: dict[int, Any] = {}

    def blt(ticks: int) -> Any:
        if ticks not in built:
            built[ticks] = blt_module.optimize(n=ticks, error="max", max_buffers=6)
        return built[ticks]

    def blt_std(ticks: int) -> float:
        made = blt(ticks)
        squared = float(blt_module.sensitivity_squared(made, ticks)) * float(
            blt_module.max_error(made.inverse(), ticks)
        )
        return BUDGET.noise_multiplier() * math.sqrt(squared)

    def blt_array(ticks: int, cells: int) -> tuple[Run, int]:
        matrix = blt(ticks).inverse_as_streaming_matrix()

        @jax.jit  # type: ignore[untyped-decorator, unused-ignore]
        def run(key: Any) -> Any:
            z = jax.random.normal(key, (ticks, cells))

            def step(carry: Any, row: Any) -> Any:
                state, total = carry
                noise, state = matrix.multiply_next(row, state)
                total = total + noise
                return (state, total), total

            start = (matrix.init_multiply(z[0]), jnp.zeros(cells))
            return jax.lax.scan(step, start, z)[1]

        numbers = iter(range(10**9))
        return lambda: run(jax.random.PRNGKey(next(numbers))).block_until_ready(), ticks

    def privatizer(ticks: int, cells: int) -> tuple[Run, int]:
        made = noise_addition.matrix_factorization_privatizer(
            blt(ticks).inverse_as_streaming_matrix(), stddev=1.0, prng_key=jax.random.PRNGKey(7)
        )
        update = jax.jit(made.update)
        zero = jnp.zeros(cells)
        few = min(ticks, FEW_TICKS)

        def run() -> Any:
            state, total = made.init(zero), zero
            for _ in range(few):
                noise, state = update(zero, state)
                total = total + noise
            return total.block_until_ready()

        return run, few

    def toeplitz_array(ticks: int, cells: int) -> tuple[Run, int]:
        coefficients = toeplitz.optimal_max_error_noising_coefs(ticks)

        @jax.jit  # type: ignore[untyped-decorator, unused-ignore]
        def run(key: Any) -> Any:
            z = jax.random.normal(key, (cells, ticks))
            rows = jax.vmap(lambda row: toeplitz.multiply(coefficients, row))(z)
            return jnp.cumsum(rows, axis=1)

        numbers = iter(range(10**9))
        return lambda: run(jax.random.PRNGKey(next(numbers))).block_until_ready(), ticks

    def toeplitz_std(ticks: int) -> float:
        made = toeplitz.optimal_max_error_strategy_coefs(ticks)
        error = float(jnp.max(toeplitz.per_query_error(strategy_coef=made, n=ticks)))
        return BUDGET.noise_multiplier() * math.sqrt(
            error * float(toeplitz.sensitivity_squared(made, ticks))
        )

    def buffers(ticks: int) -> float:
        return 8.0 * (len(blt(ticks).buf_decay) + 1)

    yield Peer(
        "jax_privacy BLT, whole array", "Gaussian", "yes", "no", "no", blt_array, blt_std, buffers
    )
    yield Peer(
        "jax_privacy BLT, its privatizer",
        "Gaussian",
        "yes",
        "no",
        "no",
        privatizer,
        blt_std,
        buffers,
    )
    yield Peer(
        "jax_privacy Toeplitz, whole array", "Gaussian", "no", "no", "no", toeplitz_array,
        toeplitz_std, lambda ticks: 8.0 * ticks,
    )  # fmt: skip


# -- tensorflow_privacy ----------------------------------------------------------------------------


def tensorflow_peers() -> Iterator[Peer]:
    """The tree aggregators of tensorflow_privacy. Its package needs an older TensorFlow; the module
    is loaded alone."""
    found = importlib.util.find_spec("tensorflow_privacy")
    if found is None or found.origin is None:
        raise ImportError("tensorflow_privacy is not installed")
    tf: Any = importlib.import_module("tensorflow")
    path = Path(found.origin).parent / "privacy" / "dp_query" / "tree_aggregation.py"
    spec = importlib.util.spec_from_file_location("tree_aggregation", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def prepare(kind: str) -> Callable[[int, int], tuple[Run, int]]:
        def made(ticks: int, cells: int) -> tuple[Run, int]:
            generator = module.GaussianNoiseGenerator(1.0, tf.TensorSpec([cells]), seed=1)
            tree = getattr(module, kind)(generator)
            few = min(ticks, FEW_TICKS)
            update = tf.function(tree.get_cumsum_and_update, reduce_retracing=True)

            def run() -> Any:
                state = tree.init_state()
                for _ in range(few):
                    value, state = update(state)
                return value.numpy()

            return run, few

        return made

    def honaker(ticks: int) -> float:
        built = factorization("honaker", ticks)
        return BUDGET.noise_multiplier() * built.column_norm * built.worst_row()[1]

    def buffers(ticks: int) -> float:
        return 4.0 * ticks.bit_length()

    yield Peer(
        "tensorflow_privacy tree",
        "Gaussian",
        "yes",
        "no",
        "no",
        prepare("TreeAggregator"),
        _tree_std,
        buffers,
    )
    yield Peer(
        "tensorflow_privacy efficient tree", "Gaussian", "yes", "no", "no",
        prepare("EfficientTreeAggregator"), honaker, buffers,
    )  # fmt: skip


# -- OpenDP and diffprivlib ------------------------------------------------------------------------


def opendp_peers() -> Iterator[Peer]:
    """OpenDP's b-ary tree with discrete Gaussian noise, made consistent: for data that is all
    there, not a stream."""
    dp: Any = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")

    def prepare(branching: int) -> Callable[[int, int], tuple[Run, int]]:
        def made(ticks: int, cells: int) -> tuple[Run, int]:
            few = min(cells, 4)
            space = dp.vector_domain(dp.atom_domain(T="i64"), size=ticks), dp.l1_distance(T="i64")
            tree = dp.t.make_b_ary_tree(*space, leaf_count=ticks, branching_factor=branching)
            nodes = len(tree([0] * ticks))
            # not chained to the tree, whose stability map for l2 is wrong (OpenDP issue 2924)
            target = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
            noise = dp.m.make_gaussian(*target, scale=20.0)
            consistent = dp.t.make_consistent_b_ary_tree(branching_factor=branching)

            def run() -> Any:
                for _ in range(few):
                    noisy = noise([0] * nodes)
                    leaves = consistent(noisy)
                return np.cumsum(leaves)

            return run, round(ticks * few / cells) if few < cells else ticks

        return made

    def error(branching: int) -> Callable[[int], float]:
        def worst(ticks: int) -> float:
            if ticks > 1024:
                return math.nan  # a dense least-squares problem
            levels = round(math.log(ticks, branching)) + 1
            rows = [
                np.kron(np.eye(branching**i), np.ones(branching ** (levels - 1 - i)))[:, :ticks]
                for i in range(levels)
            ]
            nodes = np.vstack(rows)
            covariance = np.linalg.inv(nodes.T @ nodes)
            prefix = np.tril(np.ones((ticks, ticks)))
            variance = np.einsum("ij,jk,ik->i", prefix, covariance, prefix)
            return BUDGET.noise_multiplier() * math.sqrt(levels * float(variance.max()))

        return worst

    for branching in (2, 4):
        yield Peer(
            f"OpenDP {branching}-ary tree, consistent", "discrete Gaussian", "no", "no", "yes",
            prepare(branching), error(branching), lambda ticks: 16.0 * ticks,
        )  # fmt: skip

    def draw(ticks: int, cells: int) -> tuple[Run, int]:
        few = min(ticks * cells, 4096)
        noise = dp.m.make_gaussian(
            dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64"), scale=20.0
        )
        return lambda: noise([0] * few), max(1, few // cells)

    yield Peer(
        "OpenDP discrete Gaussian, drawing only",
        "discrete Gaussian",
        "–",
        "–",
        "yes",
        draw,
        None,
        None,
    )


def diffprivlib_peers() -> Iterator[Peer]:
    """A binary tree whose nodes are diffprivlib mechanisms."""
    mechanisms: Any = importlib.import_module("diffprivlib.mechanisms")

    def prepare(ticks: int, cells: int) -> tuple[Run, int]:
        few = min(ticks, FEW_TICKS)
        width = min(cells, 8)
        made = mechanisms.GaussianAnalytic(
            epsilon=1.0, delta=1e-6, sensitivity=math.sqrt(ticks.bit_length())
        )

        def run() -> Any:
            levels = [np.zeros(width) for _ in range(ticks.bit_length())]
            for tick in range(1, few + 1):  # a node ends with its lowest set bit
                low = (tick & -tick).bit_length() - 1
                levels[low] = np.asarray([made.randomise(0.0) for _ in range(width)])
                total = sum(levels[i] for i in range(len(levels)) if tick >> i & 1)
            return total

        return run, max(1, round(few * width / cells))

    yield Peer(
        "binary tree of diffprivlib mechanisms", "Gaussian", "yes", "no", "no", prepare, _tree_std,
        lambda ticks: 8.0 * ticks.bit_length(),
    )  # fmt: skip


GROUPS: dict[str, Callable[[], Iterator[Peer]]] = {
    "numpy": numpy_peers,
    "evercount": evercount_peers,
    "jax_privacy": jax_peers,
    "tensorflow_privacy": tensorflow_peers,
    "opendp": opendp_peers,
    "diffprivlib": diffprivlib_peers,
}


# -- measuring -------------------------------------------------------------------------------------


def seconds_each(peer: Peer, ticks: int, cells: int) -> float:
    """Best time of a run over its ticks × cells; the first run compiles and is not counted."""
    assert peer.prepare is not None
    run, made = peer.prepare(ticks, cells)
    run()
    best, began = math.inf, time.perf_counter()
    for _ in range(5):
        start = time.process_time()  # of all threads: other programs on the machine do not count
        run()
        best = min(best, time.process_time() - start)
        if time.perf_counter() - began > ENOUGH:
            break
    return best / (made * cells)


def measure(groups: list[str]) -> tuple[list[Row], list[str]]:
    """Rows of all groups that are installed, and what is missing."""
    rows: list[Row] = []
    missing: list[str] = []
    floor = next(numpy_peers())
    for group in groups:
        try:
            peers = list(GROUPS[group]())
        except Exception as failure:  # noqa: BLE001
            # whatever keeps a peer from being imported is told
            missing.append(
                f"{group}: {type(failure).__name__}: {str(failure).splitlines()[0]:.120}"
            )
            continue
        for peer in peers:
            print(peer.name, file=sys.stderr, flush=True)
            error = (
                {str(t): peer.worst_std(t) for t in (1024, 16384, 65536)} if peer.worst_std else {}
            )
            state = {str(t): peer.state(t) for t in (1024, 65536)} if peer.state else {}
            ratio = {}
            for ticks, cells in SIZES:
                unit = seconds_each(floor, ticks, cells)
                ratio[f"{ticks}x{cells}"] = seconds_each(peer, ticks, cells) / unit
            rows.append(
                Row(
                    peer.name,
                    peer.kind,
                    peer.streaming,
                    peer.endless,
                    peer.exact,
                    error,
                    ratio,
                    state,
                )
            )
    return rows, missing


def main() -> None:
    """Measure, print JSON, and with --write also the page and the charts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="folder of benchmarks.md and figures/")
    parser.add_argument("--only", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    given = parser.parse_args()
    rows, missing = measure(given.only)
    for row in rows:
        print(json.dumps(asdict(row), ensure_ascii=False))
    for line in missing:
        print(f"missing {line}")
    if given.write is not None:
        text = page(rows, missing)
        (given.write / "benchmarks.md").write_text(text, encoding="utf-8")
        (given.write / "figures").mkdir(parents=True, exist_ok=True)
        charts(text, given.write / "figures")


if __name__ == "__main__":
    main()
