"""Every snippet of README and docs is executed, or stands in a list with the reason why it is not.

Fences `python` and `sh` run in order, in one empty folder for each page. A fence `console` runs
what follows `$` and compares the output (`…` stands for what differs from run to run). All other
fences and indented blocks are only shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evercount.examples import flights
from evercount.examples.flights import Flight
from soak_cases import soak_except

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:\A|\n)\n((?: {4}[^\n]*\n)+(?:\n+(?: {4}[^\n]*\n)+)*)")
EXECUTED = ("python", "console", "sh")
READ_ELSEWHERE = {
    "toml": "tests/declarations and the pages' own commands read such files",
    "sql": "tests/files/test_duckdb_queries.py runs the statements of the page",
    "nginx": "tests/service/test_deploy.py starts nginx with it",
    "caddy": "tests/service/test_deploy.py starts Caddy with it",
    "math": "tests/docs/test_site.py typesets the formulas",
    "diff": "tests/docs/test_contributing_pages.py makes these changes in a copy of the tree",
}
"""Fences of other languages, and what becomes of them."""
COMMAND = re.compile(
    r"^ *(?:\$ |\* \* )?(?:evercount|python3?|pip|uv|make|curl|createdb|podman|from|import|\.)(?: "
    r"|\b)|^\S+ \* \* "
)
SHOWN = {
    (
        "README.md",
        "make run",
    ): "it installs a whole environment; tests/service starts the demonstration",
    ("README.md", "make test"): "it would run this test",
    ("README.md", ". .venv/bin/activate"): "a habit of the reader's shell",
    ("docs/tutorial/flights.md", ". .venv/bin/activate"): "a habit of the reader's shell",
    ("CONTRIBUTING.md", "make "): "a list of commands; CI runs them",
    (
        "RELEASING.md",
        "make release-check",
    ): "an hour; tests/package/test_release_check.py runs its parts",
    (
        "docs/contributing/first-query.md",
        "evercount audit sensitivity",
    ): "tests/docs/test_contributing_pages.py",
    (
        "docs/contributing/first-query.md",
        "python -m pytest",
    ): "tests/docs/test_contributing_pages.py",
    ("docs/audit.md", "evercount audit mechanism count --all"): "some minutes",
    ("docs/audit.md", "python tools/audit_table.py"): "ten minutes and more: 1,736 combinations",
    ("docs/audit.md", 'evercount audit replay histogram -p keys=\'["a","b"]\' --interface spark'): (
        "Java, and minutes; tests/audit/test_replay_interfaces.py replays this interface"
    ),
    ("docs/howto/cron.md", "5 * * * *"): "a line for another program; its command runs above it",
    ("docs/howto/postgresql.md", "pip install"): "it needs a package registry",
    (
        "docs/howto/postgresql.md",
        "createdb",
    ): "it needs the reader's database; tests/postgres_cluster.py does it for the next line",
    ("docs/howto/lake.md", "pip install"): "it needs a package registry",
    ("docs/howto/lake.md", "evercount"): "tests/files/test_lake_table.py runs both commands",
    ("docs/howto/log.md", "pip install"): "it needs a package registry",
    ("docs/howto/log.md", "evercount consume"): "it needs a broker; tests/consume runs the command",
    ("docs/howto/airflow.md", "from datetime"): "the first line of the block that imports Airflow",
    (
        "docs/howto/airflow.md",
        "from airflow",
    ): "Airflow is not a dependency; the function that it calls runs above",
    ("docs/howto/airflow.md", "from dagster"): "nor is Dagster",
    (
        "docs/paper.md",
        "evercount reproduce --out DIR",
    ): "half an hour; tests/reproduce runs each item in a small size",
    ("docs/scale.md", "pip install"): "it needs a package registry",
    (
        "docs/scale.md",
        "evercount spark",
    ): "it needs Java; tests/spark/test_spark_command.py runs the command",
    (
        "docs/scale.md",
        "from evercount.spark import release_stream",
    ): "Java; tests/spark/test_stream_release.py",
    (
        "docs/scale.md",
        "from evercount.spark import release_batch",
    ): "Java; tests/spark/test_batch_release.py",
}
"""What is shown and not executed: page, how the line begins, and why. Lines `evercount serve` are
started below."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def shown_blocks(text: str) -> list[str]:
    """The blocks of a page that are not executed, without the indentation."""
    fences = [
        body
        for language, body in FENCE.findall(text)
        if language not in (*EXECUTED, *READ_ELSEWHERE)
    ]
    rest = FENCE.sub("", text)
    return [
        *fences,
        *(re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in INDENTED.findall(rest)),
    ]


