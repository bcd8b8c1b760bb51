"""Every item of the reproduction by name, in the order of the paper."""

from __future__ import annotations

from evercount.reproduce import (
    attack_items,
    baseline_items,
    bridge_items,
    counting_items,
    honaker_items,
    local_items,
    norm_items,
    reduction_items,
    table1_items,
    topk_items,
    yardstick_items,
)
from evercount.reproduce.item import Item

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        counting_items.FIGURE1,
        norm_items.FIGURE2,
        counting_items.FIGURE3,
        topk_items.FIGURE4,
        norm_items.BINARY,
        honaker_items.HONAKER,
        table1_items.TABLE1,
        local_items.LOCAL,
        attack_items.FAILURES,
        norm_items.CONSTANTS,
        baseline_items.SMOOTHNESS,
        baseline_items.SPARSE,
        reduction_items.ITEM,
        bridge_items.BRIDGES,
        yardstick_items.ITEM,
    )
}
