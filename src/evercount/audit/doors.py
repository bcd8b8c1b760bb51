"""Doors by name, other people's programs by their import path, and one replay of either with all neighbours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from evercount._validate import check_name
from evercount.audit.library_door import DoorProgram, LibraryProgram
from evercount.audit.neighbour_pairs import neighbours, worst_of
from evercount.audit.program import Program
from evercount.audit.replay import ReplayReport, replay, search
from evercount.audit.universes import Universe
from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query


class Audited(Program, Protocol):
    """A program together with the legal events of its data, from which neighbours are made."""

    universe: Universe


DOORS = ("library", "files", "service", "spark")


def open_door(
    door: str, query: Query, budget: Budget, horizon: int | None, factorization: str | None, restarts: tuple[int, ...]
) -> Audited:
    check_name("door", door, DOORS)
    Door: type[DoorProgram] = LibraryProgram
    if door == "files":
        from evercount.audit.files_door import FilesProgram as Door
    elif door == "service":
        from evercount.audit.service_door import ServiceProgram as Door
    elif door == "spark":
        from evercount.audit.spark_door import SparkProgram as Door
    return Door(query, budget, horizon, factorization, restarts=restarts)


def find_program(path: str) -> Audited:
    """The program under MODULE:NAME; a class or function of no arguments is called."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ParameterError(f"a program is named MODULE:NAME, not {path!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ParameterError(f"no program can be imported as {path!r}: {error}") from error
    finally:
        sys.path.pop(0)
    candidate: Any = target() if isinstance(target, type) or not hasattr(target, "run") else target
    missing = [part for part in ("name", "claim", "run", "universe") if not hasattr(candidate, part)]
    if missing:
        raise ParameterError(f"{path!r} is not an audit.Program: it lacks {', '.join(missing)}")
    program: Audited = candidate
    return program


def run_replay(
    program: Audited, ticks: int, secret: Secret, examples: int, progress: Callable[[str, int], None] | None = None
) -> ReplayReport:
    """Replay the worst neighbours of the program's query, where it has one, and `examples` random ones."""
    tell = progress or (lambda what, done: None)
    budget = program.claim(ticks).budget
    query = getattr(program, "query", None)
    worst_pairs = worst_of(program, query, budget, ticks, program.universe) if isinstance(query, Query) else []
    first = replay(program, worst_pairs, secret, lambda done: tell("worst neighbours", done))
    if not first.holds or not examples:
        return first
    if budget.unit == "user" and isinstance(query, Query) and query.people is not None:
        return first  # random neighbours would need users' names in events that already have them
    tell("random neighbours", 0)
    second = search(program, neighbours(program.universe, budget, ticks), secret, examples)
    findings = [report.worst for report in (first, second) if report.worst is not None]
    worst = max(findings, key=lambda finding: finding.spent, default=None)
    measure = "epsilon" if budget.pure else "mu"
    return ReplayReport(program.name, measure, worst, first.pairs + second.pairs, first.refused + second.refused)
