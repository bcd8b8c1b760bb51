"""Nothing outside `queries/` asks which query it is, and what queries say of their published
numbers is true."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.errors import InputError, ParameterError
from evercount.queries import QUERIES, Histogram, Query, build_query
from evercount.queries.sensitivities import RowFormat, rows_of
from small_queries import SMALL, small

SOURCE = Path(__file__).parents[2] / "src" / "evercount"


def kinds(kind: type = Query) -> set[str]:
    """The names of all classes of the package that are queries; those of the engine are made of
    another one."""
    below = {name for each in kind.__subclasses__() for name in kinds(each)}
    return below | (
        {kind.__name__} if kind is not Query and kind.__module__.startswith("evercount.") else set()
    )


BUILD = {
    "__init__.py": "the public names of the package",
    "cuts.py": "public names",
    "graphs.py": "public names",
    "words.py": "public names",
    "audit/universes.py": "the registry that has the legal events of each kind of query",
    "cli/showcase_commands.py": "the example of the command is a histogram",
    "declarations/declaration.py": "what is released where days are revised",
    "engine/build_parameters.py": "makes queries of parts and of days out of others",
    "planning/compare.py": "a plan without a query is one of `Count`",
    "planning/distances.py": "as `compare.py`",
    "planning/plan_views.py": "as `compare.py`",
    "planning/resources.py": "a sample stream with so many cells",
    "reproduce": "the paper's statements are about certain queries",
}
"""Where queries may be named outside `queries/`, with the reason."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith("queries/"):
            yield place, ast.parse(path.read_text(encoding="utf-8"))


