"""Every public name says what it takes, what it gives and how it is used (docs/public-api.md says what is public)."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "public-api.md").read_text(encoding="utf-8")
MODULES = ["evercount", *re.findall(r"^\| `(evercount\.[\w.]+)` \|", PAGE, re.MULTILINE)]

EXEMPT = {
    "evercount.noise.noise_owner.NoiseOwner": "a base class: users call its subclasses",
    "evercount.local.losses.Loss": "a base class: its subclasses have examples",
    "evercount.local.losses.ConvexLoss": "a base class: its subclasses have examples",
    "evercount.spark.batch_release.release_batch": "it needs a Spark session; docs/scale.md shows it",
    "evercount.spark.stream_release.release_stream": "it needs a Spark session; docs/scale.md shows it",
}
"""Names that need no example, with the reason."""

TO_DO = {
    "evercount.factorizations.direct.Direct",
    "evercount.factorizations.row_weighted.Anytime",
    "evercount.factorizations.row_weighted.Normalized",
    "evercount.local.collection_plan.LocalPlan",
    "evercount.local.estimate.LocalEstimate",
    "evercount.local.genprot.GenProtClient",
    "evercount.local.genprot.GenProtPlan",
    "evercount.local.genprot.GenProtServer",
    "evercount.local.hierarchical.HierarchyClient",
    "evercount.local.hierarchical.HierarchyEstimate",
    "evercount.local.hierarchical.HierarchyPlan",
    "evercount.local.hierarchical.HierarchyServer",
    "evercount.local.local_client.LocalClient",
    "evercount.local.local_client.simulate",
    "evercount.local.local_server.LocalServer",
    "evercount.local.losses.Absolute",
    "evercount.local.losses.ConvexLoss",
    "evercount.local.losses.Hinge",
    "evercount.local.losses.Quantile",
    "evercount.spark.batch_release.BatchOutcome",
    "evercount.spark.session.open_session",
    "evercount.spark.stream_release.StreamOutcome",
    "evercount.sparse.sparse_count.SparseCount",
}
"""Names whose text is still to be written. No name may be added."""


def public_names() -> Iterator[tuple[str, Any]]:
    """The classes and functions of the public modules, each once, under the name of the module that defines them."""
    seen = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for one in getattr(module, "__all__", None) or [one for one in vars(module) if not one.startswith("_")]:
            thing = getattr(module, one)
            home = getattr(thing, "__module__", None) or ""
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and home.startswith("evercount"):
                full = f"{home}.{thing.__qualname__}"
                if full not in seen:
                    seen.add(full)
                    yield full, thing


NAMES = dict(public_names())


def missing(full: str, thing: Any) -> list[str]:
    """What the text of a public name lacks."""
    text = inspect.getdoc(thing) or ""
    if not text:
        return ["a docstring"]
    if isinstance(thing, type) and issubclass(thing, Exception):
        return []  # users catch it; its first sentence says when it is raised
    lacks = []
    signature = inspect.signature(thing)
    if signature.parameters and "Args:" not in text and "Attributes:" not in text:
        lacks.append("Args")
    gives = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if not isinstance(thing, type) and gives and "Returns:" not in text:
        lacks.append("Returns")
    if ">>>" not in text and full not in EXEMPT:
        lacks.append("an example")
    return lacks


@pytest.mark.parametrize("full", sorted(NAMES))
def test_public_names_say_how_they_are_used(full: str) -> None:
    lacks = missing(full, NAMES[full])
    if full not in TO_DO:
        assert not lacks, f"{full} lacks {', '.join(lacks)}"


def test_the_lists_name_what_exists() -> None:
    assert len(NAMES) > 80
    assert set(EXEMPT) | TO_DO <= set(NAMES)


def test_a_bare_function_is_caught() -> None:
    def bare(ticks: int) -> int:
        """Count."""
        return ticks

    assert missing("bare", bare) == ["Args", "Returns", "an example"]
