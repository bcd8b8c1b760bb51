"""What becomes of late events of a stored stream, where that was changed after it was declared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select

from evercount.declarations.declaration import StreamDeclaration
from evercount.store.database import Database
from evercount.store.schema import meta

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream


def with_stored_rules(connection: Connection, stream: int, declared: StreamDeclaration) -> StreamDeclaration:
    """The declaration of a stream, which the chain covers, with the rule for late events that holds now."""
    text = connection.execute(select(meta.c.value).where(meta.c.key == f"late {stream}")).scalar()
    return declared if text is None else declared.with_rules(**json.loads(text))


def change_rules(database: Database, live: LiveStream, wanted: StreamDeclaration) -> None:
    """Take over `late` and `wait` of a new declaration, for events that come from now on."""
    rules = {"late": wanted.late, "wait": wanted.wait}
    if rules == {"late": live.declaration.late, "wait": live.declaration.wait}:
        return
    with database.transaction() as connection:
        connection.execute(delete(meta).where(meta.c.key == f"late {live.id}"))
        connection.execute(insert(meta).values(key=f"late {live.id}", value=json.dumps(rules)))
    live.declaration = live.declaration.with_rules(**rules)
