"""The package: what is in the wheel, what its metadata say, and what a part that is not installed
answers."""

from __future__ import annotations

import email
import importlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import evercount

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from evercount.__main__ import main
sys.argv = ["evercount", *{arguments!r}]
main()
"""


def build(kind: str, folder: Path) -> Path:
    """A fresh build in a copy of the tree, as `pip` would do it, without looking for build tools
    elsewhere."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    copy = folder / "tree"
    for name in filter(None, (entry.decode() for entry in tracked)):
        if (
            name.startswith(("src/", "LICENSE", "README.md", "pyproject.toml"))
            and (ROOT / name).exists()
        ):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    program = f"import setuptools.build_meta as b; print(b.build_{kind}({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_wheel_has_everything_that_the_program_reads(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "py.typed",
        "cli/__init__.py",
        "service/static/index.html",
        "privacy/gaussian.proof.md",
    ):
        assert f"evercount/{name}" in names
    tracked = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert tracked <= set(names)
    assert not [name for name in names if name.startswith("tests") or "fixtures" in name]


def test_metadata_are_complete(wheel):
    archive = zipfile.ZipFile(wheel)
    path = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    found = email.message_from_string(archive.read(path).decode())
    assert found["Name"] == "evercount"
    assert found["Version"] == evercount.__version__
    assert found["Author"] == "The evercount authors"
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Summary"]
    assert {"plot", "files", "service", "postgres", "spark", "examples"} <= set(
        found.get_all("Provides-Extra")
    )
    assert "make run" in found.get_payload()


def test_sdist_builds_and_holds_the_licence(tmp_path):
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/evercount/__init__.py"} <= names


def test_no_output_of_an_example_is_committed():
    tracked = subprocess.run(
        ["git", "ls-files", "*"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    top = {
        Path(name).suffix
        for name in tracked.splitlines()
        if "/" not in name and (ROOT / name).exists()
    }
    assert top <= {"", ".md", ".toml", ".yaml", ".yml", ".cff"}


def test_version_is_written_once():
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "src/evercount/__init__.py")
    ]
    assert sum(len(re.findall(r'version__?_? = "\d', text)) for text in texts) == 1


@pytest.mark.parametrize(
    ("blocked", "arguments", "extra"),
    [
        ("duckdb", ["release", "events.csv", "--out", "o.csv", "--time", "t", "--every", "1h",
                    "--start", "2026-01-01",
                    "--epsilon", "1", "--delta", "1e-6"], "files"),
        ("typer", ["plan", "--epsilon", "1", "--horizon", "8"], "cli"),
        pytest.param("rich", ["audit", "mechanism", "count", "--runs", "40"], "cli",
                     marks=pytest.mark.soak),
        pytest.param("tomli_w", ["release", "events.csv", "--show-declaration", "--time", "t",
                                 "--every", "1h",
                                 "--start", "2026-01-01", "--epsilon", "1", "--delta", "1e-6"],
                                 "cli",
                     marks=pytest.mark.soak),
        pytest.param("sqlalchemy", ["serve", "--db", "a.db"], "service", marks=pytest.mark.soak),
        ("fastapi", ["serve", "--db", "a.db"], "service"),
        ("sqlalchemy", ["store", "verify", "--db", "a.db"], "service"),
        ("matplotlib", ["plan", "--epsilon", "1", "--delta", "1e-6", "--horizon", "8", "--plot",
                        "a.png"], "plot"),
    ],
)  # fmt: skip
def test_a_missing_part_names_its_install_command(blocked, arguments, extra, tmp_path):
    (tmp_path / "events.csv").write_text("t\n2026-01-01T00:00Z\n")
    program = BLOCKED.format(blocked={blocked}, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert f"pip install 'evercount[{extra}]'" in done.stderr, done.stderr[-2000:]
    assert done.returncode == 7
    assert "Traceback" not in done.stderr


def test_the_library_alone_needs_its_dependencies_only():
    """With every other package out of reach it imports without threadpoolctl, and counts with
    it."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = {re.match(r"[\w-]+", name)[0] for name in asked}
    assert needed == {"numpy", "scipy", "cryptography", "threadpoolctl"}
    owners = packages_distributions()
    reached = {"evercount", "cffi", "pycparser"}
    for allowed, program in (
        (needed - {"threadpoolctl"}, "import evercount"),
        (
            needed,
            (
                "from evercount import *; print(Stream(Count(), Budget(1.0, 1e-6), "
                "horizon=8).step(3).std)"
            ),
        ),
    ):
        blocked = {
            name
            for name, of in owners.items()
            if not {*of} & {*reached, *allowed} and name != "_cffi_backend"
        }
        assert {"typer", "rich", "tomli_w", "pandas", "pyarrow", "pydantic"} <= blocked
        code = BLOCKED.partition("from evercount")[0].format(blocked=blocked) + program
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]


def test_the_command_comes_with_the_extras_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    has_command = importlib.import_module("check_package").has_command
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    without = {name for name in extras if not has_command(name, extras)}
    assert without == {"plot", "accounting", "store", "postgres", "docs"}


def test_every_extra_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tools/check_package.py` knows what each extra promises; `dev` is what the tests themselves
    run in."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    modules = importlib.import_module("check_package").MODULES
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(modules) == set(extras) - {"dev"}


BARE = """
import pickle
import evercount
from evercount.errors import MissingExtra

declared = {"every": "1d", "zone": "UTC", "start": "2026-01-01", "epsilon": 1}
calls = {
    "release": lambda: evercount.release([], time="t", **declared),
    "release of a declaration": lambda: evercount.release([], object()),
    "plan": lambda: evercount.plan(**declared),
    "plan of a declaration": lambda: evercount.plan(object()),
    "declare": lambda: evercount.declare(time="t", **declared),
    "class": lambda: evercount.StreamDeclaration,
}
for name, call in calls.items():
    try:
        call()
    except MissingExtra as missing:
        assert isinstance(missing, ImportError)
        again = pickle.loads(pickle.dumps(missing))
        print(name, "|", again.extra, "|", again)
"""


def test_every_public_call_of_the_library_alone_names_its_extra() -> None:
    owners = packages_distributions()
    needed = {"evercount", "cffi", "pycparser", "numpy", "scipy", "cryptography", "threadpoolctl"}
    blocked = {
        name for name, of in owners.items() if not {*of} & needed and name != "_cffi_backend"
    }
    code = BLOCKED.partition("from evercount")[0].format(blocked=blocked) + BARE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = [line.split(" | ") for line in done.stdout.splitlines()]
    assert [(name, extra) for name, extra, _ in told] == [
        ("release", "files"),
        ("release of a declaration", "files"),
        ("plan", "cli"),
        ("plan of a declaration", "cli"),
        ("declare", "cli"),
        ("class", "cli"),
    ]
    assert all(f"pip install 'evercount[{extra}]'" in text for _, extra, text in told)
