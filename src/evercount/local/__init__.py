"""No trusted curator: every client sends one private message, the server adds them up and minimises a convex risk."""

from __future__ import annotations

from evercount.local.client import LocalClient, simulate
from evercount.local.estimate import LocalEstimate
from evercount.local.genprot import GenProtClient, GenProtPlan, GenProtServer
from evercount.local.losses import Absolute, ConvexLoss, Hinge, Loss, Quantile
from evercount.local.plan import LocalPlan
from evercount.local.server import LocalServer

__all__ = [
    "Absolute",
    "ConvexLoss",
    "GenProtClient",
    "GenProtPlan",
    "GenProtServer",
    "Hinge",
    "LocalClient",
    "LocalEstimate",
    "LocalPlan",
    "LocalServer",
    "Loss",
    "Quantile",
    "simulate",
]
