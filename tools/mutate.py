"""Mutation tests: plant small bugs, one at a time, and count how many of them the tests find.

    python tools/mutate.py privacy mechanisms               all modules of these packages
    python tools/mutate.py privacy/time_range.py --jobs 2   one module
    python tools/mutate.py privacy --sample 100             a hundred mutants, the same ones in
                                                            every run
    python tools/mutate.py privacy/time_range.py --list     the mutants, without a test

A mutant changes one comparison, operator, number, `and`/`or`, `not`, `min`/`max` or rounding, or
leaves out one refusal. It is planted when the module is imported: no file changes. Each runs in a
fork of a process that has numpy, scipy and pytest already, so that only evercount is imported
again; tests that mention the module come first, and the first failure ends the run. Programs that
tests start run without the mutant.

Mutants that cannot be found are explained in `tests/mutants.toml`: they change nothing that can be
seen. The score is the share of found ones among all others.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evercount"
EXPLAINED = ROOT / "tests" / "mutants.toml"
PASSES = 0.9
"""The score below which a run fails."""
HEAVY = ("pytest", "hypothesis", "numpy", "scipy.stats", "scipy.signal", "scipy.optimize", "mpmath")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLS = {
    "min": "max",
    "max": "min",
    "ceil": "floor",
    "floor": "ceil",
    "any": "all",
    "all": "any",
    "nextafter": "copysign",
}
CALLS |= {"minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small bug: where it is, what stands there, and what is put in its place."""

    function: str
    old: str
    new: str
    line: int
    number: int  # which one of those with the same texts, from 1

    @property
    def name(self) -> str:
        """What explanations call it; it has no line number, so that it stays when lines move."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.function}: {self.old} -> {self.new}{again}"


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Go through what may be mutated below a node: no annotations, decorators, messages and
    docstrings."""
    left_out = {"annotation", "returns", "decorator_list", "type_params"}
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for name, value in ast.iter_fields(node):
        if name in left_out:
            continue
        for part in value if isinstance(value, list) else [value]:
            is_text = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
            if isinstance(part, ast.AST) and not is_text:
                yield part


def sites(node: ast.AST, function: str = "module") -> Iterator[tuple[ast.AST, str]]:
    """Go through all nodes, each with the function that it is in; the order is always the same."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node.name if function == "module" else f"{function}.{node.name}"
    for part in children(node):
        yield part, function
        yield from sites(part, function)


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Make the mutants of one node; each is a new node for its place."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                if type(op) in COMPARISONS:
                    new = copy.deepcopy(node)
                    new.ops[place] = COMPARISONS[type(op)]()
                    yield new
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            new_operation = copy.deepcopy(node)
            new_operation.op = OPERATORS[type(op)]()
            yield new_operation
        case ast.BoolOp(op=op):
            new_logic = copy.deepcopy(node)
            new_logic.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield new_logic
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield copy.deepcopy(operand)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            new_call = copy.deepcopy(node)
            new_call.func = ast.Name(CALLS[name], ast.Load())
            yield new_call
        case ast.Call(func=ast.Attribute(attr=name)) if name in CALLS:
            new_method = copy.deepcopy(node)
            assert isinstance(new_method.func, ast.Attribute)
            new_method.func.attr = CALLS[name]
            yield new_method
        case ast.Raise():
            yield ast.Pass()


def all_changes(tree: ast.Module) -> Iterator[tuple[Mutant, ast.AST, ast.AST]]:
    """Make all mutants of a module: each with its name, the node, and what takes its place."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for node, function in sites(tree):
        for new in changes(node):
            old_text, new_text = (shorten(ast.unparse(part)) for part in (node, new))
            seen[function, old_text, new_text] += 1
            number = seen[function, old_text, new_text]
            yield (
                Mutant(function, old_text, new_text, getattr(node, "lineno", 0), number),
                node,
                new,
            )


def shorten(text: str) -> str:
    """Write code in one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:87]}..."


def mutants(path: Path) -> list[Mutant]:
    """List the mutants of a file."""
    return [mutant for mutant, _, _ in all_changes(ast.parse(path.read_text(encoding="utf-8")))]


class Replace(ast.NodeTransformer):
    """Puts a node in the place of another one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old = old
        self.new = new

    def visit(self, node: ast.AST) -> Any:
        """Replace the node, or look below it."""
        if node is self.old:
            return ast.copy_location(self.new, node)
        return self.generic_visit(node)


