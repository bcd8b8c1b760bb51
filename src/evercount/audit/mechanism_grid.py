"""A query under every factorization × noise × adjacency that a stream offers: a table of attacks,
and its chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from evercount.audit.attack import AttackReport, attack
from evercount.audit.doors import LibraryProgram
from evercount.audit.neighbour_pairs import Audited, worst_pairs
from evercount.audit.replay import Pair, compare
from evercount.errors import EvercountError, ParameterError
from evercount.factorizations import FACTORIZATIONS
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS
from evercount.factorizations.terrace import NAME as TERRACE
from evercount.noise import Secret
from evercount.plotting import new_axes, save
from evercount.privacy import Adjacency, Budget
from evercount.queries.base import Query

TICKS = 4
GAUSSIAN = Budget(3.0, 0.01)
PURE_BUDGET = Budget(1.0, 0.0)


@dataclass(frozen=True)
class MechanismCase:
    query: Query
    factorization: str | None
    adjacency: Adjacency
    pure: bool

    @property
    def label(self) -> str:
        return f"{self.query.name} · {self.factorization or 'own'} · exact · {self.adjacency}"

    @property
    def offered(self) -> bool:
        """Whether a stream takes this combination: pure noise needs an l1 sensitivity, for
        instance."""
        try:
            self.program()
        except EvercountError:
            return False
        return True

    def program(self) -> LibraryProgram:
        budget = replace(PURE_BUDGET if self.pure else GAUSSIAN, adjacency=self.adjacency)
        if self.factorization == "unbounded" or self.factorization in PURE_ENDLESS:
            horizon = None
        else:
            horizon = TICKS
        program = LibraryProgram(self.query, budget, horizon, self.factorization)
        program.name = self.label
        program.open(Secret.generate())
        return program


def all_cases(query: Query) -> Iterator[MechanismCase]:
    """Every combination that a stream offers; a query that takes no factorization by name has its
    own."""
    for adjacency in get_args(Adjacency):
        for pure, names in ((False, FACTORIZATIONS), (True, (*PURE, TERRACE, *PURE_ENDLESS))):
            by_name = [MechanismCase(query, name, adjacency, pure) for name in names]
            possible = [case for case in by_name if case.offered]
            yield from possible
            own = MechanismCase(query, None, adjacency, pure)
            if not possible and own.offered:
                yield own


def hardest_pair(program: Audited, query: Query, ticks: int, secret: Secret) -> Pair:
    pairs = worst_pairs(program, query, ticks, 1000)
    if not pairs:
        raise ParameterError(f"no neighbours of {query!r} differ in {ticks} ticks")
    return max(pairs, key=lambda pair: compare(program, pair, secret).spent)


def run_case(
    case: MechanismCase, runs: int, secret: Secret, confidence: float = 1 - 1e-4
) -> AttackReport:
    """Attack one case on its hardest pair. Every case has secrets of its own, so that attacks are
    independent."""
    program = case.program()
    secret = secret.derive(f"case {case.label} {case.pure}")
    pair = hardest_pair(program, case.query, TICKS, secret)
    return attack(program, pair, runs, secret, confidence)


def summarise(reports: Sequence[AttackReport]) -> str:
    broken = [report.program for report in reports if not report.holds]
    worst = max(reports, key=lambda report: report.attacked / report.claimed)
    highest = max(reports, key=lambda report: report.proved / report.claimed)
    verdict = "no promise broken"
    if broken:
        verdict = f"{len(broken)} broken promises ({', '.join(broken[:5])})"
    chance = sum(1 - report.confidence for report in reports)
    return (
        f"{len(reports)} attacks, {reports[0].runs} runs a side: {verdict}; {chance:.2g} false "
        "alarms are expected at most. Largest attacked over claimed "
        f"{worst.attacked / worst.claimed:.2f}, at confidence at least "
        f"{worst.low / worst.claimed:.2f} ({worst.program}); largest proved over claimed "
        f"{highest.proved / highest.claimed:.2f} ({highest.program})."
    )


def chart(
    reports: Sequence[AttackReport],
    target: str | Path,
    row_of: Callable[[AttackReport], str] = lambda report: report.program,
) -> None:
    """Attacked over claimed, with confidence intervals where a row has one report, next to what is
    possible."""
    names = list(dict.fromkeys(map(row_of, reports)))
    alone = len(names) == len(reports)
    axes: Any = new_axes(9.0, max(3.0, 0.16 * len(names) + 1.5))
    for report in reports:
        row = names.index(row_of(report))
        claimed = report.claimed
        colour = "C0" if report.holds else "C3"
        if alone:
            axes.plot(
                [report.low / claimed, report.high / claimed],
                [row, row],
                color=colour,
                linewidth=1.2,
            )
        axes.plot(
            [report.attacked / claimed],
            [row],
            "o",
            color=colour,
            markersize=3,
            alpha=1.0 if alone else 0.4,
        )
        axes.plot([report.possible / claimed], [row], "|", color="black", markersize=7)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("attacked (dot) and possible (bar), over claimed (1)")
    save(axes, target)
