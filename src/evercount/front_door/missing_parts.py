"""Which extra installs a missing package: the library alone has no command, reads no files and
declares nothing."""

from __future__ import annotations

from evercount.errors import MissingExtra

EXTRAS = {
    "cli": ("rich", "pydantic"),
    "files": ("duckdb", "pyarrow"),
    "plot": ("matplotlib",),
    "postgres": ("psycopg",),
    "service": ("sqlalchemy", "fastapi", "uvicorn"),
    "spark": ("pyspark",),
    "frames": ("pandas", "polars"),
    "consume": ("nats", "confluent_kafka", "prometheus_client"),
    "audit": ("hypothesis",),
    "client": ("httpx",),
}
"""Which extra installs the packages that a command may lack."""


def missing_extra(
    what: str, missing: ModuleNotFoundError, usual: str | None = None
) -> MissingExtra:
    """Name the extra that installs a missing package; raise the error again if a module of our own
    is missing, which is a defect.

    `usual` is the extra with all that `what` needs: it is named where the package is a part of
    that.
    """
    package = (missing.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        raise missing
    if extra in ("cli", usual) and usual is not None:
        extra = usual
    return MissingExtra(f"{what} ({missing.name})", extra)
