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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration as StreamDeclaration
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


# where each name is imported from when it is first used: `evercount --version` needs none of them
_MODULES = {
    "ActiveUsers": "queries",
    "Average": "queries",
    "Budget": "privacy",
    "Count": "queries",
    "DiscoveredKeys": "queries",
    "DistinctUsers": "queries",
    "EvercountError": "errors",
    "Histogram": "queries",
    "Ledger": "privacy",
    "Quantiles": "queries",
    "Query": "queries",
    "Release": "engine.release",
    "ReleaseTable": "engine.release_table",
    "Releases": "engine.release",
    "Rollup": "queries",
    "Secret": "noise",
    "Stream": "engine.stream",
    "Sum": "queries",
    "TopK": "queries",
    "View": "engine.views",
    "declare": "front_door",
    "plan": "front_door",
    "release": "front_door",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used. `StreamDeclaration` needs the extra `cli`, so `from
    evercount import *` goes without it."""
    if name == "StreamDeclaration":
        from evercount.front_door.declare_stream import declaration_class

        return declaration_class()
    if name not in _MODULES:
        raise AttributeError(f"module 'evercount' has no attribute {name!r}")
    value = getattr(import_module(f"evercount.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
