"""The tables of docs/queries.md: every query, and what post-processing, promises, selection and
other noise change.

Synthetic data, noise from fixed secrets or seeds. `python tools/queries_page.py` prints them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from evercount import Budget, Secret, Stream, queries
from evercount.noise.secret import insecure_secret
from evercount.queries.cuts.extreme_cuts import objective, stoer_wagner_cuts
from query_table import (
    ALPHABET,
    BUDGET,
    FEW,
    TICKS,
    VERTICES,
    examples,
    show,
    split,
    spread_edges,
    table,
)

RUNS = 10
"""Runs of which a mean is shown."""


def before_and_after() -> str:
    """The table, in Markdown."""
    rows = [
        *_noise(),
        *_degrees(),
        _smallest_cut(),
        _selected_keys(),
        _averages(),
        *_words(),
    ]
    return "\n".join(
        [
            "| answer | before | after |",
            "|---|---|---|",
            *(f"| {what} | {old} | {new} |" for what, old, new in rows),
        ]
    )


def _secret() -> Secret:
    return Secret.from_hex("2026" * 16)


def _noise() -> Iterator[tuple[str, str, str]]:
    """Other noise, and a promise."""
    by_code = {example.code: example for example in examples()}
    matching = by_code["Matching(400)"]
    old = Stream(matching.query, BUDGET, TICKS, "balanced").std([TICKS])[0, 0]
    what = f"`Matching(400)`, {TICKS} ticks: std, `balanced` against `direct`"
    yield what, f"{old:.0f}", f"{show(matching).std:.0f}"
    old = Stream(queries.Triangles(VERTICES, max_degree=20), BUDGET, TICKS).std([TICKS])[0, 0]
    new = show(by_code["Triangles(400, max_per_edge=3)"]).std
    what = f"triangles, {TICKS} ticks: std, max_degree=20 against max_per_edge=3"
    yield what, f"{old:.0f}", f"{new:.0f}"


def _degrees() -> Iterator[tuple[str, str, str]]:
    """Raw and consistent degree histograms."""
    vertices = 1000
    query = queries.DegreeHistogram(vertices, max_degree=20)
    edges = spread_edges(np.random.default_rng(2026), vertices, 3 * vertices)
    truth = np.bincount(
        np.bincount(np.asarray(edges).ravel(), minlength=vertices), minlength=query.outputs
    )
    for ticks in (1000, FEW):
        errors = []
        for seed in range(RUNS):
            stream = Stream(query, BUDGET, ticks, secret=insecure_secret(seed))
            release = stream.run(split(edges, ticks))[-1]
            errors.append(
                [
                    np.abs(numbers - truth).sum() / vertices
                    for numbers in (release.values, release.consistent())
                ]
            )
        raw, tidy = np.mean(errors, axis=0)
        what = (
            f"degree histogram, {vertices:,} vertices, {ticks:,} ticks: ℓ1 error / vertices, raw "
            "against consistent"
        )
        yield what, f"{raw:.2f}", f"{tidy:.2f}"


def _smallest_cut() -> tuple[str, str, str]:
    """Two clusters of 20 vertices: the cut that clipped weights hide."""
    half, across = 20, 413
    inside = [
        (u + side, v + side) for side in (0, half) for u in range(half) for v in range(u + 1, half)
    ]
    between = [(u, v + half) for u in range(half) for v in range(half)]
    query = queries.Cuts(2 * half, grid=1.0)
    totals, _ = query.encode(None, [(u, v, 1.0) for u, v in inside * 50 + (between * 2)[:across]])
    answers = []
    for seed in range(RUNS):
        graph = (
            Stream(query, BUDGET, TICKS, secret=insecure_secret(seed))
            .run_totals([totals])[-1]
            .graph()
        )
        clipped = np.maximum(graph.weights, 0.0)
        sides = stoer_wagner_cuts(clipped)
        hidden = objective(graph.weights, sides, False)[objective(clipped, sides, False).argmin()]
        answers.append((hidden, graph.min_cut().released))
    old, new = np.mean(np.abs(np.asarray(answers) - across), axis=0)
    what = (
        f"smallest cut of two clusters of {half} vertices, truly {across}: mean error, clipped "
        "weights against raw ones"
    )
    return what, f"{old:,.0f}", f"{new:,.0f}"


def _selected_keys() -> tuple[str, str, str]:
    """Intervals of single keys and of selected ones."""
    keys, budget = 1000, Budget(0.1, 1e-6)
    true = np.random.default_rng(2026).multinomial(20 * keys, np.full(keys, 1 / keys))
    alone = selected = 0
    for seed in range(RUNS):
        release = Stream(
            queries.TopK(keys, k=10), budget, TICKS, secret=insecure_secret(seed)
        ).run_totals([true])[-1]
        low, high = release.interval(0.95)
        for key in release.top(level=0.95):
            at = int(key.key)
            alone += bool(low[at] <= true[at] <= high[at])
            selected += bool(key.low <= true[at] <= key.high)
    what = (
        f"top 10 of {keys:,} equally frequent keys, ε = 0.1: 95 % intervals that hold, `interval` "
        "against `top`"
    )
    return what, f"{alone / RUNS / 10:.0%}", f"{selected / RUNS / 10:.0%}"


def _averages() -> tuple[str, str, str]:
    """Early intervals of an average per event: first-order and Fieller's."""
    ticks, each, runs = 4, 20, 100
    plain = fieller = 0
    for seed in range(runs):
        values = np.random.default_rng(seed).integers(0, 101, (ticks, each))
        stream = Stream(
            queries.Average(0, 100, per="event"), BUDGET, TICKS, secret=insecure_secret(seed)
        )
        releases = stream.run(values.tolist())
        true = values.cumsum(axis=0).sum(axis=1) / (each * np.arange(1, ticks + 1))
        low, high = releases.interval(0.95)
        plain += int((np.abs(releases.values - true) <= 1.96 * releases.std).sum())
        fieller += int(((low <= true) & (true <= high)).sum())
    what = (
        f'`Average(0, 100, per="event")`, {each} events a tick, {ticks} ticks: 95 % intervals that '
        "hold, ± 1.96 std"
    )
    return (
        f"{what} against Fieller's",
        f"{plain / runs / ticks:.0%}",
        f"{fieller / runs / ticks:.0%}",
    )


