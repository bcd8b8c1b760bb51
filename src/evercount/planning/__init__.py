"""Which error will I get? All mechanisms side by side, before a budget is spent."""

from __future__ import annotations

from evercount.planning.compare import Plan, plan
from evercount.planning.distances import dense_optimum
from evercount.planning.plan_views import plan_views

__all__ = ["Plan", "dense_optimum", "plan", "plan_views"]
