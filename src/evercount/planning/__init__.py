"""Which error will I get? All mechanisms side by side, before a budget is spent."""

from __future__ import annotations

from evercount.planning.compare import Plan, plan

__all__ = ["Plan", "plan"]