def _words() -> Iterator[tuple[str, str, str]]:
    """The support filter, and weights per length."""
    letters = next(
        example.ticks for example in examples() if example.code == 'Substrings("abcd", 3)'
    )
    query = queries.Substrings(ALPHABET, 3)
    truth = query.encode_run([], letters)[0].sum(axis=0)
    release = Stream(query, BUDGET, TICKS, secret=_secret()).run(letters)[-1]
    listed = {key.key: key.value for key in release.supported()}
    filtered = np.asarray([listed.get(label, 0.0) for label in query.labels])
    raw, tidy = (np.abs(numbers - truth).sum() for numbers in (release.values, filtered))
    what = (
        "100,000 letters, 26 letters known, words up to 3: ℓ1 error, all words against supported "
        "ones"
    )
    yield what, f"{raw:,.0f}", f"{tidy:,.0f}"
    text = _zipf_text()
    equal, heavy = (_listed_trigrams(text, weights) for weights in (None, (1, 1, 8)))
    what = (
        f"100,000 Zipf letters: listed of {len(equal[1])} trigrams that come 100 times, equal "
        "weights against (1, 1, 8)"
    )
    yield what, str(len(equal[0] & equal[1])), str(len(heavy[0] & heavy[1]))


def _zipf_text() -> list[str]:
    """100,000 letters, the k-th of the alphabet with a chance proportional to 1/k."""
    chance = 1 / np.arange(1, 27)
    letters = np.random.default_rng(2026).choice(list(ALPHABET), 100_000, p=chance / chance.sum())
    return ["".join(part) for part in letters.reshape(TICKS, -1)]


def _listed_trigrams(text: list[str], weights: tuple[int, ...] | None) -> tuple[set[str], set[str]]:
    """(trigrams that the support filter lists, trigrams that truly come at least 100 times)."""
    query = queries.Substrings(ALPHABET, 3, weights)
    release = Stream(query, BUDGET, TICKS, secret=_secret()).run(text)[-1]
    letters = "".join(text)
    often = Counter(letters[i : i + 3] for i in range(len(letters) - 2))
    listed = {key.key for key in release.supported() if len(key.key) == 3}
    return listed, {word for word, number in often.items() if number >= 100}


def main() -> None:
    """Print both tables."""
    print(f"{table()}\n\n{before_and_after()}")


if __name__ == "__main__":
    main()
