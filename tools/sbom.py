"""Write the list of parts of a release (SBOM, CycloneDX 1.6): each package that the extras need,
with its hashes.

    python tools/sbom.py [--extra all] [--write FILE]

The packages are those of the environment, found from `pyproject.toml` through what each one
requires; versions and hashes are those of the lock for this Python. The list has no time and no
random number: one commit has one list.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "locks" / "requirements.lock"


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """Read version and hashes of each package of a lock, as they are for this Python and system."""
    found: dict[str, tuple[str, list[str]]] = {}
    hashes: list[str] = []
    for line in text.splitlines():
        pin = re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+) *(?:;([^\\]*))?", line)
        if pin:
            hashes = []
            if pin[3] is None or Marker(pin[3].strip()).evaluate():
                found[canonicalize_name(pin[1])] = (pin[2], hashes)
        digest = re.search(r"--hash=sha256:([0-9a-f]{64})", line)
        if digest:
            hashes.append(digest[1])
    return found


def wanted(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement holds here, with any of these extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""}))


def needs_of(name: str, extras: set[str]) -> list[Requirement]:
    """Read what an installed package requires."""
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:  # for another system or Python
        return []
    return [need for need in map(Requirement, lines) if wanted(need, extras)]


def project_needs(project: dict[str, Any], extra: str) -> list[Requirement]:
    """Read what evercount requires with an extra, extras of its own resolved."""
    found = []
    for line in project["optional-dependencies"][extra]:
        need = Requirement(line)
        if need.name == project["name"]:
            for part in sorted(need.extras):
                found += project_needs(project, part)
        else:
            found.append(need)
    return found


def closure(needs: list[Requirement]) -> dict[str, list[str]]:
    """Follow the requirements: each package with the packages that it needs itself."""
    edges: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [need for need in needs if wanted(need, set())]
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        key = (name, frozenset(need.extras))
        if key in seen:
            continue
        seen.add(key)
        inner = needs_of(name, set(need.extras))
        edges.setdefault(name, set()).update(canonicalize_name(part.name) for part in inner)
        waiting += inner
    return {name: sorted(parts) for name, parts in sorted(edges.items())}


def bill(extra: str) -> dict[str, Any]:
    """Make the list for one extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    init = (ROOT / "src" / "evercount" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+)"', init, re.MULTILINE)
    assert version is not None
    pins = locked(LOCK.read_text(encoding="utf-8"))
    direct = [*map(Requirement, project["dependencies"]), *project_needs(project, extra)]
    edges = closure(direct)
    missing = sorted(set(edges) - set(pins))
    if missing:
        raise SystemExit(f"not in {LOCK.relative_to(ROOT)}: {', '.join(missing)}; run `make lock`")
    reference = {name: f"pkg:pypi/{name}@{pins[name][0]}" for name in edges}
    top = f"pkg:pypi/{project['name']}@{version[1]}"
    components = [
        {
            "type": "library",
            "bom-ref": reference[name],
            "name": name,
            "version": pins[name][0],
            "purl": reference[name],
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in pins[name][1]],
        }
        for name in edges
    ]
    first = sorted({reference[canonicalize_name(need.name)] for need in direct})
    dependencies = [{"ref": top, "dependsOn": first}]
    dependencies += [
        {"ref": reference[name], "dependsOn": [reference[part] for part in edges[name]]}
        for name in edges
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": top,
                "name": project["name"],
                "version": version[1],
                "purl": top,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": dependencies,
    }


def main() -> int:
    """Print the list, or write it to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extra", default="all")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    text = json.dumps(bill(given.extra), indent=2, sort_keys=True) + "\n"
    if given.write is None:
        sys.stdout.write(text)
    else:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
