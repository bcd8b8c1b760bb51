"""One contract over both keepers: the same life gives the same bytes, wherever it is kept, and no
line of the program asks where that is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import evercount
from evercount import Secret
from evercount.errors import ParameterError

pytest.importorskip("duckdb")
SOURCES = Path(evercount.__file__).parent
SECRET = Secret.from_hex("66" * 32)
KEEPERS: dict[str, dict[str, str]] = {"state file": {"state": "own.state"}, "store": {"db": "s.db"}}
KEYS: dict[str, Any] = {"key": "key", "keys": ["a", "b"], "views": ["per-tick", "last-2"]}
NO_NOISE: dict[str, Any] = {"epsilon": 200.0, "horizon": 3}
"""Years whose noise is 0 but for a chance of e^-30: each of them draws a secret."""

# declaration, options of all runs, and (day, options) of each run
Life = tuple[dict[str, Any], dict[str, Any], list[tuple[int, dict[str, Any]]]]
LIVES: dict[str, Life] = {
    "in pieces": ({}, {}, [(2, {}), (2, {}), (5, {}), (9, {})]),
    "nothing is due at first": ({}, {}, [(1, {}), (3, {})]),
    "keys join and leave": (
        KEYS,
        {},
        [(3, {}), (5, {"add_keys": ["c"]}), (6, {"remove_keys": ["a"]}), (8, {"add_keys": ["a"]})],
    ),
    "keys join at a date": (
        KEYS,
        {},
        [(3, {}), (8, {"add_keys": ["c"], "add_keys_from": "2026-01-05"}), (9, {})],
    ),
    "keys join at a date in the first run": (
        KEYS,
        {},
        [(8, {"add_keys": ["c"], "add_keys_from": "2026-01-05"}), (9, {})],
    ),
    "notes": (
        KEYS,
        {},
        [
            (4, {"notes": "2026-01-02,2026-01-02,holiday"}),
            (6, {"notes": "2026-01-01,2026-01-05,sensor"}),
            (6, {"notes": "2026-01-01,2026-01-05,sensor"}),
            (9, {}),
        ],
    ),
    "views come later": (
        {"views": ["per-tick"]},
        {},
        [(4, {}), (4, {"views": ["last-3", "running"]}), (7, {"views": ["last-3"]})],
    ),
    "renewed": (NO_NOISE, {"renew": True}, [(3, {}), (4, {}), (6, {}), (9, {}), (12, {})]),
    "renewed with totals": (
        {**NO_NOISE, **KEYS, "views": ["running", "per-tick"]},
        {"renew": True, "carry_totals": True},
        [(4, {}), (6, {"add_keys": ["c"]}), (9, {"remove_keys": ["a"]}), (11, {"add_keys": ["a"]})],
    ),
    "renewed with caps": (
        {**NO_NOISE, "user": "who", "max_events": 3, "carry_caps": True},
        {"renew": True, "ledger": "years.ledger"},
        [(3, {"total": (200.0, 1e-6)}), (6, {}), (9, {}), (12, {})],
    ),
    "persons": (
        {"user": "who", "max_ticks": 3, "max_per_tick": 2},
        {},
        [(3, {}), (6, {}), (9, {})],
    ),
    "distinct persons": (
        {"query": "distinct-users", "user": "who", "horizon": 12},
        {},
        [(3, {}), (6, {}), (9, {})],
    ),
    "a ledger": (
        {},
        {"ledger": "own.ledger"},
        [(3, {"total": (5, 1e-6)}), (5, {}), (9, {})],
    ),
    "late rows count next": ({"late": "next"}, {}, [(3, {}), (5, {}), (9, {})]),
    "late rows revise": ({"late": "revise", "revise_for": 2}, {}, [(3, {}), (5, {}), (9, {})]),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_days(until: int) -> None:
    """Three events of each day before `until`, and from the third day on one of two days ago."""
    rows = ["ts,who,key"]
    for day in range(1, until):
        for number in range(3):
            key = "abc"[(day + number) % 3]
            rows.append(f"2026-01-{day:02d}T0{number}:00:00Z,u{(day * number) % 4},{key}")
        if day > 2:
            rows.append(f"2026-01-{day - 2:02d}T23:00:00Z,u{day % 4},a")
    Path("events.csv").write_text("\n".join(rows) + "\n")


def release(declared: dict[str, Any], day: int, **options: Any) -> Any:
    write_days(day)
    start: dict[str, Any] = {"time": "ts", "every": "1d", "zone": "UTC", "start": "2026-01-01"}
    declaration = evercount.declare(**{**start, "epsilon": 1, **declared}, name="flu")
    now = f"2026-01-{day:02d}T01:00"
    return evercount.release(
        "events.csv", declaration, now=now, secret=SECRET, skip_bad="keys" in declared, **options
    )


def live(life: Life, place: dict[str, str], suffix: str) -> list[dict[str, bytes]]:
    """What readers see after each run."""
    declared, always, runs = life
    seen = []
    for day, once in runs:
        release(declared, day, out=f"out{suffix}", **place, **always, **once)
        public = (path for path in Path().glob("out*") if path.is_file())
        seen.append({path.name: path.read_bytes() for path in public})
    return seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("name", LIVES)
def test_the_same_life_gives_the_same_bytes(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    for keeper, place in KEEPERS.items():
        (tmp_path / keeper).mkdir()
        monkeypatch.chdir(tmp_path / keeper)
        seen[keeper] = live(LIVES[name], place, suffix)
    for number, (first, second) in enumerate(zip(*seen.values(), strict=True)):
        assert first == second, f"run {number}"


@pytest.mark.filterwarnings("ignore:epsilon=200")
@pytest.mark.parametrize("keeper", KEEPERS)
def test_many_ticks_at_once(keeper: str) -> None:
    """More than one transaction of a service releases; and no row is lost between two runs."""
    Path("events.csv").write_text("ts\n2026-01-01T00:00:30Z\n2026-03-01T00:00:30Z\n")
    declaration = evercount.declare(
        time="ts", every="1m", start="2026-01-01", epsilon=200.0, views=["per-tick"], name="flu"
    )
    place: dict[str, Any] = {**KEEPERS[keeper], "out": "out.csv", "secret": SECRET}
    for now in ("2026-03-13", "2026-03-14"):
        evercount.release("events.csv", declaration, now=now, **place)
    values = [line.split(",")[3] for line in Path("out.csv").read_text().splitlines()[1:]]
    assert len(values) == 72 * 24 * 60 > 100_000
    assert [number for number, value in enumerate(values) if float(value)] == [0, 59 * 24 * 60]


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_first_run_needs_a_start_and_a_zone(keeper: str) -> None:
    """Later runs have those of the stream."""
    write_days(5)
    every: dict[str, Any] = {"time": "ts", "every": "1d", "epsilon": 1, **KEEPERS[keeper]}
    for missing in ({"zone": "UTC"}, {"start": "2026-01-01"}):
        with pytest.raises(ParameterError, match=r"start.*is missing|add `zone`|start|zone"):
            evercount.release("events.csv", now="2026-01-04", **every, **missing)
    evercount.release("events.csv", now="2026-01-04", **every, zone="UTC", start="2026-01-01")
    table = evercount.release("events.csv", now="2026-01-05", **every)
    assert len(table.ticks) == 4


# -- nobody asks which keeper there is -----------------------------------------------------------

KEEPER_FILES = {
    SOURCES / "files" / f"{name}.py"
    for name in ("keeper", "state_file", "store_keeper", "open_keeper", "move_stream")
}
KEEPER_TYPES = {"StateFile", "StoreKeeper", "_Unkept"}
ABOUT_THE_RUN = {("files/release_job.py", "kept"), ("front_door/release_data.py", "_job")}
"""Where `db` is one of the options of a run, and no keeper is asked for."""


def asks(code: str, where: str = "") -> list[int]:
    """The lines that ask which keeper there is: by its type, or by the option `db` of a job."""
    tree = ast.parse(code)
    allowed = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and (where, function.name) in ABOUT_THE_RUN
        for node in ast.walk(function)
    }
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if id(node) not in allowed and (_names_a_type(node) or _reads_db(node))
    )


def _names_a_type(node: ast.AST) -> bool:
    """Whether a type of keeper is named, which also an import does."""
    if isinstance(node, ast.Name):
        return node.id in KEEPER_TYPES
    if isinstance(node, ast.ImportFrom):
        return any(one.name in KEEPER_TYPES for one in node.names)
    return isinstance(node, ast.Attribute) and node.attr in KEEPER_TYPES


def _reads_db(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "db"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    named = (one for one in node.args if isinstance(one, ast.Constant))
    return node.func.id in ("getattr", "hasattr") and any(one.value == "db" for one in named)


def test_no_line_asks_which_keeper_there_is() -> None:
    for path in SOURCES.rglob("*.py"):
        if path not in KEEPER_FILES:
            where = path.relative_to(SOURCES).as_posix()
            assert not asks(path.read_text(), where), where


@pytest.mark.parametrize(
    "planted",
    [
        "if isinstance(keeper, StateFile):\n    pass",
        "if type(keeper) is state_file.StateFile:\n    pass",
        "match keeper:\n    case StoreKeeper():\n        pass",
        "from evercount.files.store_keeper import StoreKeeper as S",
        "if job.db:\n    pass",
        "if run.job.db is not None:\n    pass",
        "rule = 1 if not self.job.db else 2",
        "if getattr(job, 'db'):\n    pass",
        "def _kept(job):\n    return any((job.out, job.db))",
    ],
)
def test_a_line_that_asks_is_found(planted: str) -> None:
    assert asks(planted)
