"""What lives that are killed need not calculate again, besides what `loaded_doors` loads: fits of
noise."""

from __future__ import annotations

from kill_doors import KINDS, events_of, recomputed

for kind in KINDS:
    recomputed(kind, events_of(0))
