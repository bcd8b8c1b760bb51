"""What a run refuses before it counts: paths that are the same, libraries that are missing, options that do not fit."""

from __future__ import annotations

from pathlib import Path

from evercount._safe_files import refuse_link
from evercount.engine.release_table import LEVEL
from evercount.engine.write_table import parquet_modules
from evercount.errors import ParameterError
from evercount.files.draw_releases import CHARTS
from evercount.files.lake_table import open_lake
from evercount.files.published import description_path, view_path
from evercount.files.release_job import Job
from evercount.files.run_state import Places


def check_db(job: Job) -> None:
    """Refuse what does not go with a store."""
    for given, why in (
        (job.state is not None, "`state` does not go with `db`: the store is the state"),
        (job.new_noise_stream, "`new_noise_stream` does not go with `db`: declare a stream of another `name`"),
        (job.out == "-", "`out` - does not go with `db`: name a file, or omit it"),
        (job.declaration.carry_caps, "`carry_caps` is for state files: omit `db` or `carry_caps`"),
        (job.level != LEVEL, f"a store keeps intervals of {LEVEL:.0%}: omit the level"),
    ):
        if given:
            raise ParameterError(why)


def check_paths(job: Job, places: Places) -> None:
    """No two of the files may be the same, and what is written is not a symbolic link (`_safe_files.py`)."""
    written = {"`out`": places.output, "`state`": places.state, "`rejects`": job.rejects, "`plot`": job.plot}
    written["`ledger`"] = job.ledger
    named = [("the input", name) for name in job.files if name != "-"]
    seen: dict[Path, str] = {}
    if places.output is not None:
        written |= {f"the view {name}": view_path(places.output, name) for name in job.all_views}
        if job.kind == "csv":
            tables = [places.output, *(view_path(places.output, name) for name in job.all_views)]
            written |= {f"the description of {path.name}": description_path(path) for path in tables}
    for what, name in (*named, *written.items()):
        if name is None:
            continue
        if what != "the input":
            refuse_link(what, Path(name))
        path = Path(name).resolve()
        if path in seen:
            raise ParameterError(f"{what} and {seen[path]} are the same file {name}: name different ones")
        seen[path] = what
        if what != "the input" and not path.parent.is_dir():
            raise ParameterError(f"{what} {name}: there is no folder {path.parent}")
        if what != "the input" and path.is_dir():
            raise ParameterError(f"{what} {name} is a directory: name a file")


def check_extras(job: Job) -> None:
    """Refuse before the run what would fail after it: a missing library, a chart without a file to read."""
    if job.carry_totals and not job.renew:
        raise ParameterError("`carry_totals` needs `renew`: it is about the next stream")
    if job.kind == "parquet":
        parquet_modules()
    if job.lake is not None:
        if job.declaration.revise_for is not None:
            raise ParameterError("`lake` tables get each tick once, and `late` revise publishes it again: use `out`")
        if not job.kept:
            raise ParameterError("`lake` needs `state`: without it a second run could not know what the first released")
        open_lake(job.lake)
    if job.notes and job.out == "-":
        raise ParameterError("`notes` need a file as `out`, which every run rewrites once there are notes")
    if job.all_views and job.out == "-":
        raise ParameterError("views need a file as `out`: they are read back from all ticks of the output")
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if job.out == "-":
            raise ParameterError("`plot` needs a file as `out`: the chart shows all ticks of it")
        if Path(job.plot).suffix.lower() not in CHARTS:
            raise ParameterError(f"`plot` {job.plot!r}: the name must end in {', '.join(CHARTS)}")
