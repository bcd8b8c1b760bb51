"""The runner: files, resuming, determinism, refusals; and the command."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from evercount.cli.showcase_commands import reproduce
from evercount.errors import ParameterError, UnknownName
from evercount.reproduce.item import Item
from evercount.reproduce.runner import ITEMS, choose, run_items, slug

ITEM = "figure-4"


def ran(out: Path, **options: Any) -> list[tuple[str, bool]]:
    seen: list[tuple[str, bool]] = []

    def finished(item: Item, record: Mapping[str, Any], skipped: bool) -> None:
        seen.append((item.name, skipped))

    run_items([ITEM], out, quick=True, finished=finished, **{"repetitions": 4, **options})
    return seen


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than the numbers; test_files_of_an_item has them."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_files_of_an_item(tmp_path: Path) -> None:
    ran(tmp_path)
    folder = tmp_path / ITEM
    record = json.loads((folder / "result.json").read_text())
    for name in [*record["files"], *record["figures"]]:
        assert (folder / name).stat().st_size > 100
    with (folder / "snr.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["SNR, paper's C"]) for row in table] == [
        row["SNR, paper's C"] for row in record["tables"]["snr"]
    ]
    assert ITEM in (tmp_path / "README.md").read_text()


@pytest.mark.usefixtures("no_figures")
def test_a_finished_item_is_skipped_for_the_same_parameters_only(tmp_path: Path) -> None:
    assert ran(tmp_path) == [(ITEM, False)]
    assert ran(tmp_path) == [(ITEM, True)]
    assert ran(tmp_path, seed=1) == [(ITEM, False)]
    assert ran(tmp_path, seed=1, repetitions=5) == [(ITEM, False)]
    assert ran(tmp_path, seed=1, repetitions=5, again=True) == [(ITEM, False)]


@pytest.mark.usefixtures("no_figures")
def test_an_unfinished_or_broken_result_is_run_again(tmp_path: Path) -> None:
    ran(tmp_path)
    path = tmp_path / ITEM / "result.json"
    path.write_text(path.read_text()[:100])
    assert ran(tmp_path) == [(ITEM, False)]


@pytest.mark.usefixtures("no_figures")
def test_the_seed_decides_the_numbers(tmp_path: Path) -> None:
    tables = []
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        ran(tmp_path / folder, seed=seed)
        tables.append((tmp_path / folder / ITEM / "snr.csv").read_bytes())
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.usefixtures("no_figures")
def test_without_matplotlib_there_are_numbers_and_a_note(tmp_path: Path) -> None:
    ran(tmp_path)
    record = json.loads((tmp_path / ITEM / "result.json").read_text())
    assert record["figures"] == []
    assert "evercount[plot]" in record["no figures"]


def test_unknown_names_and_too_few_repetitions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="figure-1"):
        choose(["figure1"])
    with pytest.raises(ParameterError):
        run_items([], tmp_path / "x", repetitions=1)
    assert not (tmp_path / "x").exists()


def test_all_items_are_chosen_and_file_names_are_safe() -> None:
    assert (
        [item.name for item in choose(["all"])] == list(ITEMS) == [item.name for item in choose([])]
    )
    assert slug("error at t = 2^i − 1") == "error-at-t-2-i-1"


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(reproduce)
    runner = CliRunner()
    arguments = [ITEM, "--out", str(tmp_path), "--quick", "--repetitions", "4", "--seed", "2"]
    first = runner.invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert (tmp_path / ITEM / "result.json").exists()
    second = runner.invoke(app, arguments)
    assert "was finished already" in second.output


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_item_goes_on_and_leaves_no_partial_files(tmp_path: Path) -> None:
    done: list[int] = []

    def interrupt(item: Item, so_far: int, total: int) -> None:
        done.append(so_far)
        if so_far > 150:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"quick": True, "repetitions": 130}
    with pytest.raises(KeyboardInterrupt):
        run_items(["binary-suboptimality"], tmp_path, progress=interrupt, **options)
    folder = tmp_path / "binary-suboptimality"
    assert sorted(path.name for path in folder.glob("*.partial.npz"))
    again: list[int] = []
    run_items(
        ["binary-suboptimality"],
        tmp_path,
        progress=lambda item, so_far, _: again.append(so_far),
        **options,
    )
    assert again[0] == 130  # the first mechanism was finished
    assert 0 not in again
    assert not list(folder.glob("*.partial.npz"))
    (whole,) = run_items(["binary-suboptimality"], tmp_path / "whole", **options)
    assert whole["tables"] == json.loads((folder / "result.json").read_text())["tables"]
