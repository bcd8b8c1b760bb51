"""The history of benchmarks: the page is what it says, and what got worse is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench_history
from bench_history import HISTORY, history, main, page, picture, ratios_of, worse

PRINTED = [
    {
        "group": "engine",
        "name": "long",
        "value": 305.1,
        "unit": "ns",
        "ratio": 0.73148,
        "target": "≤ 1.3",
    },
    {"group": "engine", "name": "import", "value": 0.6, "unit": "s", "target": "≤ 0.3"},
    {"group": "exact", "name": "wide", "value": 1, "unit": "µs", "ratio": None},
    {"group": "exact", "name": "long", "value": 1, "unit": "µs", "ratio": 2},
]


def line(**ratios: float) -> dict:
    return {"date": "2026-01-01", "commit": "abc", "ratios": ratios}


def test_only_ratios_are_kept() -> None:
    assert ratios_of(map(json.dumps, PRINTED)) == {"engine: long": 0.7315, "exact: long": 2.0}


def test_rows_of_one_name_are_told_apart() -> None:
    row = {"group": "exact", "name": "noise", "value": 1, "unit": "s", "ratio": 2.0}
    notes = ("balanced; 0.2 µs", "unbounded; 0.3 µs")
    lines = [json.dumps({**row, "note": note}) for note in notes]
    assert ratios_of(lines) == {"exact: noise, balanced": 2.0, "exact: noise, unbounded": 2.0}
    with pytest.raises(SystemExit, match="different notes"):
        ratios_of([lines[0], lines[0]])


def test_what_is_worse_than_usual_is_named() -> None:
    # one slow run among five
    past = [line(a=value, b=1.0) for value in (9.0, 1.0, 1.1, 0.9, 1.0, 5.0)]
    assert worse({"a": 1.2, "b": 1.0}, past) == []
    assert worse({"a": 1.21, "b": 1.0}, past) == ["a: 1.21, 21 % worse than the usual 1.00"]
    assert worse({"a": 0.1, "b": 1.0, "new": 99.0}, past) == []
    assert worse({"a": 1.0}, past) == ["b: no longer measured"]


def test_the_check_warns_and_fails_only_strictly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    printed = tmp_path / "printed.jsonl"
    printed.write_text("\n".join(map(json.dumps, PRINTED)))
    monkeypatch.setattr(
        bench_history, "history", lambda: [line(**{"engine: long": 0.5, "exact: long": 2.0})]
    )
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["check", "--from", str(printed)]) == 0
    assert (
        capsys.readouterr().out == "::warning::engine: long: 0.73, 46 % worse than the usual 0.50\n"
    )
    assert main(["check", "--from", str(printed), "--strict"]) == 1


def test_a_line_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = tmp_path / "printed.jsonl"
    printed.write_text("\n".join(map(json.dumps, PRINTED)))
    monkeypatch.setattr(bench_history, "HISTORY", tmp_path / "history.jsonl")
    assert main(["record", "--from", str(printed)]) == main(["record", "--from", str(printed)]) == 0
    one, other = history(tmp_path / "history.jsonl")
    assert one == other
    assert one["ratios"] == {"engine: long": 0.7315, "exact: long": 2.0}
    assert set(one) == {"date", "commit", "version", "python", "cores", "ratios"}


def test_the_history_holds_ratios_only_and_the_page_is_what_it_says() -> None:
    past = history()
    assert past
    for one in past:
        assert all(
            isinstance(value, float) and 0 < value < 1000 for value in one["ratios"].values()
        )
    assert [one["date"] for one in past] == sorted(one["date"] for one in past)
    assert main(["draw", "--check"]) == 0
    assert HISTORY.read_text(encoding="utf-8").endswith("\n")


def test_another_line_changes_page_and_picture() -> None:
    past = history()
    more = [
        *past,
        {**past[-1], "ratios": {name: 2 * value for name, value in past[-1]["ratios"].items()}},
    ]
    assert page(more) != page(past)
    assert picture(more) != picture(past)
