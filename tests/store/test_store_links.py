"""Links in the place of the store's files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from evercount.errors import StoreError
from evercount.store import Reading, Store, StreamDeclaration

TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}, "horizon": 64}


def test_links_are_refused(tmp_path: Path) -> None:
    """Through a link the store would have another lock and another head than under its own name."""
    place, link = tmp_path / "a.db", tmp_path / "link.db"
    store = Store(place)
    link.symlink_to(place)
    for opened in (Store, Reading.open):
        with pytest.raises(StoreError, match=r"symbolic link to .*a\.db"):
            opened(link)
    target = tmp_path / "copy.db"
    target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"exists already|cannot be written"):
        store.backup(target)
    assert not (tmp_path / "nowhere").exists()
    store.close()
    head = tmp_path / "a.db.head"
    head.rename(tmp_path / "real.head")
    head.symlink_to(tmp_path / "real.head")
    with pytest.raises(StoreError, match=r"symbolic link to .*real\.head"):
        Store(place)
    lock = tmp_path / "a.db.lock"
    head.unlink()
    lock.unlink()
    lock.symlink_to(tmp_path / "other.lock")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(place)
    assert not (tmp_path / "other.lock").exists()


def test_a_trap_next_to_the_head_is_not_written_to(tmp_path: Path) -> None:
    place, victim = tmp_path / "a.db", tmp_path / "victim"
    victim.write_text("precious")
    for name in (".a.db.head.new", "a.db.head.new"):
        (tmp_path / name).symlink_to(victim)
    store = Store(place)
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 1, 0.0)
    store.close()
    assert victim.read_text() == "precious"
    assert stat.S_IMODE((tmp_path / "a.db.head").stat().st_mode) == 0o600
