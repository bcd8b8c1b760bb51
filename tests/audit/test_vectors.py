"""The published test vectors are what the program computes, and published constants are
reproduced."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from evercount import Secret
from evercount.noise import ExactNoise
from vectors import FOLDER, KEY, check_vectors, literature_vectors, write_vectors

pytestmark = pytest.mark.slow


def test_vectors_agree() -> None:
    assert check_vectors(FOLDER) == []


def test_a_changed_number_is_seen(tmp_path: Path) -> None:
    write_vectors(tmp_path)
    path = tmp_path / "releases.json"
    data = json.loads(path.read_text())
    data["streams"][0]["releases"][2][0] += 1
    path.write_text(json.dumps(data))
    assert check_vectors(tmp_path) == ["releases.streams[0].releases[2][0]"]


@pytest.mark.parametrize("row", literature_vectors()["constants"], ids=lambda row: row["name"])
def test_published_constants_are_reproduced(row: dict[str, float]) -> None:
    assert abs(row["computed"] - row["published"]) <= row["tolerance"], row


def test_normals_of_the_vectors_are_exact() -> None:
    """The integers are the numbers themselves: as doubles they are what the sampler gives as
    floats."""
    stored = json.loads((FOLDER / "noise.json").read_text(encoding="utf-8"))
    floats = ExactNoise(Secret.from_hex(KEY)).normals(0, 6, 3).to_float()
    for draw, row in enumerate(stored["normals"]):
        for cell, text in enumerate(row):
            assert math.isclose(int(text) / 2**128, floats[draw, cell], rel_tol=1e-15)


def test_table_of_the_page_is_what_the_vectors_say() -> None:
    """docs/audit.md: the computed column."""
    text = (FOLDER.parent / "audit.md").read_text(encoding="utf-8")
    for row in literature_vectors()["constants"]:
        published, digits = f"{row['published']:g}", 2 if row["published"] > 100 else 5
        assert f"| {published} | {row['computed']:.{digits}f} |" in text, row
