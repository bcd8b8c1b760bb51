"""The contract of a query: what is counted, how much one event can change, and what is published.

A query turns the events of one tick into a vector of integer increments, one entry per cell (in units of the
query's public `grid`). The engine releases the running sums of the cells with correlated noise; `decode` turns
the noisy running sums into what is published.

    Guarantee. For every pair of neighbouring streams under `adjacency`, and every cell, let P and N be the sums
    over all ticks of the positive and of the negative parts of the change of that cell's increments (in real
    units: increment × grid). Then Σ_cells (P² + N²) ≤ squared_sensitivity(adjacency). With a factorisation whose R
    has a nonnegative Gram matrix and column norm c this implies ‖R(X−X′)‖_F ≤ c·√S: see
    `factorizations/sensitivity.proof.md`. Each subclass proves its S beside its code; `evercount audit sensitivity`
    attacks the claim by enumeration or random search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count
from evercount.errors import InputError, ParameterError
from evercount.factorizations import Factorization, factorization
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.privacy import Budget
from evercount.queries.cell_errors import CellErrors
from evercount.queries.row_contract import RowContract
from evercount.queries.top_keys import RankErrors, TopKey, top_keys

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from evercount.queries.discovery_threshold import Thresholds

    V_co = _TypeVar("V_co", covariant=True, default=Any)
else:
    V_co = TypeVar("V_co", covariant=True)

Adjacency = Literal["add-remove", "replace"]

LARGEST_TOTAL = 2**53
"""A single tick's increment beyond this (in grid units) is refused: it cannot come from real events."""