def shown_commands(text: str) -> list[str]:
    """The lines of these blocks that begin like a command; a line that ends with a backslash goes
    on."""
    lines = [
        line for block in shown_blocks(text) for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line.strip() for line in lines if COMMAND.match(line)]


def without_a_reason(page: str, text: str) -> list[str]:
    reasons = [begin for place, begin in SHOWN if place == page]
    return [
        line for line in shown_commands(text) if not line.startswith(("evercount serve", *reasons))
    ]  # fmt: skip


def test_what_is_not_executed_has_a_reason() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert without_a_reason(name_of(page), text) == [], page.name
        for language, _ in FENCE.findall(text):
            assert language in (*EXECUTED, *READ_ELSEWHERE, "text"), (
                f"{page.name} has a fence of kind {language!r}"
            )


def test_a_snippet_without_a_reason_is_caught() -> None:
    planted = "Text.\n\n    evercount plan --epsilon 1\n\nText.\n\n```text\npip install x\n```\n"
    assert without_a_reason("docs/new.md", planted) == [
        "pip install x",
        "evercount plan --epsilon 1",
    ]


def test_every_reason_is_about_a_line_that_is_there() -> None:
    lines = {name_of(page): shown_commands(page.read_text(encoding="utf-8")) for page in PAGES}
    stale = [
        key for key in SHOWN if not any(line.startswith(key[1]) for line in lines.get(key[0], []))
    ]
    assert stale == []


