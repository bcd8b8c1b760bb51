"""Which cases of a parametrized test CI runs: `make soak` runs the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def soak_except(always: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark the cases as `soak`, all of them except `always`, each of which must be a case."""
    cases, always = list(cases), list(always)
    missing = [case for case in always if case not in cases]
    assert not missing, f"{missing} are not cases"
    return [
        case
        if case in always
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
        for case in cases
    ]
