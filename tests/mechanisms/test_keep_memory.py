"""Wide exact noise does not give its memory back to the system after every block, to have it
cleared again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from evercount.factorizations import Balanced
from evercount.mechanisms.exact import exact_noise
from evercount.noise import Secret

stream = exact_noise.ExactStream(Balanced(2**16), 12.0, 3900, Secret.generate())
stream.take(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(6 * 32):
    stream.take(1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 6)
"""


def faults(**environment: str) -> int:
    """Pages that the system had to give for a block of 32 ticks, in a process of its own."""
    given = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=given
    )
    return int(done.stdout)


def test_blocks_use_the_memory_of_the_blocks_before() -> None:
    """About 10 pages a block; hundreds where the C library is told to give every block back."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip(
            "the rule of the allocator is glibc's; this is "
            f"{platform.libc_ver()[0] or 'another C library'}"
        )
    assert faults() < 100
    assert faults(MALLOC_MMAP_THRESHOLD_="131072", MALLOC_TRIM_THRESHOLD_="131072") > 300, "planted"
