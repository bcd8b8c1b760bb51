"""What the routes of one stream share: the name in the path, ticks in the query, and who may read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request

from evercount.errors import Problem
from evercount.service.runtime import Service
from evercount.store import AnyStream

LARGEST_TICK = 2**53  # ticks travel as JSON numbers; beyond this many readers would round them

Name = Annotated[str, Path(min_length=1, max_length=64)]
FirstCell = Annotated[int, Query(ge=0, le=2**31 - 1, description="the first cell that is shown, from 0")]
Cells = Annotated[int, Query(ge=1, le=10_000, description="how many cells are shown")]
After = Annotated[int, Query(ge=0, le=LARGEST_TICK, description="releases of later ticks only")]


def visible(service: Service, request: Request, name: str) -> AnyStream:
    role = service.access.role(request)
    live = service.look_up(name)
    if live is None or not live.declaration.public:
        if role is None:  # the same answer whether the stream exists or not
            service.check_recovered()
            raise Problem(401, "Unauthorized", "this stream is not public or does not exist: reading needs a token")
        if live is None:
            raise Problem(404, "NotFound", "there is no such stream")
    return live


def cell_page(live: AnyStream, first_cell: int, cells: int) -> dict[str, Any]:
    """Which cells of a stream an answer is about: their labels, the place of the first, and how many there are."""
    labels = list(live.labels[first_cell : first_cell + cells])
    return {"stream": live.name, "labels": labels, "first_cell": first_cell, "cells": len(live.labels)}
