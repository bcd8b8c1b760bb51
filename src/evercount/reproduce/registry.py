"""Every item of the reproduction by name, in the order of the paper."""

from __future__ import annotations

from evercount.reproduce import attacks, baselines, counting, honaker, norms, table1, topk
from evercount.reproduce.items import Item

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        counting.FIGURE1,
        norms.FIGURE2,
        counting.FIGURE3,
        topk.FIGURE4,
        norms.BINARY,
        honaker.HONAKER,
        table1.TABLE1,
        attacks.FAILURES,
        norms.CONSTANTS,
        baselines.SMOOTHNESS,
        baselines.SPARSE,
    )
}
