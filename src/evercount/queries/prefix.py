"""Running sums of a user's own encoder, and the check that tells when its declared sensitivity is
too small."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from evercount._validate import (
    IntArray,
    check_count,
    check_name,
    check_positive,
    check_public_text,
    escaped,
    require_fits,
)
from evercount.errors import InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import ADJACENCIES, LARGEST_TOTAL, Query
from evercount.queries.counts import whole_numbers
from evercount.queries.encoder_code import digest_of_function

Encoder = Callable[..., Any]
Registered = TypeVar("Registered", bound=Encoder)

_ENCODERS: dict[str, Encoder] = {}
"""The encoders that this program has registered: the only ones that a name can stand for."""


def register_encoder(name: str) -> Callable[[Registered], Registered]:
    """Let a name stand for an encoder of `PrefixQuery`, in declarations, snapshots and stores.

    Register at import, before anything that names the encoder is restored or declared. A name
    stands for one encoder; the same definition may be registered again (a module that is reloaded).

    **Guarantee.** A name from a declaration, a snapshot or a store is looked up among registered
    encoders and nowhere else: no name is imported, and none is taken from loaded modules. Test:
    tests/queries/test_queries_prefix.py::test_no_name_is_resolved_but_those_of_registered_encoders.

    Args:
        name: the name, a public text.

    Returns:
        What registers the encoder and returns it: a decorator, or a function to call with the
        encoder.

    Raises:
        ParameterError: the name is taken by another encoder, or the encoder is not a function.

    >>> @register_encoder("parity of an example")
    ... def parity(events):
    ...     return [sum(event % 2 for event in events)]
    >>> query = PrefixQuery("parity of an example", 1, {"add-remove": 1})
    >>> query.encode(None, [1, 2, 3])[0].tolist()
    [2]
    """
    check_public_text("the encoder's name", name)

    def register(function: Registered) -> Registered:
        if not callable(function):
            raise ParameterError(f"an encoder is a function, got {function!r:.80}")
        present = _ENCODERS.get(name)
        if (
            present is not None
            and present is not function
            and (_path(present) != _path(function) or "<" in _path(function))
        ):
            raise ParameterError(
                f"the name {name!r:.80} is taken by the encoder {_path(present)!r:.120}; choose "
                f"another name for {_path(function)!r:.120}."
            )
        _ENCODERS[name] = function
        return function

    return register


class PrefixQuery(Query):
    """Running sums of the vectors that your own function makes of the ticks.

    Without `state`, `encode(events)` returns a vector of `cells` whole numbers (in units of
    `grid`). With `state` (any JSON value but None), `encode(state, events)` returns the vector and
    the next state. The function must be deterministic and should raise InputError for events that
    it does not accept.

    `sensitivity` maps an adjacency to S, in real units squared. Declare only the adjacencies that
    you have proved.

    `encode` is the function itself, or the name under which the program has registered it
    (`register_encoder`). Only a registered name can be declared, stored and restored; nothing is
    ever imported or looked up by its path. A function that is not registered works too; its
    snapshots name it "module:name", and are restored once the program has registered it under that
    name.

    Guarantee. None of its own: privacy rests on the declared S, which the engine trusts. `check`
    attacks it. Proof obligations: `prefix.proof.md`. Test:
    tests/queries/test_queries_prefix.py::test_the_audit_catches_a_sensitivity_that_is_too_small.

    Args:
        encode: the function, or its registered name.
        cells: the number of running sums.
        sensitivity: S for each adjacency that you have proved.
        grid: the unit of one increment.
        state: the encoder's memory before the first tick; None for an encoder without memory.
        labels: one text for each cell.

    Raises:
        ParameterError: a parameter is not legal, or the name is not registered.

    >>> def lengths(events):
    ...     return [len(events), sum(map(len, events))]
    >>> PrefixQuery(lengths, 2, {"add-remove": 1 + 20**2}).encode(None, ["ab", "c"])[0].tolist()
    [2, 3]
    """

    name: ClassVar[str] = "prefix"
    cells = 0
    grid = 1.0

    def __init__(
        self,
        encode: Encoder | str,
        cells: int,
        sensitivity: Mapping[Adjacency, float],
        grid: float = 1.0,
        state: Any = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        if isinstance(encode, str) and encode not in _ENCODERS:
            raise ParameterError(
                f"no encoder is registered under the name {escaped(encode[:120], quote=True)}: the "
                "program must call register_encoder(name)(function) before it declares or restores "
                "a stream with it. Nothing is imported or looked up for you."
            )
        if isinstance(encode, str):
            self._function = _ENCODERS[encode]
        else:
            self._function = encode
        if not callable(self._function):
            raise ParameterError(
                f"encode must be a function or the name of a registered one, got {encode!r:.80}"
            )
        self.cells = check_count("cells", cells)
        require_fits(self.cells, "this query", "Use fewer cells.")
        if not isinstance(sensitivity, Mapping) or not sensitivity:
            raise ParameterError(
                "sensitivity must map 'add-remove', 'replace' or both to S, e.g. {'replace': 2}."
            )
        self._sensitivity: dict[str, float] = {}
        for adjacency, squared in sensitivity.items():
            check_name("adjacency", adjacency, ADJACENCIES)
            self._sensitivity[adjacency] = check_positive(
                f"the sensitivity for {adjacency}", squared
            )
        self.grid = check_positive("grid", grid)
        try:
            self._initial = json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            raise ParameterError(f"state must be a JSON value: {error}.") from error
        if labels is not None and (isinstance(labels, str) or len(labels) != self.cells):
            raise ParameterError(f"labels must be a list of {self.cells} strings, one per cell.")
        if labels is None:
            self._labels = None
        else:
            self._labels = tuple(check_public_text("the label", label) for label in labels)

    @property
    def labels(self) -> Sequence[str]:
        if self._labels is None:
            return super().labels
        return self._labels

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        check_name("adjacency", adjacency, ADJACENCIES)
        if adjacency not in self._sensitivity:
            raise ParameterError(
                f"this query declares no sensitivity for {adjacency!r}: use "
                f"{' or '.join(self._sensitivity)}"
            )
        return self._sensitivity[adjacency]

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """From the declared S: the smaller of √(2·cells·S) and S/grid.

        **Guarantee.** If S bounds Σ_cells (P² + N²), both bound Σ_cells (P + N): the first is
        Cauchy's inequality for 2·cells numbers; for the second, P and N are whole multiples of the
        grid, so P·grid ≤ P². Proof: `prefix.proof.md`, "Pure privacy". Test:
        tests/queries/test_l1_sensitivity.py::test_prefix_query_from_its_s.
        """
        squared = self.squared_sensitivity(adjacency)
        return min(math.sqrt(2 * self.cells * squared), squared / self.grid) * (1 + 2.0**-50)

    def initial_state(self) -> Any:
        return copy.deepcopy(self._initial)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        if self._initial is None:
            return self._checked(self._function(events)), None
        result = self._function(copy.deepcopy(state), events)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError("an encoder with state must return (vector, next state)")
        try:
            stored_state = json.loads(json.dumps(result[1]))
            # a snapshot would bring back another state: 1 as "1", a tuple as a list
            if stored_state != result[1]:
                raise ValueError
        except (TypeError, ValueError):
            wrong = (
                "the encoder's next state must be a JSON value: text keys, lists, no tuples or NaN"
            )
            raise InputError(wrong) from None
        return self._checked(result[0]), stored_state

    def _checked(self, vector: Any) -> IntArray:
        if np.shape(vector) != (self.cells,):
            raise InputError(
                f"the encoder returned shape {np.shape(vector)} where ({self.cells},) is declared"
            )
        what = "the numbers that the encoder returned (for fractions choose a finer grid and round)"
        return whole_numbers(vector, -LARGEST_TOTAL, LARGEST_TOTAL, what)

    def identity(self) -> list[Any]:
        """As for every query; with a digest of a function that is not registered, whose path
        another may share."""
        if self._function in _ENCODERS.values():
            return super().identity()
        return [*super().identity(), digest_of_function(self._function)]

    def parameters(self) -> dict[str, Any]:
        return {
            "encode": _name_of(self._function),
            "cells": self.cells,
            "sensitivity": dict(self._sensitivity),
            "grid": self.grid,
            "state": copy.deepcopy(self._initial),
            "labels": None if self._labels is None else list(self._labels),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PrefixQuery)
            and self._function == other._function
            and super().__eq__(other)
        )

    __hash__ = Query.__hash__


def _path(function: Encoder) -> str:
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}:{owner.__qualname__}"


def _name_of(function: Encoder) -> str:
    """Find the first name under which a function is registered, else its path."""
    return next(
        (name for name, present in _ENCODERS.items() if present == function), _path(function)
    )
