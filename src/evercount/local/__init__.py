"""No trusted curator: every client sends one private message, the server adds them up and minimises
a convex risk."""

from __future__ import annotations

from evercount.local.client_and_server import LocalClient, LocalServer, simulate
from evercount.local.collection import Collection
from evercount.local.collection_plan import LocalPlan
from evercount.local.estimate import LocalEstimate
from evercount.local.genprot import GenProtClient, GenProtServer
from evercount.local.genprot_plan import GenProtPlan
from evercount.local.hierarchical import (
    HierarchyClient,
    HierarchyEstimate,
    HierarchyPlan,
    HierarchyServer,
    simulate_hierarchy,
)
from evercount.local.losses import Absolute, ConvexLoss, Hinge, Logistic, Loss, Quantile

__all__ = [
    "Absolute",
    "Collection",
    "ConvexLoss",
    "GenProtClient",
    "GenProtPlan",
    "GenProtServer",
    "HierarchyClient",
    "HierarchyEstimate",
    "HierarchyPlan",
    "HierarchyServer",
    "Hinge",
    "LocalClient",
    "LocalEstimate",
    "LocalPlan",
    "LocalServer",
    "Logistic",
    "Loss",
    "Quantile",
    "simulate",
    "simulate_hierarchy",
]
