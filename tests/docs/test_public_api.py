"""docs/public-api.md is complete: it names all that the package exports and every room, and what it
names exists."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import evercount

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "public-api.md").read_text(encoding="utf-8")


def test_the_page_names_exactly_what_the_package_exports():
    table = PAGE.split("### Members")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted([*evercount.__all__, "StreamDeclaration"])
    assert len(named) <= 25


def test_the_page_names_exactly_the_members_of_the_classes_that_people_hold():
    stream = evercount.Stream(evercount.Count(), evercount.Budget(1.0, 1e-6), 4)
    releases = stream.run([3, 4])
    held = [stream, releases[0], releases, releases.per_tick(), releases.table()]
    rows = re.findall(
        r"^\| (`.*?) \| (.*) \|$",
        PAGE.split("### Members")[1].split("## Submodules")[0],
        re.MULTILINE,
    )
    for one in held:
        named = [
            member
            for who, what in rows
            if f"`{type(one).__name__}`" in who
            for member in re.findall(r"`(\w+)`", what)
        ]
        assert sorted(named) == [name for name in dir(one) if not name.startswith("_")], type(
            one
        ).__name__


def test_public_submodules_say_what_is_public():
    modules = re.findall(r"^\| `(evercount\.[\w.]+)` \|", PAGE, re.MULTILINE)
    assert len(modules) >= 9
    for name in modules:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [
            one for one in vars(module) if not one.startswith("_")
        ]
        assert public, name
        assert all(hasattr(module, one) for one in public), name


def test_every_room_is_said_to_be_public_or_internal():
    rooms = [
        found.name for found in pkgutil.iter_modules(evercount.__path__) if found.name != "__main__"
    ]
    missing = [
        room for room in rooms if f"`{room}`" not in PAGE and f"`evercount.{room}" not in PAGE
    ]
    assert not missing


def test_files_named_in_a_rooms_readme_or_proof_exist():
    """A stale file name is a riddle: `name.py` in the text of a room must be a file of the package
    or of the tests."""
    known = {
        path.name
        for folder in ("src", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    pages = [
        *(ROOT / "src").rglob("*.md"),
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    stale = [
        (page.name, name)
        for page in pages
        for name in re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", page.read_text(encoding="utf-8"))
        if name not in known
    ]
    assert not stale
