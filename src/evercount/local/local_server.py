"""LocalServer: adds up clients' messages in constant memory, rejects what no honest client sends, and estimates."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from evercount.errors import InputError, MessageRejected
from evercount.local.collection_plan import Form, shared_plan
from evercount.local.estimate import LocalEstimate, make_estimate
from evercount.local.message_server import MessageServer
from evercount.local.messages import inside, unpack

BATCH = 4096  # unpacked messages that are checked and added at a time


class LocalServer(MessageServer):
    """Sums of accepted messages. Servers of equal plans merge, in any order, to the same sums.

    Args:
        epsilon: As the clients have it.
        delta: As the clients have it.
        n: As the clients have it.
        form: As the clients have it.
        buckets: As the clients have it.

    Raises:
        ParameterError: An argument is outside its range.
        TooLarge: As for `LocalPlan`.

    **Guarantee.** The sums are exact integers. A rejected message changes nothing but the number of rejected ones. An
    accepted message, however it was made, moves any entry of x̂ by at most `poison_bound()`/accepted. Proof:
    `local.proof.md`, lemma 4. Test:
    tests/local/test_local_server.py::test_a_poisoned_message_moves_no_more_than_its_share.

    >>> from evercount.local import LocalClient
    >>> server = LocalServer(1.0, 1e-6, 100)
    >>> server.add_many(LocalClient(1.0, 1e-6, 100).message(0.25) for _ in range(100))
    100
    >>> 0 <= server.estimate().median <= 1
    True
    """

    def __init__(
        self, epsilon: float, delta: float, n: int, form: Form = "one-counter", *, buckets: int | None = None
    ) -> None:
        self.plan = shared_plan(epsilon, delta, n, form, buckets)
        self._sums = np.zeros(self.plan.entries, np.int64)

    def add(self, message: object) -> None:
        try:
            entries = unpack(self.plan, message)
        except MessageRejected:
            self.rejected += 1
            raise
        self._sums += entries.astype(np.int64)
        self.accepted += 1

    def add_entries(self, entries: npt.NDArray[np.int16]) -> int:
        """Add unpacked messages, shape (messages, entries), as `simulate` makes them; the number of accepted ones.

        Args:
            entries: The messages as 16-bit numbers.

        Returns:
            How many of them were accepted.

        Raises:
            InputError: The array has another shape or type.
        """
        if entries.ndim != 2 or entries.shape[1] != self.plan.entries or entries.dtype != np.int16:
            raise InputError(f"entries must be int16 of shape (messages, {self.plan.entries})")
        before = self.accepted
        for start in range(0, len(entries), BATCH):
            part = entries[start : start + BATCH].astype(np.float64)
            honest = inside(self.plan, part)
            self._sums += part[honest].sum(axis=0).astype(np.int64)  # below 2^27, so exact in doubles
            self.accepted += int(np.count_nonzero(honest))
            self.rejected += int(np.count_nonzero(~honest))
        return self.accepted - before

    def estimate(self) -> LocalEstimate:
        if not self.accepted:
            raise InputError("no message was accepted yet: there is nothing to estimate")
        return make_estimate(self.plan, self._sums, self.accepted)

    def poison_bound(self) -> float:
        """The most that one accepted message in place of an honest one moves any entry of x̂, times the accepted ones.

        Two vectors of the ball are at most 2·radius apart, and an entry of x̂ is a linear function of the mean vector.

        Returns:
            The bound; divided by the number of accepted messages it is the share of one of them.
        """
        rows = LocalEstimate(self.plan, 1, np.zeros(self.plan.w + 1)).rows
        norms = np.linalg.norm(rows.reshape(len(rows), self.plan.counters, self.plan.w), axis=2).sum(axis=1)
        return float(2 * self.plan.radius * self.plan.entry * norms.max()) * (1 + 1e-9)

    @classmethod
    def _of(cls, *parameters: Any) -> Self:
        *others, buckets = parameters
        return cls(*others, buckets=buckets)

    def _digest(self) -> str:
        return self.plan.digest.hex()
