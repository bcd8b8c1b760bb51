"""What a snapshot of a stream holds, and the stream built from it, checked as a new one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import Any, get_args

import numpy as np

from evercount.engine.build_parameters import build_parameters
from evercount.engine.error_model import JoinedCells
from evercount.engine.retries import TickDigest
from evercount.engine.state import Counting, PublishedRows, StreamParameters, StreamState
from evercount.engine.tick_release import Release
from evercount.engine.user_counting import PeriodOf
from evercount.errors import EvercountError, SnapshotError
from evercount.privacy import Budget, TimeRange
from evercount.queries import build_query
from evercount.queries.user_cap import Used


def dump_stream(parameters: StreamParameters, state: StreamState) -> dict[str, Any]:
    """Everything needed to continue identically: a tree of JSON values, bytes and arrays.
    Secret."""
    if parameters.noise.stream.tick != state.tick:
        raise EvercountError(
            "a step of this stream was interrupted after its noise was drawn: release that tick "
            "first, then take the snapshot, or restore the newest one"
        )
    last = None
    if state.last is not None:
        digest, release = state.last
        sums = release._run._sums
        of_published = None
        if sums is not None:
            of_published = sums[:, release._published].tolist()
        last = {"digest": digest.digest, "values": release.values.tolist(), "sums": of_published}
    return {
        **parameters.dumped,
        "noise": parameters.noise.dump(),
        "tick": state.tick,
        "encoder": parameters.declared.dump_state(state.encoder),
        "last": last,
        "users": {user: list(used) for user, used in state.users.items()},
        "counting": state.counting,
        "totals": state.totals if state.totals.dtype != object else state.totals.tolist(),
        "highest": state.highest,
        "hidden": list(state.hidden),
    }


def load_stream(
    data: Mapping[str, Any], period_of: PeriodOf | None
) -> tuple[StreamParameters, StreamState]:
    """The inverse of `dump_stream`, with every check that a new stream passes."""
    try:
        return _load(data, period_of)
    except SnapshotError:
        raise
    except EvercountError as error:
        raise SnapshotError(f"the snapshot's stream cannot be built here: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SnapshotError(f"malformed snapshot: {error!r}") from error


def _load(
    data: Mapping[str, Any], period_of: PeriodOf | None
) -> tuple[StreamParameters, StreamState]:
    """Build the parameters and the state that a snapshot holds, with all checks."""
    query = build_query(data["query"]["name"], data["query"]["parameters"])
    if data["noise"]["name"] != "exact":
        raise SnapshotError(
            f"the snapshot has noise of another kind: {data['noise']['name']!r:.40}"
        )
    parameters = build_parameters(
        query,
        Budget.from_dict(data["budget"]),
        replay=False,
        part=None if data["part"] is None else range(*data["part"]),
        during=None if data["during"] is None else TimeRange.from_list(data["during"]),
        period_of=period_of,
        joined=tuple(JoinedCells._make(map(index, one)) for one in data["joined"]),
        dumped=data["noise"],
        **{
            name: data[name]
            for name in ("horizon", "factorization", "postprocess", "views", "revise_for")
        },
    )
    state = _load_state(data, parameters)
    if data["last"] is None:
        return parameters, state
    digest = TickDigest(digest=data["last"]["digest"])
    return parameters, replace(state, last=(digest, _load_last(data["last"], parameters, state)))


def _load_state(data: Mapping[str, Any], parameters: StreamParameters) -> StreamState:
    """Read what changes from tick to tick, and check that it belongs to these parameters."""
    query = parameters.query
    tick = data["tick"]
    totals = data["totals"]
    if isinstance(totals, list):  # sums beyond 64 bits
        totals = np.asarray([index(total) for total in totals], dtype=object)
    if parameters.noise.stream.tick != tick:
        raise SnapshotError("the snapshot's noise is at another tick than its sums")
    if totals.shape != (query.cells,):
        raise SnapshotError("the snapshot's sums do not belong to its query")
    counting = data["counting"]
    if counting not in get_args(Counting) and (counting is not None or tick):
        raise SnapshotError("the snapshot does not say how its ticks account for users")
    encoder = None if data["encoder"] is None else query.load_state(data["encoder"])
    return StreamState(
        tick,
        totals,
        encoder,
        highest=data["highest"],
        users={user: Used._make(map(index, used)) for user, used in data["users"].items()},
        counting=counting,
        hidden=tuple(map(index, data["hidden"])),
    )


def _load_last(
    last: Mapping[str, Any], parameters: StreamParameters, state: StreamState
) -> Release[Any]:
    """Make the last release again, which a retry reads back."""
    query = parameters.query
    values = np.asarray(last["values"], dtype=np.float64)[np.newaxis]
    sums = None
    if last["sums"] is not None:
        sums = np.asarray(last["sums"], dtype=np.float64)
    if query.discovery is None:
        labels = query.labels
    else:
        labels = query.discovery.labels_now(state.encoder)
    rows = PublishedRows(values, sums, labels if parameters.thresholds else None)
    return parameters.releases(state.tick, rows, state.counting)[0]
