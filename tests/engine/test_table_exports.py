"""Arrow, pandas and Polars tables of releases and views, and the chart of notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Stream
from evercount.errors import MissingExtra

BUDGET = Budget(1.0, 1e-6)
STREAM = Stream(Histogram(["north", "<b>&south"]), BUDGET, 40)
RELEASES = STREAM.run([["north"] * 100 + ["<b>&south"]] * 30)
BOTH = pytest.mark.parametrize("shown", [RELEASES, RELEASES.last(7)], ids=["releases", "view"])


@BOTH
@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_frames_hold_the_table(shown, kind: str) -> None:
    pytest.importorskip("pyarrow" if kind == "arrow" else kind, reason=f"{kind} is not installed")
    frame = getattr(shown, f"to_{kind}")(0.9)
    wanted = shown.table(0.9)
    assert list(frame.column_names if kind == "arrow" else frame.columns) == list(wanted)
    for name, column in wanted.items():
        found = frame[name].to_pylist() if kind == "arrow" else frame[name].to_list()
        assert found == column.tolist()
    if kind == "arrow":
        assert frame.schema.metadata[b"evercount.guarantee"].decode() == STREAM.guarantee
    if kind == "pandas":
        assert frame.attrs["evercount.noise"] == "exact"


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtra, match="pip install"):
        getattr(RELEASES, "to_arrow" if name == "pyarrow" else f"to_{name}")()


@BOTH
def test_the_chart_is_well_formed_and_escapes_labels(shown) -> None:
    text = shown._repr_html_()
    root = ElementTree.fromstring(text)  # well-formed, so that no label can break out
    assert "<b>&south" not in text
    assert "<b>&south" in "".join(root.itertext())
    assert STREAM.guarantee in "".join(root.itertext())
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    points = np.asarray([point.split(",") for point in lines[0].get("points", "").split()], dtype=float)
    assert len(points) == len(shown)
    assert np.all(np.diff(points[:, 0]) > 0)


def simulated(seed: int, events: int) -> str:
    return Stream(Count(), BUDGET, 40, noise="insecure-float", seed=seed).run([events] * 30)._repr_html_()


def test_noise_that_hides_everything_is_said() -> None:
    said = ["no trend can be read" in simulated(seed, 0) for seed in range(100)]
    assert np.mean(said) >= 0.95
    assert not any("no trend can be read" in simulated(seed, 5) for seed in range(20))
    assert "no trend can be read" not in RELEASES._repr_html_()
    assert "nothing is released" in Stream(Count(), BUDGET, 40).run([])._repr_html_()
    loud = Stream(Count(), BUDGET, 40, noise="insecure-float", seed=1).run([1] * 5)
    assert "Do not publish" in loud._repr_html_()


def test_release_files_can_be_queried_by_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    RELEASES.to_parquet(tmp_path / "r.parquet")
    RELEASES.to_csv(tmp_path / "r.csv")
    for name in ("r.parquet", "r.csv"):
        found = duckdb.sql(f"SELECT max(value) FROM '{tmp_path / name}' WHERE cell = 'north' AND tick <= 30").fetchall()
        assert found == [(RELEASES.rows[:, 0].max(),)]
