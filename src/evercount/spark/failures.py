"""What Spark's errors say, in one line."""

from __future__ import annotations

import re

NAMED = re.compile(r"\[[A-Z0-9_.]+\] .*")
"""What a line says from the name of Spark's error on, such as [FAILED_READ_FILE.NO_HINT]."""


def first_line(error: BaseException) -> str:
    """What Spark says, without its stack: our own error on an executor, else a named one, else the first line."""
    lines = str(error).strip().splitlines()
    ours = [line.split(": ", 1)[-1] for line in lines if line.startswith("evercount.errors.")]
    named = [found[0] for line in lines if (found := NAMED.search(line))]
    return (ours[-1:] + named + lines + [type(error).__name__])[0][:400]
