"""How a stream begins: from what is declared, or from a snapshot, with every check both times.

A snapshot is versioned and checksummed, a tree of JSON values with arrays and bytes as raw blocks:

b"evercount snapshot\n" · version (2 bytes) · blake2b-256 of the body · body

The body is zlib of: length of the JSON (8 bytes, big-endian) · JSON · raw blocks, one after the
other. In the JSON an array is {"$array": [dtype, shape, offset]} and bytes are {"$bytes": [length,
offset]}.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import index
from typing import IO, Any, get_args

import numpy as np

from evercount._validate import check_kind, check_whole
from evercount.engine.build import RUNNING, Spec, check_postprocess, make_noise, noise_declaration
from evercount.engine.error_model import ErrorModel, JoinedCells
from evercount.engine.noise_choice import BEST, check_noise_for, choose_noise
from evercount.engine.revisions import (
    MOST_LAGS,
    CellRange,
    RevisedErrors,
    Revisions,
    check_revised,
    day_budget,
)
from evercount.engine.state import Counting, Rows, StreamParameters, StreamState
from evercount.engine.user_counting import SCALARS, PeriodOf, Seen, UserCaps
from evercount.errors import EvercountError, ParameterError, SnapshotError
from evercount.factorizations import Factorization, check_horizon
from evercount.mechanisms.calibrate import build_revisions
from evercount.noise import Secret
from evercount.privacy import Budget, TimeRange
from evercount.queries import build_query
from evercount.queries.base import Query
from evercount.queries.user_cap import Used

MAGIC = b"evercount snapshot\n"
VERSION = 1
DIGEST_BYTES = 32
# bytes of an unpacked snapshot: a crafted small file must not fill the memory
LARGEST_BODY = 1 << 34
# bytes that are squeezed at a time, so that a large snapshot is never copied as one
PIECE = 1 << 20
SMALL_BODY = 1 << 20
"""Bodies below this many bytes are kept as they are inside the zlib format: squeezing them takes
longer than a tick."""
PERIODS_OF_A_KEY = 4  # how many periods the key of noise knows where they have no name
# the kinds of numbers that a snapshot holds; no other is read
DTYPES = ("<i8", "<f8", ">i8", ">f8", "|u1")


def pack(tree: Mapping[str, Any]) -> bytes:
    """One blob that `unpack` takes apart again."""
    file = io.BytesIO()
    write(tree, file)
    return file.getvalue()


def write(tree: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write what `pack` returns into a file that can seek, from its position on, piece by piece."""
    head = MAGIC + VERSION.to_bytes(2, "big")
    place = file.tell() + len(head)
    file.write(head + bytes(DIGEST_BYTES))
    blocks: list[bytes | memoryview] = []
    text = json.dumps(_without_blocks(tree, blocks)).encode()
    parts, digest = (
        [len(text).to_bytes(8, "big"), text, *blocks],
        hashlib.blake2b(digest_size=DIGEST_BYTES),
    )
    # most of a snapshot is the noise's state, random bits: looking for repetitions in it takes time
    # and finds none
    level = 0 if sum(map(len, parts)) < SMALL_BODY else 1
    squeeze = zlib.compressobj(level, strategy=zlib.Z_HUFFMAN_ONLY)

    def put(piece: bytes) -> None:
        digest.update(piece)
        file.write(piece)

    for part in parts:
        for start in range(0, len(part), PIECE):
            put(squeeze.compress(part[start : start + PIECE]))
    put(squeeze.flush())
    end = file.tell()
    file.seek(place)
    file.write(digest.digest())
    file.seek(end)


