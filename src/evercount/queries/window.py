"""Windows: the last `width` ticks of a count or another running sum, by the way with the smallest exact error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Balanced, Factorization, factorization
from evercount.factorizations.laplace_trees import window_tree
from evercount.queries.base import Adjacency, Query, V_co
from evercount.queries.counts import Count
from evercount.queries.memory_limit import require_fits
from evercount.queries.top_keys import RankErrors, TopKey
from evercount.queries.window_choice import Method, best_method

LARGEST_WIDTH = 2**24


class WindowQuery(Query[V_co]):
    """What windows of all queries share: how running sums become windows, and which noise they run on.

    Methods, all functions of noisy running sums that are released anyway:

    - "difference": the running sum now minus the running sum `width` ticks ago;
    - "periods": running sums that start again every `width` ticks, each with the best noise for that short horizon; a
      window is the tail of the previous period plus the head of this one. Events of different periods have separate
      noise, so one event still touches one of them, and the error never grows with the length of the stream;
    - "inputs": independent noise on every tick, added up over the window: best for very short windows;
    - "nodes": for pure privacy (δ = 0), Laplace noise on the nodes of short trees; a window is the difference of two
      running sums, in which all but a few nodes cancel (`factorizations.laplace_trees.WindowTree`);
    - "auto": "nodes" for δ = 0, else the one with the smallest worst error, computed exactly, for the stream's horizon.
    """

    width: int
    method: Method

    def _settle(self, width: int, method: Method) -> None:
        """Check and keep the parameters that all windows have."""
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= LARGEST_WIDTH:
            raise ParameterError(f"width must be a whole number of ticks from 1 to 2^24, got {width!r}")
        if method not in get_args(Method):
            raise UnknownName("window method", method, get_args(Method))
        self.width = width
        self.method = method

    def with_method(self, method: Method) -> WindowQuery:
        """The same window with this method.

        Args:
            method: The method.

        Returns:
            A new query.
        """
        return type(self)(**{**self.parameters(), "method": method})

    @property
    def monotone(self) -> bool:
        """Windows fall."""
        return False

    @property
    def publishes_whole_numbers(self) -> bool:
        """Differences of sums."""
        return self.grid % 1 == 0

    @property
    def memory(self) -> int:
        """The running sums that a window looks back on."""
        return self.width

    @property
    def restart(self) -> int | None:
        """Periods start again every `width` ticks."""
        return self.width if self.method == "periods" else None

    def choose_engine(self, horizon: int | None, name: str | None, pure: bool = False) -> tuple[Query, Factorization]:
        """A window chooses its own factorisation by its method."""
        query = self.resolved(horizon, pure)
        engine = window_tree(query.width, horizon) if pure else query.engine(horizon)
        if name is not None and name != engine.name:
            raise ParameterError("a Window chooses its own factorisation; choose its method instead")
        return query, engine

    def resolved(self, horizon: int | None, pure: bool = False) -> WindowQuery:
        """The same window with the method that has the smallest worst error over the horizon; `pure`: for δ = 0.

        Args:
            horizon: The number of ticks, or None.
            pure: Whether δ = 0.

        Returns:
            A query whose method is not "auto".

        Raises:
            ParameterError: The method is for the other kind of noise.
        """
        if pure and self.method == "auto":
            return self.with_method("nodes")
        if pure != (self.method == "nodes"):
            raise ParameterError(
                f"window method {self.method!r} is for Gaussian noise; with delta=0 use 'auto' or 'nodes'"
                if pure
                else "window method 'nodes' is for pure privacy (delta=0); with a positive delta use 'auto'"
            )
        if self.method != "auto":
            return self
        return self.with_method(best_method(self.width, horizon))

    def engine(self, horizon: int | None) -> Factorization:
        """The factorisation that the method runs on, for Gaussian noise.

        Args:
            horizon: The number of ticks, or None.

        Returns:
            The factorisation.

        Raises:
            ParameterError: The method is for pure privacy.
        """
        if self.method == "nodes":
            raise ParameterError(
                "window method 'nodes' is for pure privacy (delta=0) and has no Gaussian factorisation"
            )
        if self.method == "periods":
            return Balanced(self.width)
        endless = "unbounded" if horizon is None else None  # a window's snapshot has no name: it stays as it was
        return factorization("identity" if self.method == "inputs" else endless, horizon)

    def combination(self, ticks: IntArray) -> tuple[tuple[IntArray, FloatArray], ...]:
        """The tree of "nodes" states the errors of windows, not of running sums: so there is one term."""
        ones = np.ones(len(ticks))
        if self.method == "nodes":
            return ((ticks, ones),)
        before = np.maximum(ticks - self.width, 0)
        if self.method != "periods":
            return ((ticks, ones), (before, -ones))
        into = ticks % self.width
        end = np.where(into == 0, before, ticks - into)  # a full period is its own window: the two terms cancel
        return ((ticks, ones), (end, ones), (before, -ones))

    def between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Refused, with the reason."""
        raise ParameterError(f"{self.name!r} {self.no_views}")

    @property
    def no_views(self) -> str:
        return (
            "tells about its own ticks only: two windows that overlap do not tell what came between; add up windows "
            "that do not overlap, or stream the running count beside it"
        )

    def decode_run(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        now, before = noisy[self.width :], noisy[: -self.width]
        if self.method != "periods":
            return now - before  # rows before the first tick are zero
        ticks = np.arange(first_tick, first_tick + len(now))
        into = ticks % self.width
        ends = np.where(into == 0, 0, self.width - into)  # how far back the last finished period ended, from `now`
        rows = np.arange(len(now)) + ends  # row of that end in `noisy` (row width + i is tick first + i)
        previous = noisy[rows] - before
        return np.where((into == 0)[:, np.newaxis], now, now + previous)


class Window(WindowQuery[float], Count):
    """Events in ticks t−width+1 … t, for every tick t.

    `WindowQuery` says what the methods are.

    Guarantee. S = 1 as for `Count`: the encoder is the same. Test:
    tests/queries/test_queries_window.py::test_published_noise_has_the_stated_covariance.

    Args:
        width: the number of ticks of a window.
        method: how windows are computed.
        max_per_tick: as for `Count`.

    Raises:
        ParameterError: the width is not in 1..2^24, or there is no such method.

    >>> Window(24).resolved(horizon=2**16).method
    'periods'
    """

    name = "window"

    def __init__(self, width: int, method: Method = "auto", max_per_tick: int | None = None) -> None:
        Count.__init__(self, max_per_tick)
        self._settle(width, method)

    @property
    def labels(self) -> tuple[str, ...]:
        """One published number."""
        return (f"last {self.width} ticks",)

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"width": self.width, "method": self.method, "max_per_tick": self.max_per_tick}


