"""Which keeper a run has: a state file, or a store that may have to take the stream over first."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from evercount._safe_files import refuse_link
from evercount.errors import ParameterError
from evercount.files.keeper import Keeper
from evercount.files.output_file import OutputFile, state_path
from evercount.files.release_job import Job
from evercount.files.state_file import StateFile


def open_keeper(job: Job) -> Keeper:
    """Open and lock the keeper of a run. A stream that is kept elsewhere is taken over first, if
    the run says so: `db` takes the stream of a state file, and a `state` that is not there yet
    takes the stream that has written the output back from its store.
    """
    output = None if job.out is None else OutputFile(Path(job.out))
    if job.db is None:
        return _open_state(job, output)
    if job.new_noise_stream:
        raise ParameterError(
            "`new_noise_stream` does not go with `db`: declare a stream of another `name`"
        )
    return _open_store(job, output)


def _open_state(job: Job, output: OutputFile | None) -> Keeper:
    path = state_path(job.out, job.state)
    if path is None:
        return _Unkept(output)
    keeper = StateFile(path, output)
    with ExitStack() as on_error:
        on_error.callback(keeper.close)
        if job.state is not None:
            from evercount.files.move_stream import take_back

            source = take_back(keeper, job)
            on_error.pop_all()
            return source
        on_error.pop_all()
    return keeper


class _Unkept(StateFile):
    """The keeper of a stream that ends with its run: its state is a file that goes with it."""

    def __init__(self, output: OutputFile | None) -> None:
        self._folder = TemporaryDirectory(prefix="evercount-")
        super().__init__(Path(self._folder.name) / "state", output)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def _open_store(job: Job, output: OutputFile | None) -> Keeper:
    from evercount.files.move_stream import take_over  # a store is an extra
    from evercount.files.store_keeper import StoreKeeper
    from evercount.store import Store, key_from_environment

    assert job.db is not None
    path = state_path(job.out, job.state)
    with ExitStack() as cleanup:
        store = Store(job.db, key_from_environment(None))
        on_error = cleanup.enter_context(ExitStack())
        on_error.callback(store.close)
        if path is not None and (job.state is not None or path.exists()):
            refuse_link("`state`", path)
            source = StateFile(path, output)
            on_error.callback(source.close)
            if not take_over(store, source, job):
                store.close()  # a run that only checks looks at the stream where it is
                on_error.pop_all()
                return source
            source.close()
        keeper = StoreKeeper(store, job.declaration.name, output, job.now)
        on_error.pop_all()
    return keeper
