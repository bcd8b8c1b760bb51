"""evercount: running statistics of a sensitive event stream, for ever, under one differential-privacy guarantee.

from evercount import Stream, Budget, Count

stream = Stream(Count(), Budget(epsilon=0.5, delta=1e-10), horizon=2**16)
release = stream.step(3)          # release.value ± release.std, release.interval(0.95)
"""

from __future__ import annotations

from evercount.engine.release import Release, Releases
from evercount.engine.stream import Stream
from evercount.errors import EvercountError
from evercount.front_door import declare, release
from evercount.noise import Secret
from evercount.privacy import Budget, Ledger
from evercount.queries import (
    ActiveUsers,
    Average,
    Components,
    Count,
    Cuts,
    DegreeHistogram,
    DegreeSequence,
    DiscoveredKeys,
    DistinctUsers,
    Edges,
    Episodes,
    HighDegree,
    Histogram,
    KStars,
    Marginals,
    Matching,
    MinCut,
    MinDegree,
    Occupancy,
    PrefixQuery,
    Quantiles,
    Rollup,
    SpanningForest,
    Substrings,
    Sum,
    TopK,
    Triangles,
    register_encoder,
)
from evercount.sparse.sparse_count import SparseCount

__version__ = "1.0.0"

__all__ = [
    "ActiveUsers",
    "Average",
    "Budget",
    "Components",
    "Count",
    "Cuts",
    "DegreeHistogram",
    "DegreeSequence",
    "DiscoveredKeys",
    "DistinctUsers",
    "Edges",
    "Episodes",
    "EvercountError",
    "HighDegree",
    "Histogram",
    "KStars",
    "Ledger",
    "Marginals",
    "Matching",
    "MinCut",
    "MinDegree",
    "Occupancy",
    "PrefixQuery",
    "Quantiles",
    "Release",
    "Releases",
    "Rollup",
    "Secret",
    "SpanningForest",
    "SparseCount",
    "Stream",
    "Substrings",
    "Sum",
    "TopK",
    "Triangles",
    "__version__",
    "declare",
    "register_encoder",
    "release",
]
