"""A rollup of 400 invented counties in 16 states beside a plain histogram:
`python examples/reports/counties.py`."""

from __future__ import annotations

import sys

import numpy as np

from evercount.engine.stream import Stream
from evercount.examples import flu
from evercount.privacy import Budget
from evercount.queries import Histogram, Rollup

STATES, COUNTIES, DAYS = 16, 400, 182


def counts(days: int = DAYS, seed: int = 2026) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Reports per day and county: each state follows one region of `flu`, its counties share it at
    random."""
    daily = flu.generate(days * 24, seed).reshape(days, 24, -1).sum(axis=1)
    generator = np.random.default_rng([seed, 2])
    shares = generator.dirichlet(np.full(COUNTIES // STATES, 0.7), STATES)
    parts = [
        generator.multinomial(daily[:, state % daily.shape[1]], shares[state])
        for state in range(STATES)
    ]
    return np.concatenate(parts, axis=1)


def report() -> str:
    """Release both at one budget and say what the national total costs."""
    budget = Budget(1.0, 1e-9)
    paths = [(f"state {i * STATES // COUNTIES}", f"county {i}") for i in range(COUNTIES)]
    query, plain = Rollup(paths), Histogram(COUNTIES)
    data = counts()
    states = data.reshape(len(data), STATES, -1).sum(axis=2)
    # the nation, its states, their counties
    nodes = np.column_stack([data.sum(axis=1), states, data])
    rollup = Stream(query, budget, DAYS).run_totals(nodes)
    histogram = Stream(plain, budget, DAYS).run_totals(data)
    last, added = rollup[-1], float(np.sqrt((histogram[-1].stds ** 2).sum()))
    apart = abs(sum(last.values[1 : STATES + 1]) - last.values[0])
    return (
        f"{DAYS} days, epsilon {budget.epsilon:g}, delta {budget.delta:g}; synthetic reports\n"
        f"total: truth {data.sum():,}, rollup {last.values[0]:,.0f} ± {last.stds[0]:.1f}\n"
        f"       counties of the histogram add up to {histogram[-1].values.sum():,.0f} ± "
        f"{added:.1f}\n"
        f"std of the total: histogram / rollup = {added / last.stds[0]:.1f}\n"
        f"std of a state:   histogram / rollup = {added / np.sqrt(STATES) / last.stds[1]:.1f}\n"
        f"std of a county:  rollup / histogram = {last.stds[-1] / histogram[-1].stds[-1]:.1f}\n"
        f"states add up to the total within {apart:.0e}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(report())
