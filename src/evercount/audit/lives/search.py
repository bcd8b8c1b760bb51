"""Search: many lives, one after the other, until one breaks a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evercount.audit.lives.attack import attack
from evercount.audit.lives.coverage import Coverage
from evercount.audit.lives.draw_life import draw_life
from evercount.audit.lives.pooled import Pooled
from evercount.audit.lives.shrink import shrink
from evercount.audit.lives.verdict import Find
from evercount.audit.lives.ways import WAYS
from evercount.audit.lives.write_script import write_script

MOST_FINDS = 3
USUAL_WAYS = (*("python",) * 168, *(way for way in WAYS if way != "python"))
"""How often each way is taken: most lives take the quickest."""


@dataclass
class LivesReport:
    """What was tried, and what was found."""

    coverage: Coverage = field(default_factory=Coverage)
    pooled: Pooled = field(default_factory=Pooled)
    finds: list[Find] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)
    worlds: int = 0
    attained: int = 0
    interrupted: bool = False

    @property
    def holds(self) -> bool:
        return not self.finds and not self.together

    def to_dict(self) -> dict[str, Any]:
        return {
            "lives": self.coverage.lives,
            "worlds": self.worlds,
            "holds": self.holds,
            "attained": self.attained,
            "coverage": self.coverage.share,
            "intervals": [sum(self.pooled.intervals), len(self.pooled.intervals)],
            "finds": [{"kind": find.kind, "reason": find.reason} for find in self.finds],
            "scripts": self.scripts,
            "together": self.together,
            "interrupted": self.interrupted,
        }

    def summary(self) -> str:
        lives = self.coverage.lives
        lines = [
            f"{lives} lives in {self.worlds} worlds; {self.attained} of them spent all that was "
            f"stated; {self.coverage.share:.1%} of operations × features"
        ]
        if self.interrupted:
            lines.append("stopped before the end")
        for find, script in zip(self.finds, self.scripts, strict=True):
            lines += [f"A PROMISE IS BROKEN ({find.kind}): {find.reason}", "", script]
        lines += [f"A PROMISE IS BROKEN (pooled): {text}" for text in self.together]
        if self.holds:
            lines.append("  no life breaks a promise")
        return "\n".join(lines)


def search_lives(
    lives: int,
    seed: str = "0",
    ways: Sequence[str] = ("python",),
    progress: Callable[[int], None] = lambda done: None,
    first: int = 0,
    stop_at: int = MOST_FINDS,
) -> LivesReport:
    """Attack the lives of these seeds. Ctrl-C ends it, and what was found is reported.

    **Guarantee.** A report that does not hold is a proof: its script shows the worlds, which anyone
    can run. One that holds says that no life that was *tried* breaks a promise; `coverage` says
    what was tried. Tests: tests/audit/test_lives.py and tests/audit/test_planted_lives.py.
    """
    report = LivesReport()
    try:
        for number in range(first, first + lives):
            life = draw_life(f"{seed}/{number}", ways)
            verdict = attack(life)
            report.coverage.add(life)
            report.worlds += verdict.worlds
            report.attained += verdict.closest > 0.999
            report.pooled.intervals += verdict.inside[:1]
            for one in verdict.noise:
                report.pooled.add_noise(one)
            if verdict.finds:
                find = shrink(verdict.finds[0])
                report.finds.append(find)
                report.scripts.append(write_script(find))
            progress(number + 1 - first)
            if len(report.finds) >= stop_at:
                break
    except KeyboardInterrupt:
        report.interrupted = True
    report.together = list(report.pooled.findings())
    return report
