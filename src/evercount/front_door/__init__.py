"""What Python calls first: `release` a data frame, `declare` a stream. Nothing heavy is imported before a call."""

from evercount.front_door.declare_stream import declare
from evercount.front_door.release_data import release

__all__ = ["declare", "release"]
