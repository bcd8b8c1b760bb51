"""Lives of files: `evercount release` over CSV, JSONL, Parquet or frames, kept by a state file or
by a store, with moves between the two."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from evercount._validate import FloatArray
from evercount.audit.lives.killed import Killed, killed_at
from evercount.audit.lives.life import History, Life, Step
from evercount.audit.lives.record import Record, Statement, StreamRecord, record_stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import NewMark
from evercount.engine.stream import Stream, TaskStream
from evercount.errors import EvercountError
from evercount.files.keeper import RunState
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.files.state_file import read_state_file
from evercount.noise import Secret

STATED = re.compile(r"epsilon=([0-9.e+-]+), delta=([0-9.e+-]+?)(?=[,.;]?(?:\s|$))")
COLUMNS = ("at", "person", "key", "value")


def fast_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one world, in memory where that is possible."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(
        prefix="evercount-life-", dir=memory if memory.is_dir() else None
    )


@dataclass
class _Output:
    """One output with its streams, the last of which is under way."""

    fields: dict[str, Any]
    name: str
    in_store: bool
    streams: list[int] = field(default_factory=list)
    closings: list[tuple[int, int]] = field(default_factory=list)
    begun: bool = False


class FileLife:
    """One world of a life of files."""

    def __init__(self, life: Life, history: History, secret: Secret, folder: Path) -> None:
        self.life = life
        self.history = history
        self.secret = secret
        self.folder = folder
        self.kind = "csv" if life.way in ("store of files", "moves") else life.way
        self.record = Record()
        self.outputs = [self._output(dict(life.declaration), 0, life.way == "store of files")]
        self.renews = False
        self.joining: Sequence[str] = ()
        self.hiding: Sequence[str] = ()
        self.notes: list[NewMark] = []
        self.kill: int | None = None
        self.other_state = self.new_noise = False
        self.last = 0
        self.identities: dict[str, int] = {}

    def _output(self, fields: dict[str, Any], number: int, in_store: bool) -> _Output:
        query = StreamDeclaration.from_dict(dict(fields)).query
        columns = {"time": "at"}
        read = () if query.rows is None else query.rows.columns
        columns |= {name: {"user": "person"}.get(name, name) for name in read}
        if fields["budget"]["unit"] == "user":
            columns["user"] = "person"
        return _Output({**fields, "columns": columns}, f"out{number}.csv", in_store)

    def run(self) -> Record:
        for step in self.life.steps:
            self._tell(step.name, partial(self._do, step))
        self._state()
        return self.record

    def _tell(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except EvercountError as error:
            said = str(error).replace(str(self.folder), "")
            self.record.public.append((what, type(error).__name__, said))

    def _do(self, step: Step) -> None:
        argument = step.argument
        operations: dict[str, Callable[[], None]] = {
            "release": lambda: self._release(argument),
            "again": lambda: self._release(self.last),
            "restart": lambda: None,  # each run is one
            "second": lambda: self._second(argument),
            "note": lambda: self.notes.append(NewMark(first=argument, text="a note")),
            "move": self._move,
        }
        if step.name in operations:
            operations[step.name]()
            return
        # options of the next run
        self.renews = self.renews or step.name == "renew"
        self.other_state = self.other_state or step.name == "output"
        self.new_noise = self.new_noise or step.name == "new noise"
        if step.name == "join":
            self.joining = argument
        if step.name == "hide":
            self.hiding = argument
        if step.name == "kill":
            self.kill = argument

    def _second(self, changes: Mapping[str, Any]) -> None:
        fields = {**self.life.declaration, **changes}
        in_store = self.outputs[0].in_store
        self.outputs.append(self._output(fields, len(self.outputs), in_store))

    def _move(self) -> None:
        self.outputs[0].in_store = not self.outputs[0].in_store

    # -- a run -------------------------------------------------------------------------------------

    def _release(self, until: int) -> None:
        self.last = until
        events = self._write_events(until)
        for output in self.outputs:
            kill, self.kill = self.kill, None
            if kill is not None:
                try:
                    with killed_at(kill):
                        self._tell("killed run", partial(self._run, output, events))
                except Killed:
                    self.record.public.append("killed")
            self._tell("run", partial(self._run, output, events))
            self._read(output)

    def _run(self, output: _Output, events: Any) -> None:
        declaration = StreamDeclaration.from_dict(dict(output.fields))
        first = output is self.outputs[0]
        state = f"{output.name}.state" if self._takes_back(output) else None
        if first and self.other_state:
            state = "other.state"
        new_noise, self.new_noise = first and self.new_noise and output.begun, False
        job = Job(
            events,
            declaration,
            str(self.folder / output.name),
            self.last * SECOND,
            secret=None if output.begun else self.secret,
            renew=self.renews,
            add_keys=tuple(self.joining) if first else (),
            remove_keys=tuple(self.hiding) if first else (),
            notes=tuple(self.notes) if first else (),
            db=str(self.folder / "store.db") if output.in_store else None,
            state=None if state is None else str(self.folder / state),
            new_noise_stream=new_noise,
            ledger=None if self.life.total is None else str(self.folder / "ledger"),
            total=self.life.total,
        )
        outcome = release_file(job)
        output.begun = output.begun or outcome.released > 0
        if outcome.released:
            end = outcome.job.declaration.schedule.start_of(outcome.last + 1) // SECOND
            output.closings.append((self.last, end))
        self.record.public.append(outcome.summary().replace(str(self.folder), ""))
        self._read(output)
        stated = STATED.search(outcome.run.composed or "")
        if stated is not None:
            statement = Statement(
                float(stated[1]), float(stated[2]), tuple(output.streams), "what a run says"
            )
            self.record.statements.append(statement)

    def _takes_back(self, output: _Output) -> bool:
        return not output.in_store and "move" in self.life.operations and output.begun

    def _write_events(self, until: int) -> Any:
        rows = [
            {"at": event.at, "person": event.person, "key": event.key, "value": event.value}
            for event in self.history
            if event.seen <= until
        ]
        path = self.folder / f"events.{self.kind}"
        match self.kind:
            case "csv":
                with path.open("w", newline="", encoding="utf-8") as file:
                    table = csv.DictWriter(file, COLUMNS)
                    table.writeheader()
                    table.writerows(rows)
            case "jsonl":
                path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            case _:
                frame = _arrow(rows)
                if self.kind == "frame":
                    return frame
                from pyarrow import parquet  # type: ignore[import-untyped]

                parquet.write_table(frame, path)
        return str(path)

    # -- what is published -------------------------------------------------------------------------

    def _read(self, output: _Output) -> None:
        """Note what the world sees now: the numbers of the stream that is under way, and all files
        that are published."""
        kept = self._stream_in_store(output) if output.in_store else self._stream_in_state(output)
        if kept is not None:
            self._keep(output, *kept)
        for path in sorted(self.folder.glob(f"{Path(output.name).stem}*.csv")):
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    number = float(row.pop("value") or "nan")
                    facts = {
                        name: text
                        for name, text in row.items()
                        if name not in ("low", "high", "note", "std")
                    }
                    key = (self._shown_in(path, output), *facts.values())
                    self.record.shown.append((key, number))

    def _shown_in(self, path: Path, output: _Output) -> str:
        """What an output and its archived copies are known by; after new noise, which publishes the
        same days again, each file is known by itself."""
        if "new noise" in self.life.operations:
            return f"{path.name}, {len(output.streams)} streams"
        names = [part for part in path.name.split(".") if not part.isdigit()]
        return ".".join(names)

    def _stream_in_state(self, output: _Output) -> tuple[Stream[Any], Settled, FloatArray] | None:
        name = f"{output.name}.state"
        if self.other_state and (self.folder / "other.state").exists():
            name = "other.state"
        content = read_state_file(self.folder / name)
        if content is None or "stream" not in content:
            return None
        dump, numbers = content.pop("stream"), content.pop("numbers")
        settled = RunState.from_dict(content).settled
        return TaskStream.load(dump, settled.period_of), settled, numbers

    def _stream_in_store(self, output: _Output) -> tuple[Stream[Any], Settled, FloatArray] | None:
        from evercount.store import Store
        from evercount.store.stored_releases import read_values
        from evercount.store.stream_life import last_of_renewals

        place = self.folder / "store.db"
        if not place.exists():
            return None
        with closing(Store(place)) as store:
            name = output.fields["name"]
            if name not in store.streams:
                return None
            live = last_of_renewals(store, name)
            ticks = range(1, live.closed + 1)
            width = max(len(live.labels), len(live.stream.labels))
            values = store.database.read(read_values, live.id, ticks, width)
            copy = TaskStream.load(live.stream.dump(), live.declaration.period_of)
            return copy, live.declaration, values

    def _keep(
        self, output: _Output, stream: Stream[Any], declared: Settled, values: FloatArray
    ) -> None:
        one = record_stream(stream, declared, values, None, output.closings)
        stream.close()
        known = self.identities.setdefault(one.identity, len(self.record.streams))
        if known == len(self.record.streams):
            self.record.streams.append(one)
            output.streams.append(known)
            output.closings = output.closings[-1:]
            return
        self._check_same(self.record.streams[known], one)
        self.record.streams[known] = one

    def _check_same(self, before: StreamRecord, now: StreamRecord) -> None:
        for tick, row in enumerate(before.values):
            for cell, number in enumerate(row):
                key = ("stream", now.identity, tick + 1, cell)
                self.record.shown.append((key, float(number)))
        for tick, row in enumerate(now.values):
            for cell, number in enumerate(row):
                key = ("stream", now.identity, tick + 1, cell)
                self.record.shown.append((key, float(number)))

    def _state(self) -> None:
        for number, one in enumerate(self.record.streams):
            budget = one.cost.budget
            self.record.statements.append(
                Statement(budget.epsilon, budget.delta, (number,), "its guarantee")
            )
        if self.life.total is not None:
            every = tuple(range(len(self.record.streams)))
            epsilon, delta = self.life.total
            self.record.statements.append(
                Statement(epsilon, delta, every, "the total of the ledger")
            )


def _arrow(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    kinds = {"at": pa.int64(), "person": pa.string(), "key": pa.string(), "value": pa.float64()}
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    )


def in_files(life: Life, history: History, secret: Secret) -> Record:
    with fast_folder() as folder:
        return FileLife(life, history, secret, Path(folder)).run()
