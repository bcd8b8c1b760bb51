"""Every public name says what it takes, what it gives and how it is used (docs/public-api.md says
what is public)."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from evercount import errors
from evercount._validate import check_number
from evercount.engine.views import View
from evercount.errors import ParameterError
from evercount.queries.cuts.cut_graph import CutEstimate, CutGraph, CutValue
from evercount.queries.publishing import TopKey
from evercount.queries.sensitivities import Sensitivities
from evercount.sparse.sparse_count import SparseRelease
from evercount.sparse.sparse_plan import SparsePlan

PAGE = (Path(__file__).parents[2] / "docs" / "public-api.md").read_text(encoding="utf-8")
MODULES = ["evercount", *re.findall(r"^\| `(evercount\.[\w.]+)` \|", PAGE, re.MULTILINE)]

EXEMPT = {
    "evercount.noise.secret.NoiseOwner": "a base class: users call its subclasses",
    "evercount.local.losses.Loss": "a base class: its subclasses have examples",
    "evercount.spark.batch_release.release_batch": (
        "it needs a Spark session; docs/scale.md shows it"
    ),
    "evercount.spark.stream_release.release_stream": (
        "it needs a Spark session; docs/scale.md shows it"
    ),
    "evercount.spark.session.open_session": "it starts Java, which not every machine has",
}
"""Names that need no example, with the reason."""


def public_names() -> Iterator[tuple[str, Any]]:
    """The classes and functions of the public modules, each once, under the name of the module that
    defines them."""
    seen = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for one in getattr(module, "__all__", None) or [
            one for one in vars(module) if not one.startswith("_")
        ]:
            thing = getattr(module, one)
            home = getattr(thing, "__module__", None) or ""
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and home.startswith(
                "evercount"
            ):
                full = f"{home}.{thing.__qualname__}"
                if full not in seen:
                    seen.add(full)
                    yield full, thing


NAMES = dict(public_names())


SECTION = re.compile(r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
PARAMETER = re.compile(r"^ {4}\**(\w+):", re.MULTILINE)


def undescribed(parameters: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The parameters that no section Args or Attributes of these docstrings names, in one entry."""
    named = {
        name
        for text in texts
        for section in SECTION.findall(text)
        for name in PARAMETER.findall(section)
    }
    lacking = [name for name in parameters if name not in named and not name.startswith("_")]
    return [f"Args of {', '.join(lacking)}"] if lacking else []


def texts_of(kind: type, name: str | None = None) -> list[str]:
    """The docstrings of the classes of this package from which a class inherits, or of their
    methods of this name."""
    bases = [
        base for base in kind.__mro__[1:] if base.__module__.startswith(("evercount", __name__))
    ]
    found = bases if name is None else [dict(functions_of(base)).get(name) for base in bases]
    return [inspect.getdoc(thing) or "" for thing in found if thing is not None]


HELPERS = 2
"""So many calls deep errors are looked for: a method, its helper, and the check that the helper
uses."""


def raises(function: Any, kind: type | None = None, depth: int = HELPERS) -> set[str]:
    """The errors of this package that a function raises by name, itself or in the functions of the
    package it calls."""
    nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))]
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
    names = [
        one.func.id
        for one in raised
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
    ]
    found = {name for name in names if hasattr(errors, name)}
    for node in nodes if depth else ():
        helper = called(node, function, kind) if isinstance(node, ast.Call) else None
        if helper is not None:
            found |= raises(helper, kind, depth - 1)
    caught = [node.type for node in nodes if isinstance(node, ast.ExceptHandler)]
    return found - {one.id for one in caught if isinstance(one, ast.Name)}


def called(call: ast.Call, function: Any, kind: type | None) -> Any:
    """The function of this package that a call names, as `name(…)` or as `self.name(…)`; else
    None."""
    if isinstance(call.func, ast.Name):
        found = function.__globals__.get(call.func.id)
    elif (
        kind is not None
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
    ):
        own = call.func.value.id in ("self", "cls")
        found = inspect.getattr_static(kind, call.func.attr, None) if own else None
        found = getattr(found, "__func__", found)
    else:
        return None
    return (
        found
        if inspect.isfunction(found) and found.__module__.startswith(("evercount", __name__))
        else None
    )


def constructors(kind: type) -> list[Any]:
    """What a class runs itself when it is built."""
    return [
        vars(kind)[name]
        for name in ("__init__", "__post_init__")
        if inspect.isfunction(vars(kind).get(name))
    ]


def missing(full: str, thing: Any) -> list[str]:
    """What the text of a public name lacks. The base class of a class may describe the parameters
    that both have."""
    text = inspect.getdoc(thing) or ""
    if not text:
        return ["a docstring"]
    if isinstance(thing, type) and issubclass(thing, Exception):
        return []  # users catch it; its first sentence says when it is raised
    signature = inspect.signature(thing)
    lacks = undescribed(
        [*signature.parameters], [text, *(texts_of(thing) if isinstance(thing, type) else [])]
    )
    gives = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if not isinstance(thing, type) and gives and "Returns:" not in text:
        lacks.append("Returns")
    bodies = constructors(thing) if isinstance(thing, type) else [thing]
    # not those of a dataclass
    written = [body for body in bodies if not body.__code__.co_filename.startswith("<")]
    if any(
        raises(body, thing if isinstance(thing, type) else None) for body in written
    ) and not any("Raises:" in one for one in (text, *map(str, map(inspect.getdoc, written)))):
        lacks.append("Raises")
    if ">>>" not in text and full not in EXEMPT:
        lacks.append("an example")
    return lacks


