"""One model: what it reads, writes, describes and refuses, and in which words."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from evercount import Budget, Histogram
from evercount.declarations.cautions import declares_again, differences
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.declarations.settle import settle
from evercount.declarations.streams_file import read_declarations, read_streams
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import fit_blend
from evercount.service.openapi import declaration_schema

PLAIN: dict[str, Any] = {"name": "flu", "query": "count", "budget": {"epsilon": 1, "delta": 1e-9}}
FULL: dict[str, Any] = {
    "name": "flu",
    "query": {"name": "histogram", "parameters": {"keys": ["North", "South"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9, "unit": "user", "max_events": 3},
    "tick": "1d",
    "start": "2026-01-01",
    "zone": "Europe/Vienna",
    "description": "Cases\n  by region",
    "horizon": 365,
    "columns": {"time": "when", "key": ["region", "sex"], "user": "id", "order": "seq"},
    "late": "next",
    "public": True,
    "views": ["per-week", "running"],
}


@pytest.mark.parametrize("table", [PLAIN, FULL])
def test_every_form_is_read_back(table: dict[str, Any], tmp_path: Path) -> None:
    declared = StreamDeclaration.from_dict(table)
    (tmp_path / "streams.toml").write_text(declared.to_toml(), "utf-8")
    for again in (
        StreamDeclaration.from_dict(declared.to_dict()),
        *read_declarations(tmp_path / "streams.toml"),
    ):
        assert again.canonical() == declared.canonical()
        assert (again.budget, again.columns, again.schedule) == (
            declared.budget,
            declared.columns,
            declared.schedule,
        )
        assert declares_again(settle(again), declared)
        assert not differences(settle(again), declared)


def test_the_schema_has_the_fields_that_are_read_and_written() -> None:
    schema = declaration_schema()
    assert set(schema["properties"]) == set(StreamDeclaration.from_dict(FULL).to_dict())
    budget = schema["$defs"]["Budget"]["properties"]
    assert set(budget) == {field.name for field in fields(Budget)} - {"period_ticks"}
    assert all(len(part["description"].split()) > 2 for part in budget.values())
    with pytest.raises(UnknownName, match="period_ticks"):
        StreamDeclaration.from_dict(
            {**FULL, "budget": {"epsilon": 1, "delta": 0, "period_ticks": 3}}
        )
    assert all(part.get("description") for part in schema["properties"].values())
    nested = [*schema["$defs"].values(), schema]
    assert not [part["title"] for part in nested if part["additionalProperties"]]


def test_a_declaration_is_immutable_and_a_copy_is_checked() -> None:
    declared = StreamDeclaration(
        "flu", Histogram(["a"]), Budget(1.0, 1e-9), columns=Columns("when", "region")
    )
    with pytest.raises(FrozenInstanceError):
        declared.horizon = 3  # type: ignore[misc]
    with pytest.raises(ParameterError, match="horizon must be a whole number of ticks"):
        replace(declared, horizon=0)


def test_another_start_keeps_the_noise_and_what_was_asked() -> None:
    declared = StreamDeclaration.from_dict(
        {**PLAIN, "tick": "1h", "views": ["per-tick"], "horizon": 64}
    )
    started = declared.started(1_767_225_600_000_000)
    assert (declared.start, started.start) == (None, "2026-01-01T00:00:00Z")
    assert started.schedule.start == 1_767_225_600_000_000
    settled = settle(declared)
    for before, after in ((declared, started), (settled, settled.started(1_767_225_600_000_000))):
        for name in ("budget", "factorization", "noise_for"):
            assert getattr(after, name) == getattr(before, name)
        assert type(before).from_dict(after.to_dict()).canonical() == after.canonical()
    assert (started.factorization, settled.written.factorization) == (None, None)


HORIZON = (
    "horizon must be a whole number of ticks from 1 to 2^40, or null for a stream without end, got "
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"},
         "name must be 1 to 64 letters, digits, dots, hyphens and underscores, the first a letter "
         "or digit, got 'a b'"),
        ({"horizn": 5},
         "unknown field of a stream's declaration 'horizn'. Did you mean 'horizon'?"),
        ({"asked": None}, "unknown field of a stream's declaration 'asked'."),
        ({"schedule": None}, "unknown field of a stream's declaration 'schedule'."),
        ({"self": 1}, "unknown field of a stream's declaration 'self'."),
        ({"\ud800": 1}, "unknown field of a stream's declaration '\\ud800'."),
        ({"horizon": True}, HORIZON + "True"),
        ({"horizon": "5"}, HORIZON + "'5'"),
        ({"horizon": 5.0}, HORIZON + "5.0"),
        ({"horizon": 2**70}, HORIZON + "1180591620717411303424"),
        ({"public": 1}, "public must be true or false, got 1"),
        ({"tick": 5},
         "tick must be the length of a tick, such as 15m, 1h or 1d, or 'manual', got 5"),
        ({"tick": "1y"}, "invalid tick length '1y': write a whole number and ms, s, m, h, d or w"),
        ({"tick": "1d"},
         'follows the calendar of a time zone: add zone = "Europe/Vienna" or zone = "UTC"'),
        ({"start": True}, "start True is not a time: write ISO 8601"),
        ({"zone": 5}, "zone must be the name of a time zone, such as Europe/Vienna or UTC, got 5"),
        ({"zone": "Mars"}, "unknown time zone 'Mars'"),
        ({"late": "drop it"},
         "unknown late 'drop it'. Did you mean 'drop'? Known: drop, next, revise."),
        ({"views": "per-day"},
         "views must be a list of names such as [\"per-day\", \"last-24\"], got 'per-day'"),
        ({"views": ["per-tik"]}, "unknown view 'per-tik'. Did you mean 'per-tick'?"),
        ({"noise_for": [["running"]]},
         'noise_for must be a list of names such as ["per-tick", "last-24"], got'),
        ({"postprocess": ["intger"]}, "unknown post-processing 'intger'. Did you mean 'integer'?"),
        ({"factorization": 5}, "factorization must be a name, or null for the default, got 5"),
        ({"description": "\u202e"}, "description: '\\u202e' holds U+202E"),
        ({"description": "x" * 2001},
         "description must be a string of at most 2000 characters, got"),
        ({"query": 5}, 'query must be a name, or a table such as {name = "histogram"'),
        ({"query": {"name": "count", "\ud800": 1}}, "unknown field of query '\\ud800'."),
        ({"query": {"nam": "count"}}, "unknown field of query 'nam'. Did you mean 'name'?"),
        ({"query": {"name": "cuont"}}, "unknown query 'cuont'. Did you mean 'count'?"),
        ({"query": {"name": "count", "parameters": []}},
         "query.parameters must be a table, got []"),
        ({"budget": 5}, "budget must be a table such as {epsilon = 1.0, delta = 1e-9}"),
        ({"budget": {"epsilon": 1}}, "budget lacks delta"),
        ({"budget": {"epsilom": 1, "delta": 0}},
         "unknown field of budget 'epsilom'. Did you mean 'epsilon'?"),
        ({"budget": {"epsilon": "1", "delta": 0}}, "budget.epsilon must be a number, got '1'"),
        ({"budget": {"epsilon": True, "delta": 0}}, "budget.epsilon must be a number, got True"),
        ({"budget": {"epsilon": -1, "delta": 0}}, "epsilon must be above 0"),
        ({"budget": {"epsilon": 1, "delta": 0, "unit": "usr"}},
         "unknown budget.unit 'usr'. Did you mean 'user'?"),
        ({"columns": 5}, 'columns must be a table such as {time = "when", key = "region"}, got 5'),
        ({"columns": {}},
         "columns lacks time (the name of the column that holds the time of an event)"),
        ({"columns": {"tim": "a"}}, "unknown field of columns 'tim'. Did you mean 'time'?"),
        ({"columns": {"time": ""}},
         "columns.time must be the name of the column that holds the time of an event"),
        ({"columns": {"time": "t", "key": ["a"]}},
         "columns.key must be the name of a column, or a list of two"),
        ({"columns": {"time": "t", "key": ["a", "a"]}}, "key must be different columns, got a, a"),
        ({"columns": {"time": "t", "order": "n"}}, "`order` requires `user`"),
        ({"columns": {"time": "t", "levels": "a"}},
         'columns.levels must be a list of columns such as ["state"'),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_and_what_it_must_be(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError) as refused:
        StreamDeclaration.from_dict({**PLAIN, **changes})
    assert message in str(refused.value)
    assert isinstance(refused.value, UnknownName) == (
        message.startswith("unknown ") and "zone" not in message
    )


def test_what_is_missing_is_said_with_an_example() -> None:
    with pytest.raises(
        ParameterError,
        match=r"lacks query \(a name, or .*\) and budget \(a table such as \{epsilon",
    ):
        StreamDeclaration.from_dict({"name": "flu"})
    with pytest.raises(ParameterError, match="a stream's declaration must be a table, got list"):
        StreamDeclaration.from_dict([])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("5", "stream 1: files must be a table such as {input ="),
        ('{inputs = "a.csv"}', "unknown field of files 'inputs'. Did you mean 'input'?"),
        ("{input = [1]}", "files.input must be a string, or a list of strings, got 1"),
        ('{output = ""}', "files.output must be a string, got ''"),
    ],
)
def test_places_of_files(files: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    text = (
        '[[stream]]\nname = "flu"\nquery = "count"\nbudget = {epsilon = 1, delta = 1e-9}\nfiles = '
    )
    path.write_text(text + '{input = "*.csv", output = "-", delimiter = ";"}')
    [(_, places)] = read_streams(path)
    assert (places.input, places.output, places.delimiter) == ((str(tmp_path / "*.csv"),), "-", ";")
    path.write_text(text + files)
    with pytest.raises(ParameterError) as refused:
        read_streams(path)
    assert message in str(refused.value)


def test_the_page_about_declarations_shows_legal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in ("STEPS", "WEIGHTED_STEPS"):  # how good their noise is is not asked here
        monkeypatch.setattr(fit_blend, steps, 2)
    page = (Path(__file__).parents[2] / "docs" / "declarations.md").read_text("utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    for block in blocks:
        (tmp_path / "streams.toml").write_text(block, "utf-8")
        assert read_declarations(tmp_path / "streams.toml")


def test_declared_views_are_post_processed_and_running_totals_are_not() -> None:
    given = {
        "name": "s",
        "query": "count",
        "budget": {"epsilon": 1, "delta": 1e-6},
        "tick": "1h",
        "horizon": 48,
    }
    whole = {"postprocess": ["nonnegative", "integer"]}
    views = StreamDeclaration.from_dict({**given, **whole, "views": ["per-tick", "last-7"]})
    assert (views.stream_postprocess, views.view_postprocess) == ((), ("nonnegative", "integer"))
    assert views.build(replay=True).postprocess == ()
    totals = StreamDeclaration.from_dict({**given, **whole})
    assert (totals.stream_postprocess, totals.main_view) == (("nonnegative", "integer"), "running")
    assert declares_again(settle(views), replace(views, views=("last-7",)))
    assert not declares_again(settle(views), replace(views, views=()))
    assert differences(settle(views), replace(views, views=()))
    for wrong in (
        {"postprocess": ["monotone"], "views": ["per-tick"]},
        {**whole, "views": ["running"]},
    ):
        with pytest.raises(ParameterError, match="post-processed views"):
            StreamDeclaration.from_dict({**given, **wrong})
