"""Where a PostgreSQL store keeps its head file and admin token, and what it says where it
cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evercount.errors import StoreError
from evercount.service.access import default_file, write_token_file
from evercount.store import Reading, Store
from evercount.store.rollback_guard import default_path
from preloaded_programs import COMMAND

if TYPE_CHECKING:
    from postgres_cluster import Postgres
    from preloaded_programs import Programs


Serve = Callable[..., tuple[int, str]]


@pytest.fixture
def serve(programs: Programs) -> Serve:
    """Start the command; stop it when it serves. Its exit status and what it said."""

    def started(*options: str, **environment: str) -> tuple[int, str]:
        process = programs.start(
            COMMAND, "serve", "--port", "0", *options, env={**os.environ, **environment}
        )
        said = ""
        for line in process.stderr:
            said += line
            if "the admin token is in" in line:
                process.terminate()
        return process.wait(), said

    return started


@pytest.fixture
def no_home(tmp_path: Path) -> str:
    """A home folder in which nothing can be made, for root too: it is a file."""
    (tmp_path / "home").write_text("")
    return str(tmp_path / "home")


def test_an_unwritable_home_is_named_with_the_way_out(
    postgres: Postgres, serve: Serve, no_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.fresh()
    code, said = serve("--db", url, HOME=no_home)
    assert code == StoreError.exit_code
    assert "Traceback" not in said
    assert "the head file cannot be written" in said
    assert "--head" in said
    assert "XDG_STATE_HOME" in said
    assert no_home in said
    monkeypatch.setenv("HOME", no_home)
    with pytest.raises(StoreError, match="XDG_STATE_HOME"):
        Store(url)
    Store(url, head=tmp_path / "state" / "a.head").close()


def test_with_a_head_file_no_home_is_needed(
    postgres: Postgres, serve: Serve, no_home: str, tmp_path: Path
) -> None:
    """The admin token is then next to the head file."""
    head = tmp_path / "state" / "a.head"
    code, said = serve("--db", postgres.fresh(), "--head", str(head), HOME=no_home)
    assert code == 0, said
    token = head.with_name("a.head.admin-token")
    assert str(token) in said
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_token_file_that_cannot_be_written_is_named_before_a_stream_is_declared(
    postgres: Postgres, serve: Serve, no_home: str, tmp_path: Path
) -> None:
    url = postgres.fresh()
    options = ("--head", str(tmp_path / "a.head"), "--admin-token-file", f"{no_home}/token")
    code, said = serve("--db", url, *options)
    assert code == 2
    assert "Traceback" not in said
    assert "Name another with --admin-token-file, or set EVERCOUNT_ADMIN_TOKEN" in said
    with closing(Reading.open(url)) as reading:
        assert reading.names() == []


def test_a_user_without_a_home_is_told(postgres: Postgres, programs: Programs) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user whom the system does not know")
    program = f"""
import os
from evercount.store.database import Database
from evercount.store.rollback_guard import default_path
database = Database({postgres.fresh()!r})
os.environ.pop("HOME")
os.setuid(54321)
print(default_path(database))
"""
    done = programs.run(program)
    assert (
        "StoreError: no place for the head file: this user has no home folder. Name a file"
        in done.stderr
    )


def test_the_tests_have_a_home_of_their_own(postgres: Postgres, serve: Serve) -> None:
    """In this process and in those that it starts; what is left in the user's home fails the whole
    run."""
    import pwd

    home = Path.home()
    assert home.name.startswith("evercount-home-")
    assert home != Path(pwd.getpwuid(os.getuid()).pw_dir)
    store = Store(postgres.fresh())
    try:
        assert default_path(store.database).is_relative_to(home)
        assert store.head.path == default_path(store.database)
        write_token_file(default_file(store))
    finally:
        store.close()
    names = {path.name for path in (home / ".local" / "state" / "evercount").iterdir()}
    assert names >= {store.head.path.name, f"{store.head.path.name}.admin-token"}
    code, said = serve("--db", postgres.fresh())
    assert code == 0
    assert f"the admin token is in {home}" in said
