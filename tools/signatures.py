"""Write the options of `declare`, `plan` and `release` into their signatures and docstrings.

The options are the fields of the models in `evercount/front_door/options.py`: their types, defaults
and descriptions. A signature that is written out is seen by type checkers, editors, `help` and the
reference pages, and costs nothing when the package is imported. `tools/reference.py` calls this.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

from evercount.front_door.options import DeclareOptions, Options, ReleaseOptions

FOLDER = Path(__file__).parents[1] / "src" / "evercount" / "front_door"
WIDTH = 100
FUNCTIONS: dict[str, dict[str, type[Options]]] = {
    "declare_stream.py": {"declare": DeclareOptions},
    "release_data.py": {"release": ReleaseOptions, "plan": DeclareOptions},
}
"""The model of each function, by the file of the function."""


def signature_lines(model: type[Options]) -> list[str]:
    """Write the options of a model as keyword parameters."""
    annotations: dict[str, str] = {}
    for base in reversed(model.__mro__):
        annotations |= inspect.get_annotations(base)
    return [
        f"    {name}: {annotations[name]} = {field.default!r},"
        for name, field in model.model_fields.items()
    ]


def argument_lines(model: type[Options]) -> list[str]:
    """Write the options of a model as entries of a section `Args`."""
    lines = []
    for name, field in model.model_fields.items():
        lines += textwrap.wrap(
            f"{name}: {field.description}",
            WIDTH,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def with_options(source: str, functions: dict[str, type[Options]]) -> str:
    """Write the options of each function in a source: the parameters between `*` and `others`, and
    the arguments between those that are given by position and `others`."""
    for name, model in functions.items():
        lines = source.splitlines()
        function = next(
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef) and node.name == name
        )
        start = function.lineno
        star = lines.index("    *,", start)
        others = lines.index("    **others: Never,", star)
        end = next(i for i in range(others, len(lines)) if lines[i].startswith("        others: "))
        first = lines.index("    Args:", others) + 1
        by_position = {argument.arg for argument in function.args.args}
        while first < end:
            entry = re.match(r" {8}(\w+):", lines[first])
            if entry is not None and entry[1] not in by_position:
                break
            first += 1
        lines[first:end] = argument_lines(model)
        lines[star + 1 : others] = signature_lines(model)
        source = "\n".join(lines) + "\n"
    return source


def update(write: bool) -> list[str]:
    """Compare all signatures with the models, and write them; return the files that differ."""
    changed = []
    for file, functions in FUNCTIONS.items():
        path = FOLDER / file
        source = path.read_text(encoding="utf-8")
        written = with_options(source, functions)
        if written != source:
            changed.append(file)
            if write:
                path.write_text(written, encoding="utf-8")
    return changed
