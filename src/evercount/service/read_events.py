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
    """Read strict JSON; what is none raises the given error, which names `what`."""
    try:
        return strict_json(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError) as failed:
        reason = f"{failed!s:.120}"
        if isinstance(failed, RecursionError):
            reason = "it is nested too deeply"
        raise error(f"{what} is not JSON: {reason}") from None


def read_items(body: bytes, ndjson: bool, most: int) -> list[Any]:
    """Read the events of a body, which are not checked yet."""
    if ndjson:
        lines = body.split(b"\n")
        items = [
            load_json(line, f"line {number}", InputError)
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    else:
        items = load_json(body, "the body", InputError)
        if not isinstance(items, list):
            raise InputError("the body must be an array of events, or NDJSON with its content type")
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
    counts_people = declaration.query.people is not None
    per_user = declaration.budget.unit == "user" and not counts_people
    if counts_people:
        items = [
            _person_event(declaration.query, number, item) for number, item in enumerate(items)
        ]
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
    """Read contents, users and times of events of which some are objects."""
    payloads: list[Any] = []
    users: list[str] = []
    moments: list[Any] = []
    for number, item in enumerate(items):
        fields = dict(item) if isinstance(item, dict) else {"event": item}
        user = fields.pop("user", None)
        moments.append(fields.pop("time", None))
        payloads.append(_payload(declaration, number, fields))
        if per_user:
            users.append(_user(number, user))
    instants = _instants(moments, zone_named(declaration.schedule.zone))
    if not per_user:
        return payloads, None, instants
    return payloads, users, instants


def _payload(declaration: StreamDeclaration, number: int, fields: dict[str, Any]) -> Any:
    """Read the content of one event from the fields of its object."""
    if not fields and declaration.query.event_number is not None:
        return 1
    columns = declaration.columns
    if columns is not None and columns.levels and fields.keys() == set(columns.levels):
        return [fields[name] for name in columns.levels]  # the columns of a table, by their names
    if len(fields) != 1 or next(iter(fields)) not in PAYLOADS:
        raise InputError(
            f"event {number} (from 0) must hold its content under one of "
            f"{', '.join(PAYLOADS)}, and otherwise only 'user' and 'time'"
        )
    return next(iter(fields.values()))


def _instants(moments: list[Any], zone: tzinfo) -> list[int | None] | None:
    """Read the times of events, None for those without one; None if no event has a time."""
    if all(moment is None for moment in moments):
        return None
    plain = parse_plain_instants(moments)  # together, which is much quicker
    return plain or [_moment(number, moment, zone) for number, moment in enumerate(moments)]


def _person_event(query: Query, number: int, item: Any) -> dict[str, Any]:
    """Read an event of a query that counts people, with the user (and key) as its content."""
    keyed = query.rows is not None and "key" in query.rows.columns
    fields = _person_fields(item, keyed)
    event: dict[str, Any] = {}
    if "time" in fields:
        event["time"] = fields.pop("time")
    if keyed:
        if fields.keys() != {"user", "key"}:
            raise _wrong_fields(number, "'user' and 'key'")
        return event | {"event": [_user(number, fields["user"]), fields["key"]]}
    if fields.keys() != {"user"}:
        raise _wrong_fields(number, "'user'")
    return event | {"event": _user(number, fields["user"])}


def _person_fields(item: Any, keyed: bool) -> dict[str, Any]:
    """Read the fields of an event that is an object, a user, or a pair of user and key."""
    if isinstance(item, dict):
        return dict(item)
    if not keyed or not isinstance(item, list):
        return {"user": item}
    if len(item) > 2:
        return {}
    return dict(zip(("user", "key"), item, strict=False))


def _wrong_fields(number: int, wanted: str) -> InputError:
    return InputError(f"event {number} (from 0) must hold {wanted}, and otherwise only 'time'")


def _user(number: int, user: Any) -> str:
    """Check the user of one event."""
    if not isinstance(user, str) or not 0 < len(user) <= LONGEST_USER:
        raise InputError(
            f"event {number} (from 0) needs 'user', a string of 1 to {LONGEST_USER} characters: "
            "this stream protects or counts users"
        )
    # two spellings of one name would be two users, each with events of their own
    return check_public_text(f"the user of event {number} (from 0)", user)


def _moment(number: int, moment: Any, zone: tzinfo) -> int | None:
    """Read the time of one event, if it has one."""
    if moment is None:
        return None
    try:
        return parse_instant(moment, zone, f"the time of event {number} (from 0)")
    except ParameterError as error:
        raise InputError(str(error)) from None
