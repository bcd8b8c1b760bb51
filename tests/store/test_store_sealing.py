"""Encryption at rest: round trips, tampering, keys, and nothing readable in the file."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from evercount.errors import ParameterError, StoreError
from evercount.noise import Secret
from evercount.store import Batch, Store, StreamDeclaration
from evercount.store.sealing import Sealer, key_from_environment, read_key
from preloaded_programs import Programs

KEY = bytes(range(32))
WORDS = {
    "name": "words",
    "query": {"name": "substrings", "parameters": {"alphabet": "ab", "max_length": 2}},
}


def test_what_is_sealed_opens_in_its_place_only() -> None:
    sealer = Sealer(KEY, "store")
    sealed = sealer.seal(b"value", "state", 3, 7, b"extra")
    assert sealer.open(sealed, "state", 3, 7, b"extra") == b"value"
    assert b"value" not in sealed
    assert sealer.seal(b"value", "state", 3, 7, b"extra") != sealed
    for place in (
        ("secret", 3, 7, b"extra"),
        ("state", 4, 7, b"extra"),
        ("state", 3, 8, b"extra"),
        ("state", 3, 7, b""),
    ):
        with pytest.raises(StoreError, match="cannot be opened"):
            sealer.open(sealed, *place)
    for other in (Sealer(bytes(32), "store"), Sealer(KEY, "another store")):
        with pytest.raises(StoreError, match="cannot be opened"):
            other.open(sealed, "state", 3, 7, b"extra")


@pytest.mark.parametrize("at", range(0, 34, 3))
def test_every_changed_byte_is_refused(at: int) -> None:
    sealer = Sealer(KEY, "store")
    sealed = bytearray(sealer.seal(b"value", "state", 1))
    sealed[at] ^= 1
    with pytest.raises(StoreError):
        sealer.open(bytes(sealed), "state", 1)


def test_plain_and_sealed_are_not_mixed_up() -> None:
    plain, sealer = Sealer(None, "store"), Sealer(KEY, "store")
    assert plain.open(plain.seal(b"value", "state", 1), "state", 1) == b"value"
    with pytest.raises(StoreError, match="changed by hand"):
        sealer.open(plain.seal(b"value", "state", 1), "state", 1)
    with pytest.raises(StoreError, match="changed by hand"):
        plain.open(sealer.seal(b"value", "state", 1), "state", 1)


def test_keys_are_read_from_hex_base64_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_key(KEY.hex() + "\n") == KEY == read_key(base64.b64encode(KEY).decode())
    for wrong in ("", "00", "zz" * 32, "é" * 10, KEY.hex()[:-2]):
        with pytest.raises(ParameterError, match="32 bytes"):
            read_key(wrong)
    assert key_from_environment() is None
    monkeypatch.setenv("EVERCOUNT_KEY", KEY.hex())
    assert key_from_environment() == KEY
    file = tmp_path / "key"
    file.write_text(bytes(32).hex())
    file.chmod(0o600)
    monkeypatch.setenv("EVERCOUNT_KEY_FILE", str(file))
    assert key_from_environment() == bytes(32)
    file.write_text("secret nonsense")
    with pytest.raises(ParameterError) as caught:
        key_from_environment()
    assert "nonsense" not in str(caught.value)
    with pytest.raises(ParameterError, match="cannot be read"):
        key_from_environment(tmp_path / "none")


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY.hex())
    for mode in (0o644, 0o640, 0o604, 0o602, 0o620):
        file.chmod(mode)
        with pytest.raises(ParameterError, match=f"chmod 600 {file}"):
            key_from_environment(file)
    for mode in (0o600, 0o400):
        file.chmod(mode)
        assert key_from_environment(file) == KEY
    link = tmp_path / "link"  # as Kubernetes mounts secrets
    link.symlink_to(file)
    assert key_from_environment(link) == KEY
    with pytest.raises(ParameterError, match="Is a directory"):
        key_from_environment(tmp_path)


def test_a_key_file_of_root_may_be_lent_to_a_group(programs: Programs, tmp_path: Path) -> None:
    """systemd's credentials belong to root and are lent by an access list; those of another user
    are not trusted."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of other users")
    file = tmp_path / "key"
    file.write_text(KEY.hex())
    tmp_path.chmod(0o755)
    program = """
import os
from pathlib import Path
from evercount.errors import ParameterError
from evercount.store import key_from_environment
for owner, mode in ((0, 0o440), (0, 0o444), (54321, 0o440), (54322, 0o440)):
    os.chown("key", owner, 54321), os.chmod("key", mode)
    if os.fork():
        os.wait()
        continue
    os.setgroups([]), os.setgid(54321), os.setuid(54321)
    try:
        print(key_from_environment(Path("key")).hex())
    except ParameterError as error:
        print(error)
    break
"""
    done = programs.run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    for said, wanted in zip(
        answers, (KEY.hex(), "chmod o=", "chmod 600", "must belong to"), strict=True
    ):
        assert wanted in said


def test_a_store_opens_with_its_own_key_only(tmp_path: Path) -> None:
    place = tmp_path / "sealed.db"
    Store(place, KEY).close()
    Store(place, KEY).close()
    with pytest.raises(StoreError, match="is encrypted"):
        Store(place)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(place, bytes(32))
    Store(tmp_path / "plain.db").close()
    with pytest.raises(StoreError, match="without encryption"):
        Store(tmp_path / "plain.db", KEY)


def test_no_secret_and_no_event_is_readable_in_an_encrypted_file(tmp_path: Path) -> None:
    """Negative control: the same search finds them in a store without a key."""
    secret = Secret.generate()
    found = {}
    for name, key in (("sealed", os.urandom(32)), ("plain", None)):
        place = tmp_path / f"{name}.db"
        store = Store(place, key)
        budget = {"epsilon": 1.0, "delta": 1e-9, "unit": "user", "max_events": 2}
        store.declare(StreamDeclaration.from_dict({**WORDS, "budget": budget}), 0.0, secret)
        payloads, users = list("abba"), ["somebody-here"] * 4
        store.accept([Batch("words", payloads, users=users, key="the-key", body=b"abba-body")], 0.0)
        content = b"".join(file.read_bytes() for file in tmp_path.glob(f"{name}.db*"))
        needles = (secret.hex().encode(), b'["a", "b"]', b"somebody-here", b"the-key", b"abba-body")
        found[name] = [needle in content for needle in needles]
        store.close()
    assert found["sealed"] == [False] * 5
    # users, keys and bodies are never kept
    assert found["plain"] == [True, True, False, False, False]
