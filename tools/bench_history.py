"""Keep the ratios of the benchmarks over time, draw them, and warn where one got worse.

    python tools/bench_history.py record [--from FILE]   adds a line to benchmarks/history.jsonl
    python tools/bench_history.py check [--from FILE]    warns of ratios that are 20 % worse than
                                                         before
    python tools/bench_history.py draw [--check]         writes docs/benchmark-history.md and its
                                                         picture

`record` and `check` run `evercount bench --json` with the groups of `GROUPS`; `--from` takes what
it printed instead. Only ratios are kept: both sides of a ratio are measured in one run, so they can
be compared between machines. More is worse in every one. What is compared with is the median of the
last five lines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import evercount

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "benchmarks" / "history.jsonl"
PAGE = ROOT / "docs" / "benchmark-history.md"
PICTURE = ROOT / "docs" / "figures" / "benchmark-history.svg"
GROUPS = ("engine", "exact")
WORSE = 1.2
"""How many times the median a ratio may be before it is reported."""
COMPARED = 5
"""Of how many lines the median is taken."""
WIDTH, HEIGHT, LEFT, TEXT = 900, 44, 470, 16
HEAD = """# Benchmarks over time

Each benchmark compares two sides that are measured in one run, in turns: a stream of 10^8 ticks \
with one of 2^16, say,
or one kind of noise with another. The ratio says little about the machine, so it can be followed \
over time. More is
worse. `python tools/bench_history.py record` adds a line to `benchmarks/history.jsonl`, `draw` \
makes this page, and
`make bench-check`, every night, warns of ratios that are 20 % worse than the median of the last \
five lines.

![Each ratio over time, one line for each](figures/benchmark-history.svg)

| ratio | first | last | lines |
|---|---|---|---|
"""


def ratios_of(lines: Iterable[str]) -> dict[str, float]:
    """Take the ratios from what `evercount bench --json` prints; rows of one name are told apart by
    their notes."""
    rows = [row for row in map(json.loads, lines) if row.get("ratio") is not None]
    times = Counter((row["group"], row["name"]) for row in rows)
    found: dict[str, float] = {}
    for row in rows:
        name = f"{row['group']}: {row['name']}"
        if times[row["group"], row["name"]] > 1:
            name += f", {row['note'].partition(';')[0]}"
        if name in found:
            raise SystemExit(f"two ratios have the name {name!r}: give their rows different notes")
        found[name] = round(float(row["ratio"]), 4)
    return found


def measure(source: Path | None) -> dict[str, float]:
    """Run the benchmarks, or read what they printed."""
    if source is not None:
        return ratios_of(source.read_text(encoding="utf-8").splitlines())
    command = [sys.executable, "-m", "evercount", "bench", *GROUPS, "--json"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return ratios_of(printed.splitlines())


def history(path: Path = HISTORY) -> list[dict[str, Any]]:
    """Read all lines, the oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def entry(ratios: dict[str, float], commit: str, now: datetime) -> dict[str, Any]:
    """Make a line of the history."""
    return {
        "date": now.strftime("%Y-%m-%d"),
        "commit": commit,
        "version": evercount.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "ratios": dict(sorted(ratios.items())),
    }


def worse(ratios: dict[str, float], past: list[dict[str, Any]]) -> list[str]:
    """Name the ratios that are worse than before, as sentences."""
    found = []
    for name, ratio in sorted(ratios.items()):
        before = [line["ratios"][name] for line in past if name in line["ratios"]][-COMPARED:]
        if not before:
            continue
        usual = statistics.median(before)
        if ratio > WORSE * usual:
            found.append(
                f"{name}: {ratio:.2f}, {100 * (ratio / usual - 1):.0f} % worse than the usual "
                f"{usual:.2f}"
            )
    gone = {name for line in past[-1:] for name in line["ratios"]} - set(ratios)
    return found + [f"{name}: no longer measured" for name in sorted(gone)]


def names_of(past: list[dict[str, Any]]) -> list[str]:
    """List all ratios that were ever measured."""
    return sorted({name for line in past for name in line["ratios"]})


def page(past: list[dict[str, Any]]) -> str:
    """Write the page: a row for each ratio."""
    rows = []
    for name in names_of(past):
        series = [line["ratios"][name] for line in past if name in line["ratios"]]
        rows.append(
            f"| {name.replace('|', '/')} | {series[0]:.2f} | {series[-1]:.2f} | {len(series)} |"
        )
    first, last = past[0], past[-1]
    lines = f"{len(past)} line{'s' if len(past) > 1 else ''}"
    when = (
        "\n"
        f"{lines}, from {first['date']} ({first['commit']}) to {last['date']} ({last['commit']}).\n"
    )
    return HEAD + "\n".join(rows) + "\n" + when


def picture(past: list[dict[str, Any]]) -> str:
    """Draw each ratio relative to its first value, on a scale from half to double."""
    names = names_of(past)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
            f'{len(names) * HEIGHT + 10}" role="img">'
        ),
        "<title>Ratios of the benchmarks over time</title>",
        "<style>svg{font:12px system-ui,sans-serif}text{fill:#33434d}line{stroke:#c9d3d9}"
        "polyline{stroke:#2f6f9f;fill:none;stroke-width:1.6}circle{fill:#2f6f9f}</style>",
    ]
    step = (WIDTH - LEFT - 70) / max(1, len(past) - 1)
    for number, name in enumerate(names):
        middle = 10 + number * HEIGHT + HEIGHT / 2
        label = name.replace("&", "&amp;").replace("<", "&lt;")
        lines.append(f'<text x="0" y="{middle + 4:.0f}">{label}</text>')
        lines.append(f'<line x1="{LEFT}" y1="{middle:.0f}" x2="{WIDTH - 70}" y2="{middle:.0f}"/>')
        series = [
            (at, line["ratios"][name]) for at, line in enumerate(past) if name in line["ratios"]
        ]
        base = series[0][1]
        points = [
            (LEFT + at * step, middle - TEXT * max(-1.0, min(1.0, value / base - 1)))
            for at, value in series
        ]
        lines.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        x, y = points[-1]
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        lines.append(f'<text x="{WIDTH - 60}" y="{middle + 4:.0f}">{series[-1][1]:.2f}</text>')
    return "\n".join([*lines, "</svg>", ""])


def record(source: Path | None) -> int:
    """Add a line."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    line = json.dumps(entry(measure(source), commit, datetime.now(UTC)), ensure_ascii=False)
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    return 0


def check(source: Path | None, strict: bool) -> int:
    """Warn of what got worse; a warning does not fail unless that is asked for."""
    found = worse(measure(source), history())
    mark = "::warning::" if os.environ.get("GITHUB_ACTIONS") else "warning: "
    for sentence in found:
        print(f"{mark}{sentence}")
    if not found:
        print("no ratio is 20 % worse than before")
    return int(strict and bool(found))


def draw(only_check: bool) -> int:
    """Write page and picture, or compare them."""
    past = history()
    made = {PAGE: page(past), PICTURE: picture(past)}
    if not only_check:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    old = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    if old:
        print(
            f"not what the history says: {', '.join(old)}; run python tools/bench_history.py draw",
            file=sys.stderr,
        )
    return int(bool(old))


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "check", "draw"))
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--strict", action="store_true")
    given = parser.parse_args(arguments)
    if given.what == "record":
        return record(given.source)
    if given.what == "check":
        return check(given.source, given.strict)
    return draw(given.check)


if __name__ == "__main__":
    sys.exit(main())