def faults(tree: ast.Module, concrete: set[str]) -> Iterator[tuple[str, str]]:
    """(what, where) of each place that names a query ("names") or tells one from another
    ("asks")."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if (
                module.split(".")[0] == "evercount"
            ):
                told = concrete | ({"queries"} if module == "evercount" else set())
                yield from (
                    ("names", f"line {node.lineno}: {one.name}")
                    for one in names
                    if one.name in told
                )
            case ast.Import(names=names):
                whole = [one.name for one in names if one.name.startswith("evercount.queries")]
                yield from (("names", f"line {node.lineno}: {name}") for name in whole)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, asked]):
                if mentioned(asked) & {*concrete, "QUERIES"}:
                    yield "asks", f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id="hasattr" | "getattr"), args=[asked, *_]) if is_query(
                asked
            ):
                yield "asks", f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Attribute(value=value, attr=attr):
                kind = (
                    is_type(value) and attr != "__name__" and any(map(is_query, arguments(value)))
                )
                if kind or (attr == "__class__" and is_query(value)) or is_name_of(value):
                    yield "asks", f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Subscript(slice=place) if is_name_of(place):
                yield "asks", f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Compare(left=left, comparators=others):
                if (any(map(is_type, (left, *others))) and mentioned(node) & concrete) or any(
                    texts(side) & QUERIES.keys()
                    for side in (left, *others)
                    if not isinstance(side, ast.Subscript)
                ):
                    yield "asks", f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Match(subject=subject, cases=cases):
                told = {name for case in cases for name in mentioned(case.pattern)}
                if told & concrete or (is_query_name(subject) and texts(node) & QUERIES.keys()):
                    yield "asks", f"line {node.lineno}: match"


def mentioned(node: ast.AST) -> set[str]:
    parts = [*ast.walk(node)]
    return {one.id for one in parts if isinstance(one, ast.Name)} | {
        one.attr for one in parts if isinstance(one, ast.Attribute)
    }


def texts(node: ast.AST) -> set[str]:
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def arguments(node: ast.AST) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else []


def is_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def is_query(node: ast.AST) -> bool:
    return ast.unparse(node).endswith("query")


def is_name_of(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "name" and is_query(node.value)


def is_query_name(node: ast.AST) -> bool:
    """`query.name`, `….query.name`, and a local `name` or `query` that may be one."""
    return is_name_of(node) or (isinstance(node, ast.Name) and node.id in ("name", "query"))


def allowed(place: str) -> bool:
    return place in BUILD or place.split("/")[0] in BUILD


def test_nothing_outside_asks_which_query_it_is() -> None:
    """A class or a name of a query decides nothing outside `queries/`: capabilities do."""
    concrete = kinds()
    assert {kind.__name__ for kind in QUERIES.values()} <= concrete
    found, naming = [], set()
    for place, tree in modules():
        own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for what, where in faults(tree, concrete - own):
            if what == "names":
                naming.add(place)
            if (what == "names" and not allowed(place)) or what == "asks":
                found.append(f"{place}, {where}")
    assert not found
    assert {
        entry for entry in BUILD if not any(place.startswith(entry) for place in naming)
    } == set(), "of no use"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("from evercount.queries.counts import Count", "names"),
        ("def f():\n    from evercount.queries import Histogram", "names"),
        ("isinstance(query, Count)", "asks"),
        ("isinstance(query, counts.Count | Sum)", "asks"),
        ("type(self.query) is Count", "asks"),
        ("self.query.name == 'histogram'", "asks"),
        ("name in ('sum', 'quantiles')", "asks"),
        ("isinstance(query, QUERIES['count'])", "asks"),
        ("hasattr(query, 'thresholds')", "asks"),
        ("getattr(stream.query, 'keys', None)", "asks"),
        ("type(query).decode is Query.decode", "asks"),
        ("query.__class__ is other", "asks"),
        ("query.name.startswith('top')", "asks"),
        ("TABLE[declared.query.name]", "asks"),
        ("kind == 'count'", "asks"),
        ("import evercount.queries.counts as counts", "names"),
        ("from evercount import queries", "names"),
        ("match query:\n    case Cuts():\n        pass", "asks"),
        ("query.cuts is None or query.name == other", None),
        ("isinstance(query, Query)", None),
        ("from evercount.queries import Query, build_query", None),
    ],
)
def test_the_search_finds_what_asks(text: str, what: str | None) -> None:
    assert [kind for kind, _ in faults(ast.parse(text), kinds())] == (
        [] if what is None else [what]
    )


MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "average per event": ("average", {"low": 0, "high": 4, "per": "event"}),
    "weighted words": ("substrings", {"alphabet": "abc", "max_length": 3, "weights": [3, 2, 1]}),
    "weighted histogram": ("histogram", {"keys": 3, "weights": {"0": 2, "2": 3}}),
    "weighted rollup": ("rollup", SMALL["rollup"] | {"weights": [0, 2, 1]}),
    "deletions": (
        "degree-histogram",
        {"vertices": 4, "stream": "delete", "initial_edges": [[0, 1], [1, 2], [2, 3]]},
    ),
}
CASES = {name: small(name) for name in QUERIES} | {
    name: build_query(*given) for name, given in MORE.items()
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_published_numbers_is_true(name: str) -> None:
    """Against the map itself, row by row: norms, roundings, covariance, weights, whole numbers, the
    start."""
    query, published = CASES[name], CASES[name].publishing
    if query.discovery is not None:
        return  # its outputs grow with the keys that are public
    cells = np.eye(query.cells)
    zero = query.decode_run(1, np.zeros((1, query.cells)))
    rows = (query.decode_run(1, cells) - zero).T  # outputs × cells
    assert rows.shape == (query.outputs, query.cells)
    assert published.as_they_are == (query.decode_run(1, cells) is cells)
    numbers = np.random.default_rng(1).integers(-50, 50, (3, query.cells)).astype(float)
    if published.kept is not None:
        assert not np.allclose(query.decode_run(7, numbers) - zero, numbers @ rows.T), (
            "its error needs no sums"
        )
        return
    weights = published.sum_weights(np.arange(7, 10))
    assert np.allclose(
        query.decode_run(7, numbers) - zero, weights[:, np.newaxis] * (numbers @ rows.T)
    )
    ones = np.ones(query.outputs)
    assert np.allclose(ones * published.norms(), np.linalg.norm(rows, axis=1), atol=1e-12)
    assert np.all(ones * published.roundings() >= np.abs(rows).sum(axis=1) - 1e-12)
    if published.as_they_are or published.covariance is not None:
        assert np.allclose(published.joint(range(query.outputs)), rows @ rows.T, atol=1e-12)
    else:
        with pytest.raises(ParameterError, match="covariance"):
            published.joint([0])
    if query.publishes_whole_numbers:
        assert np.all(query.decode_run(3, numbers * query.grid) % 1 == 0)
    # a difference of ticks is what the sums between them would publish
    if published.why_no_views is None:
        change, weight = published.between(2, 3, *query.decode_run(2, numbers[:2]))
        assert np.allclose(change, rows @ (numbers[1] - numbers[0]))
        assert np.allclose(weight, ones * published.norms())
    else:
        with pytest.raises(ParameterError, match=r"^view: .*ticks"):
            published.check_views("view: ")


@pytest.mark.parametrize("name", CASES)
def test_rows_say_what_their_columns_hold(name: str) -> None:
    rows = CASES[name].rows
    if rows is None:
        with pytest.raises(ParameterError, match="not rows"):
            rows_of(CASES[name])
        return
    assert isinstance(rows, RowFormat)
    assert rows.keyed == bool({"key", "levels"} & {*rows.columns})
    assert bool(rows.levels) == ("levels" in rows.columns)
    assert (rows.range is not None) == ("value" in rows.columns)
    assert ("user" in rows.columns) == (CASES[name].people is not None)
    if not rows.keyed:
        with pytest.raises(ParameterError, match="no key"):
            _ = rows.keys
    if rows.range is None:
        with pytest.raises(ParameterError, match="no value"):
            _ = rows.values


@pytest.mark.parametrize(
    "totals",
    [[["x", "y"]], [[None, 1]], [[1.5, 2]], [[True, False]], [[1, 2, 3]], [1, 2], [[{}, {}]]],
)
def test_totals_that_are_not_whole_numbers_are_refused(totals: Any) -> None:
    """Rows of texts, too, of which numpy has no least one."""
    with pytest.raises(InputError, match="whole numbers"):
        Histogram(["a", "b"]).encode_totals(totals)
