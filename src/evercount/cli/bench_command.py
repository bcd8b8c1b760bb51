"""`evercount bench`: speed, memory and growth, as ratios of one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option


def bench(
    names: list[str] | None = Argument(None, help="Only these groups; default: all."),
    json_output: bool = Option(False, "--json", help="Print JSON lines instead of a table."),
    mechanism: str | None = Option(None, help="Only the exact noise of this factorization, built-in or registered."),
    list_only: bool = Option(False, "--list", help="List the groups."),
) -> None:
    """Measure speed, memory and growth against their targets. Needs the source tree: the groups live in benchmarks/."""
    import importlib.util
    import json

    from evercount.errors import UnknownName

    groups = {path.stem.removeprefix("bench_"): path for path in sorted(_folder().glob("bench_*.py"))}
    if list_only:
        typer.echo("\n".join(groups))
        return
    if mechanism is not None:
        names = ["exact"]
    for name in names or []:
        if name not in groups:
            raise UnknownName("benchmark", name, groups)
    for name, path in groups.items():
        if names and name not in names:
            continue
        spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not json_output:
            typer.echo(f"\n{name}")
        for row in module.run() if mechanism is None else module.named(mechanism):
            if json_output:
                typer.echo(json.dumps({"group": name, **row}, default=str))
            else:
                typer.echo(_line(row))


def _folder() -> Path:
    """The benchmarks/ folder of the source tree: here, or above the installed package."""
    import evercount
    from evercount.errors import ParameterError

    for parent in [Path.cwd(), *Path(str(evercount.__file__)).resolve().parents]:
        if any((parent / "benchmarks").glob("bench_*.py")):
            return parent / "benchmarks"
    raise ParameterError("no benchmarks/ folder here: run this inside a clone of the repository")


def _line(row: Mapping[str, Any]) -> str:
    """One measurement: name, value and unit; ratio, target and note if it has them."""
    ratio = "" if row.get("ratio") is None else f"  ratio {row['ratio']:.2f}"
    target = f"  (target {row['target']})" if row.get("target") else ""
    note = f"  {row['note']}" if row.get("note") else ""
    return f"  {row['name']}: {row['value']:.4g} {row['unit']}{ratio}{target}{note}"
