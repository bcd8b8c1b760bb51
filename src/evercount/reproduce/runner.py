"""Run items and write their results: CSV, JSON, PNG and SVG per item, and one index page for all of them.

An item whose `result.json` was written with the same parameters is not run again.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evercount.errors import MissingExtra, ParameterError, UnknownName
from evercount.reproduce.item import Context, Item, Result, silent
from evercount.reproduce.registry import ITEMS

RECORD_FORMAT = 1  # the version of `result.json`; records of other versions are run again
FIGURE_DPI = 110
LARGEST_TABLE_IN_INDEX = 24  # the index links to tables with more rows instead of printing them


@dataclass(frozen=True)
class Options:
    out: Path
    quick: bool = False
    repetitions: int | None = None
    seed: int = 0
    again: bool = False


def choose(names: Iterable[str]) -> list[Item]:
    wanted = list(names)
    for name in wanted:
        if name != "all" and name not in ITEMS:
            raise UnknownName("item", name, ["all", *ITEMS])
    return [item for item in ITEMS.values() if not wanted or "all" in wanted or item.name in wanted]


def run_items(
    names: Iterable[str],
    options: Options,
    progress: Callable[[Item, int, int], None] | None = None,
    finished: Callable[[Item, Mapping[str, Any], bool], None] | None = None,
) -> list[dict[str, Any]]:
    """Run the named items into folders under `options.out` and write README.md, the index."""
    if options.repetitions is not None and options.repetitions < 2:
        raise ParameterError(f"repetitions must be at least 2, not {options.repetitions}")
    items = choose(names)
    options.out.mkdir(parents=True, exist_ok=True)
    for item in items:
        folder = options.out / item.name
        key = parameters_key(item, options)
        record = read_record(folder)
        same = record is not None and all(record.get(name) == value for name, value in key.items())
        skipped = same and not options.again
        if record is None or not skipped:
            context = Context(options.seed, partial(progress, item) if progress else silent)
            record = run_one(item, context, key, folder)
        if finished is not None:
            finished(item, record, skipped)
    records = [record for item in ITEMS.values() if (record := read_record(options.out / item.name)) is not None]
    (options.out / "README.md").write_text(index_page(records), encoding="utf-8")
    chosen = {item.name for item in items}
    return [record for record in records if record["item"] in chosen]


def parameters_key(item: Item, options: Options) -> dict[str, Any]:
    """Everything that the result depends on, in the form that JSON restores."""
    parameters = item.parameters(options.quick, options.repetitions)
    return dict(json.loads(json.dumps({"format": RECORD_FORMAT, "parameters": parameters, "seed": options.seed})))


def run_one(item: Item, context: Context, key: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run one item and write its folder. `result.json` is written last: it marks the item as finished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    start = time.perf_counter()
    result = item.run(key["parameters"], context)
    files = write_tables(result, folder)
    figures, note = write_figures(result, folder)
    record = {
        "item": item.name,
        "title": item.title,
        "paper shows": item.shows,
        **key,
        "paper": result.paper,
        "verdict": result.verdict,
        "findings": [*result.findings, *([note] if note else [])],
        "tables": {name: list(rows) for name, rows in result.tables.items()},
        "files": files,
        "figures": figures,
        "seconds": round(time.perf_counter() - start, 2),
    }
    unfinished = folder / "result.json.part"
    unfinished.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(folder / "result.json")
    return read_record(folder) or record


def read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == RECORD_FORMAT else None


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def write_tables(result: Result, folder: Path) -> list[str]:
    files = []
    for name, rows in result.tables.items():
        path = folder / f"{slug(name)}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns_of(rows))
            writer.writeheader()
            writer.writerows(rows)
        files.append(path.name)
    return files


def write_figures(result: Result, folder: Path) -> tuple[list[str], str]:
    """Write PNG and SVG of each figure. Returns the file names, and a note if matplotlib is missing."""
    files: list[str] = []
    for name, draw in result.figures.items():
        try:
            figure = draw()
            from matplotlib import rc_context
        except (MissingExtra, ImportError) as error:
            return files, f"No figures: {error}"
        for suffix in ("png", "svg"):
            path = folder / f"{slug(name)}.{suffix}"
            metadata = {"Date": None} if suffix == "svg" else {"Software": None}
            # Simplified paths lose the binary mechanism's narrow spikes. A fixed salt makes the files reproducible.
            with rc_context({"path.simplify": False, "svg.hashsalt": "evercount"}):
                figure.savefig(str(path), dpi=FIGURE_DPI, metadata=metadata)
            if suffix == "png":
                reduce_colours(path)
            files.append(path.name)
    return files, ""


def reduce_colours(path: Path) -> None:
    """Rewrite a PNG with a palette of 128 colours: a third of the size, and a chart needs no more."""
    from PIL import Image  # installed with matplotlib

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(path, optimize=True)


def slug(name: str) -> str:
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name.lower()).split())


def index_page(records: Sequence[Mapping[str, Any]]) -> str:
    lines = ["# The paper's figures and tables, with our numbers beside the paper's", ""]
    lines += ["| item | what it is | result |", "|---|---|---|"]
    lines += [f"| [{r['item']}](#{r['item']}) | {r['title']} | {r['verdict']} |" for r in records]
    for record in records:
        lines += ["", f"## {record['item']}", "", f"The paper: {record['paper shows']}", ""]
        lines += [f"Result: {record['verdict']}.", ""]
        lines += [f"- {finding}" for finding in record["findings"]]
        pictures = [name for name in record["figures"] if name.endswith(".png")]
        lines += ["", *(f"![{name}]({record['item']}/{name})" for name in pictures)]
        for (name, rows), file in zip(record["tables"].items(), record["files"], strict=True):
            lines += ["", f"{name} ([{file}]({record['item']}/{file}))", ""]
            if len(rows) <= LARGEST_TABLE_IN_INDEX:
                lines += markdown_table(rows)
        chosen = json.dumps(record["parameters"], ensure_ascii=False)
        lines += ["", f"Parameters: {chosen}, seed {record['seed']}."]
    return "\n".join(lines) + "\n"


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = columns_of(rows)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(format_cell(row.get(column)) for column in columns) + " |" for row in rows]


def format_cell(value: Any) -> str:
    """A table cell: numbers with four or five digits, text as it is, "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 else f"{value:.3e}"
    return str(value).replace("|", "\\|")
