"""The contract of a query: how events become increments of its cells, and what its published
numbers are called.

A query turns the events of one tick into a vector of integer increments, one entry per cell (in
units of the query's public `grid`). The engine releases the running sums of the cells with
correlated noise; what is published from the noisy running sums is described in `publishing.py`, how
much one event changes the increments in `sensitivities.py`. What only some queries can do is a
capability: a query offers it by the property of that name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, final, get_args

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, check_name, check_public_text
from evercount.errors import InputError, ParameterError
from evercount.privacy import Adjacency, Budget
from evercount.queries.encoder_code import digest_of_class
from evercount.queries.publishing import SUMS, Publishing, RankErrors, TopKey, top_keys
from evercount.queries.sensitivities import EventNumber, RowFormat, Sensitivities

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from evercount.queries.cuts.cut_query import Cuts
    from evercount.queries.discovered_keys import DiscoveredKeys
    from evercount.queries.people import UserQuery
    from evercount.queries.quantiles import Quantiles

    V_co = _TypeVar("V_co", covariant=True, default=Any)
else:
    V_co = TypeVar("V_co", covariant=True)

ADJACENCIES = get_args(Adjacency)


def is_replace(adjacency: Adjacency) -> bool:
    """Whether an event becomes another one, and is not added or removed; UnknownName for anything
    else."""
    check_name("adjacency", adjacency, ADJACENCIES)
    return adjacency == "replace"


SPELLED_IN_KEYS = {"low": "lo", "high": "hi"}
"""How some parameters are spelled where keys of noise are derived from them."""

OTHER = "other"
"""Label of the number that all keys share that are not listed."""
TOTAL = "total"
"""Label of the number that all keys share."""

LARGEST_TOTAL = 2**53
"""A single tick's increment beyond this (in grid units) is refused: it cannot come from real
events."""


def listed_events(events: Any) -> list[Any]:
    """The events of a tick as a list."""
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise InputError(
            f"a tick is a sequence of events, not {type(events).__name__}; for one event write "
            "[event]"
        )
    return events.tolist() if isinstance(events, np.ndarray) else list(events)


def check_distinct(what: str, names: Sequence[Any]) -> None:
    """Refuse public names of which one is there twice."""
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ParameterError(f"{what} must be distinct; {twice!r:.120} occurs twice")


def public_names(what: str, given: Any, legal: tuple[str, ...] = ()) -> tuple[str, ...]:
    """`given` as distinct public texts, at least one; `what` is one of them. Those in `legal` are
    not checked.

    A set is refused: its order is another one in the next process, and so would be the cells."""
    if isinstance(given, str | bytes | Mapping | set | frozenset) or not isinstance(
        given, Iterable
    ):
        raise ParameterError(f"{what}s must be a list of strings, got {given!r:.80}")
    names = tuple(
        name if name in legal else check_public_text(f"the {what}", name) for name in given
    )
    if not names:
        raise ParameterError(f"there must be at least one {what}")
    check_distinct(f"{what}s", names)
    return names


class Capabilities:
    """What a query offers besides its running sums; None where it does not."""

    name: ClassVar[str]  # the name by which commands, services and snapshots know the query

    @property
    def discovery(self) -> DiscoveredKeys | None:
        """Keys that nobody lists beforehand: noise belongs to names, and more of them join while
        the stream runs."""
        return None

    @property
    def quantiles(self) -> Quantiles | None:
        """Quantiles that are read from the published numbers."""
        return None

    @property
    def people(self) -> UserQuery | None:
        """S and Δ₁ of a user with any number of events, where events name their users."""
        return None

    @property
    def rows(self) -> RowFormat | None:
        """How rows of a table become events."""
        return None

    @property
    def cuts(self) -> Cuts | None:
        """The graph that the published numbers are."""
        return None

    @property
    def event_number(self) -> EventNumber | None:
        """What is declared of the number of events, where a tick is that number."""
        return None

    def for_views(self, views: tuple[str, ...]) -> Self:
        """The query as a stream asks it whose noise is chosen for these views."""
        return self

    def with_keys(self, keys: Sequence[Any]) -> Query:
        """The query with more keys. Its first cells and its first published numbers are those of
        this query."""
        raise ParameterError(f"{self.name!r} has no list of keys that others could join")

    def consistent(self, values: FloatArray) -> FloatArray:
        """The nearest values that real data could have at one tick; post-processing."""
        raise ParameterError(
            f"{self.name!r} has no consistent form: only degree histograms and sequences have one"
        )


@lru_cache(maxsize=256)
def _arguments(kind: type[Query[Any]]) -> tuple[str, ...]:
    """The names of the arguments of a query's constructor, which every comparison and hash of a
    query asks for."""
    return tuple(signature(kind).parameters)


class Query(Capabilities, Sensitivities, Generic[V_co]):
    """What is asked of the stream. Immutable; the encoder's memory is the `state` that is handed in
    and out.

    A subclass declares `cells`, `encode` and `squared_sensitivity`, and `parameters` where the
    constructor's arguments are not attributes of the same names; all else has a default. It
    publishes its noisy running sums as they are, unless `publishing` says otherwise.

    >>> class Even(Query[float]):
    ...     name, cells = "even", 1
    ...     def encode(self, state, events):
    ...         return np.asarray([sum(number % 2 == 0 for number in events)]), state
    ...     def squared_sensitivity(self, adjacency):
    ...         return 1.0
    >>> Even().encode_run(None, [[1, 2], [4, 6]])[0].tolist()
    [[1], [2]]
    """

    # of how many days a tick releases numbers: more than its own where late events revise days
    lags: int = 1

    in_place: bool = False
    """Whether `encode` changes the state that it is given (after all checks), instead of returning
    a new one."""

    splits: ClassVar[bool] = False
    """Whether a tick may be encoded in parts, one after the other: the increments add up to those
    of the tick at once, the last state is the same, and so is what is refused. True for encoders
    that read event by event."""
    whole_ticks: ClassVar[bool] = False
    """Whether the events of a tick must be encoded together although there is no memory: users who
    count once."""
    refuses_by_itself: ClassVar[bool] = False
    """Whether an event that `check_events` accepts is never refused because of other events,
    earlier ones included."""
    starts_empty: ClassVar[bool] = True
    """Whether a new stream knows nothing of events before its start. False where the first state is
    old data (who is inside already): such a stream is never charged as the successor of another
    one."""

    # -- what is published -------------------------------------------------------------------------

    @property
    @abstractmethod
    def cells(self) -> int:
        """Number of running sums that the engine keeps."""

    @property
    def grid(self) -> float:
        """The public unit of one increment (1 for counts); a power of two times a rational is
        best."""
        return 1.0

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
        if self.outputs == 1:
            return ("count",)
        return tuple(map(str, range(self.outputs)))

    @property
    def monotone(self) -> bool:
        """Whether no published number can decrease from one tick to the next."""
        return False

    @property
    def publishing(self) -> Publishing:
        """How the noisy running sums become published numbers, and what is known of their
        errors."""
        return SUMS

    @property
    def publishes_whole_numbers(self) -> bool:
        """Whether noise in whole grid units gives whole published numbers."""
        return (self.publishing.as_they_are or self.publishing.whole) and self.grid % 1 == 0

    @final
    def decode_run(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """Published numbers of many ticks, shape (ticks, outputs), as `publishing` says."""
        decode = self.publishing.decode
        if decode is None:
            return noisy
        return decode(first_tick, noisy)

    def top(
        self, values: FloatArray, errors: RankErrors, k: int | None, level: float
    ) -> list[TopKey]:
        """The k largest published numbers (1 by default) with intervals and confidences: see
        `TopKey`."""
        k = min(check_count("k", 1 if k is None else k), len(values))
        return top_keys(list(self.labels), values, errors, k, level)

    @classmethod
    def quiet_parameters(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with defaults under which no event is refused because of earlier ones.

        Anyone who sends an event to a service and is told that it is there already has learnt what
        somebody else sent.
        """
        return dict(parameters)

    def check_budget(self, budget: Budget) -> None:
        """Refuse a budget whose promise the query's sensitivity does not cover."""
        if budget.unit == "event":
            return
        if self.people is None:
            if budget.max_events is None and budget.max_per_tick is None:
                raise ParameterError(
                    "a budget for users says how many events of one user are counted: give "
                    "max_events=..., or max_per_tick=... with max_ticks=... or a period"
                )
            return
        caps = {"max_events": budget.max_events, "max_per_tick": budget.max_per_tick}
        if not self.people.each_tick:
            caps["max_ticks"] = budget.max_ticks
        for name, given in caps.items():
            if given is not None:
                own = ""
                if name in self.parameters():
                    own = f", or give {name} to the query, which has its own cap"
                raise ParameterError(
                    f"{self.name!r} protects users of any number of events: omit "
                    f"{name}={given}{own}"
                )

    # -- from events to increments -----------------------------------------------------------------

    def initial_state(self) -> Any:
        """The encoder's memory before the first tick, JSON-serialisable; None for encoders without
        memory."""
        return None

    @property
    def memoryless(self) -> bool:
        """Whether what a tick adds depends on that tick's events alone: one event then changes one
        tick."""
        return self.initial_state() is None

    @abstractmethod
    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """Increments (shape ``(cells,)``, grid units) of one tick and the encoder's next state.

        Validates everything before it changes anything: on an InputError the old state is as it
        was. After a successful call the old state must not be used again (an encoder may update it
        in place).

        Args:
            state: The state after the tick before.
            events: The events of the tick.

        Returns:
            The increments and the next state.

        Raises:
            InputError: An event is not legal.
        """

    def check_events(self, events: Iterable[Any]) -> None:
        """Refuse events that are illegal whatever came before them, as `encode` does, without any
        state.

        Encoders with a memory that `splits` override it. So a service can refuse what one sender
        got wrong before it looks at what others have sent.
        """

    def encode_totals(self, totals: npt.ArrayLike) -> IntArray:
        """Increments of many ticks whose events were added up elsewhere, shape (ticks, cells), in
        grid units.

        The caller promises that each event was legal (files and services check that while they add
        up): nothing in the array can confirm it, and privacy depends on it. Queries whose encoder
        has a memory refuse.
        """
        if self.initial_state() is not None or self.whole_ticks:
            raise InputError(f"{type(self).__name__} needs the events themselves, not their totals")
        try:
            array = totals if isinstance(totals, np.ndarray) else np.asarray(list(totals))  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InputError(
                "totals are a sequence of ticks, one row of numbers of one length for each"
            ) from error
        if not len(array):
            return np.empty((0, self.cells), np.int64)
        if array.shape[1:] != (self.cells,) or not np.issubdtype(array.dtype, np.integer):
            raise InputError(
                f"totals are whole numbers of the shape (ticks, {self.cells}), got {array.shape} "
                f"of {array.dtype}"
            )
        if array.dtype == np.uint64 and int(array.max()) >= 2**63:
            raise InputError("totals must fit 63 bits")
        array = array.astype(np.int64)
        self.check_totals(array)
        return array

    def check_totals(self, totals: IntArray) -> None:
        """Refuse totals, shape (ticks, cells), that no events add up to."""

    def dump_state(self, state: Any) -> Any:
        """The encoder's state as JSON-serialisable data."""
        return state

    def load_state(self, data: Any) -> Any:
        """The inverse of `dump_state`."""
        return data

    def encode_run(self, state: Any, ticks: Iterable[Any]) -> tuple[IntArray, Any]:
        """Increments of many ticks, shape ``(ticks, cells)``; subclasses override it where a block
        is faster."""
        rows = []
        for number, events in enumerate(ticks):
            try:
                row, state = self.encode(state, events)
            except InputError as error:
                raise InputError(f"item {number} of this run: {error}") from error
            rows.append(row)
        return (np.stack(rows) if rows else np.empty((0, self.cells), np.int64)), state

    # -- identity ----------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-serialisable: ``type(self)(**self.parameters())``
        equals self.

        Returns:
            The arguments by name: the attributes of these names, unless a subclass says otherwise.
        """
        return {name: getattr(self, name) for name in _arguments(type(self))}

    def identity(self) -> list[Any]:
        """[name, parameters] as keys of noise are derived from them; with a digest of the code of a
        class of your own, whose name and parameters another class may share."""
        parameters = self.parameters()
        # else two of them would become one
        if not any(short in parameters for short in SPELLED_IN_KEYS.values()):
            parameters = {
                SPELLED_IN_KEYS.get(name, name): value for name, value in parameters.items()
            }
        if type(self).__module__.startswith("evercount."):
            return [self.name, parameters]
        return [self.name, parameters, digest_of_class(type(self))]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.parameters() == other.parameters()

    def __hash__(self) -> int:
        return hash((type(self), repr(self.parameters())))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.parameters().items())
        return f"{type(self).__name__}({arguments})"


class PowerQuery(Query[V_co]):
    """A query of which one formula gives both S and Δ₁: Σ_cells of changes to the power 2, or 1."""

    @abstractmethod
    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """Bound the change: S for the power 2, Δ₁ for the power 1."""

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return self._sensitivity(adjacency, 2)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """**Guarantee.** See the class."""
        return self._sensitivity(adjacency, 1)
