"""The Spark session: what must be installed, the settings that it needs, and what its errors say."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from evercount.errors import EvercountError, MissingExtra, ParameterError

OLDEST_JAVA = 17
NAMED = re.compile(r"\[[A-Z0-9_.]+\] .*")  # from the name of Spark's error on, as in [FAILED_READ_FILE.NO_HINT]


def open_session(master: str | None = None, name: str = "evercount") -> SparkSession:
    """The running session, or a new one.

    Args:
        master: where Spark runs, such as local[2]; None for what spark-submit or the configuration says.
        name: shown in Spark's own pages.

    Returns:
        The session; `stop` ends it.

    Raises:
        ParameterError: Java is missing or too old.
    """
    if SparkSession.getActiveSession() is None:
        check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    try:
        return builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise EvercountError(f"Spark does not start: {str(error).strip().splitlines()[0][:200]}") from None


def java_version(java: Path) -> int | None:
    """The major version from the file `release` beside a Java, or None where it has none."""
    try:
        text = (java.resolve().parents[1] / "release").read_text(encoding="utf-8")
    except (OSError, IndexError):
        return None
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else None


def check_java() -> None:
    """Refuse with a clear message before Spark fails with an unclear one."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    remedy = f"install Java {OLDEST_JAVA} or newer (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java is on the PATH"
        raise ParameterError(f"Spark needs Java, and {where}: {remedy}")
    major = java_version(Path(java))
    if major is not None and major < OLDEST_JAVA:
        raise ParameterError(f"Spark needs Java {OLDEST_JAVA}, and {java} is Java {major}: {remedy}")


def check_pandas() -> None:
    try:
        installed = version("pandas")
    except PackageNotFoundError as error:
        raise MissingExtra("Spark's Arrow functions", "spark") from error
    if int(installed.split(".")[0]) >= 3:
        raise ParameterError(f"Spark needs pandas below 3, this is {installed}: pip install 'pandas<3'")


def first_line(error: BaseException) -> str:
    """What Spark says, without its stack: our own error on an executor, else a named one, else the first line."""
    lines = str(error).strip().splitlines()
    ours = [line.split(": ", 1)[-1] for line in lines if line.startswith("evercount.errors.")]
    named = [found[0] for line in lines if (found := NAMED.search(line))]
    return (ours[-1:] + named + lines + [type(error).__name__])[0][:400]
