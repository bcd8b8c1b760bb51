"""`evercount serve`: the service and the dashboard."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typer import Option

from evercount.cli.http_client import LOOPBACK
from evercount.cli.options import Head, KeyFile
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.store import Store


def serve(
    db: str | None = Option(
        None, help="SQLite file or postgresql://user@host/name.", show_default="evercount.db"
    ),
    streams: Path | None = Option(None, help="TOML file that declares streams."),
    host: str = Option(
        "127.0.0.1", help="Address to listen on; the default is for this machine only."
    ),
    port: int = Option(8000, min=0, max=65535, help="Port; 0 takes a free one."),
    demo: bool = Option(
        False, "--demo", help="Show a year of made-up flu reports, then one more hour every second."
    ),
    read_only: bool = Option(
        False, "--read-only", help="Show a store that another process, such as Spark, writes to."
    ),
    key_file: KeyFile = None,
    head: Head = None,
    rate: float = Option(
        1000.0, min=1, help="Requests per second of one client: a known token, or an address."
    ),
    trusted_proxy: list[str] | None = Option(
        None, help="Address or network of a proxy that is trusted."
    ),
    admin_token_file: Path | None = Option(
        None, help="File of the admin token.", show_default="DB.admin-token"
    ),
    clock_jump: str = Option(
        "24h", help="Clock jump above which ticks wait for the operator, or none."
    ),
    log_format: Literal["text", "json"] = Option("text", help="Format of the lines of the log."),
) -> None:
    """Serve streams over HTTP: events in, private releases out, with a live dashboard.

    At the first start an admin token is written to a file that only its owner can read, unless
    EVERCOUNT_ADMIN_TOKEN is set. Stops on Ctrl-C and SIGTERM.
    """
    from evercount.declarations.schedule import SECOND, parse_length
    from evercount.declarations.streams_file import read_declarations
    from evercount.service.access import Limits, admin_token
    from evercount.service.demo import DECLARATION, Feeder, demo_clock, prefill
    from evercount.service.http_server import parse_proxies, run
    from evercount.service.log_format import log_to_stderr
    from evercount.service.runtime import Service
    from evercount.store import Store, key_from_environment
    from evercount.store.writer import WatchedStore

    trusted_proxies = trusted_proxy or []
    check_port(host, port)
    parse_proxies(trusted_proxies)  # a mistake is named before anything is opened
    largest_jump = None
    if not demo and clock_jump != "none":
        largest_jump = parse_length(clock_jump, "--clock-jump") / SECOND
    log = log_to_stderr(log_format)
    declarations = read_declarations(streams) if streams else []
    _warn_of(declarations, log)
    _check_modes(demo, read_only, bool(declarations))
    cleanup = ExitStack()
    if demo:
        db = _demo_database(db, cleanup)
        declarations = [DECLARATION]
    place = db or "evercount.db"
    store: Store
    if read_only:
        store = WatchedStore(place, head)
    else:
        store = Store(place, key_from_environment(key_file), head)
    try:
        clock = None
        if demo:
            log.info(
                "made-up data: a year of flu reports is being published, then one more hour every "
                "second"
            )
            prefill(store)
            clock = demo_clock(store)
        limits = Limits(rate=rate, burst=2 * rate)
        token, token_file = admin_token(store, admin_token_file, read_only=read_only)
        service = Service(store, clock=clock, limits=limits, admin=token, clock_jump=largest_jump)
        service.declare(_settle_new(declarations, store, log))
    except BaseException:
        store.close()
        raise

    def ready(address: str) -> None:
        log.info("evercount serves %s  (store: %s)", address, store.database.describe())
        if token_file is not None:
            log.info("the admin token is in %s", token_file)
        if host not in LOOPBACK:
            log.warning(
                "listening beyond this machine. Put TLS in front; tokens travel in the clear."
            )
        if demo:
            feeder = Feeder(service)
            feeder.start()
            cleanup.callback(feeder.stop)
        elif not store.sealer.encrypted and not read_only:
            log.info("the store is not encrypted; set EVERCOUNT_KEY_FILE before the first start.")

    try:
        run(service, host, port, ready, trusted_proxies)
    finally:
        cleanup.close()
    log.info("stopped." if demo else "stopped; everything that was accepted is kept.")


def _check_modes(demo: bool, read_only: bool, declares: bool) -> None:
    """Refuse modes that do not go together."""
    if demo and declares:
        raise ParameterError("--demo runs on its own clock: omit --streams")
    if read_only and (demo or declares):
        raise ParameterError(
            "--read-only shows a store and declares nothing: omit --streams and --demo"
        )


def _warn_of(declarations: Iterable[StreamDeclaration], log: logging.Logger) -> None:
    """Log what should be considered about declared streams."""
    from evercount.declarations.cautions import cautions

    for declaration in declarations:
        for caution in cautions(declaration):
            log.warning("%s: %s", declaration.name, caution)


def _settle_new(
    declarations: Iterable[StreamDeclaration], store: Store, log: logging.Logger
) -> list[StreamDeclaration]:
    """Settle the noise of new streams without views, and log what they publish."""
    from evercount.declarations.cautions import published_line
    from evercount.declarations.settle import settle

    settled = []
    for declaration in declarations:
        if declaration.name not in store.streams and not declaration.views:
            declaration = settle(declaration)
            log.info("%s: %s", declaration.name, published_line(declaration))
        settled.append(declaration)
    return settled


def _demo_database(db: str | None, cleanup: ExitStack) -> str:
    """Name the database of the demonstration: in the given folder, or in a temporary one."""
    if db is None:
        db = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="evercount-demo-"))
    if "://" not in db and Path(db).is_dir():
        return str(Path(db) / "evercount-demo.db")
    return db


def check_port(host: str, port: int) -> None:
    """Refuse a port that another program listens on, before a store is opened."""
    import errno
    import socket

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = (
                "another program is listening there (an earlier `evercount serve`?); --port 0 "
                "takes a free port"
            )
        raise ParameterError(f"cannot listen on {host}:{port}: {reason}") from None
