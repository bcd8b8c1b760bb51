"""The list of parts holds all that the wheel may need, each with the hashes of the lock."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import evercount
import sbom

ROOT = Path(__file__).parents[2]
LOCK = """a-b==1.0 ; python_full_version >= '3' \\
    --hash=sha256:{0} \\
    --hash=sha256:{1}
a-b==0.9 ; python_full_version < '3' \\
    --hash=sha256:{2}
c==2.0 \\
    --hash=sha256:{0}
"""


def test_the_lock_is_read() -> None:
    first, second, other = "0" * 64, "1" * 64, "2" * 64
    assert sbom.locked(LOCK.format(first, second, other)) == {
        "a-b": ("1.0", [first, second]),
        "c": ("2.0", [first]),
    }


def is_of_the_lock(name: str) -> bool:
    return metadata.version(name) == sbom.locked(sbom.LOCK.read_text(encoding="utf-8"))[name][0]


of_the_lock = pytest.mark.skipif(
    not all(map(is_of_the_lock, ("numpy", "scipy", "httpx", "typer", "fastapi"))),
    reason="this environment is not that of the lock (`make oldest`, `make newest`)",
)


@of_the_lock
def test_every_part_is_listed_with_its_hashes_and_edges() -> None:
    listed = sbom.bill("all")
    assert listed["metadata"]["component"]["version"] == evercount.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {Requirement(line).name for line in project["dependencies"]}
    parts = {part["name"]: part for part in listed["components"]}
    assert direct | {"fastapi", "starlette", "duckdb", "psycopg-binary", "matplotlib"} <= set(parts)
    assert not {"pytest", "ruff", "pyspark", "evercount"} & set(parts)
    assert all(part["hashes"] for part in parts.values())
    assert {name: part["version"] for name, part in parts.items()} == {
        name: metadata.version(name) for name in parts
    }
    known = {
        listed["metadata"]["component"]["bom-ref"],
        *(part["bom-ref"] for part in parts.values()),
    }
    assert {edge["ref"] for edge in listed["dependencies"]} == known
    assert {goal for edge in listed["dependencies"] for goal in edge["dependsOn"]} <= known
    assert json.dumps(sbom.bill("all")) == json.dumps(listed), "one commit has one list"


@of_the_lock
def test_a_part_that_is_not_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sbom.LOCK.read_text(encoding="utf-8").replace("\nscipy==", "\nother==")
    (tmp_path / "requirements.lock").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sbom, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(sbom, "ROOT", tmp_path)
    for name in ("pyproject.toml", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    with pytest.raises(SystemExit, match="scipy; run `make lock`"):
        sbom.bill("all")