class WindowOf(WindowQuery):
    """The last `width` ticks of another query: sums, histograms, top-k, words and other running sums.

    Its values are those of the query if only the last `width` ticks had happened; words and episodes count at the tick
    of their last letter.

    Guarantee. The encoder and so S are those of the query inside. Test:
    tests/queries/test_queries_window.py::test_windows_of_other_queries.

    Args:
        of: the query, or its name and parameters: ``{"name": ..., "parameters": ...}``.
        width: the number of ticks of a window.
        method: how windows are computed.

    Raises:
        ParameterError: the query does not publish plain running sums, or as for `Window`.
        TooLarge: the window does not fit the memory.

    >>> from evercount.queries import Sum
    >>> WindowOf(Sum(0, 4), 7).squared_sensitivity("add-remove")
    16.0
    """

    name = "window-of"

    def __init__(self, of: Query | Mapping[str, Any], width: int, method: Method = "auto") -> None:
        if isinstance(of, Mapping):
            of = _inside(of)
        if not isinstance(of, Query) or not of.publishes_sums or of.memory or of.names_users or of.unlisted_keys:
            raise ParameterError(f"a window needs a query that publishes its running sums as they are, {_why_not(of)}")
        if isinstance(of, Count):
            raise ParameterError("for a window of counts use Window(width)")
        self.of = of
        self.event_columns = of.event_columns
        self.in_place = of.in_place
        self._settle(width, method)
        require_fits(width * of.cells, "this window", "Use fewer keys or a shorter window.", bytes_per_cell=32)

    @property
    def cells(self) -> int:
        """Those of the query."""
        return self.of.cells

    @property
    def grid(self) -> float:
        """That of the query."""
        return self.of.grid

    @property
    def labels(self) -> Sequence[str]:
        """Those of the query."""
        return self.of.labels

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of the query."""
        return self.of.squared_sensitivity(adjacency)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        return self.of.l1_sensitivity(adjacency)

    def initial_state(self) -> Any:
        """That of the query."""
        return self.of.initial_state()

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """As the query."""
        return self.of.encode(state, events)

    def encode_run(self, state: Any, ticks: Iterable[Any]) -> tuple[IntArray, Any]:
        """As the query."""
        return self.of.encode_run(state, ticks)

    def encode_totals(self, state: Any, totals: npt.ArrayLike) -> tuple[IntArray, Any]:
        """As the query."""
        return self.of.encode_totals(state, totals)

    @property
    def event_levels(self) -> int:
        """As the query."""
        return self.of.event_levels

    @property
    def row_keys(self) -> tuple[Sequence[str], bool]:
        """As the query."""
        return self.of.row_keys

    @property
    def row_values(self) -> tuple[float, float, float]:
        """As the query."""
        return self.of.row_values

    def totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """As the query."""
        return self.of.totals_of_rows(tick, cell, events, units)

    def check_events(self, events: Iterable[Any]) -> None:
        """As the query."""
        self.of.check_events(events)

    def dump_state(self, state: Any) -> Any:
        """As the query."""
        return self.of.dump_state(state)

    def load_state(self, data: Any) -> Any:
        """As the query."""
        return self.of.load_state(data)

    def top(self, values: FloatArray, errors: RankErrors, k: int | None, level: float) -> list[TopKey]:
        """As the query."""
        return self.of.top(values, errors, k, level)

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments."""
        inside = {"name": self.of.name, "parameters": self.of.parameters()}
        return {"of": inside, "width": self.width, "method": self.method}


def _inside(given: Mapping[str, Any]) -> Query:
    """The query of a window, from its name and parameters."""
    from evercount.queries import build_query

    name, parameters = given.get("name"), given.get("parameters", {})
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise ParameterError(
            'the query of a window is given as {"name": "histogram", "parameters": {"keys": ["north", "south"]}}, '
            f"got {dict(given)!r:.200}"
        )
    return build_query(name, dict(parameters))


def _why_not(of: object) -> str:
    """Why a query has no windows, and what to do instead."""
    if not isinstance(of, Query):
        return f"not {of!r:.80}"
    if not of.running_sums:
        return f"and {of.name!r} is no sum over ticks (a window, an average, a statistic of a graph)"
    reason = "counts a user once for many ticks" if of.names_users else "combines sums, or discovers its keys"
    return f"and {of.name!r} {reason}; releases.last(width) of its stream has the last ticks at no further cost"
