"""Budgets, adjacency, calibration and the ledger. How much noise a promise costs. No randomness is
drawn here."""

from __future__ import annotations

from evercount.privacy.accounting import exact_privacy_profile
from evercount.privacy.budget import Adjacency, Budget, Unit
from evercount.privacy.composition import Cost, compose
from evercount.privacy.gaussian import Calibration
from evercount.privacy.guarantee_text import (
    Enforced,
    GuaranteeText,
    counted_text,
    guarantee_text,
    successor_text,
)
from evercount.privacy.ledger import Entry, Ledger
from evercount.privacy.time_range import TimeRange

__all__ = [
    "Adjacency",
    "Budget",
    "Calibration",
    "Cost",
    "Enforced",
    "Entry",
    "GuaranteeText",
    "Ledger",
    "TimeRange",
    "Unit",
    "compose",
    "counted_text",
    "exact_privacy_profile",
    "guarantee_text",
    "successor_text",
]
