"""The planter of bugs: what it plants, that nothing else changes, and that explanations are about
mutants."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mutate
from mutate import EXPLAINED, SOURCE, Planter, all_changes, explanations, mutants, planted

CODE = '''"""Not a mutant: 1 < 2."""
from typing import TYPE_CHECKING
import math

if TYPE_CHECKING:
    from x import y

def price(a: int, cap: int = 3) -> int:
    """Not 1 + 1 either."""
    if a > cap and not a == 0:
        raise ValueError(f"{a + 1} is above {cap}")
    return max(a, cap) + math.ceil(a / 2)
'''
PLANTED = [
    "price: 3 -> 4",
    "price: a > cap and (not a == 0) -> a > cap or not a == 0",
    "price: a > cap -> a >= cap",
    "price: not a == 0 -> a == 0",
    "price: a == 0 -> a != 0",
    "price: 0 -> 1",
    "price: raise ValueError(f'{a + 1} is above {cap}') -> pass",
    "price: max(a, cap) + math.ceil(a / 2) -> max(a, cap) - math.ceil(a / 2)",
    "price: max(a, cap) -> min(a, cap)",
    "price: math.ceil(a / 2) -> math.floor(a / 2)",
    "price: a / 2 -> a * 2",
    "price: 2 -> 3",
]


def written(folder: Path, code: str = CODE) -> Path:
    path = folder / "priced.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_what_is_planted(tmp_path: Path) -> None:
    assert [mutant.name for mutant in mutants(written(tmp_path))] == PLANTED


def test_each_mutant_changes_one_thing(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = ast.unparse(ast.parse(CODE))
    for mutant, old, new in all_changes(ast.parse(CODE)):
        assert ast.unparse(old) != ast.unparse(new), mutant
        names: dict = {}
        exec(planted(path, mutant.name), names)
        assert callable(names["price"])
    assert path.read_text(encoding="utf-8") == CODE
    assert ast.unparse(ast.parse(CODE)) == before


def test_a_mutant_behaves_as_it_is_called(tmp_path: Path) -> None:
    path = written(tmp_path)
    names: dict = {}
    exec(planted(path, "price: max(a, cap) -> min(a, cap)"), names)
    assert names["price"](2) == 2 + 1
    exec(planted(path, PLANTED[6]), names)
    assert names["price"](9) == 9 + 5
    with pytest.raises(LookupError):
        planted(path, "price: no such mutant -> x")


def test_the_same_text_twice_has_two_names(tmp_path: Path) -> None:
    path = written(tmp_path, "def f(a):\n    return (a < 1, a < 1)\n")
    assert [mutant.name for mutant in mutants(path)] == [
        *("f: a < 1 -> a <= 1", "f: 1 -> 2", "f: a < 1 -> a <= 1 #2", "f: 1 -> 2 #2"),
    ]
    names: dict = {}
    exec(planted(path, "f: a < 1 -> a <= 1 #2"), names)
    assert names["f"](1) == (False, True)


def test_only_the_one_module_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        sys, "meta_path", [Planter("priced", path, planted(path, PLANTED[0])), *sys.meta_path]
    )
    import priced  # type: ignore[import-not-found]

    try:
        assert priced.price(0) == 4
        assert Planter("priced", path, planted(path, PLANTED[0])).find_spec("other", None) is None
    finally:
        del sys.modules["priced"]


RUNS = """
import sys
from pathlib import Path
import mutate
import pytest
folder = Path(sys.argv[1])
mutate.SOURCE = folder / "evercount"
sys.path.insert(0, str(folder))
for name, test in ((None, "looks"), (sys.argv[2], "looks"), (sys.argv[2], "does_not")):
    print(mutate.run(mutate.SOURCE / "priced.py", name, [f"test_{test}.py"], 300))
"""


@pytest.mark.slow
def test_a_bug_is_found_by_a_test_that_looks_and_survives_one_that_does_not(tmp_path: Path) -> None:
    package = tmp_path / "evercount"
    package.mkdir()
    (package / "__init__.py").touch()
    written(package)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:schemathesis\n")
    begin = "from evercount.priced import price\ndef test():\n    assert "
    (tmp_path / "test_looks.py").write_text(f"{begin}price(2) == 4\n")
    (tmp_path / "test_does_not.py").write_text(f"{begin}price\n")
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path), "price: max(a, cap) -> min(a, cap)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(mutate.__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["survived", "killed", "survived"]


def test_explanations_are_about_mutants_that_are_there() -> None:
    assert EXPLAINED.exists()
    for file, known in explanations().items():
        names = {mutant.name for mutant in mutants(SOURCE / file)}
        assert set(known) <= names, f"{file}: {sorted(set(known) - names)}"
        assert all(len(why) > 20 for why in known.values())
