"""Every item of the reproduction by name, in the order of the paper."""

from __future__ import annotations

from evercount.reproduce.attack_items import FAILURES
from evercount.reproduce.baseline_items import SMOOTHNESS, SPARSE
from evercount.reproduce.bridge_items import BRIDGES
from evercount.reproduce.counting_items import FIGURE1, FIGURE3
from evercount.reproduce.honaker_items import HONAKER
from evercount.reproduce.item import Item
from evercount.reproduce.local_items import LOCAL
from evercount.reproduce.norm_items import BINARY, CONSTANTS, FIGURE2
from evercount.reproduce.reduction_items import REDUCED
from evercount.reproduce.table1_items import TABLE1
from evercount.reproduce.topk_items import FIGURE4
from evercount.reproduce.yardstick_items import YARDSTICK

PAPER = (FIGURE1, FIGURE2, FIGURE3, FIGURE4, BINARY, HONAKER, TABLE1, LOCAL, FAILURES)
BEYOND = (CONSTANTS, SMOOTHNESS, SPARSE, REDUCED, BRIDGES, YARDSTICK)
ITEMS: dict[str, Item] = {item.name: item for item in (*PAPER, *BEYOND)}
