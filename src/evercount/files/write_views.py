"""Views of a release file: `hourly.csv` and its view per-day in `hourly.per-day.csv`, written anew by every run.

They follow from the published numbers, which the state keeps: they can be lost, deleted and made again at any time.
"""

from __future__ import annotations

from pathlib import Path

from evercount._safe_files import new_mode, replaced
from evercount.declare.schedule import Schedule
from evercount.declare.view_names import all_of_view
from evercount.engine.release import Releases
from evercount.engine.write_table import write_tables
from evercount.errors import StoreError
from evercount.files.sink import output_kind


def view_path(output: Path, name: str) -> Path:
    """Where a view of a release file lies.

    >>> view_path(Path("hourly.csv"), "per-day").name
    'hourly.per-day.csv'
    """
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def write_views(
    output: Path,
    releases: Releases,
    schedule: Schedule,
    names: tuple[str, ...],
    level: float,
    postprocess: tuple[str, ...],
) -> list[Path]:
    """Write these views of all releases next to the output, each complete or as it was before."""
    paths = [view_path(output, name) for name in names]
    for name, path in zip(names, paths, strict=True):
        table = all_of_view(releases, name, schedule, level, postprocess)
        metadata = {"evercount.guarantee": releases.guarantee}
        try:
            with replaced(path, new_mode(path)) as file:
                write_tables(output_kind(output.name), file, [table], schedule, metadata)
        except OSError as error:
            raise StoreError(f"{output} is published; its view {path} cannot be written: {error.strerror}") from error
    return paths
