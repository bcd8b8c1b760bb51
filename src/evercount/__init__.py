"""evercount: running statistics of sensitive event streams under one differential-privacy guarantee."""
