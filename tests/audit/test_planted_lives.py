"""Each hole of the past, planted again, is found by the generator of lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from planted_lives import HOLES

from evercount.audit.lives import python_way
from evercount.audit.lives.search import search_lives

pytest.importorskip("duckdb")
MOST_LIVES = 20_000
QUICK = [name for name, hole in HOLES.items() if hole.quick]


@pytest.fixture(autouse=True)
def without_memory() -> Iterator[None]:
    """Declarations are settled anew, before and after a hole is planted."""
    python_way.settled.cache_clear()
    yield
    python_way.settled.cache_clear()


def check_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hole = HOLES[name]
    hole.plant(monkeypatch)
    for part in range(20):
        lives = MOST_LIVES // 20
        report = search_lives(lives, "planted", hole.ways, first=part * lives, stop_at=1)
        if not report.holds:
            return
    pytest.fail(f"{MOST_LIVES} lives do not show {name!r}")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_holes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_found(name, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in HOLES if name not in QUICK])
def test_holes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_found(name, monkeypatch)
