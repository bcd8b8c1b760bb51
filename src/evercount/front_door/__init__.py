"""What Python calls first: `release` a data frame, `declare` a stream, `plan` its errors."""

from evercount.front_door.declare_stream import declare
from evercount.front_door.release_data import plan, release

__all__ = ["declare", "plan", "release"]
