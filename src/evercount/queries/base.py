"""The contract of a query: how events become increments, and how much one event can change them.

A query turns the events of one tick into a vector of integer increments, one entry per cell (in units of the
query's public `grid`). The engine releases the running sums of the cells with correlated noise; what is published
from the noisy running sums stands in `publish_contract.py`, and how rows of a table become events in
`row_contract.py`.

    Guarantee. For every pair of neighbouring streams under `adjacency`, and every cell, let P and N be the sums
    over all ticks of the positive and of the negative parts of the change of that cell's increments (in real
    units: increment × grid). Then Σ_cells (P² + N²) ≤ squared_sensitivity(adjacency). With a factorisation whose R
    has a nonnegative Gram matrix and column norm c this implies ‖R(X−X′)‖_F ≤ c·√S: see
    `factorizations/sensitivity.proof.md`. Each subclass proves its S beside its code; `evercount audit sensitivity`
    attacks the claim by enumeration or random search.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import InputError, ParameterError
from evercount.privacy import Budget
from evercount.queries.publish_contract import PublishContract
from evercount.queries.row_contract import RowContract

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from evercount.queries.discovery_threshold import Thresholds

    V_co = _TypeVar("V_co", covariant=True, default=Any)
else:
    V_co = TypeVar("V_co", covariant=True)

Adjacency = Literal["add-remove", "replace"]

LARGEST_TOTAL = 2**53
"""A single tick's increment beyond this (in grid units) is refused: it cannot come from real events."""


class Query(RowContract, PublishContract, Generic[V_co]):
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

    in_place: bool = False
    """Whether `encode` changes the state that it is given (after all checks), instead of returning a new one."""

    splits: ClassVar[bool] = False
    """Whether a tick may be encoded in parts, one after the other: the increments add up to those of the tick at once,
    the last state is the same, and so is what is refused. True for encoders that read event by event."""
    refuses_by_itself: ClassVar[bool] = False
    """Whether an event that `check_events` accepts is never refused because of other events, earlier ones included."""

    names_users: ClassVar[bool] = False
    """Whether events name their users themselves, so that `user_sensitivity` holds for any number of events."""

    # -- what is counted ---------------------------------------------------------------------------------------

    @abstractmethod
    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of the guarantee at the top of this module, in real units squared.

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

    def expected_names(self, state: Any, events: Any = ()) -> Iterable[str]:
        """Names that may join soon, so that their noise can be made ready.

        Args:
            state: The encoder's state.
            events: Events of the next tick that have come already.

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