def test_public_names_say_how_they_are_used() -> None:
    assert {full: lacks for full, thing in NAMES.items() if (lacks := missing(full, thing))} == {}


def test_the_lists_name_what_exists() -> None:
    assert len(NAMES) > 80
    assert set(EXEMPT) <= set(NAMES)


def functions_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself, each with the function behind
    it."""
    for name, member in vars(kind).items():
        behind = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property):
            behind = member.fget
        elif isinstance(member, cached_property):
            behind = member.func
        if not name.startswith("_") and inspect.isfunction(behind):
            yield name, behind


def missing_of_method(kind: type, name: str) -> list[str]:
    """What the text of a method lacks. A method of a base class under the same name may say it for
    this one."""
    member, behind = vars(kind)[name], dict(functions_of(kind))[name]
    texts = [inspect.getdoc(behind) or "", *texts_of(kind, name)]
    if not any(texts):
        return ["a docstring"]
    if isinstance(member, property | cached_property):
        return []  # the first sentence says what it is
    signature = inspect.signature(behind)
    lacks = undescribed(
        [*signature.parameters][0 if isinstance(member, staticmethod) else 1 :], texts
    )
    gives = signature.return_annotation not in (None, "None", "NoReturn", inspect.Signature.empty)
    if gives and not any(re.search("^(Returns|Yields):", text, re.MULTILINE) for text in texts):
        lacks.append("Returns")
    if raises(behind, kind) and not any("Raises:" in text for text in texts):
        lacks.append("Raises")
    return lacks


HANDED_OUT = (View, CutEstimate, CutGraph, CutValue, SparsePlan, SparseRelease, TopKey)
"""Classes whose objects users get from public methods, although nobody imports them by name."""


def public_classes() -> dict[str, type]:
    """The public classes, those that they hand out, and the classes of this package from which
    these inherit."""
    public = [thing for thing in NAMES.values() if inspect.isclass(thing)]
    kinds = {base for thing in (*public, *HANDED_OUT) for base in thing.__mro__}
    named = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds}
    return {full: kind for full, kind in sorted(named.items()) if full.startswith("evercount.")}


CLASSES = public_classes()
OF_QUERIES = re.findall(
    r"`(\w+)`", re.findall(r"base class `Query`: (.*?) and the sensitivities", PAGE)[0]
)


def is_public(kind: type, name: str) -> bool:
    """Whether a method is promised: of a query only what the page names, and the sensitivities that
    every query has."""
    of_query = kind.__module__.startswith("evercount.queries.") and kind not in HANDED_OUT
    return (
        not of_query
        or name in OF_QUERIES
        or (name.endswith("sensitivity") and hasattr(Sensitivities, name))
    )


def test_public_methods_say_what_they_take_and_give() -> None:
    lacks = {
        f"{full}.{name}": gaps
        for full, kind in CLASSES.items()
        for name, _ in functions_of(kind)
        if is_public(kind, name) and (gaps := missing_of_method(kind, name))
    }
    assert lacks == {}


def test_the_public_members_of_queries_are_read_from_the_page() -> None:
    assert OF_QUERIES == ["cells", "encode", "labels", "parameters"]


@pytest.mark.parametrize("kind", HANDED_OUT, ids=lambda kind: kind.__name__)
def test_classes_that_are_handed_out_describe_their_fields(kind: type) -> None:
    assert undescribed([*inspect.signature(kind).parameters], [inspect.getdoc(kind) or ""]) == []


def test_a_bare_function_is_caught() -> None:
    def bare(ticks: int) -> int:
        """Count."""
        if ticks < 0:
            raise ParameterError("ticks")
        return ticks

    assert missing("bare", bare) == ["Args of ticks", "Returns", "Raises", "an example"]


def test_a_bare_method_is_caught() -> None:
    class Base:
        def told(self, ticks: int) -> int:
            """Count.

            Args:
                ticks: how many.

            Returns:
                The count.
            """
            return ticks

    class Bare(Base):
        def silent(self) -> int:
            return 1

        def bare(self, ticks: int) -> int:
            """Count."""
            return ticks

        def told(self, ticks: int) -> int:
            return ticks

        def refuses(self) -> None:
            """Count, or refuse."""
            self._check()

        def forgives(self) -> None:
            """Count what can be counted."""
            try:
                self._check()
            except ParameterError:
                return

        def _check(self) -> None:
            check_number("ticks", "many")

        @property
        def ready(self) -> bool:
            """Whether it is ready."""
            return True

    lacks = {name: missing_of_method(Bare, name) for name, _ in functions_of(Bare)}
    assert lacks == {
        "silent": ["a docstring"],
        "bare": ["Args of ticks", "Returns"],
        "told": [],
        "refuses": ["Raises"],
        "forgives": [],
        "ready": [],
    }
