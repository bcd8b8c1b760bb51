"""What a generator of lives has met: which operations in lives with which features."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from evercount.audit.lives.life import Life
from evercount.audit.lives.ways import WAYS


@dataclass
class Coverage:
    """How many lives had both an operation and a feature."""

    lives: int = 0
    features: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, life: Life) -> None:
        self.lives += 1
        self.features.update(life.features)
        self.operations.update(life.operations)
        self.pairs.update((one, other) for one in life.operations for other in life.features)

    def possible(self) -> list[tuple[str, str]]:
        """The pairs that a life can have: an operation of a way only goes with that way."""
        found = []
        for operation in sorted(self.operations):
            ways = {way for way, (_, known) in WAYS.items() if operation in known}
            for feature in sorted(self.features):
                if feature.startswith("way ") and feature[4:] not in ways:
                    continue
                if (operation, feature) not in IMPOSSIBLE:
                    found.append((operation, feature))
        return found

    @property
    def share(self) -> float:
        """The share of the possible pairs that were met."""
        possible = self.possible()
        return sum(pair in self.pairs for pair in possible) / max(len(possible), 1)

    def missing(self) -> list[tuple[str, str]]:
        return [pair for pair in self.possible() if pair not in self.pairs]

    def summary(self) -> str:
        """A table: operations by features."""
        operations = sorted(self.operations)
        width = max((len(name) for name in self.features), default=0)
        lines = [" " * width + "".join(f" {name:>9.9}" for name in operations)]
        for feature in sorted(self.features):
            numbers = "".join(f" {self.pairs[one, feature]:9}" for one in operations)
            lines.append(f"{feature:{width}}{numbers}")
        lines.append(f"{self.share:.1%} of {len(self.possible())} pairs in {self.lives} lives")
        return "\n".join(lines)


OF_STORES = ("backup", "missing", "old copy", "retire", "shards")
IMPOSSIBLE = frozenset(
    [
        # what has no keys lets none join
        *(
            (operation, f"query {query}")
            for operation in ("join", "hide")
            for query in ("count", "sum")
        ),
        # no service hands caps on
        *((operation, "carry_caps") for operation in OF_STORES),
        # in Python every row is there when its tick is released
        *(("steps", feature) for feature in ("carry_caps", "late next", "late revise", "wait")),
    ]
)
"""Pairs that no life can have."""
