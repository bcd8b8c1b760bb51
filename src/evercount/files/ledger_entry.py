"""The ledger of a run (`--ledger FILE`): a new stream fits or is refused before anything is counted.

It is entered when its first ticks are written under their private name and before they are published. A crash in
between leaves the budget spent and nothing published: the safe side. The file is locked from the check to the entry.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from evercount.engine.stream import Stream
from evercount.errors import ParameterError
from evercount.privacy import Budget, Cost, Ledger

if TYPE_CHECKING:
    from evercount.files.release_job import Job


@dataclass(frozen=True)
class Entered:
    name: str | None = None  # its name there; None without a ledger
    sentence: str | None = None
    cost: Cost | None = None  # what is still to be spent
    ledger: Ledger | None = None

    def spend(self) -> None:
        """Enter a new stream, on the disk when this returns; a renewal in the same run opens the file again."""
        if self.ledger is not None and self.cost is not None and self.name is not None:
            self.ledger.spend(self.name, self.cost, "evercount release")
            self.ledger.close()


def enter(
    job: Job,
    stream: Stream,
    known: str | None,
    new: bool,
    publishes: bool,
    cleanup: ExitStack,
    *,
    goes_on: bool = False,
) -> Entered:
    """Look the stream up in the ledger, or check that it fits; `known` is the name in its state.

    With `goes_on` it has taken over the caps of the streams of its chain; any other stream of that chain is refused.

    A run that publishes nothing starts no ledger.

    **Guarantee.** A stream that does not fit is refused before its events are read, and no tick of a stream is
    published that is not in the ledger. Test: tests/files/test_release_ledger.py.
    """
    if job.ledger is None:
        if job.total is not None:
            raise ParameterError("`total` needs `ledger`: the file that it is the total of")
        return Entered(known)
    ledger = _open(Path(job.ledger), job.total, stream.budget, publishes)
    cleanup.callback(ledger.close)
    names = {entry.name for entry in ledger.entries}
    own = job.out or job.state or job.declaration.name
    if not new:
        if known not in names:
            raise ParameterError(
                f"the stream of {own} has released ticks and is not in the ledger {job.ledger}: a ledger must be given "
                "from the first run on. Start a new stream with it, or enter this one: Ledger(path=…).spend(…)"
            )
        sentence = ledger.sentence()
        ledger.close()
        return Entered(known, f"Ledger {job.ledger}: {sentence}")
    chain = stream.cost.chain
    if chain and not goes_on and any(entry.cost.chain == chain for entry in ledger.entries):
        raise ParameterError(
            f"the ledger {job.ledger} has a stream of this name and start that carries its caps over: "
            "continue it (`renew`), or give this one another `name`"
        )
    name = next(one for number in count(1) if (one := own if number == 1 else f"{own} {number}") not in names)
    ledger.check(name, stream.cost)
    return Entered(name, f"Ledger {job.ledger}: {ledger.sentence([stream.cost])}", stream.cost, ledger)


def _open(path: Path, total: tuple[float, float] | None, budget: Budget, publishes: bool) -> Ledger:
    if not path.exists():
        if total is None:
            raise ParameterError(f"there is no ledger at {path}: `total` starts one, such as 1,1e-6")
        epsilon, delta = total
        whole = replace(budget, epsilon=epsilon, delta=delta, calibration="tight")
        return Ledger(whole, path if publishes else None)
    ledger = Ledger(path=path, wait=True)
    kept = ledger.total.epsilon, ledger.total.delta
    if total is not None and kept != total:
        ledger.close()
        raise ParameterError(
            f"the ledger {path} has the total {kept[0]:g},{kept[1]:g}, which was fixed when it started: omit `total`, "
            "or give the same"
        )
    return ledger
