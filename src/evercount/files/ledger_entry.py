"""How a run stands in the ledger of all streams over the same events (`ledger`).

A new stream fits into its ledger or is refused before anything is counted. It is entered when its
first ticks are written under their private name and before they are published. A crash in between
leaves the budget spent and nothing published: the safe side. The file is locked from the check to
the entry.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from evercount.engine.stream import Stream
from evercount.errors import ParameterError
from evercount.files.release_job import Job
from evercount.privacy import Budget, Ledger

NOT_ENTERED = (
    "{} is not in the ledger {}: a ledger must be given from the first run on. Start a new stream "
    "with it, or enter this one: Ledger(path=…).spend(…)"
)


@dataclass(frozen=True)
class LedgerEntry:
    """A stream's entry. `spend` enters a new stream; it is on the disk when that returns."""

    name: str | None = None  # its name in the ledger; None without one
    sentence: str | None = None
    spend: Callable[[], None] = lambda: None


def enter_known(job: Job, name: str | None, cleanup: ExitStack) -> LedgerEntry:
    """Look a stream that has released something up in the ledger, where it is called `name`."""
    if job.ledger is None:
        return _without_ledger(job, name)
    path = Path(job.ledger)
    own = job.out or job.state or job.declaration.name
    lacks = NOT_ENTERED.format(f"the stream of {own}, which has released ticks,", job.ledger)
    if job.total is not None and not path.exists():
        raise ParameterError(lacks)
    ledger = _open_known(path, cleanup)
    _check_total(path, job, ledger)
    if name not in {entry.name for entry in ledger.entries}:
        raise ParameterError(lacks)
    sentence = ledger.sentence()
    ledger.close()  # other runs may go on
    return LedgerEntry(name, f"Ledger {job.ledger}: {sentence}")


def enter_new(
    job: Job,
    stream: Stream,
    *,
    publishes: bool,
    continues_chain: bool,
    cleanup: ExitStack,
) -> LedgerEntry:
    """Check that a new stream fits. A run that publishes nothing starts no ledger.

    A run that died may have entered the stream already. Nobody can tell its entry from that of
    another stream, so it is entered again: the safe side. With `continues_chain` it has taken over
    the caps of the streams of its chain; any other stream of that chain is refused.

    **Guarantee.** A stream that does not fit is refused before its events are read, and no tick of
    a stream is published that is not in the ledger. Test: tests/files/test_release_ledger.py.
    """
    if job.ledger is None:
        return _without_ledger(job, None)
    path = Path(job.ledger)
    if path.exists():
        ledger = _open_known(path, cleanup)
    else:
        ledger = _start(path, job, stream.budget, publishes, cleanup)
    _check_total(path, job, ledger)
    chain = stream.cost.chain
    same_chain = [entry for entry in ledger.entries if chain and entry.cost.chain == chain]
    if same_chain and not continues_chain:
        raise ParameterError(
            f"the ledger {job.ledger} has a stream of this name and start that carries its caps "
            "over: continue it (`renew`), or give this one another `name`"
        )
    name = _free_name(job.out or job.state or job.declaration.name, ledger)
    ledger.check(name, stream.cost)

    def spend() -> None:
        ledger.spend(name, stream.cost)
        ledger.close()

    return LedgerEntry(name, f"Ledger {job.ledger}: {ledger.sentence([stream.cost])}", spend)


def _without_ledger(job: Job, name: str | None) -> LedgerEntry:
    if job.total is not None:
        raise ParameterError("`total` needs `ledger`: the file whose total it is")
    return LedgerEntry(name)


def _free_name(own: str, ledger: Ledger) -> str:
    """The name itself, or with the first number under which no other entry is."""
    taken = {entry.name for entry in ledger.entries}
    if own not in taken:
        return own
    return next(name for number in count(2) if (name := f"{own} {number}") not in taken)


def _open_known(path: Path, cleanup: ExitStack) -> Ledger:
    if not path.exists():
        raise ParameterError(f"there is no ledger at {path}: `total` starts one, such as 1,1e-6")
    ledger = Ledger(path=path, wait=True)
    cleanup.callback(ledger.close)
    return ledger


def _start(path: Path, job: Job, budget: Budget, publishes: bool, cleanup: ExitStack) -> Ledger:
    """A new ledger; it is only a file if something is published."""
    if job.total is None:
        raise ParameterError(f"there is no ledger at {path}: `total` starts one, such as 1,1e-6")
    epsilon, delta = job.total
    whole = replace(budget, epsilon=epsilon, delta=delta, calibration="tight")
    ledger = Ledger(whole, path if publishes else None)
    cleanup.callback(ledger.close)
    return ledger


def _check_total(path: Path, job: Job, ledger: Ledger) -> None:
    kept = ledger.total.epsilon, ledger.total.delta
    if job.total is not None and kept != job.total:
        raise ParameterError(
            f"the ledger {path} has the total {kept[0]:g},{kept[1]:g}, which was fixed when it "
            "started: omit `total`, or give the same"
        )
