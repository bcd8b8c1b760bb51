"""Attacks on what evercount claims: declared sensitivities, whole programs replayed, and mechanisms
as black boxes."""

from __future__ import annotations

from evercount.audit.replay import (
    Claim,
    Data,
    Finding,
    Program,
    Published,
    ReplayReport,
    replay,
    search,
)

__all__ = ["Claim", "Data", "Finding", "Program", "Published", "ReplayReport", "replay", "search"]
