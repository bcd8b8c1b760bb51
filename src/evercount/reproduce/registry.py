"""Every item of the reproduction by name, in the order of the paper."""

from __future__ import annotations

from evercount.reproduce import attack_items, local_items, reduction_items, table1_items
from evercount.reproduce.baseline_items import bridges, smoothness, sparse, yardstick
from evercount.reproduce.counting_items import error_over_time, sparse_streams, top_one
from evercount.reproduce.item import Item
from evercount.reproduce.norm_items import constants, gaps, honaker, suboptimality

FIGURES = (error_over_time, gaps, sparse_streams, top_one)
PAPER = (*FIGURES, suboptimality, honaker, table1_items.rows_of_table, local_items.compare_forms, attack_items.failures)
BEYOND = (constants, smoothness, sparse, reduction_items.reductions, bridges, yardstick)
ITEMS: dict[str, Item] = {one.name: one for one in (*PAPER, *BEYOND)}
