"""Build the image of `deploy/` and run it, alone and by `deploy/compose.yaml`, with podman.

    make deploy-test

By hand before a release, as root on Debian: it needs podman and what `PROGRAMS` names. Base images
come from a registry of images. Where none is reachable they are made from Debian's packages with
debootstrap: Debian's Python as the Python, and Debian's PostgreSQL with an entry point that does
what the official one does with the variables of the compose file. Packages for the image come
through the settings of pip on this machine, which are given to the build alone.

podman keeps images, containers and volumes of this test in a folder of its own, which is removed in
the end. Health checks are run by this script: podman leaves that to systemd, which is not
everywhere. Debian's podman-compose does not wait for `condition`, so services are started one after
the other as the conditions say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
(IMAGE,) = set(re.findall(r"image: (evercount:\S+)", (DEPLOY / "compose.yaml").read_text()))
PROGRAMS = ("podman", "podman-compose", "iptables")
RUNTIMES = ("crun", "runc")
SUITE = "bookworm"  # of Debian; it has the PostgreSQL 15 of the compose file
PYTHON, POSTGRES = "python:3.12-slim", "postgres:15"
PACKAGES = {PYTHON: "python3,python3-venv,ca-certificates", POSTGRES: "postgresql-15"}
USER = 10001  # of the Containerfile
PROJECT = "evercount-deploy-test"
# of examples/streams.toml: it begins in the past and waits for its history
STREAM = "flu-by-region"
PATIENCE = 120.0  # seconds until a container must be healthy
PULL_SECONDS = 120
MOST_FILES = 4096  # open files, and processes, of a container

STAND_IN = {
    PYTHON: "FROM {root}\nRUN ln -s python3 /usr/bin/python\n",
    POSTGRES: """FROM {root}
