"""From the body of a request to a batch of events, each checked."""

from __future__ import annotations

import json
from datetime import tzinfo
from typing import Any

from evercount._validate import check_public_text, strict_json
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import parse_instant, parse_plain_instants, zone_named
from evercount.errors import EvercountError, InputError, ParameterError
from evercount.queries import Query
from evercount.store import Batch
from evercount.store.open_stream import read_request

# where an event's content may be
PAYLOADS = ("key", "keys", "value", "path", "values", "edge", "letter", "event")
LONGEST_USER = 256


def load_json(text: bytes, what: str, error: type[EvercountError] = ParameterError) -> Any:
    try:
        return strict_json(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError) as failed:
        reason = (
            "it is nested too deeply" if isinstance(failed, RecursionError) else f"{failed!s:.120}"
        )
        raise error(f"{what} is not JSON: {reason}") from None


def read_items(body: bytes, ndjson: bool, most: int) -> list[Any]:
    if not ndjson:
        items = load_json(body, "the body", InputError)
        if not isinstance(items, list):
            raise InputError("the body must be an array of events, or NDJSON with its content type")
    else:
        lines = body.split(b"\n")
        items = [
            load_json(line, f"line {number}", InputError)
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    if len(items) > most:
        raise InputError(f"a batch holds at most {most} events: split it")
    return items


def read_batch(
    declaration: StreamDeclaration,
    body: bytes,
    *,
    ndjson: bool = False,
    key: str | None = None,
    most: int = 10_000,
    sender: bytes = b"",
) -> Batch:
    """The batch of a request, with every event checked by the stream's query, whatever the open
    tick holds."""
    if key is not None:
        check_public_text("Idempotency-Key", key)
    items = read_items(body, ndjson, most)
    payloads = [item for item in items if type(item) is not dict]
    users: list[str] | None = None
    times: list[int | None] | None = None
    named = declaration.query.people is not None
    per_user = declaration.budget.unit == "user" and not named
    if named:
        items = [_named_user(declaration.query, number, item) for number, item in enumerate(items)]
    if len(payloads) < len(items) or (per_user and items):
        payloads, users, times = _read_objects(declaration, items, per_user)
    return Batch(
        declaration.name,
        payloads,
        read_request(declaration, payloads),
        users,
        times,
        key,
        body,
        sender,
    )


def _read_objects(
    declaration: StreamDeclaration, items: list[Any], per_user: bool
) -> tuple[list[Any], list[str] | None, list[int | None] | None]:
    """Contents, users and times of events of which some are objects."""
    payloads, users, moments = list[Any](), list[str](), list[Any]()
    zone = zone_named(declaration.schedule.zone)
    counting = declaration.query.event_number is not None
    levels = () if declaration.columns is None else declaration.columns.levels
    for number, item in enumerate(items):
        fields = dict(item) if isinstance(item, dict) else {"event": item}
        user, moment = fields.pop("user", None), fields.pop("time", None)
        if not fields and counting:
            fields = {"event": 1}
        if levels and fields.keys() == set(levels):  # the columns of a table, by their names
            fields = {"path": [fields[name] for name in levels]}
        if len(fields) != 1 or next(iter(fields)) not in PAYLOADS:
            raise InputError(
                f"event {number} (from 0) must hold its content under one of "
                f"{', '.join(PAYLOADS)}, and otherwise only 'user' and 'time'"
            )
        payloads.extend(fields.values())
        if per_user:
            users.append(_user(number, user))
        moments.append(moment)
    return payloads, users if per_user else None, _instants(moments, zone)


def _instants(moments: list[Any], zone: tzinfo) -> list[int | None] | None:
    """The times of events, None for those without one; None where no event has a time."""
    if all(moment is None for moment in moments):
        return None
    plain = parse_plain_instants(moments)  # together, which is much quicker
    return plain or [
        None if moment is None else _moment(place, moment, zone)
        for place, moment in enumerate(moments)
    ]


def _named_user(query: Query, number: int, item: Any) -> dict[str, Any]:
    """An event of a query that counts users, with its user (and key) as its content."""
    fields = dict(item) if isinstance(item, dict) else {}
    time = {"time": fields.pop("time")} if "time" in fields else {}
    keyed = query.rows is not None and "key" in query.rows.columns
    if not isinstance(item, dict):
        pair = item if keyed and isinstance(item, list) else [item]
        fields = dict(zip(("user", "key"), pair, strict=False)) if len(pair) <= 2 else {}
    if fields.keys() != ({"user", "key"} if keyed else {"user"}):
        wanted = "'user' and 'key'" if keyed else "'user'"
        raise InputError(f"event {number} (from 0) must hold {wanted}, and otherwise only 'time'")
    user = _user(number, fields["user"])
    return {"event": [user, fields["key"]] if keyed else user, **time}


def _user(number: int, user: Any) -> str:
    if not isinstance(user, str) or not 0 < len(user) <= LONGEST_USER:
        raise InputError(
            f"event {number} (from 0) needs 'user', a string of 1 to {LONGEST_USER} characters: "
            "this stream protects or counts users"
        )
    # two spellings of one name would be two users, each with events of their own
    return check_public_text(f"the user of event {number} (from 0)", user)


def _moment(number: int, moment: Any, zone: tzinfo) -> int:
    try:
        return parse_instant(moment, zone, f"the time of event {number} (from 0)")
    except ParameterError as error:
        raise InputError(str(error)) from None
