"""How many private names of the product tests read themselves: every one of them is a test that
fails when only an inner name changes.

`tests/product_internals.py` has functions for those that many tests need.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST = 60
OF_OTHERS = {"_exit", "_replace", "_repr_html_", "_run_exitfuncs", "_shutdown"}
"""Names of Python and of Jupyter that are public, or that a forked process needs."""


def private_reads(source: str) -> Iterator[str]:
    """Yield the private names that are read of anything but `self`, `cls` and `super()`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        owner = ast.unparse(node.value)
        special = node.attr.startswith("__") or node.attr in OF_OTHERS
        if node.attr.startswith("_") and not special and owner not in ("self", "cls", "super()"):
            yield f"{owner}.{node.attr}"


def test_few_tests_read_private_names() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in private_reads(path.read_text(encoding="utf-8"))
    ]
    assert len(found) <= MOST, "\n".join([f"{len(found)} private names:", *found])


def test_what_is_counted() -> None:
    source = "class A:\n def f(self):\n  self._own = other._state.x; return super()._f(), os._exit"
    assert list(private_reads(source)) == ["other._state"]
