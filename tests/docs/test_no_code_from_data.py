"""No name from a request, a file, a snapshot or a database becomes code: what the linter cannot see
is checked here."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/evercount"
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "import_module", "__import__", "find_spec"}
ALWAYS = {
    "eval",
    "exec",
    "compile",
    "globals",
    "spec_from_file_location",
    "exec_module",
    "module_from_spec",
}

ALLOWED = {
    # fields of the class itself, by dataclasses.fields
    "planning/compare.py: getattr(self, part.name)": 2,
    "queries/graphs/graph_query.py: getattr(self, part.name)": 1,
    # names of the package itself, from a table that is written out
    "__init__.py: getattr(import_module(f'evercount.{_MODULES[name]}'), name)": 1,
    "__init__.py: import_module(f'evercount.{_MODULES[name]}')": 1,
    "__init__.py: globals()": 2,
    # arguments of the constructor of the class itself, by inspect.signature
    "queries/base.py: getattr(self, name)": 1,
    # names of a tuple that is written out
    "declarations/streams_file.py: getattr(self, name)": 1,
    "service/runtime.py: getattr(declaration, name)": 1,
    # a library that the caller's method names: pyarrow, pandas or polars
    "engine/write_table.py: import_module(name)": 1,
    # libraries that the type of the parameter lists
    "files/source.py: import_module(name)": 1,
    # the program that a person asks to have audited, typed on the command line of that person's own
    # shell
    "audit/doors.py: getattr(importlib.import_module(module), name)": 1,
    "audit/doors.py: import_module(module)": 1,
    "audit/doors.py: hasattr(candidate, part)": 1,
    # the benchmarks of the source tree, by the names of its files
    "cli/showcase_commands.py: import_module(f'bench_{name}')": 1,
}
"""Every look-up by a name that is not written out, and how often it is there."""


def look_ups(source: str) -> list[str]:
    """The calls of a module that turn a name into code or an attribute, but for names written out
    in the call."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func
            name = (
                called.id
                if isinstance(called, ast.Name)
                else called.attr
                if isinstance(called, ast.Attribute)
                else ""
            )
            if (
                isinstance(called, ast.Attribute)
                and name == "compile"
                and ast.unparse(called.value) == "re"
            ):
                continue
            asked = node.args[0 if name in {"import_module", "__import__", "find_spec"} else 1 :][
                :1
            ]
            literal = bool(asked) and isinstance(asked[0], ast.Constant)
            if name in ALWAYS or (name in BY_NAME and not literal):
                found.append(f"{name}({', '.join(map(ast.unparse, node.args))})")
    return found


def test_every_look_up_by_a_name_is_listed() -> None:
    found: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for call in look_ups(path.read_text("utf-8")):
            place = f"{path.relative_to(SOURCE).as_posix()}: {call}"
            found[place] = found.get(place, 0) + 1
    assert found == ALLOWED


@pytest.mark.parametrize(
    "planted",
    [
        "importlib.import_module(name)",
        "getattr(module, name)",
        "__import__(name)",
        "eval(text)",
        "exec(text)",
        "builtins.exec(text)",
        "globals()[name]()",
        "getattr(sys.modules[name], attribute)",
        "compile(text, 'x', 'exec')",
    ],
)
def test_planted_look_ups_are_seen(planted: str) -> None:
    assert look_ups(planted)


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        ("import pickle\n", "TID251"),
        ("import sys\n\nx = sys.modules\n", "TID251"),
        ("import subprocess\n", "TID251"),
        ("import random\n", "TID251"),
        ("import secrets\n", "TID251"),
        ("from secrets import token_hex\n", "TID251"),
        ("import os\n\nx = os.urandom(3)\n", "TID251"),
        ("import numpy as np\n\nx = np.random.default_rng(3)\n", "TID251"),
        ("from numpy.random import default_rng\n", "TID251"),
        ("x = eval('1')\n", "S307"),
        ("exec('1')\n", "S102"),
    ],
)
def test_the_linter_refuses_what_is_planted(planted: str, rule: str) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    assert ruff is not None, "ruff belongs to the development requirements"
    command = [
        ruff,
        "check",
        "--output-format",
        "concise",
        "--stdin-filename",
        "src/evercount/queries/planted.py",
        "-",
    ]
    told = subprocess.run(
        command, input=planted, capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout
    assert rule in told, told
    room = [part.replace("queries", "noise") for part in command]
    allowed = subprocess.run(
        room, input=planted, capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout
    assert ("TID251" in allowed) is False
