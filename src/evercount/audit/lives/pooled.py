"""What many lives show together: intervals that hold too seldom, and noise whose remainders favour
one number.

A replay cannot see how noise is distributed. Where its std is large, whole noise is equally likely
to leave any remainder, whatever its law: a Laplace number of scale b leaves remainders mod m whose
probabilities differ from 1/m by about 1/(2π·b/m)². A bias says that noise was rounded in a way that
its data can show through.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from evercount._validate import IntArray
from evercount.audit.lives.record import StreamRecord

MODULI = (2, 3, 4, 64)
LEVEL = 0.95  # of the intervals
FALSE_ALARM = 1e-9  # of each test
LEAST_SPREAD = 100.0
"""The std of noise, in grid units and multiples of m, from which on its remainders mod m are
tested."""


@dataclass
class Pooled:
    """Numbers of independent lives."""

    intervals: list[bool] = field(default_factory=list)
    remainders: dict[tuple[str, int, int], IntArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.remainders = defaultdict(lambda: np.zeros(max(MODULI), np.int64), self.remainders)

    def add_noise(self, one: StreamRecord) -> None:
        """Count the remainders of a stream without rows: each cell at each tick."""
        if not len(one.values) or one.declared.revise_for is not None:
            return
        grid = one.declared.query.grid
        moduli = [m for m in MODULI if one.stated_std >= LEAST_SPREAD * m * grid]
        for tick, row in enumerate(one.values.tolist(), 1):
            for number in row:
                if math.isnan(number) or not moduli:
                    continue
                whole = int(number / grid)
                for modulus in moduli:
                    counts = self.remainders[one.factorization.name, tick, modulus]
                    counts[whole % modulus] += 1

    def findings(self) -> Iterator[str]:
        """What is too improbable to be chance."""
        from scipy.stats import binom, chi2

        held, tried = sum(self.intervals), len(self.intervals)
        if tried and binom.cdf(held, tried, LEVEL) < FALSE_ALARM:
            yield f"{held} of {tried} intervals hold, and {LEVEL:.0%} are stated"
        for (name, tick, modulus), counts in sorted(self.remainders.items()):
            counted = counts[:modulus]
            number = int(counted.sum())
            if number < 20 * modulus:
                continue
            expected = number / modulus
            statistic = float(((counted - expected) ** 2 / expected).sum())
            if chi2.sf(statistic, modulus - 1) < FALSE_ALARM:
                yield (
                    f"noise {name!r} at tick {tick}: the remainders mod {modulus} of {number} "
                    f"numbers are {counted.tolist()}"
                )
