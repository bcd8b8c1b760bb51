"""A stream moves from a state file into a store (`db`), or back (`state`), once and as a whole.

    into a store                                          back into a state file
    1. the state says where it is going                   the store says where it is going
    2. one transaction of the store has the stream        the state is written, by a rename
    3. the state becomes a tombstone, which names         the store drops secret and sums,
       the store                                          and keeps the history

After step 1 the old place releases nothing, and only after step 2 the new one does: there is never
a moment at which two places could release a tick. Whoever is killed in between is finished by the
next run that says the same; a run that goes on at the old place is refused and told where the
stream is. So no tick is released twice with the same noise, over kills at every step
(tests/files/test_move_stream.py).
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection

from evercount.declarations.settle import Settled
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.files.keeper import Keeper, RunState
from evercount.files.output_file import IN_STORE, Marker
from evercount.files.published import Publication
from evercount.files.release_job import Job
from evercount.files.resume_run import declaration_of
from evercount.files.state_file import StateFile, moving_text
from evercount.files.store_keeper import StoreKeeper, place_of, write_run
from evercount.privacy import Cost
from evercount.store import LiveStream, Store, key_from_environment
from evercount.store.database import find
from evercount.store.moves import (
    MovingStream,
    adopt_stream,
    begin_to_leave,
    check_adoption,
    finish_leaving,
)
from evercount.store.open_stream import StoredStream
from evercount.store.schema import noise_identities
from evercount.store.stream_life import newest_of

# -- into a store --------------------------------------------------------------------------------


def take_over(store: Store, source: StateFile, job: Job) -> bool:
    """Take the stream of a state file into a store, unless it is there; return whether it is now.

    It is not if a run only checks: that goes on with the state file.
    """
    state = source.read()
    if source.tombstone is not None:
        _go_on_in(store, source, source.tombstone, job)
        return True
    if state is None:
        if job.state is not None:
            raise ParameterError(
                f"there is no state at {source.path}: with `db` the store is the state. Omit "
                "`state`, or name the state file whose stream the store is to take over"
            )
        return True  # there is none to take over
    target = Marker(source.identity(), place_of(store))
    if source.moving not in (None, target):
        raise StoreError(moving_text(source.path, source.moving))
    live = _with_identity(store, target.identity)
    if isinstance(live, LiveStream):
        _check_unfinished(source, live)
        _check_name(store, source, live, job)
    else:
        _check_free(store, source, live, job)
        with source.open_stream() as stream:
            moving = _moving_stream(source, state, stream, job)
            check_adoption(store, job.declaration.name, moving)
            if job.check:
                return False
            source.begin_to_leave(target)
            _adopt(store, state, moving, job)
    if not job.check:
        _mark(source, target)  # before the tombstone, which a killed run would stop at
        source.bury(target)
    return True


def _go_on_in(store: Store, source: StateFile, tombstone: Marker, job: Job) -> None:
    """Refuse a store that does not have the stream of a tombstone, or has it by another name."""
    live = _with_identity(store, tombstone.identity)
    if not isinstance(live, LiveStream):
        since = "" if live is None else f" ({live.reason})"
        raise StoreError(
            f"the stream of {source.path} was moved to {tombstone.place}{since}, and "
            "this `db` does not have it: go on where it is"
        )
    _check_name(store, source, live, job)
    output = source.output
    marker = None if output is None else output.read_marker()
    if marker is not None and marker.identity == tombstone.identity:
        _mark(source, tombstone)  # a run was killed between the two


def _mark(source: StateFile, target: Marker) -> None:
    if source.output is not None:
        source.output.write_marker(target)


def _check_unfinished(source: StateFile, live: LiveStream) -> None:
    """Refuse a state whose stream the store has, unless that is a move that was killed."""
    if source.origin is not None:
        live.check_not_moving()
    if source.moving is None:
        raise StoreError(
            f"the store has the stream of {source.path}, up to tick {live.closed}, and both claim "
            f"it: the state is a copy from before the stream was moved. The store is the stream; "
            f"move {source.path} away"
        )


def _check_name(store: Store, source: StateFile, live: LiveStream, job: Job) -> None:
    """Refuse to begin another stream where the run means the one that was moved."""
    name = job.declaration.name
    if name in store.streams and newest_of(store, name) is live:
        return
    raise Conflict(
        f"the stream of {source.path} is {live.name!r} in the store, and not {name!r}: give "
        f"`name` {live.name}"
    )


def _check_free(store: Store, source: StateFile, ended: StoredStream | None, job: Job) -> None:
    """Refuse to move a stream that the run does not go on with, or whose name is taken."""
    name = job.declaration.name
    if ended is not None:
        raise Conflict(
            f"the store had the stream of {source.path} before ({ended.reason}), and a stream "
            "comes to a store once: take it into another store, or go on without `db`"
        )
    if store.name_is_spent(name):
        raise Conflict(
            f"stream {name!r} of the store is over, and its name cannot be used again: take the "
            f"stream of {source.path} into another store, or go on with `state` and without `db`"
        )
    if name in store.streams:
        raise Conflict(
            f"the store has another stream {name!r}, and {source.path} is the state of this one: "
            "go on without `db`, or give the streams different names"
        )
    source.finish()
    assert source.state is not None
    declaration_of(job, source, source.state)


def _moving_stream(source: StateFile, state: RunState, stream: Stream, job: Job) -> MovingStream:
    settled = state.settled
    known = replace(job, declaration=settled.with_query(stream._parameters.declared))
    published = Publication(known, source, stream, (), None)
    return MovingStream(
        _in_its_chain(state),
        stream,
        [_all_released(published)],
        state.joined,
        state.marks,
        [Cost.from_dict(cost) for cost in state.earlier],
        state.carried_totals,
    )


def _in_its_chain(state: RunState) -> Settled:
    """The declaration, with the start of the first of the streams that it goes on for."""
    settled = state.settled
    if state.first_start is None:
        return settled
    return settled._follows(state.first_start, settled.chain_name)


def _adopt(store: Store, state: RunState, moving: MovingStream, job: Job) -> None:
    def keep(connection: Connection, live: LiveStream) -> None:
        write_run(connection, live, state)

    adopt_stream(store, job.declaration.name, moving, keep)


def _all_released(published: Publication) -> ReleaseTable:
    """All numbers of a stream as they were released, in one table."""
    own = published.own_table()
    if own is not None:
        return own
    schedule = published.job.declaration.schedule
    releases = published.releases
    return releases.table(starts=schedule.starts_of(1, len(releases)))


# -- back into a state file ------------------------------------------------------------------------


def take_back(target: StateFile, job: Job) -> Keeper:
    """Take a stream out of the store that an output or a tombstone names; return its keeper, which
    is the store if a run only checks."""
    if target.read() is not None:
        return target  # `load` finishes what was begun
    marker = target.tombstone
    if marker is None and target.output is not None:
        marker = target.output.read_marker()
    if marker is None or not marker.in_store:
        return target
    if _is_gone(marker):
        raise StoreError(
            f"{marker.place}, which has this stream, is not there: put it back where it was"
        )
    here = str(target.path.absolute())
    with ExitStack() as on_error:
        store = Store(_database_of(marker), key_from_environment(None))
        on_error.callback(store.close)
        live = _with_identity(store, marker.identity)
        if not isinstance(live, LiveStream):
            raise StoreError(_not_there(marker, live))
        keeper = StoreKeeper(store, live.name, target.output, job.now, leaving_for=here)
        on_error.callback(keeper.close)
        state = keeper.load()
        if state is None:
            raise StoreError(
                f"stream {live.name!r} of {marker.place} has released nothing: retire it there, "
                "and start anew"
            )
        _check_can_leave(keeper, live, state, job)
        if job.check:
            target.close()
            on_error.pop_all()
            return keeper
        origin = Marker(live.stream.identity, marker.place)
        begin_to_leave(store, live, here)
        target.receive(state, keeper, origin)
        finish_leaving(store, origin.identity, here)
        target.forget_origin()
        on_error.pop_all()
    keeper.close()
    return target


def _not_there(marker: Marker, ended: StoredStream | None) -> str:
    """Say what has become of a stream that a store does not have."""
    if ended is None:
        return f"{marker.place} is said to have this stream, and has not: it was lost or moved on"
    return f"the stream of {marker.place} is not there any more: {ended.reason}"


def finish_take_back(target: StateFile) -> None:
    """Let the store that a stream came from drop what could release, unless it has."""
    origin = target.origin
    if origin is None or _is_gone(origin):
        return  # a later run does it, if the store comes back: it releases nothing
    with closing(Store(_database_of(origin), key_from_environment(None))) as store:
        finish_leaving(store, origin.identity, str(target.path.absolute()))
    target.forget_origin()


def _check_can_leave(keeper: StoreKeeper, live: LiveStream, state: RunState, job: Job) -> None:
    """Refuse to move a stream that a state file could not go on with exactly."""
    output = keeper.output
    declaration_of(job, keeper, state)
    missing = (mark for mark in live.marks if mark.missing is not None)
    if live.totals.any() or live.events or any(mark.last >= live.open_tick for mark in missing):
        raise Conflict(
            f"ticks of stream {live.name!r} are declared missing, which a state file does not "
            "know: take it back when the tick after them is released"
        )
    if live.moving is not None:
        return  # all of this was looked at before
    current = output is None or keeper.is_current(job.output_facts)
    if state.output_facts != job.output_facts or not current:
        raise Conflict(
            "the last run into the store has not written this `out`, and a state file only adds "
            "to it: run once more with `db`, this `name` and this `out`, then take the stream back"
        )


def _database_of(marker: Marker) -> str:
    return marker.place.removeprefix(IN_STORE)


def _is_gone(marker: Marker) -> bool:
    """Whether a store is a file that is not there."""
    place = _database_of(marker)
    return "://" not in place and not Path(place).exists()


def _with_identity(store: Store, identity: str) -> StoredStream | None:
    """The newest stream of the chain in which a stream with this identity is, or was."""
    try:
        own = bytes.fromhex(identity)
    except ValueError:
        return None
    number = store.database.read(find, noise_identities, "stream", identity=own)
    known: dict[str, StoredStream] = {**store.ended, **store.streams}
    newest = next((one for one in known.values() if one.id == number), None)
    while isinstance(newest, LiveStream) and newest.successor is not None:
        newest = known.get(newest.successor)
    return newest