def unpack(blob: bytes) -> dict[str, Any]:
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise SnapshotError(f"a snapshot is bytes, got {type(blob).__name__}")
    blob = bytes(blob)
    if not blob.startswith(MAGIC):
        raise SnapshotError("this is not an evercount snapshot")
    head = len(MAGIC) + 2
    if len(blob) < head + DIGEST_BYTES:
        raise SnapshotError("the snapshot is truncated")
    version = int.from_bytes(blob[len(MAGIC) : head], "big")
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot has format {version} and this program reads format {VERSION} only"
        )
    stated, body = blob[head : head + DIGEST_BYTES], blob[head + DIGEST_BYTES :]
    if not hmac.compare_digest(hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest(), stated):
        raise SnapshotError("the snapshot is corrupt or truncated: its checksum does not match")
    try:
        inflater = zlib.decompressobj()
        content = inflater.decompress(body, LARGEST_BODY)
        if inflater.unconsumed_tail:
            raise SnapshotError("the snapshot is larger than any that evercount writes")
        size = int.from_bytes(content[:8], "big")
        tree = _with_blocks(json.loads(content[8 : 8 + size]), content, 8 + size)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"malformed snapshot ({type(error).__name__})") from error
    if not isinstance(tree, dict):
        raise SnapshotError("malformed snapshot")
    return tree


def _without_blocks(value: Any, blocks: list[bytes | memoryview]) -> Any:
    """The tree as JSON; arrays and bytes go to `blocks`."""
    if isinstance(value, Mapping):
        packed = {key: _without_blocks(item, blocks) for key, item in value.items()}
        return {"$map": packed} if any(str(key).startswith("$") for key in value) else packed
    if isinstance(value, list | tuple):
        return [_without_blocks(item, blocks) for item in value] if _has_blocks(value) else value
    if not isinstance(value, np.ndarray | bytes):
        return value
    offset = sum(map(len, blocks))
    if isinstance(value, bytes):
        blocks.append(value)
        return {"$bytes": [len(value), offset]}
    blocks.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return {"$array": [value.dtype.str, list(value.shape), offset]}


