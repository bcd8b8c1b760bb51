"""Batches of plain events are read column by column, with the same result as one by one."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import parse_instant, parse_plain_instants
from evercount.errors import EventRefused, EvercountError, ParameterError
from evercount.service import read_events
from evercount.service.read_events import read_batch

HISTOGRAM = {"name": "histogram", "parameters": {"keys": ["a", "b"]}}
TABLE = {
    "name": "s",
    "query": HISTOGRAM,
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "tick": "1h",
    "zone": "Asia/Tokyo",
}
DECLARATIONS = [
    StreamDeclaration.from_dict({**TABLE, "query": query})
    for query in (
        HISTOGRAM,
        "count",
        {"name": "sum", "parameters": {"low": 0, "high": 1, "grid": 0.5}},
    )
]
TIMES = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.datetimes().map(lambda moment: moment.isoformat(timespec="milliseconds") + "Z"),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.integers(10**8 - 2, 10**11 + 2),
    st.floats(10**8 - 2, 10**11 + 2),
    st.sampled_from(
        [
            *(
                "2026-02-30T00:00:00Z",
                "2026-01-01T24:00:00Z",
                "2026-01-01T00:00:60Z",
                "0000-01-01T00:00:00Z",
                "",
            ),
            *(
                "2026-01-01T00:00:00.1234567Z",
                "2026-01-01T00:00:00Z\n2026-01-01T00:00:00Z",
                " 2026-01-01T00:00:00Z",
            ),
            *(
                "2026-01-01T00:00:00z",
                "２０２６-01-01T00:00:00Z",
                "2026-01-01 00:00 UTC",
                "1767225600",
                True,
                None,
                [1],
            ),
        ]
    ),
)


def one_by_one(values: list[Any]) -> list[int] | None:
    try:
        return [parse_instant(value, UTC, "time") for value in values]
    except ParameterError:
        return None


@settings(deadline=None, max_examples=150)
@given(st.lists(TIMES, max_size=4))
def test_plain_times_are_read_as_single_ones(values: list[Any]) -> None:
    instants = parse_plain_instants(values)
    assert instants is None or instants == one_by_one(values)


@pytest.mark.parametrize(
    "text", ["2026-01-31T08:00:00Z", "2026-01-31T08:00:00.5Z", "1999-12-31T23:59:59.999999Z"]
)
def test_the_plain_forms_are_read_at_once(text: str) -> None:
    assert parse_plain_instants([text] * 3) == one_by_one([text] * 3)
    assert parse_plain_instants([1767225600, 1767225600.25]) == [1767225600000000, 1767225600250000]


EVENTS = st.one_of(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b", "c", 1, None])}, optional={"time": TIMES}
    ),
    st.fixed_dictionaries(
        {"value": st.sampled_from([0, 1, 0.5, "a"])}, optional={"time": TIMES, "user": st.just("u")}
    ),
    st.fixed_dictionaries({"time": TIMES}),
    st.sampled_from(["a", 1, {}, {"key": "a", "value": 1}, {"other": "a"}]),
)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(DECLARATIONS),
    st.one_of(
        st.lists(EVENTS, max_size=3),
        st.builds(lambda event, n: [event] * n, EVENTS, st.integers(1, 3)),
    ),
    st.booleans(),
)
def test_times_read_together_are_those_of_single_events(
    declaration: StreamDeclaration, events: list[Any], ndjson: bool
) -> None:
    body = "\n".join(map(json.dumps, events)) if ndjson else json.dumps(events)

    def read() -> Any:
        try:
            batch = read_batch(declaration, body.encode(), ndjson=ndjson)
        except EvercountError as error:
            return type(error), str(error)
        assert batch.row is not None
        return batch.payloads, batch.row.tolist(), batch.users, batch.times

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_events, "parse_plain_instants", lambda _: None)
        slowly = read()
    assert read() == slowly


@pytest.mark.parametrize("query", ["sum", "average"])
def test_fractions_are_refused_where_the_grid_is_one(query: str) -> None:
    """Before anything is counted, and with the place of the event, not its value."""
    table = {**TABLE, "query": {"name": query, "parameters": {"low": 0, "high": 5}}}
    declaration = StreamDeclaration.from_dict(table)
    said = (
        "event 1 of this request .* is not a whole number, and the grid is 1: .* such as grid=0.01"
    )
    for body in ("[3, 0.3]", '[{"value": 3}, {"value": 0.3}]'):
        with pytest.raises(EventRefused, match=said):
            read_batch(declaration, body.encode())
    assert read_batch(declaration, b"[3, 4.0]").payloads == [3, 4.0]
