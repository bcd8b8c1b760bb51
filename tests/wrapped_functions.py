"""Put something around a function of the product: what it is asked is seen, or its answer changed,
as a planted bug would change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Call `around(function, *arguments)` instead of the function of this name."""
    function = getattr(owner, name)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        return around(function, *arguments, **options)

    patch.setattr(owner, name, wrapper)
