"""A stream that names a ledger has spent there when it exists, once, and a restored one spends
nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evercount import Budget, Count, Ledger, Stream
from evercount.errors import BudgetExceeded, ParameterError
from evercount.noise import Secret
from evercount.privacy import Cost

TOTAL = Budget(1.0, 1e-9)


@pytest.mark.parametrize("budget", [TOTAL, Budget(1.0, 0.0), Budget(0.5, 1e-12)])
def test_a_stream_spends_exactly_its_budget(budget: Budget) -> None:
    """The whole total buys one stream of that budget, and nothing else fits."""
    ledger = Ledger(budget)
    name = None if budget.pure else "balanced"  # the default promises more, and spends less
    stream = Stream(Count(), budget, 64, name, ledger=ledger)
    entry = ledger.entries[0]
    assert entry.cost == stream.cost == Cost(budget, stream.numeric_delta)
    assert budget.pure or stream.sigma >= stream.factorization.column_norm / entry.cost.mu * (
        1 - 1e-12
    )
    assert stream.step(3).tick == 1
    with pytest.raises(BudgetExceeded):
        Stream(Count(), Budget(0.1, 0.0), horizon=64, ledger=ledger)
    assert len(ledger.entries) == 1


def test_a_stream_that_cannot_be_built_spends_nothing() -> None:
    ledger = Ledger(TOTAL)
    with pytest.raises(ParameterError):
        Stream(Count(), TOTAL, horizon=64, postprocess=["no such thing"], ledger=ledger)
    with pytest.raises(ParameterError, match="same adjacency"):
        Stream(Count(), Budget(0.1, 1e-9, adjacency="replace"), horizon=64, ledger=ledger)
    assert ledger.entries == ()


def test_a_restored_stream_spends_nothing() -> None:
    ledger = Ledger(TOTAL)
    stream = Stream(Count(), TOTAL, horizon=64, ledger=ledger)
    stream.step(1)
    assert Stream.restore(stream.snapshot()).tick == 1
    assert len(ledger.entries) == 1


def test_the_same_stream_again_is_refused() -> None:
    """Whether the first one has released anything is not known, so its noise is not used again."""
    ledger, secret = Ledger(TOTAL), Secret.generate()
    small = Budget(0.1, 1e-10)
    first = Stream(Count(), small, horizon=64, secret=secret, ledger=ledger)
    identifier = first.identity
    assert identifier.startswith(ledger.entries[0].name.removeprefix("count "))
    assert secret.hex() not in repr(ledger.entries)
    del first
    with pytest.raises(ParameterError, match=r"Stream\.restore"):
        Stream(Count(), small, horizon=64, secret=secret, ledger=ledger)
    Stream(Count(), small, horizon=65, secret=secret, ledger=ledger)
    Stream(Count(), small, horizon=64, secret=Secret.generate(), ledger=ledger)
    Stream(Count(), small, horizon=64, ledger=ledger)
    assert len({entry.name for entry in ledger.entries}) == 4


def test_a_crash_between_the_spend_and_the_stream_leaves_it_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    code = """
import os, signal, sys
from evercount import Budget, Count, Ledger, Stream
from evercount.engine import stream
spend = stream.spend_for
def and_die(*rest):
    spend(*rest)
    os.kill(os.getpid(), signal.SIGKILL)
stream.spend_for = and_die
Stream(Count(), Budget(0.5, 1e-10), horizon=64, ledger=Ledger(Budget(1.0, 1e-9), sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    with Ledger(path=path) as ledger:
        assert [entry.cost.budget.epsilon for entry in ledger.entries] == [0.5]