COPY entry.sh /entry.sh
RUN chmod 755 /entry.sh
ENV PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["/entry.sh"]
""",
}
ENTRY = """#!/bin/sh
set -e
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA" /run/postgresql
  chown -R postgres: "$PGDATA" /run/postgresql
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 -E UTF8
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl -w -o "-c listen_addresses=''" start
  createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
  for file in /docker-entrypoint-initdb.d/*.sql; do
    psql -v ON_ERROR_STOP=1 --no-psqlrc -w -U "$POSTGRES_USER" -d "$POSTGRES_DB" -f "$file"
  done
  pg_ctl -w -m fast stop
fi
exec postgres -c "listen_addresses=*"
"""  # noqa: E501


class Failed(Exception):
    """What does not hold, or what is missing; for people."""


def say(text: str) -> None:
    """One line for whoever runs this."""
    print(text, flush=True)


def check(holds: object, what: str) -> None:
    """Say that something holds, or fail."""
    if not holds:
        raise Failed(f"not so: {what}")
    say(f"ok: {what}")


def run(
    *command: object,
    text: str | None = None,
    allowed: tuple[int, ...] = (0,),
    seconds: float = 1800,
) -> Any:
    """A command that ends with a code that is allowed; its output is kept."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, check=False, timeout=seconds
    )
    if allowed and done.returncode not in allowed:
        last = "\n".join([*done.stdout.splitlines()[-15:], *done.stderr.splitlines()[-25:]])
        raise Failed(f"{' '.join(words)[:300]} ended with {done.returncode}:\n{last}")
    return done


def wait_for(what: str, holds: Callable[[], object]) -> None:
    """Ask until something holds."""
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise Failed(f"not so after {PATIENCE:g} s: {what}")
        time.sleep(1)
    say(f"ok: {what}")


def why_not_here() -> str:
    """What this machine lacks, in one sentence; empty where it lacks nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not any(map(shutil.which, RUNTIMES)):
        missing.append(" or ".join(RUNTIMES))
    if missing:
        packages = " ".join((*PROGRAMS, RUNTIMES[-1]))
        return (
            f"make deploy-test cannot run here: {', '.join(missing)} not installed (apt-get "
            f"install {packages})."
        )
    if os.geteuid() != 0:
        return (
            "make deploy-test cannot run here: it must be root, to own files as the containers' "
            "users do."
        )
    return ""


class Engine:
    """podman with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        allowed = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        hard = {name: resource.getrlimit(kind)[1] for name, kind in allowed.items()}
        most = {
            name: MOST_FILES if limit < 0 else min(limit, MOST_FILES)
            for name, limit in hard.items()
        }
        limits = ", ".join(f'"{name}={number}:{number}"' for name, number in most.items())
        # podman asks for higher limits than some machines give
        self.settings = folder / "containers.conf"
        self.settings.write_text(
            f'[containers]\ndefault_ulimits = [{limits}]\n[engine]\nevents_logger = "file"\n'
        )
        os.environ["CONTAINERS_CONF"] = str(self.settings)
        self.words = ["podman", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self.program = folder / "podman"  # for podman-compose
        self.chosen = False  # whether a runtime is
        self.complaint = ""  # of the last health check

    def choose_runtime(self, image: str) -> None:
        """The first runtime that can run a container here."""
        reasons = []
        for runtime in filter(shutil.which, RUNTIMES):
            words = [*self.words, "--runtime", runtime]
            done = run(*words, "run", "--rm", image, "true", allowed=())
            if done.returncode == 0:
                self.words = words
                self.chosen = True
                say(f"{self('--version').strip()} with {runtime}")
                quoted = " ".join(f"'{word}'" for word in words)
                self.program.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
                self.program.chmod(0o755)
                return
            reasons.append(f"{runtime}: {(done.stderr.splitlines() or ['no reason'])[-1]}")
        raise Failed(f"podman cannot run a container here ({'; '.join(reasons)}).")

    def __call__(self, *arguments: object, **more: Any) -> str:
        return str(run(*self.words, *arguments, **more).stdout)

    def facts(self, what: str, name: str) -> Any:
        """What `podman inspect` says of an image or a container."""
        return json.loads(self("inspect", "--type", what, name))[0]

    def healthy(self, name: str) -> bool:
        """Run the health check of a container."""
        done = run(*self.words, "healthcheck", "run", name, allowed=())
        self.complaint = done.stdout + done.stderr
        return bool(done.returncode == 0)

    def wait_until_healthy(self, name: str, what: str) -> None:
        """Wait for a container; what it wrote, where it does not become healthy."""
        try:
            wait_for(what, lambda: self.healthy(name))
        except Failed as error:
            raise Failed(
                f"{error}\nits health check: {self.complaint}\nits log:\n{self.log(name)}"
            ) from None

    def log(self, name: str) -> str:
        """The last lines of a container."""
        done = run(*self.words, "logs", "--tail", 12, name, allowed=())
        return str(done.stdout + done.stderr)

    def clear(self) -> None:
        """Remove the containers, volumes and networks of this test."""
        run(*self.words, "rm", "-fa", "-t", 5, allowed=())
        volumes = run(*self.words, "volume", "ls", "-q", allowed=()).stdout.split()
        if volumes:
            run(*self.words, "volume", "rm", "-f", *volumes, allowed=())
        run(*self.words, "network", "rm", "-f", f"{PROJECT}_default", allowed=())


# -- images ----------------------------------------------------------------------------------------


def get_bases(engine: Engine) -> None:
    """The base images: pulled, or made from Debian's packages."""
    for image, packages in PACKAGES.items():
        if run(*engine.words, "image", "exists", image, allowed=()).returncode == 0:
            continue
        with contextlib.suppress(Failed, subprocess.TimeoutExpired):
            engine("pull", image, seconds=PULL_SECONDS)
            say(f"{image}: pulled")
            continue
        if shutil.which("debootstrap") is None:
            raise Failed(
                f"{image} cannot be pulled, and debootstrap is not installed (apt-get install "
                "debootstrap)."
            )
        make_base(engine, image, packages)
        say(
            f"{image}: no registry is reachable; made from the packages of Debian {SUITE} "
            f"({packages})"
        )


def make_base(engine: Engine, image: str, packages: str) -> None:
    """A base image from Debian's packages."""
    with tempfile.TemporaryDirectory(dir=engine.folder) as name:
        folder = Path(name)
        mirror = debian_mirror()
        run(
            "debootstrap",
            "--variant=minbase",
            f"--include={packages}",
            SUITE,
            folder / "root",
            *mirror,
        )
        tar = folder / "root.tar"
        run(
            "tar",
            "-C",
            folder / "root",
            "--exclude=./var/cache/apt/archives/*.deb",
            "-cf",
            tar,
            ".",
        )
        engine("import", tar, f"localhost/{PROJECT}-root")
        (folder / "entry.sh").write_text(ENTRY)
        (folder / "Containerfile").write_text(
            STAND_IN[image].format(root=f"localhost/{PROJECT}-root")
        )
        if not engine.chosen:
            engine.choose_runtime(f"localhost/{PROJECT}-root")
        engine("build", "-t", image, folder)


def debian_mirror() -> list[str]:
    """Where this machine gets the suite from; nothing where its sources do not say so."""
    form = ("--format", "$(REPO_URI)", f"Codename: {SUITE}", "Component: main")
    done = run("apt-get", "indextargets", *form, allowed=())
    return [uri for uri in dict.fromkeys(done.stdout.split()) if uri.startswith("http")][:1]


def pip_settings(folder: Path) -> list[str]:
    """Options of `podman build` that give it the settings of pip here, and the files and folders
    that they name."""
    listed = run(sys.executable, "-m", "pip", "config", "list", allowed=()).stdout
    settings = dict(re.findall(r"^(?:global|install|:env:)\.(\S+?)='(.*)'$", listed, re.MULTILINE))
    settings.pop("user", None)
    config = folder / "pip.conf"
    config.write_text(
        "[global]\n"
        + "".join(f"{name.lstrip('.')} = {value}\n" for name, value in settings.items())
    )
    named = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    places = {path for path in map(Path, named) if path.is_absolute() and path.exists()}
    # an index names files next to itself
    places |= {path.parent for path in places if path.name == "simple"}
    return [
        option
        for path in (config, *sorted(places))
        for option in ("--volume", f"{path}:{at(path, config)}:ro")
    ]


def at(path: Path, config: Path) -> Path:
    """Where the build finds a file of this machine."""
    return Path("/etc/pip.conf") if path == config else path


def build(engine: Engine) -> None:
    """The image, and what it says of itself."""
    command = ["build", "--format", "docker", "--network", "host", *pip_settings(engine.folder)]
    engine(*command, "-t", IMAGE, "-f", DEPLOY / "Containerfile", ROOT)
    kept = json.loads(engine("image", "inspect", "--format", "{{json .HealthCheck}}", IMAGE))
    check(kept, f"{IMAGE} is built and has its HEALTHCHECK")
    config = engine.facts("image", IMAGE)["Config"]
    check(config["User"] == str(USER), f"it runs as user {USER}")
    python = engine(
        "run", "--rm", "--no-healthcheck", "--entrypoint", "python", IMAGE, "--version"
    ).strip()
    version = engine(
        "run", "--rm", "--no-healthcheck", "--entrypoint", "evercount", IMAGE, "--version"
    ).strip()
    say(f"in it: {python}, {version}")


# -- the image alone -------------------------------------------------------------------------------


def run_alone(engine: Engine) -> None:
    """The image on SQLite, as its first lines say; the client inside, also for the example that
    waits for history."""
    folder = engine.folder / "alone"
    folder.mkdir()
    streams, key = folder / "streams.toml", folder / "key"
    shutil.copy(ROOT / "examples" / "streams.toml", streams)
    key.write_text(secrets.token_hex(32))
    key.chmod(0o400)
    os.chown(key, USER, USER)
    mounts = [f"{streams}:/etc/evercount/streams.toml:ro", f"{key}:/run/secrets/evercount-key:ro"]
    mounts += [f"{PROJECT}-data:/data", f"{PROJECT}-head:/head"]
    name = f"{PROJECT}-alone"
    volumes = [word for mount in mounts for word in ("--volume", mount)]
    engine(
        "run",
        "--detach",
        "--name",
        name,
        *volumes,
        IMAGE,
        "--streams",
        "/etc/evercount/streams.toml",
    )
    engine.wait_until_healthy(name, "the image alone is healthy")
    use_client(engine, name, "/data/counts.db.admin-token")
    engine("stop", "-t", 60, name)
    check(
        engine.facts("container", name)["State"]["ExitCode"] == 0,
        "it stops on SIGTERM with exit code 0",
    )
    engine("start", name)
    engine.wait_until_healthy(name, "it starts again on its volumes")
    check(
        states(engine, name, "/data/counts.db.admin-token")[STREAM] != "waiting",
        f"{STREAM} stays open",
    )
    engine("rm", "-f", "-t", 5, name)


def use_client(engine: Engine, name: str, token: str) -> None:
    """Everything with the client that is inside the container."""
    found = states(engine, name, token)
    check(
        found.get(STREAM) == "waiting",
        f"`evercount streams` inside lists {len(found)} streams, {STREAM} waits",
    )
    asked = ("--token-file", token)
    events = "".join(
        f'{{"time": "2026-01-01T{hour:02}:30:00Z", "key": "North"}}\n' for hour in range(24)
    )
    engine("exec", "-i", name, "sh", "-c", "cat >/tmp/history.jsonl", text=events)
    engine("exec", name, "evercount", "push", STREAM, "/tmp/history.jsonl", *asked)
    say("ok: `evercount push` inside sends a day of history")
    engine("exec", name, "evercount", "streams", "open", STREAM, *asked)

    def is_open() -> bool:
        return states(engine, name, token)[STREAM] != "waiting"

    wait_for(f"`evercount streams open {STREAM}` inside opens it", is_open)


def states(engine: Engine, name: str, token: str) -> dict[str, str]:
    """The state of each stream, as `evercount streams` inside says it."""
    answer = engine("exec", name, "evercount", "streams", "--json", "--token-file", token)
    return {one["name"]: one["state"] for one in json.loads(answer)["streams"]}


# -- the compose file ------------------------------------------------------------------------------


def run_compose(engine: Engine) -> None:
    """The compose file as it is, but for the port on this machine: docs/howto/kubernetes.md, line
    by line."""
    folder = engine.folder / "compose" / "deploy"
    keys = folder / "secrets"
    keys.mkdir(parents=True)
    keys.chmod(0o700)
    port = free_port()
    text = (DEPLOY / "compose.yaml").read_text()
    published = "127.0.0.1:8000:8000"
    check(
        text.count(published) == 1 and f"image: {IMAGE}" in text, f"the compose file runs {IMAGE}"
    )
    (folder / "compose.yaml").write_text(text.replace(published, f"127.0.0.1:{port}:8000"))
    shutil.copy(DEPLOY / "dashboard-role.sql", folder)
    shutil.copy(ROOT / "examples" / "streams.toml", folder)
    write_secrets(keys)
    compose = (
        "podman-compose",
        "--podman-path",
        engine.program,
        "-p",
        PROJECT,
        "-f",
        folder / "compose.yaml",
    )
    names = {service: f"{PROJECT}_{service}_1" for service in ("postgres", "writer", "dashboard")}
    conditions = dict(re.findall(r"depends_on: \{(\w+): \{condition: (\w+)\}\}", text))
    for service, name in names.items():
        done = run(*compose, "up", "-d", "--no-recreate", service, allowed=())
        if run(*engine.words, "container", "exists", name, allowed=()).returncode:
            raise Failed(f"podman-compose did not make {name}:\n{done.stdout}\n{done.stderr}")
        if conditions.get(service) == "service_healthy":
            engine.wait_until_healthy(
                name, f"compose: {service} is healthy before what depends on it starts"
            )
    for service, name in names.items():
        engine.wait_until_healthy(name, f"compose: {service} is healthy")
    restarts = {
        service: engine.facts("container", name)["RestartCount"] for service, name in names.items()
    }
    check(not any(restarts.values()), f"no service died on the first `up` (restarts: {restarts})")
    use_client(engine, names["writer"], "/head/evercount.head.admin-token")
    wait_for(
        f"the dashboard shows what the writer has released of {STREAM}", lambda: released(port) > 24
    )
    check(b"<html" in read(port, "/").lower(), "the dashboard's page is served")
    check_roles(engine, names)
    done = run(*compose, "down", "-t", "30", allowed=())
    check(done.returncode == 0, "compose down")


def write_secrets(keys: Path) -> None:
    """As docs/howto/kubernetes.md says."""
    (keys / "key").write_text(secrets.token_hex(32))
    for role, service, file in (
        ("evercount", "postgres", "pgpass"),
        ("dashboard", "dashboard", "pgpass-dashboard"),
    ):
        (keys / service).write_text(secrets.token_hex(16))
        (keys / file).write_text(f"postgres:5432:evercount:{role}:{(keys / service).read_text()}\n")
    for file in ("key", "pgpass", "pgpass-dashboard"):
        os.chown(keys / file, USER, USER)
        (keys / file).chmod(0o400)


def check_roles(engine: Engine, names: dict[str, str]) -> None:
    """The dashboard's role may read and not write, and its container holds no other secret."""
    psql = (
        "exec",
        "-e",
        "PGPASSFILE=/tmp/pgpass",
        names["postgres"],
        "psql",
        "-U",
        "dashboard",
        "evercount",
        "-Atc",
    )
    count = engine(*psql, "SELECT count(*) FROM streams").strip()
    check(count == "3", "the role dashboard reads the streams")
    for statement in (
        "DELETE FROM streams",
        "UPDATE ticks SET hash = hash",
        "CREATE TABLE mine (n int)",
    ):
        done = run(*engine.words, *psql, statement, allowed=())
        check(
            done.returncode != 0 and "permission denied" in done.stderr, f"it may not: {statement}"
        )
    held = engine("exec", names["dashboard"], "ls", "/run/secrets").split()
    check(
        held == ["pgpass-dashboard"],
        "the dashboard's container has its own password and no other secret",
    )


def released(port: int) -> int:
    """How many ticks of the example the dashboard shows."""
    listed = json.loads(read(port, "/v1/streams"))["streams"]
    return int(next(one["released"] for one in listed if one["name"] == STREAM))


def read(port: int, path: str) -> bytes:
    """What the dashboard answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return bytes(answer.read())


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def workplace(kept: Path | None) -> Iterator[Path]:
    """A folder for images and containers, which is removed unless it is named."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix=f"{PROJECT}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main() -> int:
    """Run everything; 0 when all of it holds, 1 when not, 2 where it cannot run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep images in this folder for the next time"
    )
    kept = parser.parse_args().keep
    if reason := why_not_here():
        print(reason, file=sys.stderr)
        return 2
    with workplace(kept) as folder:
        engine = Engine(folder)
        for part in ("alone", "compose"):
            shutil.rmtree(folder / part, ignore_errors=True)
        try:
            engine.clear()
            get_bases(engine)
            if not engine.chosen:
                engine.choose_runtime(PYTHON)
            build(engine)
            run_alone(engine)
            run_compose(engine)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"make deploy-test failed: {error}", file=sys.stderr)
            return 1
        finally:
            engine.clear()
    say("The image and the compose file work.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
