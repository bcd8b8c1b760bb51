"""The values ℓ(θ, d) of the losses, written down apart from their slopes: what the reduction must
reproduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evercount.local import Absolute, Hinge, Logistic, Loss, Quantile


def loss_value(loss: Loss, theta: float, data: Any) -> float:
    if isinstance(loss, Absolute):
        return abs(theta - data)
    if isinstance(loss, Quantile):
        return loss.tau * (data - theta) if theta < data else (1 - loss.tau) * (theta - data)
    x, y = data
    if isinstance(loss, Hinge):
        return max(0.0, loss.margin - y * (theta - x))
    assert isinstance(loss, Logistic)
    return loss.scale * math.log1p(math.exp(-y * (theta - x) / loss.scale))


def risk_above_zero(loss: Loss, theta: float, people: Sequence[Any]) -> float:
    """The mean of ℓ(θ, d) − ℓ(0, d)."""
    return sum(loss_value(loss, theta, d) - loss_value(loss, 0.0, d) for d in people) / len(people)
