"""What Spark's errors say, in one line."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """What Spark says, without its stack: the last line of a Python traceback, or else the first line."""
    lines = str(error).strip().splitlines()
    ours = [line for line in lines if line.startswith("evercount.errors.")]
    return (ours[-1].split(": ", 1)[-1] if ours else lines[0] if lines else type(error).__name__)[:400]
