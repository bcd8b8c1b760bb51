"""Draw the packages and who imports whom, from the imports themselves:
docs/figures/architecture.svg.

python tools/architecture.py            writes the picture
python tools/architecture.py --check    fails if the picture is not what the imports are

An arrow is drawn where one package imports another and no way through other packages says the same
already. Imports for type checkers alone are left out.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evercount"
PICTURE = ROOT / "docs" / "figures" / "architecture.svg"
WIDTH, ROW, BOX, HEIGHT, GAP = 1080, 78, 112, 36, 18
STYLE = """<style>
  svg { font: 13px system-ui, sans-serif; }
  rect { fill: #eef4f8; stroke: #44647a; }
  rect.dark { fill: #dcebdc; }
  text { fill: #1c2a33; text-anchor: middle; }
  path { stroke: #7b95a5; fill: none; stroke-width: 1.1; marker-end: url(#tip); }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
  <polygon points="0,0 8,4 0,8" fill="#7b95a5"/></marker></defs>"""  # noqa: E501
ACROSS = {
    "audit": 300,
    "fitness": 860,
    "files": 600,
    "store": 540,
    "examples": 90,
    "planning": 290,
    "declarations": 600,
    "sparse": 400,
    "engine": 560,
    "plotting": 760,
    "local": 200,
    "mechanisms": 480,
    "queries": 640,
    "privacy": 540,
    "bounds": 740,
    "factorizations": 430,
    "noise": 640,
    "_validate": 500,
    "_safe_files": 700,
    "errors": 590,
}
"""Where boxes stand from left to right, so that few arrows pass behind others; the rows are those
of the layers."""
PROOFS = {"privacy", "noise", "mechanisms", "queries", "factorizations"}
"""Packages with the claims on which the guarantee rests: drawn in another colour."""


def layers() -> list[list[str]]:
    """Read the layers that the linter enforces, from the top."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    return [layer.split(" | ") for layer in checked["contracts"][0]["layers"]]


def is_for_types(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Go through all statements, those inside functions included, but for those of type
    checkers."""
    for node in body:
        if is_for_types(node):
            assert isinstance(node, ast.If)
            yield from statements(node.orelse)
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, inner, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def imported(tree: ast.Module) -> set[str]:
    """Name the packages of evercount that a module imports."""
    found = set()
    for node in statements(tree.body):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("evercount.")
        ):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "evercount":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("evercount.")
            }
    return found


def imports(names: set[str]) -> dict[str, set[str]]:
    """Name the packages that each package imports."""
    edges: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        place = SOURCE / name
        modules = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for path in modules:
            edges[name] |= imported(ast.parse(path.read_text(encoding="utf-8"))) & names - {name}
    return edges


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """Name all packages below one."""
    found: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += edges[name]
    return found


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out what another way says already."""
    below = {name: reachable(edges, name) for name in edges}
    return {
        name: {goal for goal in goals if not any(goal in below[other] for other in goals - {goal})}
        for name, goals in edges.items()
    }


def places(rows: list[list[str]]) -> dict[str, tuple[float, float]]:
    """Choose the middle of each box: a row for each layer."""
    found = {}
    for number, row in enumerate(rows):
        whole = len(row) * BOX + (len(row) - 1) * GAP
        for place, name in enumerate(row):
            even = (WIDTH - whole) / 2 + BOX / 2 + place * (BOX + GAP)
            found[name] = (ACROSS.get(name, even), 30.0 + number * ROW)
    return found


def picture() -> str:
    """Write the picture as SVG."""
    rows = layers()
    names = {name for row in rows for name in row}
    where = places(rows)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW}" '
            'role="img">'
        ),
        "<title>The packages of evercount and who imports whom</title>",
        STYLE,
    ]
    for name, goals in sorted(reduced(imports(names)).items()):
        x, y = where[name]
        for goal in sorted(goals):
            to_x, to_y = where[goal]
            start, end = y + HEIGHT / 2, to_y - HEIGHT / 2
            bend = (end - start) / 2
            lines.append(
                f'<path d="M{x:.0f},{start:.0f} C{x:.0f},{start + bend:.0f} '
                f'{to_x:.0f},{end - bend:.0f} {to_x:.0f},{end:.0f}"/>'
            )
    for name, (x, y) in where.items():
        kind = ' class="dark"' if name in PROOFS else ""
        corner = f'x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}"'
        lines.append(f'<rect{kind} {corner} width="{BOX}" height="{HEIGHT}" rx="6"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 4:.0f}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main(arguments: list[str]) -> int:
    """Write the picture, or compare it."""
    if "--check" not in arguments:
        PICTURE.write_text(picture(), encoding="utf-8")
        return 0
    if PICTURE.read_text(encoding="utf-8") == picture():
        return 0
    print(
        f"{PICTURE.relative_to(ROOT)} is not what the imports are: run python "
        "tools/architecture.py",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
