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

from contextlib import closing
from dataclasses import replace

from sqlalchemy import Connection

from evercount.engine.release_table import ReleaseTable
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.files.keeper import Keeper
from evercount.files.output_file import Marker
from evercount.files.published import Publication
from evercount.files.release_job import Job
from evercount.files.resume_run import declaration_of
from evercount.files.state_file import StateFile, moving_text
from evercount.files.store_keeper import StoreKeeper, write_run
from evercount.privacy import Cost
from evercount.store import LiveStream, Store, key_from_environment
from evercount.store.database import find
from evercount.store.moves import MovingStream, adopt_stream, begin_to_leave, finish_leaving
from evercount.store.schema import noise_identities

IN_STORE = "the store "


def place_of(store: Store) -> str:
    """How markers and tombstones name a store."""
    return f"{IN_STORE}{store.database.describe()}"


# -- into a store --------------------------------------------------------------------------------


def take_over(store: Store, source: StateFile, job: Job) -> bool:
    """Take the stream of a state file into a store, unless it is there; return whether it is now.

    It is not if a run only checks: that goes on with the state file.
    """
    state = source.read()
    if source.tombstone is not None:
        return _go_on_in(store, source, source.tombstone)
    if state is None:
        if job.state is not None:
            raise ParameterError(
                f"there is no state at {source.path}: with `db` the store is the state. Omit "
                "`state`, or name the state file whose stream the store is to take over"
            )
        return True  # there is none to take over
    with source.open_stream() as stream:
        target = Marker(stream.identity, place_of(store))
    if source.moving not in (None, target):
        raise StoreError(moving_text(source.path, source.moving))
    live = _with_identity(store, target.identity)
    if live is not None and source.moving is None:
        raise StoreError(
            f"the store has the stream of {source.path}, up to tick {live.closed}, and both claim "
            f"it: the state is a copy from before the stream was moved. The store is the stream; "
            f"move {source.path} away"
        )
    if live is None:
        _check_free(store, source, job)
        if job.check:
            return False
        source.begin_to_leave(target)
        _adopt(store, source, job)
    source.bury(target)
    if source.output is not None:
        source.output.write_marker(target)
    return True


def _go_on_in(store: Store, source: StateFile, tombstone: Marker) -> bool:
    if _with_identity(store, tombstone.identity) is None:
        raise StoreError(
            f"the stream of {source.path} was moved to {tombstone.place}: go on with its `db` and "
            "`name`"
        )
    return True


def _check_free(store: Store, source: StateFile, job: Job) -> None:
    """Refuse to move a stream that the run does not go on with, or whose name is taken."""
    name = job.declaration.name
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
    state = source.load()
    assert state is not None
    declaration_of(job, source, state)


def _adopt(store: Store, source: StateFile, job: Job) -> None:
    state = source.state
    assert state is not None
    settled = state.settled
    with source.open_stream() as stream:
        known = replace(job, declaration=settled.with_query(stream._parameters.declared))
        published = Publication(known, source, stream, (), None)
        moving = MovingStream(
            settled,
            stream,
            [_all_released(published)],
            state.joined,
            state.marks,
            [Cost.from_dict(cost) for cost in state.earlier],
        )

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
    """Take a stream out of the store that an output or a tombstone names; return its keeper."""
    if target.read() is not None:
        _finish_take_back(target)
        return target
    marker = target.tombstone
    if marker is None and target.output is not None:
        marker = target.output.read_marker()
    if marker is None or not marker.place.startswith(IN_STORE):
        return target
    place = marker.place.removeprefix(IN_STORE)
    store = Store(place, key_from_environment(None))
    live = _with_identity(store, marker.identity)
    if live is None:
        store.close()
        raise StoreError(
            f"{marker.place} is said to have this stream, and has not: it was lost or moved on"
        )
    keeper = StoreKeeper(store, live.name, target.output, job.now, leaving_for=str(target.path))
    if job.check:
        return keeper
    with closing(keeper):
        state = keeper.load()
        if state is None:
            raise StoreError(
                f"stream {live.name!r} of {marker.place} has released nothing: retire it there, "
                "and start anew"
            )
        declaration_of(job, keeper, state)
        here = str(target.path.absolute())
        begin_to_leave(store, live, here)
        target.receive(state, keeper, marker)
        finish_leaving(store, marker.identity, here)
    target.forget_origin()
    return target


def _finish_take_back(target: StateFile) -> None:
    """Let the store that a stream came from drop what could release, unless it has."""
    origin = target.origin
    if origin is None:
        return
    with closing(Store(origin.place.removeprefix(IN_STORE), key_from_environment(None))) as store:
        finish_leaving(store, origin.identity, str(target.path.absolute()))
    target.forget_origin()


def _with_identity(store: Store, identity: str) -> LiveStream | None:
    """The newest stream of the chain in which a stream with this identity is."""
    for live in store.streams.values():
        own = store.database.read(find, noise_identities, "identity", stream=live.id)
        if own is not None and own.hex() == identity:
            while live.successor is not None:
                live = store.streams[live.successor]
            return live
    return None
