"""Keys that join a running stream, and keys that it does not show any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from evercount.engine.build import squared_norm
from evercount.engine.build_parameters import dump_stream, load_stream
from evercount.engine.derived_query import CellRange
from evercount.engine.error_model import JoinedCells
from evercount.engine.state import StreamParameters, StreamState
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.user_counting import PeriodOf
from evercount.errors import EvercountError, ParameterError
from evercount.mechanisms.joined_noise import join_cells
from evercount.queries.base import Query, V_co
from evercount.queries.rollup import SEPARATOR


def add_keys(
    parameters: StreamParameters, state: StreamState, keys: Sequence[Any], period_of: PeriodOf | None
) -> tuple[StreamParameters, StreamState]:
    """The stream with more keys from its next tick on; nothing of it is changed.

    **Guarantee.** All releases together are a function of those of the stream that had all keys from the start, so they
    have its guarantee, at no further cost, if the keys and the tick do not depend on the events. Where that stream
    would need more noise than this one has, the keys are refused. Numbers of other cells are what they would have been.
    Proof: `mechanisms/joined_noise.proof.md`. Tests: tests/engine/test_add_keys.py.
    """
    query, old = parameters.query.with_keys(list(keys)), parameters.query
    if isinstance(old, CellRange):
        raise ParameterError("a part of the cells cannot be joined by keys: add them to the whole stream")
    if "monotone" in parameters.postprocess:
        raise ParameterError("releases that are made monotone cannot be joined by keys: their errors look back")
    _check_noise(parameters, query)
    data = dump_stream(parameters, replace(state, last=None, last_sums=None))
    more = query.cells - old.cells
    data["query"] = {"name": query.name, "parameters": query.parameters()}
    data["noise"]["state"] = join_cells(parameters.noise.stream, old.cells, more)
    data["totals"] = np.concatenate([state.totals, np.zeros(more, state.totals.dtype)])
    data["joined"] = [*data.get("joined", ()), list(JoinedCells(state.tick, old.cells, old.outputs))]
    grown, after = load_stream(data, period_of)
    return replace(grown, replay=parameters.replay), replace(
        after, encoder=state.encoder, users=state.users, last_users=state.last_users
    )


def label_of(key: Any) -> str:
    """How a key is shown; a path by all its names."""
    return SEPARATOR.join(map(str, key)) if isinstance(key, tuple | list) else str(key)


def _check_noise(parameters: StreamParameters, query: Query) -> None:
    """Refuse keys with which one protected unit could change more than the noise was made for."""
    budget, horizon = parameters.budget, parameters.horizon
    norm = partial(squared_norm, parameters.factorization, budget=budget, horizon=horizon)
    both = (query, parameters.query)
    needed, has = (one.protected_l1(budget, horizon) if budget.pure else norm(one) for one in both)
    if needed > has * (1 + 1e-12):
        raise ParameterError(
            f"with these keys one {budget.unit} could change the counts by more ({needed:g}) than the stream has noise "
            f"for ({has:g}). Declare a successor with all keys (for people under several keys: with max_keys)"
        )


def hide_keys(parameters: StreamParameters, state: StreamState, labels: Sequence[str], hide: bool) -> StreamState:
    """The stream that shows no numbers of these labels from its next tick on, or shows them again. They are counted as
    before, so what is shown again has no gap in its sums. It is post-processing."""
    known = {label: place for place, label in enumerate(parameters.query.labels)}
    unknown = [label for label in labels if label not in known]
    if unknown or parameters.query.discovery is not None:
        raise ParameterError(f"there is no key {', '.join(map(repr, unknown))} in the list of this stream")
    chosen = {known[label] for label in labels}
    hidden = set(state.hidden) | chosen if hide else set(state.hidden) - chosen
    if len(hidden) == len(known):
        raise ParameterError("nothing would be left to show; end the stream instead")
    return replace(state, hidden=tuple(sorted(hidden)))


F = TypeVar("F", bound="GrowingStream[Any]")


def with_joined(stream: F, joined: Sequence[tuple[int, Sequence[Any]]]) -> F:
    """A replay before its first tick with the facts of a stream that keys have joined after some ticks. Its errors are
    those of that stream; its noise is not."""
    for after, keys in joined:
        cells, outputs = stream.query.cells, stream.query.outputs
        stream.add_keys(keys)
        errors = stream._parameters.errors
        known = (*errors.joined[:-1], JoinedCells(after, cells, outputs))
        stream._parameters = replace(stream._parameters, errors=replace(errors, joined=known))
    return stream


class GrowingStream(StreamFacts[V_co]):
    """What a stream can do with its keys while it runs."""

    _torn = False  # whether an interruption left an encoder that works in place between two ticks

    def add_keys(self, keys: Iterable[Any]) -> None:
        """Let keys join from the next tick on: of a histogram, a rollup (paths), distinct or active users.

        They have no history, and noise of their own. It costs nothing: the privacy is that of the stream that had all
        keys from the start. The choice of keys and of the tick must not depend on the events.

        Args:
            keys: The keys; one that is hidden is shown again.

        Raises:
            ParameterError: A key is not legal or known already, the query has no list of keys, or one event or user
                could then change more than the noise was made for; the stream is unchanged.

        >>> from evercount import Budget, Histogram, Stream
        >>> stream = Stream(Histogram(["north"]), Budget(epsilon=1.0, delta=1e-6), horizon=24)
        >>> stream.add_keys(["south"])
        >>> stream.labels
        ('north', 'south')
        """
        self._check_owner()
        self._check_torn()
        hidden = self.hidden_labels
        named = list(dict.fromkeys(tuple(key) if isinstance(key, list) else key for key in keys))
        again = [label_of(key) for key in named if label_of(key) in hidden]
        new = [key for key in named if label_of(key) not in hidden]
        self._state = self._state.with_users()
        parameters, state = self._parameters, self._state
        if new:
            period_of = None if parameters.user_caps is None else parameters.user_caps.period_of
            parameters, state = add_keys(parameters, state, new, period_of)
        self._parameters, self._state = parameters, hide_keys(parameters, state, again, hide=False)

    @property
    def hidden_labels(self) -> tuple[str, ...]:
        """Labels of numbers that are not shown any more."""
        return tuple(self.labels[place] for place in self._state.hidden)

    def add_new_keys(self, keys: Iterable[Any]) -> list[str]:
        """As `add_keys`, for a list that may name keys which are there already.

        Args:
            keys: The keys.

        Returns:
            The labels of those that join.

        Raises:
            ParameterError: As `add_keys`.
        """
        hidden, known = self.hidden_labels, set(self.labels)
        new = [key for key in keys if label_of(key) in hidden or label_of(key) not in known]
        if new:
            self.add_keys(new)
        return [label_of(key) for key in new]

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Show no numbers of these keys from the next tick on. What was published stays published.

        Their events are counted as before, and `add_keys` shows them again.

        Args:
            keys: Labels of published numbers.

        Raises:
            ParameterError: A label is not known, or none would be left; the stream is unchanged.
        """
        self._check_owner()
        self._check_torn()
        self._state = hide_keys(self._parameters, self._state, list(keys), hide=True)

    def _check_torn(self) -> None:
        if self._torn:
            raise EvercountError("this stream was interrupted in the middle of a tick: restore its newest snapshot")
