"""Which stream of a store writes an output: `.hourly.csv.stream`, next to it, names that.

A state file knows its output by a digest. A store writes its outputs anew in every run, from what
it has released, and so it could write them over those of any other stream: days that are published
would be published again, with new noise. So an output that exists is written by a store only if its
marker names a stream of this one's chain of renewals.

The marker is on the disk before the output. A crash in between leaves a marker without an output,
which means nothing. It holds no secret. If it is lost, the output is moved away, and the next run
writes it anew.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from evercount._safe_files import disk_errors, replaced
from evercount.errors import StoreError

STATE_SUFFIX = ".state"  # of the state next to an output, where a run names no other


def marker_of(output: Path) -> Path:
    """Return where the marker of an output lies.

    >>> marker_of(Path("hourly.csv")).name
    '.hourly.csv.stream'
    """
    return output.with_name(f".{output.name}.stream")


def marked_stream(output: Path) -> str | None:
    """Return the stream that the marker of an output names; None without a marker."""
    with disk_errors(f"the marker {marker_of(output)} cannot be read"):
        try:
            return marker_of(output).read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return None


def mark_output(output: Path, stream: str) -> None:
    """Name the stream that writes an output from now on."""
    if marked_stream(output) == stream:
        return
    with (
        disk_errors(f"the marker of {output} cannot be written"),
        replaced(marker_of(output)) as file,
    ):
        file.write(f"{stream}\n".encode())


def check_output(output: Path, name: str, streams: Collection[str], unmarked: bool) -> None:
    """Refuse an output that another stream has published. `streams` are those of the chain of the
    stream `name`, and `unmarked` says that this one has written outputs before there were markers.

    **Guarantee.** What is published under a name is never published there again by a stream with
    other noise, wherever that is kept and whatever became of its state. Tests:
    tests/files/test_output_marker.py.
    """
    state = output.with_name(output.name + STATE_SUFFIX)
    remedy = (
        "A second stream over the same events would publish the same days with new noise, and both "
        "budgets would add up; if that is wanted, name another `out`"
    )
    if state.exists():
        raise StoreError(
            f"{output} is published by the stream of {state}: go on without `db`. {remedy}"
        )
    if not output.exists():
        return
    marked = marked_stream(output)
    if marked in streams or (marked is None and unmarked and streams):
        return
    raise StoreError(
        f"{output} exists, and stream {name!r} of this store has not written it: go on with the "
        f"`db` and `name`, or the `state`, that it came from. {remedy}. If {output} is a copy of "
        "this stream's own releases, move it away: the run writes it anew"
    )