def planted(path: Path, name: str) -> CodeType:
    """Compile a file with the mutant of that name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for mutant, old, new in all_changes(tree):
        if mutant.name == name:
            return compile(
                ast.fix_missing_locations(Replace(old, new).visit(tree)), str(path), "exec"
            )
    raise LookupError(name)


class Planter(importlib.abc.MetaPathFinder):
    """Gives one module the code of its mutant when it is imported."""

    def __init__(self, module: str, path: Path, code: CodeType) -> None:
        self.module = module
        self.path = path
        self.code = code

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the one module; all others are found by the finders that follow."""
        if name != self.module:
            return None
        code = self.code

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        places = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = Loader(name, str(self.path))
        return importlib.util.spec_from_file_location(
            name, self.path, loader=loader, submodule_search_locations=places
        )


def module_of(path: Path) -> str:
    """Name the module of a file."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tests_of(path: Path) -> list[str]:
    """List the test files of a module's package, those that mention the module or its names
    first."""
    package = path.relative_to(SOURCE).parts[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        path.stem,
        *(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)),
    }
    near = sorted((ROOT / "tests" / package).rglob("test_*.py"))
    far = [
        test
        for test in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"{package}.{path.stem} " in test.read_text("utf-8")
    ]
    counted = {
        test: sum(test.read_text("utf-8").count(name) for name in names)
        for test in dict.fromkeys([*far, *near])
    }
    ordered = sorted(counted, key=lambda test: -counted[test])
    return [str(test.relative_to(ROOT)) for test in ordered]


def child(path: Path, name: str | None, tests: Sequence[str]) -> None:
    """Run the tests in this process, with a mutant or none, and end it with their result."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    code = 3
    try:
        if name is not None:
            sys.meta_path.insert(0, Planter(module_of(path), path, planted(path, name)))
        import pytest

        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--assert=plain"]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


def run(path: Path, name: str | None, tests: Sequence[str], seconds: float) -> str:
    """Fork, run the tests, and say `survived`, `killed` or `killed (time)`."""
    pid = os.fork()
    if pid == 0:
        child(path, name, tests)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "killed (time)"


def explanations() -> dict[str, dict[str, str]]:
    """Read why mutants cannot be found: by file, then by the mutant's name."""
    if not EXPLAINED.exists():
        return {}
    found: dict[str, dict[str, str]] = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    return found


def files_of(names: Sequence[str]) -> list[Path]:
    """List the modules that are named: files, or packages with all that is in them."""
    found: list[Path] = []
    for name in names:
        place = SOURCE / name
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [path for path in found if path.name != "__init__.py"]


def examine(
    path: Path, chosen: list[Mutant], tests: list[str], jobs: int
) -> tuple[int, list[Mutant]]:
    """Run the mutants of a file; return how many were killed, and those that survived."""
    began = time.monotonic()
    if run(path, None, tests, 3600) != "survived":
        raise SystemExit(
            f"without a mutant the tests of {path.relative_to(SOURCE)} fail: {' '.join(tests)}"
        )
    seconds = 30 + 5 * (time.monotonic() - began)

    def verdict(mutant: Mutant) -> str:
        found = run(path, mutant.name, tests, seconds)
        print(
            f"    {found:14} {path.name}:{mutant.line} {mutant.name}", file=sys.stderr, flush=True
        )
        return found

    with ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(verdict, chosen))
    survivors = [
        mutant for mutant, found in zip(chosen, verdicts, strict=True) if found == "survived"
    ]
    return len(chosen) - len(survivors), survivors


def main(arguments: list[str] | None = None) -> int:
    """Run the mutants; fail if too many survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--tests", nargs="+", help="these tests instead of those of the package")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(arguments)
    every = [(path, mutant) for path in files_of(given.names) for mutant in mutants(path)]
    if given.sample is not None and given.sample < len(every):
        every = sorted(random.Random(0).sample(every, given.sample), key=lambda pair: str(pair[0]))
    if given.list:
        for path, mutant in every:
            print(f"{path.relative_to(SOURCE)}:{mutant.line} {mutant.name}")
        return 0
    os.chdir(ROOT)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in HEAVY:
        importlib.import_module(name)
    known = explanations()
    killed = explained = 0
    for path in dict.fromkeys(path for path, _ in every):
        file = path.relative_to(SOURCE).as_posix()
        chosen = [mutant for where, mutant in every if where == path]
        dead, survivors = examine(path, chosen, given.tests or tests_of(path), given.jobs)
        killed += dead
        print(f"{file}: {dead} of {len(chosen)} killed", flush=True)
        for mutant in survivors:
            why = known.get(file, {}).get(mutant.name)
            explained += why is not None
            print(
                f"  {file}:{mutant.line} {mutant.name}" + (f" (explained: {why})" if why else ""),
                flush=True,
            )
    score = killed / max(1, len(every) - explained)
    print(
        f"score {100 * score:.1f} %: {killed} killed, {explained} explained, "
        f"{len(every) - killed - explained} survived"
    )
    return int(score < PASSES)


if __name__ == "__main__":
    sys.exit(main())
