"""Fixtures that several rooms share. README.md, next to this file, is a map of the tests."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from postgres_cluster import Postgres
    from preloaded_programs import Programs


HOMES = pytest.StashKey[tuple[Path, set[str], Path]]()
"""The user's home, what was in it, and the home of the tests."""


def state_files(home: Path) -> set[str]:
    """What evercount keeps in a home folder, and what lies directly in it."""
    return {path.name for path in (*home.glob("*"), *home.glob(".local/state/evercount/*"))}


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests, and every process that they start, an empty home folder of their own."""
    real = Path.home()
    config.stash[HOMES] = real, state_files(real), Path(tempfile.mkdtemp(prefix="evercount-home-"))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        os.environ.pop(name, None)
    os.environ["HOME"] = str(config.stash[HOMES][2])
    # Nothing is asked over TLS: each client would read the certificates of a hundred authorities
    # first.
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = os.environ["HOME"]
    # Tests kill processes, never the machine: files in memory are as good, and a sync of them costs
    # nothing.
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    # Several workers share the cores, and the threads of small matrix products wait for each other
    # by spinning.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # What a test starts need not compile the package again, nor a second run the tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    gc.disable()  # until everything is collected: what is made until then stays


WHOLE_FILE_IS_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow$", re.MULTILINE)
SOME_TESTS_ARE_SLOW = re.compile(r"\bmark\.slow\b|\bspark\b")
"""The mark, or the fixture of the Spark session: whatever uses that is slow."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a file without a test of the tier that runs, by its text: it is not even imported."""
    expression = config.option.markexpr
    if collection_path.suffix != ".py" or "slow" not in expression:
        return None
    text = collection_path.read_text(encoding="utf-8")
    if "not slow" in expression:
        return WHOLE_FILE_IS_SLOW.search(text) is not None or None
    return SOME_TESTS_ARE_SLOW.search(text) is None or None


def pytest_collection_finish() -> None:
    """A collector that looked at each of some thousand tests again would take longer than many of
    them."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # DuckDB looks at the end whether all of its own was given back


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it."""
    shutil.rmtree(config.stash[HOMES][2], ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run whose tests left something in the home folder of the user has failed."""
    real, before, _ = session.config.stash[HOMES]
    left = sorted(state_files(real) - before)
    if left:
        print(
            "\n"
            f"FAILED: {len(left)} files were left in {real} while the tests ran: "
            f"{', '.join(left[:5])}"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark Spark's tests as slow, and run them first: one worker has them all, and one JVM."""
    with_spark = {item for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item not in with_spark)
    for item in with_spark:
        item.add_marker(pytest.mark.slow)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, here and in programs that the test starts: a shell's `… &` makes its
    programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the tests' own, one for all of them: each test asks it for a fresh
    database."""
    from postgres_cluster import Postgres

    made = Postgres()
    yield made
    made.close()


ROOT_SECRET = "7d" * 32
"""The operator's secret of the Spark tests: executors read it from their environment."""


def why_no_spark() -> str | None:
    """Why Spark cannot run here."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'evercount[spark]'"
    from evercount.errors import ParameterError
    from evercount.spark.session import check_java

    try:
        check_java()
    except ParameterError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session on two threads for all tests of a process: shards are closed side by
    side."""
    reason = why_no_spark()
    if reason:
        pytest.skip(reason)
    from evercount.spark import open_session

    # before the JVM starts: its Python workers inherit it
    os.environ["EVERCOUNT_SECRET"] = ROOT_SECRET
    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "America/New_York",  # no result may depend on it
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.eventLog.enabled": "true",  # what Spark writes down is searched for secrets
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    # the jobs are short: a compiler that starts at once, with room for all it makes, and no threads
    # for the memory
    java = (
        "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        "-XX:ReservedCodeCacheSize=240m'"
    )
    arguments = " ".join(f"--conf {name}={value}" for name, value in options.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{java} {arguments} pyspark-shell"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = open_session("local[2]")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def nats_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server of the tests' own."""
    pytest.importorskip("nats", reason="nats-py is not installed: pip install 'evercount[consume]'")
    from log_servers import nats_server

    with nats_server(tmp_path_factory.mktemp("nats")) as address:
        yield address


@pytest.fixture(scope="session")
def fork_server(request: pytest.FixtureRequest) -> Any:
    """A server that forks processes which have all modules loaded, and no thread or connection of
    an earlier process.

    pytest has one such server, and only its first user says what is loaded: all tests that start or
    kill programs share this one.
    """
    from killed_interfaces import check_preloaded

    server = multiprocessing.get_context("forkserver")
    # there nothing of what is calculated is killed
    fast = "not slow" in request.config.option.markexpr
    server.set_forkserver_preload(
        ["preloaded_modules"] if fast else ["preloaded_modules", "fitted_noise"]
    )
    # the server does not take over where we look for modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        process = server.Process(target=check_preloaded)
        process.start()
    process.join()
    assert process.exitcode == 0
    return server


@pytest.fixture(scope="session")
def programs(fork_server: Any) -> Programs:
    """Programs that need not load the package again."""
    from preloaded_programs import Programs

    return Programs(fork_server)


@pytest.fixture(scope="session")
def preloaded_command(fork_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for PATH, with an `evercount` that need not load the package again."""
    from preloaded_command import serve_commands, write_shims

    folder = tmp_path_factory.mktemp("bin")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "line"))
        listening.listen(64)
        server = fork_server.Process(target=serve_commands, args=(listening,), daemon=True)
        server.start()
    write_shims(folder, folder / "line")
    yield folder
    server.kill()
    server.join()
