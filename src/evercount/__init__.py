"""evercount: running statistics of a sensitive event stream, for ever, under one
differential-privacy guarantee.

import evercount

table = evercount.release(
    visits, time="when", every="1d", zone="UTC", start="2026-03-01", end="2026-04-01", epsilon=1
)
table.to_pandas()                 # start, cell, value, std, low, high

from evercount import Stream, Budget, Count

stream = Stream(Count(), Budget(epsilon=0.5, delta=1e-10), horizon=2**16)
release = stream.step(3)          # release.value ± release.std, release.interval(0.95)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evercount.engine.release import Release, Releases
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.views import View
from evercount.errors import EvercountError
from evercount.front_door import declare, plan, release
from evercount.noise import Secret
from evercount.privacy import Budget, Ledger
from evercount.queries import (
    ActiveUsers,
    Average,
    Count,
    DiscoveredKeys,
    DistinctUsers,
    Histogram,
    Quantiles,
    Query,
    Rollup,
    Sum,
    TopK,
)

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration as StreamDeclaration

__version__ = "1.0.0"

__all__ = [
    "ActiveUsers",
    "Average",
    "Budget",
    "Count",
    "DiscoveredKeys",
    "DistinctUsers",
    "EvercountError",
    "Histogram",
    "Ledger",
    "Quantiles",
    "Query",
    "Release",
    "ReleaseTable",
    "Releases",
    "Rollup",
    "Secret",
    "Stream",
    "Sum",
    "TopK",
    "View",
    "__version__",
    "declare",
    "plan",
    "release",
]


def __getattr__(name: str) -> Any:
    """`StreamDeclaration`, which needs the extra `cli`: `from evercount import *` goes without
    it."""
    if name == "StreamDeclaration":
        from evercount.front_door.declare_stream import declaration_class

        return declaration_class()
    raise AttributeError(f"module 'evercount' has no attribute {name!r}")
