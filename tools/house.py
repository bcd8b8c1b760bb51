"""How dense the package is and how many concepts it has, next to the aims; and what to mend first.

python tools/house.py [--json] [--static] [--top N] [--source FOLDER]

The numbers are reminders, not targets: one clear conditional expression is fine. The rules are in
`house_rules.py`. `--static` leaves out what must run; `--source` measures the files of another
`src/evercount`, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import house_rules
from house_rules import PACKAGE, Package, Rule

AT_THE_START = {
    "Counted",
    "Declared",
    "Job",
    "Outcome",
    "Published",
    "ReleaseOptions",
    "Run",
    "State",
}
"""The classes that carried a release from the front door to its outcome, before they were fewer."""

INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")  # frames of their own in Python 3.11 only

PER_1000: dict[str, tuple[Rule, float]] = {
    "conditional expressions per 1,000 lines": (house_rules.conditional_expressions, 18),
    "tuple assignments per 1,000 lines": (house_rules.tuple_assignments, 9),
    "lines over 100 columns per 1,000 lines": (house_rules.long_lines, 0),
}
COUNTED: dict[str, tuple[Rule, float]] = {
    "nested conditional expressions": (house_rules.nested_conditionals, 0),
    "starred constructor calls, more than three values": (house_rules.starred_constructors, 0),
    "text × bool": (house_rules.text_times_bool, 0),
    "walrus inside a conditional expression": (house_rules.walrus_in_conditionals, 0),
    "lines that ask which home a stream has": (house_rules.home_questions, 0),
    "concepts in files, store, declarations, front_door": (house_rules.concepts, 48),
}


@dataclass(frozen=True)
class Measure:
    """A number, what it should be, and what makes it up: places or names, the largest group
    first."""

    name: str
    now: float
    aim: float | None
    parts: dict[str, list[str]]


def places(package: Package, rule: Rule) -> dict[str, list[str]]:
    """The lines of the hits of a rule, by module, the module with the most first."""
    hits = {one.path: list(map(str, sorted(rule(package, one)))) for one in package.modules}
    some = [(path, lines) for path, lines in hits.items() if lines]
    return dict(sorted(some, key=lambda pair: (-len(pair[1]), pair[0])))


def by_module(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """Turn name → modules into module → names, the module with the most names first."""
    paths = Counter(path for modules in names.values() for path in modules)
    return {
        path: [name for name, modules in names.items() if path in modules]
        for path, _ in paths.most_common()
    }


def static_measures(package: Package) -> list[Measure]:
    """What the text of the package tells."""
    thousands = sum(module.lines_of_code() for module in package.modules) / 1000
    measures = []
    for rules, unit in ((PER_1000, thousands), (COUNTED, 1)):
        for name, (rule, aim) in rules.items():
            parts = places(package, rule)
            hits = sum(map(len, parts.values()))
            measures.append(Measure(name, round(hits / unit, 1), aim, parts))
    carriers = house_rules.carriers(package)
    measures.append(Measure("carriers of one release", len(carriers), 4, _carrier_parts(carriers)))
    for name, names in (
        ("class names with several meanings", house_rules.repeated_classes(package)),
        ("names of types with several meanings", house_rules.repeated_names(package)),
    ):
        measures.append(Measure(name, len(names), 0, by_module(names)))
    return measures


def _carrier_parts(carriers: dict[str, str]) -> dict[str, list[str]]:
    """The carriers by module, and which of those of the start are gone or new."""
    new = sorted(carriers.keys() - AT_THE_START)
    gone = sorted(AT_THE_START - carriers.keys())
    changes = {"new": new, "gone": gone}
    modules = by_module({name: [path] for name, path in sorted(carriers.items())})
    return modules | {change: names for change, names in changes.items() if names}


def executed_measures() -> list[Measure]:
    """What runs for one more row, with a state file and with a store, and for a POST."""
    import executed_files  # needs every extra

    if Path(executed_files.ROOT) != PACKAGE:
        raise SystemExit(f"{executed_files.ROOT} would run: set PYTHONPATH to {PACKAGE.parent}")
    measures = []
    for way, calls, aim in (
        ("a row's way", executed_files.row(), 360),
        ("a row's way with --db", executed_files.row(db=True), None),
        ("a POST's way", executed_files.post(), None),
    ):
        functions = {code: times for code, times in calls.items() if code.co_name not in INLINED}
        parts: dict[str, list[str]] = {}
        for code in sorted(functions, key=lambda one: (one.co_filename, one.co_firstlineno)):
            (path,) = executed_files.files_of(Counter([code]))
            parts.setdefault(path, []).append(code.co_qualname)
        parts = dict(sorted(parts.items(), key=lambda pair: -len(pair[1])))
        measures.append(Measure(f"functions on {way}", len(functions), aim, parts))
        measures.append(Measure(f"calls on {way}", sum(functions.values()), None, {}))
        measures.append(Measure(f"files on {way}", len(parts), None, {}))
    return measures


def show(measures: list[Measure], top: int) -> None:
    """Print the table, then the modules with the most hits of each measure over its aim."""
    width = max(len(one.name) for one in measures)
    print(f"{'':{width}}  {'now':>7}  {'aim':>5}")
    for one in measures:
        aim = "" if one.aim is None else f"{one.aim:g}"
        mark = "  over" if is_over(one) else ""
        print(f"{one.name:{width}}  {one.now:>7g}  {aim:>5}{mark}")
    for one in measures:
        if is_over(one) and one.parts:
            print(f"\n{one.name}: {one.now:g}, aim {one.aim:g}")
            for path, hits in list(one.parts.items())[:top]:
                shown = ", ".join(hits[:6]) + (", …" if len(hits) > 6 else "")
                print(f"  {len(hits):4}  {path}: {shown}")


def is_over(measure: Measure) -> bool:
    """Whether a measure misses its aim."""
    return measure.aim is not None and measure.now > measure.aim


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="all hits, for programs")
    parser.add_argument("--static", action="store_true", help="leave out what must run")
    parser.add_argument("--top", type=int, default=10, help="modules per measure")
    parser.add_argument("--source", type=Path, help="another src/evercount")
    arguments = parser.parse_args()
    measures = static_measures(Package.read(arguments.source or PACKAGE))
    if not arguments.static and arguments.source is None:
        measures += executed_measures()
    if arguments.json:
        print(json.dumps([asdict(one) for one in measures], indent=1, ensure_ascii=False))
    else:
        show(measures, arguments.top)


if __name__ == "__main__":
    main()
