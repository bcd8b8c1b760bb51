"""What the routes of one stream share: the name in the path, ticks in the query, and who may read."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from evercount.errors import Problem
from evercount.service.runtime import Service
from evercount.store import LiveStream

LARGEST_TICK = 2**53
"""Ticks travel as JSON numbers; beyond this many readers would round them."""

Name = Annotated[str, Path(min_length=1, max_length=64)]
After = Annotated[int, Query(ge=0, le=LARGEST_TICK, description="releases of later ticks only")]


def visible(service: Service, request: Request, name: str) -> LiveStream:
    """The stream if this request may read it."""
    role = service.access.role(request)
    live = service.look_up(name)
    if live is None or not live.declaration.public:
        if role is None:  # the same answer whether the stream exists or not
            raise Problem(401, "Unauthorized", "this stream is not public, or there is none: reading needs a token")
        service.find(name)
        assert live is not None
    return live
