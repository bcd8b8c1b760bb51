"""All items by name, in the order of the paper; runs them and writes CSV, JSON, PNG and SVG, and
one index page.

An item whose `result.json` was written with the same parameters is not run again.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evercount._safe_files import new_mode, replaced
from evercount._validate import check_name
from evercount.errors import MissingExtra, ParameterError
from evercount.reproduce.baseline_items import bridges, smoothness, sparse, yardstick
from evercount.reproduce.counting_items import error_over_time, sparse_streams, top_one
from evercount.reproduce.device_simulator import check_device
from evercount.reproduce.item import Context, Item, Result, silent
from evercount.reproduce.norm_items import constants, gaps, honaker, suboptimality
from evercount.reproduce.proof_items import failures, reductions
from evercount.reproduce.related_items import related_work
from evercount.reproduce.table1_items import compare_forms, rows_of_table

PAPER = (
    error_over_time,
    gaps,
    sparse_streams,
    top_one,
    suboptimality,
    honaker,
    rows_of_table,
    compare_forms,
    failures,
)
BEYOND = (constants, smoothness, sparse, reductions, bridges, yardstick, related_work)
ITEMS: dict[str, Item] = {one.name: one for one in (*PAPER, *BEYOND)}


RECORD_FORMAT = 2  # the version of `result.json`; records of other versions are run again
FIGURE_DPI = 110
LARGEST_TABLE_IN_INDEX = 24  # the index links to tables with more rows instead of printing them


def choose(names: Sequence[str]) -> list[Item]:
    for name in names:
        check_name("item", name, ("all", *ITEMS))
    return [item for item in ITEMS.values() if not names or "all" in names or item.name in names]


def run_items(
    names: Sequence[str],
    out: Path,
    quick: bool = False,
    repetitions: int | None = None,
    seed: int = 0,
    again: bool = False,
    progress: Callable[[Item, int, int], None] = silent,
    finished: Callable[[Item, Mapping[str, Any], bool], None] = silent,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """Run the named items into folders under `out` and write README.md, the index."""
    if repetitions is not None and repetitions < 2:
        raise ParameterError(f"repetitions must be at least 2, got {repetitions}")
    if device is not None:
        check_device(device)
    items = choose(names)
    out.mkdir(parents=True, exist_ok=True)
    for item in items:
        folder = out / item.name
        asked = {
            "format": RECORD_FORMAT,
            "parameters": item.parameters(quick, repetitions, device),
            "seed": seed,
        }
        key = json.loads(json.dumps(asked))  # in the form that JSON restores
        record = read_record(folder)
        skipped = record is not None and not again and key.items() <= record.items()
        if record is None or not skipped:
            if again:
                remove_partials(folder)
            record = run_one(item, Context(seed, partial(progress, item), folder), key, folder)
        finished(item, record, skipped)
    records = {
        item.name: record
        for item in ITEMS.values()
        if (record := read_record(out / item.name)) is not None
    }
    (out / "README.md").write_text(index_page(list(records.values())), encoding="utf-8")
    return [records[item.name] for item in items]


def run_one(item: Item, context: Context, key: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run one item and write its folder. `result.json` is written last: it marks the item as
    finished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    start = time.perf_counter()
    result = item.run(key["parameters"], context)
    files = write_tables(result, folder)
    figures, missing = write_figures(result, folder)
    record = {
        "item": item.name,
        "title": item.title,
        "paper shows": item.shows,
        **key,
        "paper": result.paper,
        "verdict": result.verdict,
        "tables": {name: list(rows) for name, rows in result.tables.items()},
        "files": files,
        "figures": figures,
        "no figures": missing,
        "seconds": round(time.perf_counter() - start, 2),
    }
    path = folder / "result.json"
    with replaced(path, new_mode(path)) as file:
        file.write(f"{json.dumps(record, indent=1, ensure_ascii=False)}\n".encode())
    remove_partials(folder)
    return read_record(folder) or record


def remove_partials(folder: Path) -> None:
    """Delete what an interrupted run of the item left."""
    for path in folder.glob("*.partial.npz"):
        path.unlink()


def read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(record, dict) and record.get("format") == RECORD_FORMAT:
        return record
    return None


def write_tables(result: Result, folder: Path) -> list[str]:
    files = []
    for name, rows in result.tables.items():
        path = folder / f"{slug(name)}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        files.append(path.name)
    return files


def write_figures(result: Result, folder: Path) -> tuple[list[str], str]:
    """Write PNG and SVG of each figure. Returns the file names, and why there are none where
    matplotlib is missing."""
    files: list[str] = []
    for name, draw in result.figures.items():
        try:
            figure = draw()
            from matplotlib import rc_context
        except (MissingExtra, ImportError) as error:
            return files, str(error)
        for suffix in ("png", "svg"):
            path = folder / f"{slug(name)}.{suffix}"
            if suffix == "svg":
                metadata = {"Date": None}
            else:
                metadata = {"Software": None}
            # Simplified paths lose the binary mechanism's narrow spikes. A fixed salt makes the
            # files reproducible.
            with rc_context({"path.simplify": False, "svg.hashsalt": "evercount"}):
                figure.savefig(str(path), dpi=FIGURE_DPI, metadata=metadata)
            files.append(path.name)
    return files, ""


def slug(name: str) -> str:
    return "-".join(
        "".join(c if c.isascii() and c.isalnum() else " " for c in name.lower()).split()
    )


def index_page(records: Sequence[Mapping[str, Any]]) -> str:
    lines = ["# The paper's figures and tables, with our numbers next to the paper's", ""]
    lines += ["| item | what it is | result |", "|---|---|---|"]
    lines += [f"| [{r['item']}](#{r['item']}) | {r['title']} | {r['verdict']} |" for r in records]
    for record in records:
        lines += ["", f"## {record['item']}", "", f"The paper: {record['paper shows']}", ""]
        lines += [f"Result: {record['verdict']}.", ""]
        lines += [f"- in the paper, {name}: {found}" for name, found in record["paper"].items()]
        lines += [f"- no figures: {record['no figures']}"] if record["no figures"] else []
        pictures = [name for name in record["figures"] if name.endswith(".png")]
        lines += ["", *(f"![{name}]({record['item']}/{name})" for name in pictures)]
        for (name, rows), file in zip(record["tables"].items(), record["files"], strict=True):
            lines += ["", f"{name} ([{file}]({record['item']}/{file}))", ""]
            if len(rows) <= LARGEST_TABLE_IN_INDEX:
                lines += markdown_table(rows)
        parameters = json.dumps(record["parameters"], ensure_ascii=False)
        lines += ["", f"Parameters: {parameters}, seed {record['seed']}."]
    return "\n".join(lines) + "\n"


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write rows as the lines of a table in Markdown."""
    columns = list(rows[0])
    rules = ["---"] * len(columns)
    lines = ["| " + " | ".join(map(format_cell, columns)) + " |", "|" + "|".join(rules) + "|"]
    for row in rows:
        cells = [format_cell(row[column]) for column in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def format_cell(value: Any) -> str:
    """A table cell: numbers with four or five digits, text as it is, "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if abs(value) < 1e5:
            return f"{value:.5g}"
        return f"{value:.3e}"
    return str(value).replace("|", "\\|")
