"""The ways in, by name: each runs a life in one world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from evercount.audit.lives.life import History, Life
from evercount.audit.lives.record import Record
from evercount.noise import Secret

Way = Callable[[Life, History, Secret], Record]


@contextmanager
def drawn_secrets(root: Secret) -> Iterator[None]:
    """Let every secret that is drawn follow from a root and from how many were drawn before: two
    worlds then have the same noise, also that of streams that draw their own secret."""
    numbers, own = count(), Secret.__dict__["generate"]

    def generate(cls: type[Secret]) -> Secret:
        return root.derive(f"evercount/audit/life/{next(numbers)}")

    Secret.generate = classmethod(generate)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Secret.generate = own  # type: ignore[method-assign]


def in_python(life: Life, history: History, secret: Secret) -> Record:
    from evercount.audit.lives.python_way import PythonLife

    return PythonLife(life, history, secret).run()


def in_files(life: Life, history: History, secret: Secret) -> Record:
    from evercount.audit.lives.file_way import in_files

    return in_files(life, history, secret)


def in_store(life: Life, history: History, secret: Secret) -> Record:
    from evercount.audit.lives.store_way import in_store

    return in_store(life, history, secret)


OF_FILES = (
    *("release", "again", "restart", "renew", "second", "join", "hide", "note", "kill"),
    *("output", "new noise"),
)
WAYS: dict[str, tuple[Way, tuple[str, ...]]] = {
    "python": (in_python, ("release", "steps", "restart", "renew", "second", "join")),
    "csv": (in_files, OF_FILES),
    "jsonl": (in_files, OF_FILES),
    "parquet": (in_files, OF_FILES),
    "frame": (in_files, OF_FILES),
    "store of files": (in_files, OF_FILES),
    "moves": (in_files, (*OF_FILES, "move")),
    "store": (
        in_store,
        (
            *("release", "restart", "renew", "second", "join", "hide", "note", "missing"),
            *("retire", "backup", "old copy", "shards"),
        ),
    ),
}
"""Each way, and what an operator can do in it."""
