"""State that version 0.1.0 wrote goes on bit for bit: snapshots, golden vectors, release files and stores.

The fixtures lie in `fixtures/v1` and were made by `fixtures/make_v1.py`. They are never made again. Where a later
version refuses one of them on purpose, its name and a part of the error's text go to REFUSED. Where the numbers of a
*new* stream with the same secret differ on purpose, its name and the reason go to CHANGED.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow.parquet")
pytest.importorskip("sqlalchemy")

sys.path.insert(0, str(Path(__file__).parents[1]))
from evercount import SparseCount, Stream
from evercount.errors import EvercountError
from evercount.local import GenProtServer, LocalServer
from evercount.mechanisms import calibrate, laplace_noise
from evercount.store.tokens import read_tokens, token_digest
from fixtures import replay
from fixtures.replay import HERE, Json

REFUSED: dict[str, str] = {}
"""Fixture, such as "streams/prefix-memory" → text that the error of reading or continuing it must contain."""
GUARANTEE = b"evercount.guarantee"
QUIET = "graphs that are declared in a store ignore duplicate edges and enforce their degree"
NEW_KEY = "the key of new counters and clients is derived from the secret and their declaration"
SMALLER = "one update changes this query by less than was proved then, so that new streams have less noise"
SMALLER_NOISE = {
    f"streams/{kind}"
    for kind in ("degree-histogram-enforced", "degree-histogram-replace", "high-degree-replace", "matching-replace")
}
CHANGED: dict[str, str] = {
    **dict.fromkeys(SMALLER_NOISE, SMALLER),
    **{f"sparse/{kind}": NEW_KEY for kind in ("full", "gauss", "gauss-promised", "pure", "pure-promised")},
    **{f"local/{kind}": NEW_KEY for kind in ("default-buckets", "genprot-best", "genprot-paper")},
    **{f"local/{kind}": NEW_KEY for kind in ("one-counter", "two-counter")},
    **{f"stores/{kind}": QUIET for kind in ("float", "plain", "sealed")},
}
"""Fixture of a stream → why a new stream of the same description and secret releases other numbers today."""


def named(kind: str, pattern: str = "*.json") -> list[str]:
    """All fixtures of a kind, such as "streams/count-balanced"."""
    return sorted(f"{kind}/{path.name.removesuffix('.json')}" for path in (HERE / kind).glob(pattern))


@contextlib.contextmanager
def refusal(name: str) -> Iterator[None]:
    """The block goes through, or, for a fixture of REFUSED, is refused as said there."""
    if name in REFUSED:
        with pytest.raises(EvercountError, match=re.escape(REFUSED[name])):
            yield
        pytest.skip(f"refused on purpose: {REFUSED[name]}")
    else:
        yield


def data_of(name: str) -> Json:
    return replay.read(HERE / f"{name}.json")


def test_the_fixtures_are_those_of_version_0_1_0() -> None:
    index = data_of("index")
    files = {path.relative_to(HERE).as_posix(): path for path in HERE.rglob("*") if path.is_file()}
    assert sorted(index) == sorted(set(files) - {"index.json"})
    assert [
        name for name, digest in index.items() if hashlib.sha256(files[name].read_bytes()).hexdigest() != digest
    ] == []
    known = {name for kind in ("streams", "golden", "sparse", "local", "stores") for name in named(kind)}
    assert {*REFUSED, *CHANGED} <= known | set(named("release", "*"))


# -- streams --------------------------------------------------------------------------------------------------------


@pytest.fixture
def old_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """New streams with the key of version 0.1.0, the secret itself: their noise is still the same function of it."""
    for module in (calibrate, laplace_noise):
        monkeypatch.setattr(module, "declared_key", lambda secret, fingerprint: secret)


Rule = Literal["wider", "inside", "other"]
"""How a stated error of today is compared with the old one; released values are always compared bit for bit.

