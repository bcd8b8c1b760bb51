"""Freed memory stays with the process, so that wide noise does not wait for pages that the system clears again."""

from __future__ import annotations

from functools import cache

import numpy as np

KEPT_BYTES = 4 << 20


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed blocks of up to 4 MB for the next ones. It acts once in a process.

    Every block of noise allocates and frees arrays of some hundred KB. glibc gives blocks of more than 128 KB back to
    the system at once, which clears their pages again for the next ones. The limit rises to the size of the largest
    such block that was freed (`mallopt`, M_MMAP_THRESHOLD), so one of 4 MB is freed here. The process keeps up to 8 MB
    more. Other C libraries have other rules; nothing happens there.
    """
    np.empty(KEPT_BYTES, dtype=np.uint8)