class Query(RowContract, ABC, Generic[V_co]):
    """What is asked of the stream. Immutable; the encoder's memory is the `state` that is handed in and out.

    A subclass declares `cells`, `encode`, `squared_sensitivity` and `parameters`; all else has a default.

    >>> class Even(Query[float]):
    ...     name, cells = "even", 1
    ...     def encode(self, state, events):
    ...         return np.asarray([sum(number % 2 == 0 for number in events)]), state
    ...     def squared_sensitivity(self, adjacency):
    ...         return 1.0
    ...     def parameters(self):
    ...         return {}
    >>> Even().encode_run(None, [[1, 2], [4, 6]])[0].tolist()
    [[1], [2]]
    """

    name: ClassVar[str]
    """The name by which commands, services and snapshots know the query."""

    in_place: ClassVar[bool] = False
    """Whether `encode` changes the state that it is given (after all checks), instead of returning a new one."""

    splits: ClassVar[bool] = False
    """Whether a tick may be encoded in parts, one after the other: the increments add up to those of the tick at once,
    the last state is the same, and so is what is refused. True for encoders that read event by event."""
    refuses_by_itself: ClassVar[bool] = False
    """Whether an event that `check_events` accepts is never refused because of others: no look at the open tick."""

    names_users: ClassVar[bool] = False
    """Whether events name their users themselves, so that `user_sensitivity` holds for any number of events."""

    # -- what is counted ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def cells(self) -> int:
        """Number of running sums that the engine keeps."""

    @property
    def grid(self) -> float:
        """The public unit of one increment (1 for counts); a power of two times a rational is best."""
        return 1.0

    @property
    def publishes_whole_numbers(self) -> bool:
        """Whether whole noise, in grid units, gives whole published numbers: whole sums, published as they are."""
        return self.publishes_sums and self.grid % 1 == 0

    @abstractmethod
    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of the class docstring, in real units squared.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            S.

        Raises:
            UnknownName: there is no such adjacency.
            ParameterError: the query declares no S for it.
        """

    def user_sensitivity(self, adjacency: Adjacency) -> float | None:
        """S for one user with any number of events, where the query declares its own; None: S·k² for at most k events.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            S for one user, or None.

        Raises:
            UnknownName: there is no such adjacency.

        **Guarantee.** As for S, with two streams as neighbours that differ in the events of one user. Test:
        tests/queries/test_queries_distinct_users.py::test_user_sensitivity_by_enumeration.
        """
        return None

    def user_l1_sensitivity(self, adjacency: Adjacency) -> float | None:
        """Δ₁ for one user with any number of events, as `user_sensitivity`; None: Δ₁·k for at most k events.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            Δ₁ for one user, or None.

        Raises:
            UnknownName: there is no such adjacency.
        """
        return None

    def protected_l1(self, budget: Budget) -> float:
        """Δ₁ for what the budget protects: one event, a user of at most k events, or a user of any number of them.

        Args:
            budget: What is protected.

        Returns:
            Δ₁ for one protected unit.

        Raises:
            ParameterError: no Δ₁ of the query is known, so it has no noise for δ = 0.

        **Guarantee.** A query's own user-level Δ₁ is taken only where the budget protects users. Test:
        tests/queries/test_queries_distinct_users.py::test_pure_noise_is_calibrated_to_the_unit.
        """
        own = self.user_l1_sensitivity(budget.adjacency) if budget.unit == "user" else None
        return self.l1_sensitivity(budget.adjacency) * budget.max_events if own is None else own

    def protected_sensitivity(self, budget: Budget, S: float) -> float:
        """S for what the budget protects, from the S of one event; the query's own user-level S is never scaled.

        Args:
            budget: What is protected.
            S: The squared sensitivity for one event.

        Returns:
            The squared sensitivity for one protected unit.

        **Guarantee.** As `protected_l1`. Test:
        tests/queries/test_queries_distinct_users.py::test_noise_is_calibrated_to_the_unit.
        """
        own = self.user_sensitivity(budget.adjacency) if budget.unit == "user" else None
        return budget.scale_sensitivity(S) if own is None else own

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        """A smaller S for factorisations whose Gram matrix falls away from the diagonal; None where there is none.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            The smaller S, or None.

        **Guarantee.** For every pair of neighbours and every R with `Factorization.falling_gram`, ‖R(X−X′)‖_F² is at
        most c² times this. Proof: `factorizations/sensitivity.proof.md`, "Changes that take turns". Test:
        tests/queries/test_queries_matching.py::test_no_neighbours_beat_the_smaller_claim.
        """
        return None

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float | None:
        """v²: the most that one event changes the values of a tick, Σ_cells (change of the running sum)².

        None where nothing better than the increments' S is known. It is what the factorisation `direct` needs.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            v², or None.

        Raises:
            UnknownName: there is no such adjacency.

        **Guarantee.** For every pair of neighbours and every tick, Σ over cells of the squared difference of their
        running sums is at most this, in real units. Then ‖M(X−X′)‖_F² ≤ T·v², M the running-count matrix. Proof:
        `factorizations/sensitivity.proof.md`, "Values". Tests: tests/queries/test_queries_values.py.
        """
        return None

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """The most that one event changes all increments together, Σ_cells (P + N), in real units: what δ = 0 needs.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            Δ₁.

        Raises:
            ParameterError: The query does not declare it.

        **Guarantee.** For every pair of neighbours Σ over cells and ticks of |change of increment|·grid is at most
        this. Proof: `mechanisms/laplace_noise.proof.md`, lemma 3. Queries that do not declare it are refused under δ =
        0. Test: tests/mechanisms/test_laplace_stream.py::test_l1_sensitivity_by_enumeration.
        """
        raise ParameterError(
            f"{type(self).__name__} does not declare an l1 sensitivity, which pure privacy (delta=0) needs; "
            "choose a small positive delta"
        )

    def choose_engine(self, horizon: int | None, name: str | None, pure: bool = False) -> tuple[Query, Factorization]:
        """The query with its way of counting settled, and the factorisation that it runs on.

        Args:
            horizon: the number of ticks, or None.
            name: the factorisation that the user asked for, or None.
            pure: whether δ = 0.

        Returns:
            The query and the factorisation.

        Raises:
            UnknownName: there is no factorisation of this name.
            ParameterError: the factorisation does not fit the horizon, the query or δ = 0.
        """
        return self, pure_factorization(name, horizon) if pure else factorization(name, horizon)

    @classmethod
    def quiet_parameters(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with defaults under which no event is refused because of earlier ones.

        Anyone who sends an event to a service and is told that it is there already has learnt what somebody else sent.

        Args:
            parameters: The constructor's arguments by name, as they were declared.

        Returns:
            The same with defaults where nothing was declared.
        """
        return dict(parameters)

    def check_budget(self, budget: Budget) -> None:
        """Refuse a budget whose promise the query's sensitivity does not cover.

        Args:
            budget: The budget of the stream.

        Raises:
            ParameterError: It does not fit.
        """
        if self.names_users and budget.max_events != 1:
            raise ParameterError(
                f"{self.name!r} protects users with any number of events: leave max_events={budget.max_events} out"
            )

    # -- cells that have names and join while the stream runs ------------------------------------------------------

    first_names: ClassVar[tuple[str, ...] | None] = None
    """The names of the cells, where noise belongs to names and more of them may join; None for numbered cells."""

    unlisted_keys: ClassVar[bool] = False
    """Whether nobody lists the keys of events beforehand; rows of a table then have keys that `check_keys` takes."""

    @property
    def least_listed(self) -> int:
        """The true count that every public key has, where nobody lists the keys; 0 for all other queries."""
        return 0

    def touched_cells(self, budget: Budget) -> int:
        """How many cells one protected unit can change at most: what finite arithmetic is priced for.

        Args:
            budget: What is protected.

        Returns:
            The number of cells.
        """
        return self.cells

    def own_delta(self, budget: Budget) -> float:
        """The part of δ that the query's own decisions cost beside the noise.

        Args:
            budget: The budget of the stream.

        Returns:
            The part of δ.
        """
        return 0.0

    def thresholds(
        self, budget: Budget, horizon: int | None, std: Callable[[IntArray], FloatArray]
    ) -> Thresholds | None:
        """When a key becomes public, for queries whose keys nobody listed; None for all others.

        Args:
            budget: of the stream.
            horizon: the number of ticks, or None.
            std: from ticks to the std of a cell's noise before rounding, in grid units.

        Returns:
            The thresholds, or None.
        """
        return None

    def labels_now(self, state: Any) -> Sequence[str]:
        """One label per number that a tick publishes now, given the encoder's state; public.

        Args:
            state: The encoder's state.

        Returns:
            The labels.
        """
        return self.labels

    def expected_names(self, state: Any) -> Iterable[str]:
        """Names that may join soon, so that their noise can be made ready.

        Args:
            state: The encoder's state.

        Returns:
            The names.
        """
        return ()

    def check_keys(self, keys: Sequence[Any]) -> list[str | None]:
        """For rows of a table whose keys nobody listed: each key as it is counted; None where it is not legal.

        Args:
            keys: The keys of the rows.

        Returns:
            One text or None for each key.

        Raises:
            ParameterError: The query has a list of keys.
        """
        raise ParameterError(f"{self.name!r} has a list of keys")

    def with_known_keys(self, events: Iterable[Any]) -> Query:
        """A query whose increments are those that S speaks of, over the keys of these events; for audits.

        Args:
            events: The events of an audit.

        Returns:
            The query to be audited.

        Raises:
            EventRefused: an event is no key.
        """
        return self

    # -- from events to increments -----------------------------------------------------------------------------

    def initial_state(self) -> Any:
        """The encoder's memory before the first tick, JSON-serialisable; None for encoders without memory.

        Returns:
            The state for the first `encode`.
        """
        return None

    @abstractmethod
    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """Increments (shape ``(cells,)``, grid units) of one tick and the encoder's next state.

        Validates everything before it changes anything: on an InputError the old state is as it was. After a
        successful call the old state must not be used again (an encoder may update it in place).

        Args:
            state: The state after the tick before.
            events: The events of the tick.

        Returns:
            The increments and the next state.

        Raises:
            InputError: An event is not legal.
        """

    def check_events(self, events: Iterable[Any]) -> None:
        """Refuse events that are illegal whatever came before them, as `encode` does, without any state.

        Encoders with a memory that `splits` override it. So a service can refuse what one sender got wrong before
        it looks at what others have sent.

        Args:
            events: The events.

        Raises:
            InputError: One of them is not legal.
        """

    def encode_totals(self, state: Any, totals: npt.ArrayLike) -> tuple[IntArray, Any]:
        """The fast way for events that were added up elsewhere: increments of one tick, given in grid units.

        The caller promises that each event was legal (files and services check that while they add up). Queries whose
        encoder has a memory refuse.

        Args:
            state: The encoder's state.
            totals: One whole number for each cell.

        Returns:
            The increments and the next state.

        Raises:
            InputError: The query needs the events themselves, or the totals do not fit the cells.
        """
        if self.initial_state() is not None:
            raise InputError(f"{type(self).__name__} needs the events themselves, not their totals")
        array = np.asarray(totals)
        if array.shape != (self.cells,) or not np.issubdtype(array.dtype, np.integer):
            raise InputError(
                f"totals must be {self.cells} whole numbers, got shape {array.shape} of dtype {array.dtype}"
            )
        if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
            raise InputError("totals must fit 63 bits")
        return array.astype(np.int64), state

    def encode_totals_run(self, state: Any, totals: npt.ArrayLike) -> IntArray:
        """As `encode_totals`, for many ticks of shape (ticks, cells).

        Args:
            state: The encoder's state.
            totals: One row of whole numbers for each tick.

        Returns:
            The increments, shape (ticks, cells).

        Raises:
            InputError: As `encode_totals`.
        """
        if not isinstance(totals, Iterable):
            raise InputError(f"totals are a sequence of ticks, not {type(totals).__name__}")
        try:
            array = totals if isinstance(totals, np.ndarray) else np.asarray(list(totals))
        except ValueError as error:
            raise InputError("totals must be rows of one length, one row for each tick") from error
        if not len(array):
            return np.empty((0, self.cells), np.int64)
        if array.ndim != 2 or array.shape[1] != self.cells or not np.issubdtype(array.dtype, np.integer):
            raise InputError(
                f"totals must be whole numbers of shape (ticks, {self.cells}), got shape {array.shape} of dtype "
                f"{array.dtype}"
            )
        for extreme in (array.min(axis=0), array.max(axis=0)) if len(array) else ():
            self.encode_totals(state, extreme)  # what is legal for the least and the largest is legal between
        return array.astype(np.int64)

    @property
    def monotone(self) -> bool:
        """Whether no published number can truly fall from one tick to the next."""
        return False

    def dump_state(self, state: Any) -> Any:
        """The encoder's state as JSON-serialisable data.

        Args:
            state: The encoder's state.

        Returns:
            Lists, texts, numbers and dicts only.
        """
        return state

    def load_state(self, data: Any) -> Any:
        """The inverse of `dump_state`.

        Args:
            data: A result of `dump_state`.

        Returns:
            The state.

        Raises:
            SnapshotError: it is no state of this query.
        """
        return data

    def encode_run(self, state: Any, ticks: Iterable[Any]) -> tuple[IntArray, Any]:
        """Increments of many ticks, shape ``(ticks, cells)``; subclasses override it where a block is faster.

        Args:
            state: The state after the tick before.
            ticks: The events of each tick.

        Returns:
            The increments and the state after the last tick.

        Raises:
            InputError: An event is not legal; it names the tick.
        """
        rows = []
        for number, events in enumerate(ticks):
            try:
                row, state = self.encode(state, events)
            except InputError as error:
                raise InputError(f"item {number} of this run: {error}") from error
            rows.append(row)
        return (np.stack(rows) if rows else np.empty((0, self.cells), np.int64)), state

    # -- from noisy running sums to what is published ------------------------------------------------------------

    @property
    def outputs(self) -> int:
        """How many numbers are published per tick."""
        return self.cells

    @property
    def single(self) -> bool:
        """Whether `Release.value` is one number; else it is an array, also where it has one entry.

        The type parameter of `Query` says the same: `Query[float]` or `Query[FloatArray]`.
        """
        return self.outputs == 1

    @property
    def labels(self) -> Sequence[str]:
        """One label per published number, public."""
        return ("count",) if self.outputs == 1 else tuple(map(str, range(self.outputs)))

    def decode(self, tick: int, noisy: FloatArray) -> FloatArray:
        """Published numbers of one tick (shape ``(outputs,)``) from the noisy running sums (``(cells,)``).

        Post-processing only: it sees nothing of the data but `noisy`.

        Args:
            tick: The 1-based tick.
            noisy: The noisy running sums.

        Returns:
            The published numbers.
        """
        return noisy

    @property
    def memory(self) -> int:
        """How many earlier ticks of noisy running sums `decode_run` reads (published ones: nothing private)."""
        return 0

    @property
    def restart(self) -> int | None:
        """Where set, the running sums start again from zero after this number of ticks."""
        return None

    def combination(self, ticks: IntArray) -> tuple[tuple[IntArray, FloatArray], ...]:
        """What is published at each tick as a sum of terms (ticks, weights): weight × running sum at that tick.

        This is what the exact error of the published number needs. Tick 0 stands for a running sum of zero.

        Args:
            ticks: The 1-based ticks.

        Returns:
            The terms, each for all ticks.
        """
        return ((ticks, np.ones(len(ticks))),)

    def decode_run(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """Published numbers of many ticks, shape (ticks, outputs).

        `noisy` has `memory` rows of earlier ticks (zeros before the first) and then one row per tick.

        Args:
            first_tick: The 1-based tick of the first published row.
            noisy: The noisy running sums, shape (memory + ticks, cells).

        Returns:
            The published numbers.
        """
        rows = noisy[self.memory :]
        if type(self).decode is Query.decode:
            return rows
        return np.stack([self.decode(first_tick + i, row) for i, row in enumerate(rows)])

    @property
    def publishes_sums(self) -> bool:
        """Whether the published numbers are the noisy running sums themselves."""
        return type(self).decode_run is Query.decode_run and type(self).decode is Query.decode

    def output_norms(self) -> FloatArray | float:
        """‖row‖₂ of the linear map `decode` for each output: std of an output = this × std of a cell.

        Returns:
            One number for each output, or one for all.
        """
        return 1.0

    @property
    def keeps_sums(self) -> bool:
        """Whether a release keeps its noisy sums, which are published and not private, for the methods below."""
        return False

    def output_scale(self, sums: FloatArray, values: FloatArray) -> FloatArray:
        """Std of the published numbers over that of a cell, to first order, for queries that keep their sums.

        Args:
            sums: The noisy sums, shape (ticks, cells).
            values: The published numbers, shape (ticks, outputs).

        Returns:
            The ratios, in the shape of `values`.
        """
        raise NotImplementedError

    def interval(
        self, values: FloatArray, sums: FloatArray, errors: CellErrors, level: float
    ) -> tuple[FloatArray, FloatArray]:
        """(low, high) of published `values`, shape (ticks, outputs), from the noisy `sums` of their ticks.

        Asked of queries that keep their sums; the intervals of all others follow from their stds.

        Args:
            values: The published numbers.
            sums: The noisy sums, shape (ticks, cells).
            errors: The errors of a cell at these ticks.
            level: The probability that an interval holds its true number.

        Returns:
            The lower and the upper ends, each in the shape of `values`.
        """
        raise NotImplementedError

    def sums_behind(self, values: FloatArray, scale: FloatArray) -> FloatArray:
        """Noisy sums that give these published numbers and stds: for releases of snapshots that kept stds only.

        Args:
            values: The published numbers, shape (ticks, outputs).
            scale: Their stds over that of a cell.

        Returns:
            The noisy sums, shape (ticks, cells).
        """
        raise NotImplementedError

    def before_first(self) -> FloatArray:
        """What would be published before the first tick, without noise; public.

        Returns:
            One number for each output.
        """
        return np.zeros(self.outputs)

    def between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(change, weight): what is published for ticks earlier+1 … later, given the published numbers at both ends.

        `weight` × the std of a cell's change is the std of each output's change.

        Args:
            earlier: The tick before the span; 0 for the time before the first tick.
            later: The last tick of the span.
            low: The published numbers of `earlier`.
            high: The published numbers of `later`.

        Returns:
            The change and the weight of each output.

        Raises:
            ParameterError: With the reason, where published numbers do not tell.
        """
        if not self.running_sums:
            raise ParameterError(
                f"{self.name!r} is not a sum over ticks, so two releases do not tell what came between"
            )
        return high - low, np.ones(len(low)) * self.output_norms()

    def consistent(self, values: FloatArray) -> FloatArray:
        """The nearest values, one tick's, that a real state of the world could have; post-processing.

        Args:
            values: The published numbers of one tick.

        Returns:
            The nearest possible ones.

        Raises:
            ParameterError: Where the query has no such form.
        """
        raise ParameterError(
            f"{self.name!r} has no consistent form: only degree histograms and degree sequences have one"
        )

    def top(self, values: FloatArray, errors: RankErrors, k: int | None, level: float) -> list[TopKey]:
        """The k largest published numbers (1 by default) with intervals and confidences: see `TopKey`.

        Args:
            values: The published numbers of one tick.
            errors: Their errors.
            k: How many are asked for.
            level: The probability that all intervals hold at once.

        Returns:
            The largest numbers, the largest first.

        Raises:
            ParameterError: k is not a whole number of at least 1.
        """
        return top_keys(
            list(self.labels), values, errors, min(check_count("k", 1 if k is None else k), len(values)), level
        )

    def rounding_norms(self) -> FloatArray | float:
        """Σ|coefficients| of each output's row (or a bound of it): what a change of 1 in every cell can do to it.

        Returns:
            One number for each output, or one for all.
        """
        return self.output_norms()

    @property
    def publishes_cells(self) -> bool:
        """Whether each output is one cell as it is, so that lower bounds for running sums hold for it."""
        return type(self).decode_run is Query.decode_run

    @property
    def running_sums(self) -> bool:
        """Whether an output is a fixed linear map of its tick's running sums: then differences of ticks have a meaning.

        Their exact error is that of a cell's difference times `output_norms`.
        """
        return self.memory == 0 and self.restart is None and type(self).decode_run is Query.decode_run

    def output_covariance(self, outputs: Sequence[int]) -> FloatArray:
        """Covariance of some outputs of one tick, in units of a cell's variance: for comparisons of outputs.

        Args:
            outputs: The numbers of the outputs, from 0.

        Returns:
            A square matrix with a row for each of them.

        Raises:
            ParameterError: The query does not declare it.
        """
        if type(self).decode is not Query.decode or type(self).decode_run is not Query.decode_run:
            raise ParameterError(f"outputs of {self.name!r} cannot be compared: their covariance is not declared")
        chosen = np.asarray(outputs)
        return np.asarray(chosen[:, np.newaxis] == chosen, dtype=np.float64)

    has_quantiles: ClassVar[bool] = False
    """Whether quantiles of a value can be read from its numbers: `norms_beside` and `read_quantile`."""

    def norms_beside(self, q: float) -> FloatArray:
        """For quantiles: std of (number below each edge) − q·(number of all), in units of a cell's std.

        Args:
            q: Which quantile, between 0 and 1.

        Returns:
            One number for each edge.

        Raises:
            ParameterError: The query has no quantiles.
        """
        raise ParameterError(f"{self.name!r} has no quantiles: they are read from a stream of 'quantiles'")

    def read_quantile(self, below: FloatArray, half: FloatArray, q: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(value, low, high) of the q-quantile from numbers below edges and their half-widths.

        Args:
            below: The published numbers of values below each edge, shape (ticks, edges).
            half: Half-widths that hold for (number below an edge) − q·(number of all).
            q: Which quantile, between 0 and 1.

        Returns:
            The value and the ends of its interval, one of each for a tick.

        Raises:
            ParameterError: The query has no quantiles.
        """
        raise ParameterError(f"{self.name!r} has no quantiles: they are read from a stream of 'quantiles'")

    # -- identity ----------------------------------------------------------------------------------------------

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-serialisable: ``type(self)(**self.parameters())`` equals self.

        Returns:
            The arguments by name.
        """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.parameters() == other.parameters()

    def __hash__(self) -> int:
        return hash((type(self), repr(self.parameters())))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.parameters().items())
        return f"{type(self).__name__}({arguments})"