def _has_blocks(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list may hold arrays or bytes. Long lists of numbers and texts are passed on as
    they are."""
    return not SCALARS.issuperset(map(type, items))


def _with_blocks(value: Any, content: bytes, start: int) -> Any:
    if isinstance(value, list):
        return (
            [_with_blocks(item, content, start) for item in value] if _has_blocks(value) else value
        )
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        dtype, shape, offset = value["$array"]
        if dtype not in DTYPES:
            raise SnapshotError("the snapshot holds an array of an unknown kind")
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(content, dtype, count, start + offset).reshape(shape).copy()
    if "$bytes" in value:
        size, offset = value["$bytes"]
        return content[start + offset : start + offset + size]
    return {
        key: _with_blocks(item, content, start) for key, item in value.get("$map", value).items()
    }


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
    """All that a stream never changes, with every check; `source` says where its noise comes from.
    With `part` it is a stream of these cells only, with the noise that they have in the whole
    stream. `joined` says which cells joined later. With `revise_for` days are published again, and
    each day is a stream of `revise_for` + 1 ticks.

    **Guarantee.** `engine/revisions.proof.md`: all days together keep the budget that the stream of
    one day keeps. Test:
    tests/engine/test_revised_streams.py::test_the_noise_of_a_day_is_that_of_a_stream_of_its_own.
    """
    check_kind("query, the first argument,", query, Query, "Count()")
    check_kind("budget, the second argument,", budget, Budget, "Budget(epsilon=1, delta=1e-6)")
    check_kind("secret", source.get("secret"), Secret | None, "Secret.generate()")
    check_kind(
        "factorization",
        factorization,
        str | Mapping | Factorization | None,
        "'best' or Dense(L, R)",
    )
    check_kind("during", during, TimeRange | None, "the `during` of another stream")
    if horizon is None and isinstance(factorization, Factorization):
        horizon = factorization.horizon
    horizon = check_horizon(horizon)
    if revise_for is not None:
        if part is not None:
            raise ParameterError(
                "late = 'revise': the cells of a revised stream cannot be cut into shards"
            )
        budget, engine = choose_revised(
            query, budget, factorization, postprocess, views, revise_for
        )
        days = Revisions(query, revise_for + 1)
        make = partial(make_noise, query, engine, day_budget(budget), days.lags)
        declared = noise_declaration(query, budget, horizon, during=during)
        built = build_revisions(engine, days.lags, query.cells, horizon, make, declared, **source)
        of_days = RevisedErrors(days, engine, built.sigma, built.stream.rounded)
        caps = UserCaps.of(query, budget, None, revise_for)
        facts = (
            days,
            query,
            budget,
            horizon,
            engine,
            built,
            (),
            replay,
            of_days,
            None,
            (RUNNING,),
            during,
            caps,
        )
        return StreamParameters(*facts, revise_for)
    shown = check_noise_for(query, views)
    query = query.for_views(shown)
    query.check_budget(budget)
    budget, engine = choose_noise(query, budget, horizon, factorization, shown)
    names = check_postprocess(postprocess)
    if "monotone" in names and not query.monotone:
        raise ParameterError(
            f"{query.name!r} can decrease, so its releases cannot be made monotone"
        )
    asked = query if part is None else CellRange(query, part)
    periods = unnamed_periods(budget, during, period_of)
    built = make_noise(
        query, engine, budget, horizon, names, shown, during, periods, part=part, **source
    )
    errors = ErrorModel(asked, engine, built.sigma, built.stream.rounded, query.outputs, joined)
    found = query.discovery
    thresholds = None if found is None else found.thresholds(budget, horizon, errors.unrounded_std)
    caps = UserCaps.of(query, budget, period_of)
    fixed = (asked, query, budget, horizon, engine, built, names, replay, errors)
    return StreamParameters(*fixed, thresholds, shown, during, caps, part=part)


def unnamed_periods(
    budget: Budget, during: TimeRange | None, period_of: PeriodOf | None
) -> tuple[int, ...]:
    """The last ticks of the first periods of a stream whose time range does not name them: a
    function has no name."""
    if period_of is None or budget.period_ticks is None or (during is not None and during.periods):
        return ()
    ticks, first = range(1, (PERIODS_OF_A_KEY + 1) * budget.period_ticks + 1), period_of(1)
    later = range(first + 1, first + 1 + PERIODS_OF_A_KEY)
    return tuple(bisect_left(ticks, period, key=period_of) for period in later)


def check_revised_stream(
    query: Query, budget: Budget, postprocess: Iterable[str], views: Iterable[str], revise_for: int
) -> int:
    """Refuse what cannot be revised, and return how many lags each day has."""
    check_revised(query)
    if check_postprocess(postprocess):
        raise ParameterError(
            "late = 'revise': what is released is not post-processed; declare views, which are"
        )
    if set(views) - {RUNNING}:
        raise ParameterError(
            "late = 'revise': noise is for single days, so omit noise_for; views show any sum of "
            "them"
        )
    query.check_budget(day_budget(budget))
    return check_whole("revise_for", revise_for, 1, MOST_LAGS - 1) + 1


def choose_revised(
    query: Query,
    budget: Budget,
    factorization: Spec | Factorization | None,
    postprocess: Iterable[str],
    views: Iterable[str],
    revise_for: int,
) -> tuple[Budget, Factorization]:
    lags, of_day = (
        check_revised_stream(query, budget, postprocess, views, revise_for),
        day_budget(budget),
    )
    kept, engine = choose_noise(query, of_day, lags, factorization or BEST, (RUNNING,))
    return replace(budget, delta=kept.delta, calibration=kept.calibration), engine


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
        seen, release = state.last
        sums = release._run._sums
        of_published = None if sums is None else sums[:, release._published].tolist()
        last = {"digest": seen.digest, "values": release.values.tolist(), "sums": of_published}
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
        during=None if data["during"] is None else TimeRange(*data["during"]),
        period_of=period_of,
        joined=tuple(JoinedCells(*map(index, one)) for one in data["joined"]),
        dumped=data["noise"],
        **{
            name: data[name]
            for name in ("horizon", "factorization", "postprocess", "views", "revise_for")
        },
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
        hidden=tuple(map(index, data["hidden"])),
    )
    last = data["last"]
    if last is None:
        return parameters, state
    values = np.asarray(last["values"], dtype=np.float64)[np.newaxis]
    sums = None if last["sums"] is None else np.asarray(last["sums"], dtype=np.float64)
    labels = query.labels if query.discovery is None else query.discovery.labels_now(state.encoder)
    rows = Rows(values, sums, labels if parameters.thresholds else None)
    release = parameters.releases(tick, rows, counting)[0]
    return parameters, replace(state, last=(Seen(digest=last["digest"]), release))
