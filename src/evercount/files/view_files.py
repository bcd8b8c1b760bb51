"""Files next to an output: its further views, and what a reader of a CSV must know.

`hourly.csv` has its view per-day in `hourly.per-day.csv` and its description in
`hourly.csv.meta.json`. All of it follows from the published numbers, and every run writes it anew:
it can be lost, deleted and made again at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evercount._safe_files import disk_errors, new_mode, replaced
from evercount.declarations.cautions import public_facts
from evercount.engine.release_table import LEVEL
from evercount.engine.write_table import describe_csv, round_table, write_tables
from evercount.files.archive import AdaptCopy
from evercount.files.published import Publication
from evercount.files.release_job import Job, output_kind


def files_beside(output: Path, job: Job) -> dict[str, Path]:
    """What is written next to an output, by what it is."""
    files = {f"the view {name}": view_path(output, name) for name in job.all_views}
    if job.kind == "csv":
        for path in (output, *files.values()):
            files[f"the description of {path.name}"] = description_path(path)
    return files


def copies_beside(output: Path, job: Job) -> dict[Path, AdaptCopy | None]:
    """What is kept when a new stream takes the names, and how a copy differs from it."""
    views = [view_path(output, name) for name in job.all_views]
    copies: dict[Path, AdaptCopy | None] = dict.fromkeys((output, *views))
    if job.kind == "csv":
        copies |= {description_path(path): renamed_description for path in (output, *views)}
    return copies


def write_views(output: Path, published: Publication) -> list[Path]:
    """Write the further views next to the output, and the descriptions. Each file is complete or as
    it was before."""
    job = published.job
    metadata = {"evercount.guarantee": published.guarantee}
    paths = {name: view_path(output, name) for name in job.all_views}
    for name, path in paths.items():
        table = published.view(name)
        shown = table if job.full_digits else round_table(table)
        with (
            disk_errors(f"{output} is published; {path} cannot be written"),
            replaced(path, new_mode(path)) as file,
        ):
            schedule = job.declaration.schedule
            write_tables(output_kind(output.name), file, [shown], schedule, metadata)
    if job.kind == "csv":
        facts = public_facts(
            job.declaration,
            published.guarantee,
            published.marks,
            full_digits=job.full_digits,
            carried=published.carried,
        )
        for path in (output, *paths.values()):
            describe_file(path, facts)
    return list(paths.values())


def view_path(output: Path, name: str) -> Path:
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def description_path(table: Path) -> Path:
    """Of a CSV: `flu.csv.meta.json`."""
    return table.with_name(f"{table.name}.meta.json")


def describe_file(path: Path, facts: Mapping[str, Any]) -> None:
    """Write next to a CSV what readers must know (`public_facts`), as CSV on the Web."""
    target = description_path(path)
    with disk_errors(f"{path} is published; {target} cannot be written"):
        with path.open("rb") as file:
            columns = file.readline().decode().strip().split(",")
        with replaced(target, new_mode(target)) as file:
            file.write(_as_json(describe_csv(path.name, columns, facts, LEVEL)))


def renamed_description(description: bytes, path: Path) -> bytes:
    """Return the description that a copy at `path` holds: it names the copy of its table."""
    return _as_json(json.loads(description) | {"url": path.name.removesuffix(".meta.json")})


def _as_json(description: Mapping[str, Any]) -> bytes:
    return json.dumps(description, indent=1, ensure_ascii=False).encode() + b"\n"
