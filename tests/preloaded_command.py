"""`evercount` in a shell, from a server that has the package loaded: every command is a process of
its own, forked.

A page of the documentation starts dozens of commands, and each would load the package for longer
than it works.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

SHIM = """#!{python} -IS
import json, os, signal, socket, sys

words = [{name!r}, *sys.argv[1:]]
if words[0] == "python":
    if words[1:2] != ["-m"] or not words[2].startswith("evercount"):
        os.execv({python!r}, [{python!r}, *words[1:]])
    words = words[2:]
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
said = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, _: line.send(bytes([number])))
socket.send_fds(line, [len(said).to_bytes(4, "big")], [0, 1, 2])
line.sendall(said)
status = int.from_bytes(line.recv(2), "big", signed=True)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""
"""Hands its words, folder, environment and files on, then signals; it ends as the command ends."""


def write_shims(folder: Path, address: Path) -> None:
    """`evercount` and `python` for a folder in PATH; what Python shall run that is not ours goes to
    the real one."""
    for name in ("evercount", "python"):
        shim = folder / name
        shim.write_text(
            SHIM.format(python=sys.executable, name=name, address=str(address)), encoding="utf-8"
        )
        shim.chmod(0o755)


def run_command(
    words: list[str], folder: str, environment: dict[str, str], files: list[int]
) -> int:
    """Run one command in this process; return its exit status."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = words
    try:
        if words[0] == "evercount":
            from evercount.__main__ import main

            main()
        else:
            sys.path.insert(0, folder)
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as at the end of any program
        traceback.print_exc()
        return 1
    return 0


def run_and_exit(request: list[Any], files: list[int]) -> None:
    """Run one command, and end as an interpreter does."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        status = run_command(*request, files)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def serve_commands(listening: socket.socket) -> None:
    """Fork one process for each command. A shim that is killed takes its command with it, by the
    same kill."""
    for name in ("duckdb", "evercount.planning.compare", "evercount.examples.patients"):
        with suppress(ImportError):  # an extra: pages that need it say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # children write into no page that only a collector would touch
    waker, woken = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(listening, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is listening:
                    line, _ = listening.accept()
                    head, files, *_ = socket.recv_fds(line, 4, 3)
                    with line.makefile("rb") as stream:
                        request = json.loads(stream.read(int.from_bytes(head, "big")))
                    child = os.fork()
                    if child == 0:
                        for other in (listening, waker, woken, line, *running.values()):
                            other.close()
                        run_and_exit(request, files)
                    for file in files:
                        os.close(file)
                    running[child] = line
                    ready.register(line, selectors.EVENT_READ, child)
                elif line is woken:
                    woken.recv(4096)
                    while running:
                        child, status = os.waitpid(-1, os.WNOHANG)
                        if child == 0:
                            break
                        line = running.pop(child)
                        if line in ready.get_map():
                            ready.unregister(line)
                            with suppress(OSError):  # the shim was killed meanwhile
                                line.send(
                                    os.waitstatus_to_exitcode(status).to_bytes(
                                        2, "big", signed=True
                                    )
                                )
                        line.close()
                elif running.get(key.data) is line:
                    number = line.recv(1)
                    if not number:
                        ready.unregister(line)
                    os.kill(key.data, number[0] if number else signal.SIGKILL)
