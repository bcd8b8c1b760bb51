"""Which cases of a parametrized test CI runs: `make soak` runs the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def soak_but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, all of them but `kept` with the mark `soak`; a case that is kept must be there."""
    found, kept = list(cases), list(kept)
    assert all(case in found for case in kept), (
        f"{[case for case in kept if case not in found]} are not cases"
    )
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
        for case in found
    ]
