"""A contact graph: how connected is a population, week by week, if every contact is private?

    python examples/contacts.py [folder]

Synthetic data: 800 people in 20 groups; contacts within groups are frequent, between groups rare,
and a lockdown in week 12 halves them. One *contact* (an edge) is protected.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from evercount import Budget, Stream
from evercount.graphs import Components, DegreeHistogram, Edges
from evercount.plotting import COLOURS, label_lines, new_axes, save
from evercount.privacy import compose

PEOPLE, GROUPS, WEEKS, MOST_CONTACTS = 800, 20, 24, 12


def contacts(seed: int = 11) -> list[list[tuple[int, int]]]:
    """New contacts of each week; a pair meets for the first time once, and nobody has more than 12
    contacts."""
    generator = np.random.default_rng(seed)
    group, degree = generator.integers(0, GROUPS, PEOPLE), np.zeros(PEOPLE, dtype=int)
    known: set[tuple[int, int]] = set()
    weeks = []
    for week in range(WEEKS):
        met = []
        for _ in range(160 if week < 12 else 80):
            a = int(generator.integers(PEOPLE))
            same = generator.random() < 0.8
            b = int(generator.choice(np.flatnonzero(group == group[a]) if same else PEOPLE))
            pair = (min(a, b), max(a, b))
            if a != b and pair not in known and max(degree[a], degree[b]) < MOST_CONTACTS:
                known.add(pair)
                degree[[a, b]] += 1
                met.append(pair)
        weeks.append(met)
    return weeks


def main(folder: Path) -> None:
    """Release three statistics of the graph and say what they spend together."""
    weeks, budget = contacts(), Budget(epsilon=1.0, delta=1e-7)
    queries = Edges(PEOPLE), Components(PEOPLE), DegreeHistogram(PEOPLE, max_degree=MOST_CONTACTS)
    streams = [Stream(query, budget, horizon=WEEKS) for query in queries]
    edges, parts, degrees = (stream.run(weeks) for stream in streams)

    axes = new_axes(height=5)
    for releases, name, colour in (
        (edges, "contacts so far", COLOURS[0]),
        (parts, "separate groups", COLOURS[1]),
    ):
        low, high = (side.reshape(WEEKS) for side in releases.interval(0.95))
        axes.fill_between(releases.ticks, low, high, color=colour, alpha=0.3, linewidth=0)
        axes.plot(releases.ticks, releases.values.reshape(WEEKS), color=colour, label=name)
    axes.axvline(12, color="grey", linestyle=":")
    axes.annotate(
        " lockdown", (12, 0.93), xycoords=("data", "axes fraction"), fontsize=8, color="grey"
    )
    axes.set_title(
        "A contact graph of 800 people, 95 % bands (synthetic data, ε = 1 each)", loc="left"
    )
    axes.set_xlabel("week")
    axes.set_ylim(bottom=0)
    label_lines(axes)
    save(axes, folder / "contacts.png")

    print(
        f"contacts: {edges[-1].value:.0f} ± {2 * edges[-1].std:.0f}, truth {sum(map(len, weeks))}"
    )
    print(f"separate groups: {parts[-1].value:.0f} ± {2 * parts[-1].std:.0f}")
    consistent = degrees[-1].consistent()
    print(
        "people with 0, 1, 2, … contacts:",
        " ".join(f"{max(0, round(number))}" for number in consistent),
    )
    together = compose(stream.cost for stream in streams)
    print(f"all three together: ε = {together.epsilon:.2f}, δ = {together.delta:.0e}")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples")
    target.mkdir(parents=True, exist_ok=True)
    main(target)
