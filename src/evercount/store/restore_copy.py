"""Put a backup of an SQLite store in its place again, and say which streams cannot go on from it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from evercount._safe_files import refuse_link, sync_folder
from evercount.errors import StoreError
from evercount.store.database import parse_url, take_file_lock
from evercount.store.reader import Reading
from evercount.store.rollback_guard import HeadFile, Quarantine


def restore_copy(copy: Path, place: Path, head: Path | None = None) -> tuple[Path | None, list[Quarantine]]:
    """Put `copy` in the place of the store at `place`, while nobody writes to it.

    The head file is not touched: it is what tells which streams have released since the copy was made.
    """
    refuse_link("the copy", copy)
    target = parse_url(place).database
    assert target is not None
    place = Path(target)
    fresh = place.with_name(f".{place.name}.restored")
    source = Reading.open(copy)
    try:
        wrong = source.verify()
        if wrong:
            raise StoreError("the copy is damaged and was not restored", "; ".join(wrong))
        lock = take_file_lock(place)  # the database itself may be damaged: it is not opened
        try:
            quarantined = source.check_head(HeadFile(head or place.with_name(f"{place.name}.head")))
            fresh.unlink(missing_ok=True)
            source.backup(fresh)
            kept = _put_aside(place) if place.exists() else None
            fresh.replace(place)
            sync_folder(place)
        finally:
            os.close(lock)
    finally:
        source.close()
    return kept, list(quarantined.values())


def _put_aside(place: Path) -> Path:
    """Rename the database with its log, which holds its latest transactions. The new name."""
    kept = place.with_name(f"{place.name}.before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
    if kept.exists():
        raise StoreError(f"{kept} exists already: wait a second and try again")
    for suffix in ("-wal", "-shm"):
        log = place.with_name(place.name + suffix)
        if log.exists():
            log.rename(kept.with_name(kept.name + suffix))
    return place.rename(kept)
