"""StreamFacts: what anyone may ask of a stream. All of it follows from its parameters and the
number of its ticks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, ClassVar, Generic

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, check_kind
from evercount.engine.build import RUNNING, view_width
from evercount.engine.error_model import ErrorModel
from evercount.engine.key_views import discovery_ticks, evidence_at
from evercount.engine.noise_covariance import noise_covariance
from evercount.engine.release import Releases
from evercount.engine.release_table import Exports
from evercount.engine.simulated_noise import noise_paths
from evercount.engine.state import (
    PublishedRows,
    StreamParameters,
    StreamState,
    enforced_by,
    guarantee_sentence,
)
from evercount.engine.weighted_errors import std_of_weights
from evercount.errors import ParameterError
from evercount.factorizations import Factorization
from evercount.noise import NoiseOwner
from evercount.privacy import Budget, Cost, Entry, GuaranteeText, Ledger, TimeRange, guarantee_text
from evercount.privacy.guarantee_text import MANUAL
from evercount.queries.base import Query, V_co
from evercount.queries.key_counts import Thresholds


class StreamFacts(NoiseOwner, Generic[V_co]):
    """The public facts of a stream: its declaration, its noise, its guarantee and the std of every
    tick."""

    noise: ClassVar[str] = Exports.noise
    """The kind of noise, as every release states it."""

    _parameters: StreamParameters
    _state: StreamState

    @property
    def query(self) -> Query:
        """What is asked."""
        return self._parameters.query

    @property
    def budget(self) -> Budget:
        """What all releases together may reveal."""
        return self._parameters.budget

    @property
    def horizon(self) -> int | None:
        """The number of ticks, or None for a stream without end."""
        return self._parameters.horizon

    @property
    def factorization(self) -> Factorization:
        """How noise is correlated."""
        return self._parameters.factorization

    @property
    def views(self) -> tuple[str, ...]:
        """What the noise was chosen for."""
        return self._parameters.views

    @property
    def during(self) -> TimeRange | None:
        """The time range whose events it counts, where a schedule says so."""
        return self._parameters.during

    @property
    def revise_for(self) -> int | None:
        """For how many ticks each day is published again; None where the past stays as it was
        published."""
        return self._parameters.revise_for

    @property
    def postprocess(self) -> tuple[str, ...]:
        """The post-processing that is applied."""
        return self._parameters.postprocess

    @property
    def replay(self) -> bool:
        """Whether it repeats the noise of another stream, for an audit."""
        return self._parameters.replay

    @property
    def tick(self) -> int:
        """How many ticks have been released."""
        return self._state.tick

    @property
    def labels(self) -> Sequence[str]:
        """One label per number that a tick publishes now; where keys are discovered, the public
        ones follow."""
        discovery = self.query.discovery
        if discovery is None:
            return self.query.labels
        return discovery.labels_now(self._state.encoder)

    @property
    def thresholds(self) -> Thresholds | None:
        """When a key becomes public, where nobody listed the keys."""
        return self._parameters.thresholds

    @property
    def sigma(self) -> float:
        """Std of the normals z, in the query's units."""
        return self._parameters.noise.sigma

    @property
    def identity(self) -> str:
        """What tells its noise from that of every other stream, wherever it is kept.

        It follows from the key of the noise, and tells nothing about that.
        """
        return self._parameters.noise.key.derive("evercount/identity").hex()[:32]

    @property
    def numeric_delta(self) -> float:
        """The part of δ that pays for finite arithmetic, and for what the query decides besides its
        noise."""
        return self._parameters.noise.numeric_delta

    @property
    def cost(self) -> Cost:
        """What it costs, for `Ledger.spend` and `compose`: its budget, the part of δ that no noise
        pays for, and when.

        `successor_text` says what follows from it for the next stream.
        """
        return self._parameters.cost

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence, with what the caller promised for it."""
        return self.guarantee_by()

    def guarantee_by(self, tick: str = MANUAL) -> str:
        """The guarantee, with a tick called by its declared length: day, say.

        Args:
            tick: The declared length of a tick, such as "1d".

        Returns:
            One sentence.
        """
        return guarantee_sentence(
            self.budget, enforced_by(self.query, self._state.counting), self.replay, tick
        )

    @property
    def explained(self) -> GuaranteeText:
        """The guarantee in plain words: who is protected, what is not, and a text for readers
        without mathematics."""
        return guarantee_text(self.budget, enforced_by(self.query, self._state.counting))

    @property
    def _errors(self) -> ErrorModel:
        return self._parameters.errors

    def std(self, ticks: Any, view: str | npt.ArrayLike = RUNNING) -> FloatArray:
        """Exact std of what is published at 1-based ticks, past or future, shape (ticks, outputs or
        1).

        Args:
            ticks: The ticks, up to the horizon.
            view: "running", "per-tick" or "last-7": what is published at each tick, of the ticks up
                to it. Also a weighted sum of them (`Releases.weighted`): "decayed-0.9", or a lower
                triangular matrix.

        Returns:
            The stds; one column where those of all outputs are equal.

        Raises:
            ParameterError: The query has no such view.
        """
        errors = self._parameters.errors
        weighted = std_of_weights(errors, view, ticks)
        if weighted is not None:
            return weighted
        assert isinstance(view, str)
        return errors.std(ticks, view_width(view))

    def noise_covariance(self, ticks: Any, view: str = RUNNING) -> FloatArray:
        """Exact covariance of the noise of one cell's published numbers at some ticks, before
        post-processing.

        Its diagonal is the square of `std` where an output is one cell. Rounding to the grid is
        part of it, as independent noise of variance grid²/12.

        Args:
            ticks: 1-based ticks, up to the horizon.
            view: As in `std`.

        Returns:
            A symmetric matrix with a row for each tick.

        Raises:
            ParameterError: A tick lies outside 1..horizon, or the query has no such view.

        Test: tests/engine/test_noise_law.py::test_covariance_is_that_of_the_matrices.

        >>> from evercount import Budget, Count, Stream
        >>> stream = Stream(Count(), Budget(1.0, 1e-6), horizon=24)
        >>> stream.noise_covariance([1, 2, 24]).round(1).tolist()
        [[7.3, 6.6, 0.6], [6.6, 13.3, 1.2], [0.6, 1.2, 25.3]]
        """
        return noise_covariance(self._errors, ticks, view)

    def sample_paths(
        self, n: int, ticks: int | None = None, *, seed: int | None = None
    ) -> FloatArray:
        """Simulate independent paths of the noise of one cell's published numbers, before
        post-processing.

        They have the stream's law and come from its own sampler, with a key that is not secret:
        they are for plots and statistics, and must never be added to data. The stream's own noise
        is not touched.

        Args:
            n: How many paths.
            ticks: How many ticks each has; None for the horizon.
            seed: For the same paths again.

        Returns:
            An array with a row for each path and a column for each tick.

        Raises:
            ParameterError: A number is not a whole number of at least 1, there are more ticks than
                the horizon, or there is no horizon and `ticks` is left out.

        Test: tests/engine/test_noise_law.py::test_paths_have_the_stated_covariance.

        >>> from evercount import Budget, Count, Stream
        >>> Stream(Count(), Budget(1.0, 1e-6), horizon=24).sample_paths(1000, seed=1).shape
        (1000, 24)
        """
        return noise_paths(self._errors, n, self.horizon if ticks is None else ticks, seed)

    def read_back(
        self, values: FloatArray, first_tick: int = 1, labels: Sequence[str] | None = None
    ) -> Releases:
        """Numbers that this stream published before, shape (ticks, outputs), as releases with their
        errors.

        Args:
            values: The published numbers. Where keys are discovered, one column for each label of
                the last tick, and NaN where a key was not public.
            first_tick: The 1-based tick of the first row.
            labels: Of the columns; None for those of the last tick. Needed for keys of the day,
                which change.

        Returns:
            The releases.

        Raises:
            ParameterError: The shape is another, or some of these ticks are not released.
        """
        rows = np.array(values, dtype=np.float64)
        names = self.labels if labels is None else labels
        outputs = len(names)
        if (
            rows.ndim != 2
            or rows.shape[1] != outputs
            or not 1 <= first_tick <= self.tick - len(rows) + 1
        ):
            raise ParameterError(
                f"published numbers of released ticks have the shape (ticks, {outputs})"
            )
        if self.thresholds is None:
            return self._parameters.releases(
                first_tick, PublishedRows(rows, None), self._state.counting
            )
        tested = discovery_ticks(np.arange(first_tick, first_tick + len(rows)), self.thresholds)
        if np.any((tested > 0) & (tested < first_tick)):
            raise ParameterError(
                "releases of discovered keys are read back from tick 1 or from a discovery tick on"
            )
        evidence = evidence_at(
            tested, rows[np.maximum(tested - first_tick, 0)], self.thresholds, self._errors
        )
        evidence[:, : self.query.outputs] = 0.0
        return self._parameters.releases(
            first_tick, PublishedRows(rows, evidence, names), self._state.counting
        )

    def _repr_html_(self) -> str:
        """What it counts and promises, for notebooks."""
        ends = "without end" if self.horizon is None else f"of {self.horizon:,}"
        return (
            f"<p><b>{escape(repr(self.query))}</b>: tick {self.tick:,} "
            f"{ends}</p><p>{escape(self.guarantee)}</p>"
        )

    def __repr__(self) -> str:
        return (
            f"Stream({self.query!r}, epsilon={self.budget.epsilon:g}, delta={self.budget.delta:g}, "
            f"horizon={self.horizon}, factorization={self.factorization.name!r}, "
            f"noise={self.noise!r}, tick={self.tick})"
        )


def spend_for(stream: StreamFacts, ledger: Ledger) -> Entry:
    """Record the stream in the ledger, or raise BudgetExceeded.

    A stream spends when it is built, before anything can be released. A crash in between leaves the
    budget spent and no stream: the safe side. It is not given back, not even to a retry with the
    same secret: nobody can tell a stream that was lost before its first release from one that was
    lost after it, and a second one with the same noise over other data would reveal the difference.
    `Stream.restore` spends nothing: its stream has spent already.

    **Guarantee.** The entry is calibrated as the stream is. Test:
    `tests/engine/test_stream_ledger.py::test_a_stream_spends_exactly_its_budget`.
    """
    check_kind("ledger", ledger, Ledger, 'Ledger(path="all.ledger")')
    return ledger.spend(f"{stream.query.name} {stream.identity[:12]}", stream.cost)
