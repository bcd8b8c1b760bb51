"""Print the table of `bounds/usual_factors.json`: the factors of the intervals of published tables.

    python benchmarks/usual_factors.py > src/evercount/bounds/usual_factors.json

They are computed with SciPy; a release reads them from the table, because SciPy takes longer than
the release.
"""

from __future__ import annotations

import json

from evercount.bounds.tails import computed_factor
from evercount.engine.error_model import computed_normal
from evercount.engine.release_table import LEVEL

LARGEST = 4096  # sums of more equal numbers count as so many


def weights() -> list[int]:
    """The numbers of equal Laplace numbers that factors are computed for: of six binary digits."""
    steps = (1 << max(0, number.bit_length() - 6) for number in range(1, LARGEST + 1))
    return sorted({number // step * step for number, step in enumerate(steps, 1)})


def table() -> dict[str, object]:
    """The table, as JSON has it."""
    beta = 1 - LEVEL
    laplace = {str(weight): computed_factor(beta, weight) for weight in weights()}
    return {"level": LEVEL, "beta": beta, "normal": computed_normal(LEVEL), "laplace": laplace}


if __name__ == "__main__":
    print(json.dumps(table(), indent=1))
