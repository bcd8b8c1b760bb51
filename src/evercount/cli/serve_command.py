"""`evercount serve`: the service and the dashboard."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from typer import Option

from evercount.cli.http_client import LOOPBACK
from evercount.cli.options import Head, KeyFile
from evercount.errors import ParameterError


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
    from evercount.declarations.cautions import cautions, published_line
    from evercount.declarations.schedule import SECOND, parse_length
    from evercount.declarations.settle import settle
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
    guarded = not demo and clock_jump != "none"
    largest_jump = parse_length(clock_jump, "--clock-jump") / SECOND if guarded else None
    log = log_to_stderr(log_format)
    say, warn = log.info, log.warning
    cleanup = ExitStack()
    declared = read_declarations(streams) if streams else []
    for declaration in declared:
        for caution in cautions(declaration):
            warn(f"{declaration.name}: {caution}")
    if demo:
        if db is None:
            db = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="evercount-demo-"))
        if "://" not in db and Path(db).is_dir():
            db = str(Path(db) / "evercount-demo.db")
        if declared:
            raise ParameterError("--demo runs on its own clock: omit --streams")
        declared = [DECLARATION]
    if read_only and declared:
        raise ParameterError(
            "--read-only shows a store and declares nothing: omit --streams and --demo"
        )
    place = db or "evercount.db"
    store = (
        WatchedStore(place, head)
        if read_only
        else Store(place, key_from_environment(key_file), head)
    )
    try:
        if demo:
            say(
                "made-up data: a year of flu reports is being published, then one more hour every "
                "second"
            )
            prefill(store)
        clock = demo_clock(store) if demo else None
        limits = Limits(rate=rate, burst=2 * rate)
        token, token_file = admin_token(store, admin_token_file, read_only=read_only)
        service = Service(store, clock=clock, limits=limits, admin=token, clock_jump=largest_jump)
        for number, one in enumerate(declared):
            if one.name not in store.streams and not one.views:
                declared[number] = settled = settle(one)
                say(f"{one.name}: {published_line(settled)}")
        service.declare(declared)
    except BaseException:
        store.close()
        raise
    feeder = Feeder(service) if demo else None

    def ready(address: str) -> None:
        say(f"evercount serves {address}  (store: {store.database.describe()})")
        if token_file is not None:
            say(f"the admin token is in {token_file}")
        if host not in LOOPBACK:
            warn("listening beyond this machine. Put TLS in front; tokens travel in the clear.")
        if not store.sealer.encrypted and not demo and not read_only:
            say("the store is not encrypted; set EVERCOUNT_KEY_FILE before the first start.")
        if feeder is not None:
            feeder.start()
            cleanup.callback(feeder.stop)

    try:
        run(service, host, port, ready, trusted_proxies)
    finally:
        cleanup.close()
    say("stopped; everything that was accepted is kept." if not demo else "stopped.")


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
