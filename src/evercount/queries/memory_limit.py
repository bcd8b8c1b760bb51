"""Refuses a query at construction when its cells would not fit into this machine's memory."""

from __future__ import annotations

import os

from evercount.errors import TooLarge

BYTES_PER_CELL = 512
"""What a running stream keeps per cell, rounded up: sum, increment, release, label, encoder, noise buffers."""

MEMORY_IF_UNKNOWN = 8 * 2**30


def machine_memory() -> int:
    """Bytes of physical memory, or 8 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return MEMORY_IF_UNKNOWN


def require_fits(cells: int, what: str, remedy: str, bytes_per_cell: int = BYTES_PER_CELL) -> None:
    """Raise TooLarge when `cells` cells need more than half of the machine's memory."""
    need, have = cells * bytes_per_cell, machine_memory()
    if need > have // 2:
        raise TooLarge(
            f"{what} has {cells:,} cells and would need about {need / 2**30:,.1f} GiB; half of this machine's "
            f"memory is {have / 2**31:,.1f} GiB. {remedy}"
        )
