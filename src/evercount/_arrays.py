"""Type aliases for arrays, shared by all rooms."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
UIntArray: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
ObjectArray: TypeAlias = npt.NDArray[np.object_]
AnyArray: TypeAlias = npt.NDArray[Any]
