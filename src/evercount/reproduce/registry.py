"""Every item of the reproduction by name, in the order of the paper."""

from __future__ import annotations

from evercount.reproduce.attack_items import FAILURES
from evercount.reproduce.baseline_items import BRIDGES, SMOOTHNESS, SPARSE
from evercount.reproduce.counting_items import FIGURE1, FIGURE3, FIGURE4
from evercount.reproduce.item import Item
from evercount.reproduce.local_items import LOCAL
from evercount.reproduce.norm_items import BINARY, CONSTANTS, FIGURE2, HONAKER
from evercount.reproduce.reduction_items import REDUCED
from evercount.reproduce.table1_items import TABLE1
from evercount.reproduce.yardstick_items import YARDSTICK

PAPER = (FIGURE1, FIGURE2, FIGURE3, FIGURE4, BINARY, HONAKER, TABLE1, LOCAL, FAILURES)
BEYOND = (CONSTANTS, SMOOTHNESS, SPARSE, REDUCED, BRIDGES, YARDSTICK)
ITEMS: dict[str, Item] = {item.name: item for item in (*PAPER, *BEYOND)}
