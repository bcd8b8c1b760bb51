"""`evercount serve`: the service and the dashboard."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import typer
from typer import Option

from evercount.cli.http_client import LOOPBACK
from evercount.cli.options import Head, KeyFile
from evercount.errors import ParameterError


def serve(
    db: str | None = Option(
        None, help="SQLite file, or a URL such as postgresql://user@host/name.", show_default="evercount.db"
    ),
    streams: Path | None = Option(None, help="TOML file that declares streams."),
    host: str = Option("127.0.0.1", help="Address to listen on; the default is for this machine only."),
    port: int = Option(8000, min=0, max=65535, help="Port; 0 takes a free one."),
    demo: bool = Option(False, "--demo", help="Show a year of made-up flu reports, then one more hour every second."),
    read_only: bool = Option(False, "--read-only", help="Show a store that another process, such as Spark, writes to."),
    key_file: KeyFile = None,
    head: Head = None,
    rate: float = Option(
        1000.0, min=1, help="Requests per second of one token, or of one address without a known token."
    ),
    trusted_proxy: list[str] | None = Option(
        None, help="Address or network of a proxy whose X-Forwarded-For is believed."
    ),
    admin_token_file: Path | None = Option(
        None, help="File of the admin token; created, for its owner only, if missing.", show_default="DB.admin-token"
    ),
    print_admin_token: bool = Option(False, "--print-admin-token", help="Print a new admin token on the terminal."),
    clock_jump: str = Option(
        "24h", help="How far the clock may jump ahead before ticks wait for the operator; none: any."
    ),
    log_format: str = Option("text", help="text or json: how lines of the log are written."),
) -> None:
    """Serve streams over HTTP: events in, private releases out, with a live dashboard.

    At the first start an admin token is written into a file for its owner only, unless EVERCOUNT_ADMIN_TOKEN is set.
    Stops on Ctrl-C and SIGTERM.
    """
    from evercount.declarations.cautions import cautions, published_line
    from evercount.declarations.streams_file import read_declarations
    from evercount.service.access import Limits
    from evercount.service.admin_token import choose_admin_token, named_admin_token
    from evercount.service.clock_guard import parse_clock_jump
    from evercount.service.demo import Feeder, demo_clock, demo_declaration, prefill
    from evercount.service.http_server import parse_proxies, run
    from evercount.service.log_format import log_to_stderr
    from evercount.service.runtime import Service
    from evercount.store import Store, key_from_environment
    from evercount.store.watched_store import WatchedStore

    trusted_proxies = trusted_proxy or []
    check_port(host, port)
    parse_proxies(trusted_proxies)  # a mistake is named before anything is opened
    largest_jump = None if demo else parse_clock_jump(clock_jump)
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
        declared = [demo_declaration()]
    if read_only and declared:
        raise ParameterError("--read-only shows a store and declares nothing: omit --streams and --demo")
    named = named_admin_token(admin_token_file, print_admin_token)
    place = db or "evercount.db"
    store = WatchedStore(place, head) if read_only else Store(place, key_from_environment(key_file), head)
    try:
        if demo:
            say("made-up data: a year of flu reports is being published, then one more hour every second")
            prefill(store)
        clock = demo_clock(store) if demo else None
        limits = Limits(rate=rate, burst=2 * rate)
        token = named or choose_admin_token(store, print_admin_token, read_only=read_only)
        service = Service(store, clock=clock, limits=limits, admin=token.given, clock_jump=largest_jump)
        for one in declared:
            if one.name not in store.streams and not one.views:
                say(f"{one.name}: {published_line(one)}")
        service.declare(declared)
    except BaseException:
        store.close()
        raise
    feeder = Feeder(service) if demo else None

    def ready(address: str) -> None:
        say(f"evercount serves {address}  (store: {store.database.describe()})")
        if token.file is not None:
            say(f"the admin token is in {token.file}")
        if token.shown is not None:
            typer.echo(f"admin token, shown this once: {token.shown}", err=True)
        if host not in LOOPBACK:
            warn("listening beyond this machine. Put TLS in front; tokens travel in the clear.")
        if not store.sealer.encrypted and not demo and not read_only:
            say("the store is not encrypted; set EVERCOUNT_KEY_FILE before the first start.")
        if feeder is not None:
            feeder.start()

    try:
        run(service, host, port, ready, trusted_proxies)
    finally:
        if feeder is not None and feeder.is_alive():
            feeder.stop()
        cleanup.close()
    say("stopped; everything that was accepted is kept." if not demo else "stopped.")


def check_port(host: str, port: int) -> None:
    """Refuse a port that another program listens on, before a store is opened."""
    import errno
    import socket

    reasons = {
        errno.EADDRINUSE: f"another program listens on port {port} (perhaps an earlier `evercount serve`): stop it, or "
        "choose another port; --port 0 takes a free one",
        errno.EACCES: f"port {port} needs more rights: choose one above 1023",
        errno.EADDRNOTAVAIL: f"{host} is not an address of this machine",
    }
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = reasons.get(error.errno or 0, error.strerror or str(error))
        raise ParameterError(f"cannot listen on {host}:{port}: {reason}") from None
