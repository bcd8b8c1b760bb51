"""Running sums of a user's own encoder, and the check that tells when its declared sensitivity is too small."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import IntArray
from evercount._validate import check_count, check_name, check_positive
from evercount.errors import InputError, ParameterError
from evercount.queries.base import LARGEST_TOTAL, Adjacency, Query
from evercount.queries.histogram import ADJACENCIES
from evercount.queries.memory_limit import require_fits


class PrefixQuery(Query):
    """Running sums of the vectors that your own function makes of the ticks.

    Without `state`, `encode(events)` returns a vector of `cells` whole numbers (in units of `grid`). With `state` (any
    JSON value but None), `encode(state, events)` returns the vector and the next state. The function must be
    deterministic and should raise InputError for events that it does not accept.

    `sensitivity` maps an adjacency to S, in real units squared. Declare only the adjacencies that you have proved.

    A stream with this query is restored from a snapshot by the function's module and name. That module must be
    imported first: nothing is imported for you. A lambda or a local function works, but cannot be restored.

    Guarantee. None of its own: privacy rests on the declared S, which the engine trusts. `check` attacks it. Proof
    obligations: `prefix.proof.md`. Test:
    tests/queries/test_queries_prefix.py::test_check_catches_a_sensitivity_that_is_too_small.
    """

    name: ClassVar[str] = "prefix"

    def __init__(
        self,
        encode: Callable[..., Any] | str,
        cells: int,
        sensitivity: Mapping[Adjacency, float],
        grid: float = 1.0,
        state: Any = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self._function = _resolve(encode) if isinstance(encode, str) else encode
        if not callable(self._function):
            raise ParameterError(f"encode must be a function or 'module:name', not {encode!r:.80}.")
        self._cells = check_count("cells", cells)
        require_fits(self._cells, "this query", "Use fewer cells.")
        if not isinstance(sensitivity, Mapping) or not sensitivity:
            raise ParameterError("sensitivity must map 'add-remove', 'replace' or both to S, e.g. {'replace': 2}.")
        self._sensitivity: dict[str, float] = {}
        for adjacency, squared in sensitivity.items():
            check_name("adjacency", adjacency, ADJACENCIES)
            self._sensitivity[adjacency] = check_positive(f"the sensitivity for {adjacency}", squared)
        self._grid = check_positive("grid", grid)
        try:
            self._initial = json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            raise ParameterError(f"state must be a JSON value: {error}.") from error
        if labels is not None and (isinstance(labels, str) or len(labels) != self._cells):
            raise ParameterError(f"labels must be a list of {self._cells} strings, one per cell.")
        self._labels = None if labels is None else tuple(map(str, labels))

    @property
    def cells(self) -> int:
        """As declared."""
        return self._cells

    @property
    def grid(self) -> float:
        """As declared."""
        return self._grid

    @property
    def labels(self) -> Sequence[str]:
        """As declared; without a declaration the numbers of the cells."""
        return super().labels if self._labels is None else self._labels

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S as declared; a ParameterError for an adjacency that was not declared."""
        check_name("adjacency", adjacency, ADJACENCIES)
        if adjacency not in self._sensitivity:
            raise ParameterError(
                f"this query declares no sensitivity for {adjacency!r}; use {' or '.join(self._sensitivity)}, or prove "
                "one and declare it."
            )
        return self._sensitivity[adjacency]

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """See `Query`, from the declared S: the smaller of √(2·cells·S) and S/grid.

        **Guarantee.** If S bounds Σ_cells (P² + N²), both bound Σ_cells (P + N): the first is Cauchy's inequality for
        2·cells numbers; for the second, P and N are whole multiples of the grid, so P·grid ≤ P². Proof:
        `prefix.proof.md`, "Pure privacy". Test: tests/queries/test_l1_sensitivity.py::test_prefix_query_from_its_s.
        """
        squared = self.squared_sensitivity(adjacency)
        return min(math.sqrt(2 * self._cells * squared), squared / self._grid) * (1 + 2.0**-50)

    def initial_state(self) -> Any:
        """A fresh copy of `state`."""
        return copy.deepcopy(self._initial)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """What the function makes of the tick, checked; the old state is untouched whatever the function does."""
        if self._initial is None:
            return self._checked(self._function(events)), None
        result = self._function(copy.deepcopy(state), events)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError("an encoder with state must return (vector, next state)")
        try:
            same = json.loads(json.dumps(result[1])) == result[1] and _strict(result[1])
        except (TypeError, ValueError):
            same = False
        if not same:  # a snapshot would bring back another state: 1 as "1", a tuple as a list
            raise InputError("the encoder's next state must be a JSON value: text keys, lists, no tuples or NaN")
        return self._checked(result[0]), result[1]

    def _checked(self, vector: Any) -> IntArray:
        array = np.asarray(vector)
        if array.shape != (self._cells,):
            raise InputError(f"the encoder returned shape {array.shape} where ({self._cells},) is declared")
        if array.dtype.kind == "f":
            if not np.isfinite(array).all() or (array != np.rint(array)).any():
                raise InputError("the encoder returned a number that is not whole; choose a finer grid and round")
        elif array.dtype.kind not in "iub":
            raise InputError(f"the encoder returned {array.dtype} where whole numbers are declared")
        if array.dtype.kind != "b" and (array.max() > LARGEST_TOTAL or array.min() < -LARGEST_TOTAL):
            raise InputError("the encoder returned an increment beyond 2^53 in size")
        return array.astype(np.int64)

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments, with the function by its module and name."""
        return {
            "encode": _path(self._function),
            "cells": self._cells,
            "sensitivity": dict(self._sensitivity),
            "grid": self._grid,
            "state": copy.deepcopy(self._initial),
            "labels": None if self._labels is None else list(self._labels),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrefixQuery) and self._function == other._function and super().__eq__(other)

    __hash__ = Query.__hash__


def _path(function: Callable[..., Any]) -> str:
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}:{owner.__qualname__}"


def _strict(value: Any) -> bool:
    """Whether JSON gives back the same types; it compares 1 and True, or a list and its subclass, as equal."""
    if isinstance(value, dict):
        return type(value) is dict and all(type(key) is str and _strict(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(map(_strict, value))
    return value is None or type(value) in (str, bool, int, float)


def _resolve(path: str) -> Callable[..., Any]:
    module, _, qualified = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    # compared with its own path, so that only a function in its own place is taken and never any other attribute
    if not callable(found) or getattr(found, "__qualname__", None) != qualified:
        raise ParameterError(
            f"the encoder {path!r:.120} is not there: import its module first. Lambdas and local functions cannot be "
            "restored; move the encoder to the top of a module."
        )
    result: Callable[..., Any] = found
    return result