def test_commands_that_are_shown_are_legal() -> None:
    """Each names a command and options that exist; shown Python compiles."""
    import typer.main

    from evercount.cli import app

    seen = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        seldom = [
            body for kind, body in FENCE.findall(text) if kind == "sh" and name_of(page) in LONG
        ]
        for line in (
            *shown_commands(text),
            *(line for body in seldom for line in body.splitlines()),
        ):
            if not line.startswith("evercount "):
                continue
            words = shlex.split(line, comments=True)[1:]
            command, context = typer.main.get_command(app), None
            while words and hasattr(command, "get_command"):
                context = typer.Context(command, parent=context)
                command, words = command.get_command(context, words[0]), words[1:]
                assert command is not None, f"{page.name}: {line}"
            known = {
                option
                for parameter in command.params
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            for word in words:
                if word.startswith("-") and word != "-":
                    assert word.partition("=")[0] in known, f"{page.name}: {line}"
            seen += 1
        for block in shown_blocks(text):
            if block.startswith(("from ", "import ")):
                compile(block, page.name, "exec")
    assert seen > 20


# What a page needs before its first block: made here, because readers have it already.

STORE = """
from evercount.store import Store, StreamDeclaration
store = Store("counts.db")
flu = StreamDeclaration.from_dict({
    "name": "flu", "query": {"name": "histogram", "parameters": {"keys": ["North", "South"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9}, "tick": "manual", "horizon": 100})
store.close_ticks(store.declare(flu, 0.0), 3, 0.0)
store.close()
"""


@contextlib.contextmanager
def the_class_in_a_module(text: str) -> Iterator[dict[str, str]]:
    block = next(body for language, body in FENCE.findall(text) if language == "python")
    Path("mymodule.py").write_text(block.partition("\ndata, ")[0], encoding="utf-8")
    yield {}


@contextlib.contextmanager
def a_store(text: str) -> Iterator[dict[str, str]]:
    subprocess.run([sys.executable, "-c", STORE], check=True)
    yield {}


@contextlib.contextmanager
def the_declaration_and_events(text: str) -> Iterator[dict[str, str]]:
    block = next(body for language, body in FENCE.findall(text) if language == "toml")
    Path("streams.toml").write_text(block, encoding="utf-8")
    rows = [
        f"2026-01-{day:02},{region}"
        for day in range(1, 9)
        for region in ("North", "West", "West", "abroad")
    ]
    Path("events.csv").write_text("\n".join(["when,region", *rows, ""]), encoding="utf-8")
    yield {}


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[str]:
    """A service that runs, by its address; afterwards it must end in peace."""
    process = subprocess.Popen(
        ["evercount", "serve", *arguments, "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " serves " in line:
                break
        assert lines, f"evercount serve {shlex.join(arguments)} says nothing"
        assert " serves " in lines[-1], "".join(lines)
        yield lines[-1].split(" serves ")[1].split()[0]
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(300) == 0, rest
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@contextlib.contextmanager
def a_service(text: str) -> Iterator[dict[str, str]]:
    with started("--db", "counts.db") as address:
        token = Path("counts.db.admin-token").read_text(encoding="utf-8").strip()
        yield {"TOKEN": token, "http://127.0.0.1:8000": address}


RUN = [
    page
    for page in PAGES
    if any(kind in EXECUTED for kind, _ in FENCE.findall(page.read_text(encoding="utf-8")))
]
LONG = {
    "docs/audit.md": (
        "a minute of attacks; tests/audit runs such commands, and a test above knows their options"
    )
}
"""Pages whose blocks `sh` only `make soak` runs, and why."""
Preparation = Callable[[str], contextlib.AbstractContextManager[dict[str, str]]]
PREPARED: dict[str, Preparation] = {
    "docs/audit.md": the_class_in_a_module,
    "docs/declarations.md": the_declaration_and_events,
    "docs/howto/backup.md": a_store,
    "docs/howto/duckdb.md": a_store,
    "docs/howto/erasure.md": a_store,
    "docs/service.md": a_service,
    "docs/tutorial/examples.md": lambda text: contextlib.nullcontext(
        {"examples/": f"{ROOT}/examples/"}
    ),
}


def run_in_shell(block: str) -> tuple[int, str]:
    # into a file: a pipe would wait for servers in the background
    with Path("output.txt").open("w+", encoding="utf-8") as output:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        output.seek(0)
        return done.returncode, output.read()


def is_said(expected: str, said: str) -> bool:
    """Whether a program said what a page shows; `…` stands for anything."""
    wanted, got = (
        "\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (expected, said)
    )
    return re.fullmatch(re.escape(wanted).replace("…", ".*?"), got, re.DOTALL) is not None


def test_wrong_output_is_caught() -> None:
    assert is_said("a\n… of 3\n", "\na  \n2 of 3\n")
    assert not is_said("a\nb\n", "a\nc\n")
    assert not is_said("", "a")


@pytest.fixture
def a_shell(preloaded_command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, a narrow terminal, and programs that start at once."""
    monkeypatch.chdir(tmp_path)
    programs = (str(preloaded_command), str(Path(sys.executable).parent), os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(programs))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.slow
@pytest.mark.usefixtures("a_shell")
@pytest.mark.parametrize(
    ("page", "kinds"),
    [
        *(
            pytest.param(page, EXECUTED[: 2 if name_of(page) in LONG else 3], id=name_of(page))
            for page in RUN
        ),
        *(
            pytest.param(ROOT / page, EXECUTED, id=f"all of {page}", marks=pytest.mark.soak)
            for page in LONG
        ),
    ],
)
def test_snippets_run(page: Path, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page belong together: they run in order, in one empty folder."""
    names: dict[str, object] = {"__name__": "snippet"}
    text = page.read_text(encoding="utf-8")
    with PREPARED.get(name_of(page), lambda text: contextlib.nullcontext({}))(text) as here:
        for name, value in here.items():
            if name.isidentifier():
                monkeypatch.setenv(name, value)
            text = text if name.isidentifier() else text.replace(name, value)
        for language, block in FENCE.findall(text):
            if language not in kinds:
                continue
            if language == "python":
                exec(compile(block, page.name, "exec"), names)
            elif language == "sh":
                code, said = run_in_shell(block)
                assert code == 0, f"{block}\n{said}"
            elif language == "console":
                for part in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
                    command, _, expected = part.partition("\n")
                    said = run_in_shell(command)[1]
                    assert is_said(expected, said), (
                        f"{page.name} shows for {command}\n{expected}\nbut it says\n{said}"
                    )


FAILS = "release gone.csv --time t --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --out a.csv"
SERVED = """rm -f log; evercount serve --db a.db --port 0 2> log &
until grep -qs " serves " log; do kill -0 $!; sleep 0.1; done"""


@pytest.mark.slow
@pytest.mark.usefixtures("a_shell")
def test_commands_of_pages_end_as_they_would_alone() -> None:
    """What the pages' `evercount` says and returns is what a program of its own does, signals
    included."""
    alone = run_in_shell(f"{sys.executable} -m evercount {FAILS}")
    assert alone[0] not in (0, 1, 127)
    assert "gone.csv" in alone[1]
    assert run_in_shell(f"evercount {FAILS}") == alone
    assert run_in_shell(f"{SERVED}; kill $!; wait $!")[0] == 0
    assert run_in_shell(f"{SERVED}; kill -KILL $!; wait $!")[0] == 128 + signal.SIGKILL
    # whoever was killed holds the store no more
    code, said = run_in_shell(f"{SERVED}; kill $!; wait $!")
    assert code == 0, said


DEMONSTRATION = "evercount serve --demo"
"""tests/service/test_service_api.py starts it in CI."""


def servers() -> list[str]:
    lines = [line for page in PAGES for line in shown_commands(page.read_text(encoding="utf-8"))]
    return sorted(
        {line.partition("#")[0].strip() for line in lines if line.startswith("evercount serve")}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("a_shell")
@pytest.mark.parametrize(
    "line", soak_except([line for line in servers() if line != DEMONSTRATION], servers())
)
def test_servers_that_are_shown_start(
    line: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each `evercount serve` of the pages, on a free port and with paths and database of this
    machine."""
    import httpx

    (tmp_path / "key").write_text("ab" * 32, encoding="utf-8")
    (tmp_path / "key").chmod(0o600)
    text = (ROOT / "docs" / "declarations.md").read_text(encoding="utf-8")
    words = shlex.split(line)[2:]
    for number, word in enumerate(words):
        if word.startswith("postgresql://"):
            words[number] = request.getfixturevalue("postgres").fresh()
            if "--read-only" in words:
                from evercount.store import Store

                Store(words[number], head=tmp_path / "first.head").close()
        elif word.startswith("/"):
            words[number] = str(tmp_path / Path(word).name)
    with the_declaration_and_events(text), started(*words) as address:
        assert httpx.get(f"{address}/healthz", timeout=300).status_code == 200


# -- ticks come from a public schedule -------------------------------------------------------------


FEW_FLIGHTS = [
    Flight("2013-01-01T05:15:00", "EWR", "IAH", "UA", "N14228", "2"),
    Flight("2013-03-29T21:40:00", "JFK", "SFO", "B6", "N504JB", ""),
    Flight("2013-06-22T08:00:00", "LGA", "ATL", "DL", "N3739P", "-4"),
    Flight("2013-09-17T12:59:00", "JFK", "BOS", "B6", "unknown", "0"),
    Flight("2013-12-31T23:59:00", "EWR", "ORD", "UA", "N24211", "87"),
]


@pytest.mark.parametrize(
    ("page", "ticks"),
    [
        ("docs/howto/rollups.md", "months"),
        ("docs/howto/unknown-keys.md", "weeks"),
        ("docs/tutorial/flights.md", "ticks"),
        ("docs/tutorial/suppression.md", "weeks"),
    ],
)
def test_one_event_more_changes_one_tick(
    page: str, ticks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a page that put events into ticks, run over neighbouring data: only one tick may
    differ."""
    rows = FEW_FLIGHTS
    block = next(
        body
        for _, body in FENCE.findall((ROOT / page).read_text("utf-8"))
        if "in flights():" in body
    )
    code = block.partition("\nstream = ")[0]

    def made(events: list[Flight]) -> list[object]:
        monkeypatch.setattr(flights, "flights", lambda: iter(events))
        found: dict[str, Any] = {}
        exec(code, found)  # the page's own words
        return list(found[ticks].values() if isinstance(found[ticks], dict) else found[ticks])

    whole = made(rows)
    assert len(whole) in (12, 53, 365)
    for left_out in range(len(rows)):
        fewer = made(rows[:left_out] + rows[left_out + 1 :])
        assert len(fewer) == len(whole)
        assert sum(one != other for one, other in zip(fewer, whole, strict=True)) == 1
