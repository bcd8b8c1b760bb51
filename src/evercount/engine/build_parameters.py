"""Builds a stream, with every check: from what is declared, and from the data of `dump_stream`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, get_args

import numpy as np

from evercount._validate import check_whole
from evercount.engine.build import Spec, check_postprocess, make_noise, noise_declaration
from evercount.engine.derived_query import MOST_LAGS, CellRange, Revisions, check_revised
from evercount.engine.error_model import ErrorModel, JoinedCells
from evercount.engine.given_events import Seen
from evercount.engine.noise_choice import BEST, check_noise_for, choose_noise
from evercount.engine.revisions import RevisedErrors, day_budget
from evercount.engine.state import Rows, StreamParameters, StreamState
from evercount.engine.user_counting import Counting, PeriodOf, UserCaps
from evercount.engine.view_widths import RUNNING
from evercount.errors import EvercountError, ParameterError, SnapshotError
from evercount.factorizations import Factorization, check_horizon
from evercount.mechanisms.revision_noise import build_revisions
from evercount.noise import Secret
from evercount.privacy import Budget, TimeRange
from evercount.queries import build_query
from evercount.queries.base import Query
from evercount.queries.user_cap import Used


def build_parameters(
    query: Query,
    budget: Budget,
    horizon: int | None,
    factorization: Spec | Factorization | None,
    postprocess: Iterable[str],
    replay: bool,
    part: range | None = None,
    views: Iterable[str] = (),
    during: TimeRange | None = None,
    period_of: PeriodOf | None = None,
    joined: tuple[JoinedCells, ...] = (),
    revise_for: int | None = None,
    **source: Any,
) -> StreamParameters:
    """All that a stream never changes, with every check; `source` says where its noise comes from. With `part` it is a
    stream of these cells only, with the noise that they have in the whole stream. `joined` says which cells joined
    later. With `revise_for` days are published again, and each day is a stream of `revise_for` + 1 ticks.

    **Guarantee.** `engine/revisions.proof.md`: all days together keep the budget that the stream of one day keeps.
    Test: tests/engine/test_revised_streams.py::test_the_noise_of_a_day_is_that_of_a_stream_of_its_own.
    """
    if not isinstance(query, Query):
        raise ParameterError(f"the first argument must be a query such as Count(), got {query!r}")
    if not isinstance(budget, Budget):
        raise ParameterError(f"the second argument must be a Budget, got {budget!r}")
    if not isinstance(source.get("secret"), Secret | None):
        raise ParameterError(
            f"secret must be a Secret, such as Secret.generate(), got {type(source['secret']).__name__}"
        )
    if horizon is None and isinstance(factorization, Factorization):
        horizon = factorization.horizon
    if not isinstance(factorization, str | Mapping | Factorization | None):
        raise ParameterError(
            f"a factorization is a name or an object such as Dense(L, R), got {type(factorization).__name__}"
        )
    horizon = check_horizon(horizon, unbounded=True)
    if revise_for is not None:
        if part is not None:
            raise ParameterError("late = 'revise': the cells of a revised stream cannot be cut into shards")
        budget, engine = choose_revised(query, budget, factorization, postprocess, views, revise_for)
        days = Revisions(query, revise_for + 1)
        make = partial(make_noise, query, engine, day_budget(budget), days.lags)
        declared = noise_declaration(query, budget, horizon, (), (RUNNING,), during)
        built = build_revisions(engine, days.lags, query.cells, horizon, make, declared, **source)
        of_days = RevisedErrors(days, engine, built.sigma, built.stream.rounded)
        caps = UserCaps.of(query, budget, None, revise_for)
        facts = (days, budget, horizon, engine, built, (), replay, of_days, None, (RUNNING,), during, caps)
        return StreamParameters(*facts, revise_for)
    shown = check_noise_for(query, views)
    query = query.for_views(shown)
    query.check_budget(budget)
    budget, engine = choose_noise(query, budget, horizon, factorization, shown)
    names = check_postprocess(postprocess)
    if "monotone" in names and not query.monotone:
        raise ParameterError(f"{query.name!r} can decrease, so its releases cannot be made monotone")
    asked = query if part is None else CellRange(query, part)
    if during is not None and not isinstance(during, TimeRange):
        raise ParameterError(f"during must be a TimeRange, got {during!r}")
    built = make_noise(query, engine, budget, horizon, names, shown, during, part=part, **source)
    errors = ErrorModel(asked, engine, built.sigma, built.stream.rounded, query.outputs, joined)
    found = query.discovery
    thresholds = None if found is None else found.thresholds(budget, horizon, errors.unrounded_std)
    caps = UserCaps.of(query, budget, period_of)
    fixed = (asked, budget, horizon, engine, built, names, replay, errors)
    return StreamParameters(*fixed, thresholds, shown, during, caps)


def choose_revised(
    query: Query,
    budget: Budget,
    factorization: Spec | Factorization | None,
    postprocess: Iterable[str],
    views: Iterable[str],
    revise_for: int,
) -> tuple[Budget, Factorization]:
    check_revised(query)
    if check_postprocess(postprocess):
        raise ParameterError("late = 'revise': declare views, which are post-processed; what is released is not")
    if set(views) - {RUNNING}:
        raise ParameterError("late = 'revise': noise is for single days, so omit noise_for; views show any sum of them")
    of_day = day_budget(budget)
    query.check_budget(of_day)
    kept, engine = choose_noise(
        query, of_day, check_whole("revise_for", revise_for, 1, MOST_LAGS - 1) + 1, factorization or BEST, (RUNNING,)
    )
    return replace(budget, delta=kept.delta, calibration=kept.calibration), engine


def dump_stream(parameters: StreamParameters, state: StreamState) -> dict[str, Any]:
    """Everything needed to continue identically: a tree of JSON values, bytes and arrays. Secret."""
    if parameters.noise.stream.tick != state.tick:
        raise EvercountError(
            "a step of this stream was interrupted after its noise was drawn: release that tick first, then take the "
            "snapshot, or restore the newest one"
        )
    query, last = parameters.query, None
    part: dict[str, Any] = {}
    if isinstance(query, Revisions):
        part, query = {"revise_for": parameters.revise_for}, query.query
    if isinstance(query, CellRange):
        part = {"part": [query.part.start, query.part.stop]}
        query = query.query
    if state.last is not None:
        seen, release = state.last
        sums = None if state.last_sums is None else state.last_sums.tolist()
        last = {"digest": seen.digest, "values": release.values.tolist(), "sums": sums}
    return {
        "query": {"name": query.name, "parameters": query.parameters()},
        "budget": parameters.budget.to_dict(),
        "horizon": parameters.horizon,
        "factorization": parameters.factorization.spec,
        "views": list(parameters.views),
        "during": None if parameters.during is None else parameters.during.to_list(),
        "postprocess": list(parameters.postprocess),
        "noise": parameters.noise.dump(),
        "tick": state.tick,
        "encoder": query.dump_state(state.encoder),
        "last": last,
        "users": {user: list(used) for user, used in state.users.items()},
        "counting": state.counting,
        "totals": state.totals if state.totals.dtype != object else state.totals.tolist(),
        "highest": state.highest,
        **part,
        **({"joined": [list(one) for one in parameters.errors.joined]} if parameters.errors.joined else {}),
        **({"hidden": list(state.hidden)} if state.hidden else {}),
    }


def load_stream(data: Mapping[str, Any], period_of: PeriodOf | None) -> tuple[StreamParameters, StreamState]:
    """The inverse of `dump_stream`, with every check that a new stream passes."""
    try:
        return _load(data, period_of)
    except SnapshotError:
        raise
    except EvercountError as error:
        raise SnapshotError(f"the snapshot's stream cannot be built here: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SnapshotError(f"malformed snapshot: {error!r}") from error


def _load(data: Mapping[str, Any], period_of: PeriodOf | None) -> tuple[StreamParameters, StreamState]:
    query = build_query(data["query"]["name"], data["query"]["parameters"])
    if data["noise"]["name"] != "exact":
        raise SnapshotError(f"the snapshot has noise of another kind: {data['noise']['name']!r:.40}")
    parameters = build_parameters(
        query,
        Budget.from_dict(data["budget"]),
        data["horizon"],
        data["factorization"],
        data["postprocess"],
        False,
        range(*data["part"]) if "part" in data else None,
        data["views"],
        None if data["during"] is None else TimeRange(*data["during"]),
        period_of,
        tuple(JoinedCells(*map(index, one)) for one in data.get("joined", ())),
        data.get("revise_for"),
        dumped=data["noise"],
    )
    query = parameters.query
    tick, totals = data["tick"], data["totals"]
    if isinstance(totals, list):  # sums beyond 64 bits
        totals = np.asarray([index(total) for total in totals], dtype=object)
    if parameters.noise.stream.tick != tick:
        raise SnapshotError("the snapshot's noise is at another tick than its sums")
    if totals.shape != (query.cells,):
        raise SnapshotError("the snapshot's sums do not belong to its query")
    counting = data["counting"]
    if counting not in get_args(Counting) and (counting is not None or tick):
        raise SnapshotError("the snapshot does not say how its ticks account for users")
    state = StreamState(
        tick,
        totals,
        query.load_state(data["encoder"]) if data["encoder"] is not None else None,
        data["highest"],
        {user: Used(*map(index, used)) for user, used in data["users"].items()},
        counting=counting,
        hidden=tuple(map(index, data.get("hidden", ()))),
    )
    last = data["last"]
    if last is None:
        return parameters, state
    values = np.asarray(last["values"], dtype=np.float64)[np.newaxis]
    sums = None if last["sums"] is None else np.asarray(last["sums"], dtype=np.float64)
    labels = query.labels if query.discovery is None else query.discovery.labels_now(state.encoder)
    rows = Rows(values, sums, labels if parameters.thresholds else None)
    release = parameters.releases(tick, rows, counting)[0]
    return parameters, replace(state, last=(Seen(digest=last["digest"]), release), last_sums=sums)
