"""Released numbers as rows of the database: one row for each tick and cell, and back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sqlalchemy import Connection, insert, select

from evercount._arrays import FloatArray
from evercount.engine.release_table import NUMBERS
from evercount.store.schema import releases

COLUMNS = ("stream", "tick", "cell", *NUMBERS)
SQLITE = f"INSERT INTO {releases.name} ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def write_numbers(connection: Connection, stream: int, first_tick: int, first_cell: int, numbers: FloatArray) -> None:
    """Insert the numbers of consecutive ticks and cells, shape (ticks, 4, cells)."""
    rows = list(_rows(stream, first_tick, first_cell, numbers))
    if connection.dialect.name == "sqlite":  # past SQLAlchemy's handling of parameters, which takes most of the time
        connection.exec_driver_sql(SQLITE, rows)
    else:
        connection.execute(insert(releases), [dict(zip(COLUMNS, row, strict=True)) for row in rows])


def _rows(stream: int, first_tick: int, first_cell: int, numbers: FloatArray) -> Iterator[tuple[int | float, ...]]:
    ticks, _, cells = numbers.shape
    tick = np.repeat(np.arange(first_tick, first_tick + ticks), cells).tolist()
    cell = np.tile(np.arange(first_cell, first_cell + cells), ticks).tolist()
    columns = [numbers[:, index].ravel().tolist() for index in range(len(NUMBERS))]
    return zip([stream] * len(tick), tick, cell, *columns, strict=True)


def read_numbers(connection: Connection, stream: int, tick: int, cells: range) -> FloatArray:
    """Value, std, low and high of cells of a tick, shape (4, cells)."""
    table = releases
    where = (table.c.stream == stream) & (table.c.tick == tick) & table.c.cell.between(cells.start, cells.stop - 1)
    columns = (table.c.value, table.c.std, table.c.low, table.c.high)
    rows = connection.execute(select(*columns).where(where).order_by(table.c.cell)).all()
    return np.asarray(rows, np.float64).reshape(len(rows), len(NUMBERS)).T