wider: stds to 1e-7 (a stated error is a function of its tick alone since 0.2: its last digits no longer depend on how
many ticks were asked for at once), and either end of an interval where it was or further out by no more than `HALF`,
because rounded numbers have a step since 0.2. inside: δ = 0, whose intervals come from the tails of their own
coefficients, and whose stds of `pure-hybrid` are those of discrete noise: never larger than before. other: an average
per event, whose interval is no longer the one to first order.
"""
HALF = 0.5
"""Half the distance of neighbouring counts. Sums and averages of the fixtures have smaller steps."""


def rule_of(query: str, parameters: Json, budget: Json) -> Rule:
    if query == "average" and parameters.get("per") == "event":
        return "other"
    return "inside" if budget["delta"] == 0 else "wider"


def stated(key: str, got: float, want: float, rule: Rule) -> bool:
    """Whether one std, low or high end is what it was, or what the rule allows."""
    if rule == "other" and key != "std":
        return True
    if rule == "inside" and math.isfinite(want):
        slack = 1e-7 * max(abs(want), 1.0)
        return got >= want - slack if key == "low" else got <= want + slack
    if key == "std" or not math.isfinite(want):
        return bool(got == pytest.approx(want, rel=1e-7))
    further = want - got if key == "low" else got - want
    small = 1e-7 * max(abs(want), 1.0)
    return -small <= further <= HALF + small


def same(got: Any, want: Any, rule: Rule = "wider", key: str = "") -> bool:
    """Released values bit for bit; stated errors by the rule."""
    if isinstance(want, dict):
        if "sha256" in want or (set(want) == {"values", "std", "low", "high"} and isinstance(want["std"], str)):
            return bool(got["values"] == want["values"])
        return got.keys() == want.keys() and all(same(got[name], want[name], rule, name) for name in want)
    if isinstance(want, list):
        return len(got) == len(want) and all(same(a, b, rule, key) for a, b in zip(got, want, strict=True))
    return stated(key, got, want, rule) if key in ("std", "low", "high") else bool(got == want)


def same_estimate(got: Json, want: Json) -> bool:
    """The last digits of an estimate depend on how many threads the matrix library has."""
    return got == {**want, "x": got["x"]} and got["x"] == pytest.approx(want["x"], rel=1e-9, abs=1e-9)


def same_columns(got: Any, want: Any, rule: Rule) -> bool:
    """As `same`, for [values, std, low, high] of some ticks."""
    names = ("values", "std", "low", "high")
    return got.keys() == want.keys() and all(
        same(dict(zip(names, got[tick], strict=True)), dict(zip(names, want[tick], strict=True)), rule) for tick in want
    )


def old_mechanism(data: Json) -> Json:
    """The description with the factorisation that was the default then."""
    return {**data["spec"], "factorization": data["facts"]["factorization"]}


@pytest.mark.parametrize("name", named("streams"))
def test_a_snapshot_continues(name: str) -> None:
    data = data_of(name)
    spec, released, continues = data["spec"], data["released"], data["continues"]
    with refusal(name):
        stream = Stream.restore(base64.b64decode(data["snapshot"]))
    rule = rule_of(spec["query"], spec["parameters"], spec["budget"])
    assert stream.tick == len(released)
    facts = replay.facts(stream)
    if name in SMALLER_NOISE:  # it keeps its noise, and its arithmetic is paid by the smaller sensitivity
        assert facts.pop("numeric_delta") <= data["facts"].pop("numeric_delta")
    assert facts == data["facts"]
    if released and spec.get("by") != "run":  # a retry reads the last release back
        assert same(replay.feed(stream, spec, spec["before"][-1:], len(released)), released[-1:], rule)
    half = len(continues) // 2
    assert same(replay.feed(stream, spec, spec["after"][:half]), continues[:half], rule)
    stream = Stream.restore(stream.snapshot())
    assert same(replay.feed(stream, spec, spec["after"][half:]), continues[half:], rule)


@pytest.mark.parametrize("name", [name for name in named("streams") if name not in CHANGED])
@pytest.mark.usefixtures("old_keys")
def test_a_new_stream_releases_the_same(name: str) -> None:
    data = data_of(name)
    spec = old_mechanism(data)
    stream = replay.build(spec)
    rule = rule_of(spec["query"], spec["parameters"], spec["budget"])
    assert same(replay.feed(stream, spec, spec["before"] + spec["after"]), data["released"] + data["continues"], rule)


@pytest.mark.parametrize("name", [name for name in named("golden") if name not in CHANGED])
@pytest.mark.usefixtures("old_keys")
def test_golden_vector(name: str) -> None:
    data = data_of(name)
    spec = data["spec"]
    totals = replay.golden_counts(spec["parameters"]["keys"], spec["ticks"])
    columns = replay.run_totals(replay.build(spec), totals)
    rule = rule_of(spec["query"], spec["parameters"], spec["budget"])
    assert same_columns(replay.clear(columns), data["clear"], rule)
    assert same(replay.digests(columns), data["sha256"])


@pytest.mark.parametrize("name", [name for name in named("golden") if "snapshot" in data_of(name)])
def test_golden_vector_from_the_middle(name: str) -> None:
    data = data_of(name)
    spec = data["spec"]
    totals = replay.golden_counts(spec["parameters"]["keys"], spec["ticks"])
    with refusal(name):
        stream = Stream.restore(base64.b64decode(data["snapshot"]))
    assert same(replay.digests(replay.run_totals(stream, totals[spec["at"] :])), data["rest_sha256"])


# -- the sparse counter, the local model ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", named("sparse"))
def test_sparse_count(name: str) -> None:
    data = data_of(name)
    if name not in CHANGED:
        counter = replay.build_sparse(data["spec"])
        made = replay.feed_sparse(counter, data["before"] + data["after"])
        assert made == data["released"] + data["continues"]
    with refusal(name):
        counter = SparseCount.restore(base64.b64decode(data["snapshot"]))
    names = ("tick", "value", "low", "high", "closed", "segments", "full")
    found, wanted = (
        [dict(zip(names, row, strict=True)) for row in rows]
        for rows in (replay.feed_sparse(counter, data["after"]), data["continues"])
    )
    assert found == wanted if data["spec"]["parameters"].get("delta") else same(found, wanted, "inside")


@pytest.mark.parametrize("name", named("local"))
def test_local_model(name: str) -> None:
    data = data_of(name)
    spec = data["spec"]
    if name not in CHANGED:
        points = [tuple(point) if isinstance(point, list) else point for point in data["points"]]
        assert [replay.client_message(spec, number, p) for number, p in enumerate(points)] == data["messages"]
    kind: Any = GenProtServer if spec["protocol"] == "genprot" else LocalServer
    with refusal(name):
        server = kind.load(base64.b64decode(data["dump"]))
    assert same_estimate(replay.show_server(server), data["then"])
    replay.add_messages(spec, server, data["messages"][12:], 12)
    assert same_estimate(replay.show_server(server), data["later"])


# -- stores ---------------------------------------------------------------------------------------------------------


def rules_of_store(data: Json) -> dict[str, Rule]:
    """The rule of every stream whose errors are stated otherwise than before."""
    rules: dict[str, Rule] = {}
    for what, table, *_ in (step["do"] for step in data["began"] + data["script"]):
        if what == "declare":
            query = table["query"] if isinstance(table["query"], dict) else {"name": table["query"]}
            rules[table["name"]] = rule_of(query["name"], query.get("parameters", {}), table["budget"])
    rounded = data["spec"].get("noise", "exact") == "exact"
    return {name: rule for name, rule in rules.items() if rounded or rule != "wider"}


def assert_same_store(found: Json, stored: Json, rules: dict[str, Rule]) -> None:
    """Releases, hashes and spendings bit for bit; what all streams spend together is stated by a sharper rule.

    Streams with a rule: values bit for bit. Their hashes are of the errors, too, and differ.
    """
    assert found["releases"].keys() == stored["releases"].keys()
    for name, releases in stored["releases"].items():
        if name in rules:
            assert same(without_hashes(found["releases"][name]), without_hashes(releases), rules[name]), name
            assert found["heads"][name][0] == stored["heads"][name][0]
        else:
            assert found["releases"][name] == releases
            assert found["heads"][name] == stored["heads"][name]
    assert found["ledger"]["entries"] == stored["ledger"]["entries"]
    for now, then in zip(found["ledger"]["totals"], stored["ledger"]["totals"], strict=True):
        assert {**now, "epsilon": 0, "delta": 0} == {**then, "epsilon": 0, "delta": 0}
        assert now["epsilon"] <= then["epsilon"]
        assert now["delta"] == pytest.approx(then["delta"])


@pytest.mark.parametrize("name", named("stores"))
def test_a_store_continues(name: str, tmp_path: Path) -> None:
    data = data_of(name)
    place = tmp_path / "store.db"
    replay.expand(HERE / f"{name}.db.gz", place)
    shutil.copy(HERE / f"{name}.db.head", tmp_path / "store.db.head")
    with refusal(name):
        store = replay.open_store(data["spec"], place)
    try:
        assert store.verify(store.head) == []
        assert_same_store(replay.everything(store), data["then"], {})
        rules = rules_of_store(data)
        found = {token.id: (token.role, token.digest) for token in read_tokens(store)}
        assert found == {number: (role, token_digest(token)) for number, token, role in data["tokens"]}
        for step in data["script"]:
            answer, name = replay.perform(store, step["do"]), step["do"][1]
            if step["do"][0] == "close" and name in rules:
                assert same(without_hashes(answer), without_hashes(step["answer"]), rules[name]), step["do"]
            else:
                assert answer == step["answer"], step["do"]
        assert store.verify(store.head) == []
        assert_same_store(replay.everything(store), data["later"], rules)
    finally:
        store.close()


def without_hashes(answer: Any) -> Any:
    """A chain of hashes begins with its declaration, which states more than it did; the numbers are the same."""
    if isinstance(answer, list):
        return [without_hashes(item) for item in answer]
    if isinstance(answer, dict):
        return {key: value for key, value in answer.items() if key != "hash"}
    return answer


# -- `evercount release` --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", named("release", "*"))
def test_a_release_file_continues(name: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(HERE / name, work)
    case = replay.read(work / "case.json")
    (work / case["grown"]).replace(work / case["input"])
    rule: Rule = "inside" if "--delta 0 " in " ".join([*case["second"], ""]) else "wider"
    before = None if case["output"] == "-" else replay.read_rows(work / case["output"])
    with refusal(name):
        printed = replay.run_release(work, case["second"])
    if case["output"] == "-":
        found, expected = (
            table_of(".csv", b"tick,start,cell,value,std,low,high\n" + rows)  # the header was printed by the first run
            for rows in (printed, (work / "expected.stdout").read_bytes())
        )
        assert same(found, expected, rule)
    else:
        made = work / case["output"]
        found, expected = replay.read_rows(made), replay.read_rows(work / f"expected{made.suffix}")
        if made.suffix == ".parquet":  # the words of the sentence may change, never its numbers
            numbers = [said[1][GUARANTEE].rpartition(b"(")[2] for said in (found, expected)]
            assert numbers[0] == numbers[1] != b""
            found, expected = found[0], expected[0]
        before, found, expected = (table_of(made.suffix, rows) for rows in (before, found, expected))
        assert found[: len(before)] == before == expected[: len(before)], "what is published stays as it is"
        assert same(found, expected, rule)
        assert not (work / f".{made.name}.new").exists()


def table_of(suffix: str, rows: Any) -> list[Json]:
    """The rows of an output file."""
    if suffix == ".parquet":
        return list(rows[0] if isinstance(rows, tuple) else rows)
    if suffix == ".jsonl":
        return [json.loads(line) for line in rows.splitlines()]
    numbers = ("value", "std", "low", "high")
    return [
        {key: float(text) if key in numbers else text for key, text in row.items()}
        for row in csv.DictReader(io.StringIO(rows.decode()))
    ]
