"""Every sentence about a guarantee, and brute force over the neighbours that it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import (
    ActiveUsers,
    Budget,
    Count,
    DistinctUsers,
    Histogram,
    Quantiles,
    Rollup,
    Stream,
    Sum,
)
from evercount.engine.build import squared_norm
from evercount.factorizations import Fresh
from evercount.privacy import (
    Adjacency,
    Cost,
    Enforced,
    TimeRange,
    counted_text,
    gaussian,
    guarantee_text,
)
from evercount.privacy.guarantee_text import distortion_text, stated_unit
from evercount.queries import Occupancy
from evercount.queries.base import Query
from evercount.queries.sensitivities import protected_l1
from evercount.queries.user_cap import last_turns
from evercount.sparse import SparseCount
from neighbouring_streams import change_norm
from product_internals import true_totals

EVENT = "any one event"
ID = "everything under the id of any person "
ITS_FIRST = "(evercount counts at most its first 3 events of the whole stream)"
PROMISED = "(the caller promised to count at most its first 3 events of the whole stream)"
ANY_NUMBER = "(however many events that is)"
LEFT_OUT = "if everything under that id had been left out"
IN_PLACE = (
    "if each event counted under that id had been any other legal event in its place (under the "
    "same id, at the same time and in the same order)"
)
ONE_ID = "if everything under that id had been anything else under one id that occurs nowhere else"
SAID: dict[tuple[str, str, Enforced], tuple[str, str]] = {
    ("event", "add-remove", "evercount"): (EVENT, "if that event had been left out"),
    ("event", "replace", "evercount"): (
        EVENT,
        "if that event had been any other legal event in its place",
    ),
    ("event", "add-remove", "query"): (EVENT, "if that event had been left out"),
    ("event", "replace", "query"): (
        EVENT,
        "if that event had been any other legal event in its place",
    ),
    ("user", "add-remove", "evercount"): (ID + ITS_FIRST, LEFT_OUT),
    ("user", "replace", "evercount"): (ID + ITS_FIRST, IN_PLACE),
    ("user", "add-remove", "caller"): (ID + PROMISED, LEFT_OUT),
    ("user", "replace", "caller"): (ID + PROMISED, IN_PLACE),
    ("user", "add-remove", "query"): (ID + ANY_NUMBER, LEFT_OUT),
    ("user", "replace", "query"): (ID + ANY_NUMBER, ONE_ID),
}
"""What is protected, and what the neighbour is, for each unit, adjacency and whoever keeps to the
cap."""


UNIT = {"event": "event", "user": "person"}


def budget_of(
    unit: str, adjacency: str, enforced: Enforced, epsilon: float = 1.0, delta: float = 1e-6
) -> Budget:
    most = 3 if unit == "user" and enforced != "query" else None
    return Budget(epsilon, delta, adjacency, unit=unit, max_events=most)  # type: ignore[arg-type]


KINDS: dict[str, tuple[Query, Any]] = {
    "count": (Count(), 1),
    "histogram": (Histogram(["a", "b"]), ["a"]),
    "sum": (Sum(0, 1), [1.0]),
    "rollup": (Rollup([("a",), ("b",)]), [("a",)]),
    "distinct users": (DistinctUsers(), ["ann|mon"]),
    "active users": (ActiveUsers(["a"]), [("ann|mon", "a")]),
    "occupancy": (Occupancy(["a"], max_events=2), [("ann|mon", "a")]),
}


PEOPLE = ("distinct users", "active users", "occupancy")


@pytest.mark.parametrize(
    ("unit", "adjacency", "enforced", "kind"),
    [
        (*case, kind)
        for case in SAID
        for kind, (query, _) in KINDS.items()
        if (query.people is not None) == (case[2] == "query")
        and kind in ("count", "rollup", *PEOPLE)
    ],
)
def test_every_sentence(unit: str, adjacency: str, enforced: Enforced, kind: str) -> None:
    """The sentence of a stream and of each of its releases, from its first moment, after a tick and
    after a restart."""
    query, tick = KINDS[kind]
    budget = budget_of(unit, adjacency, enforced)
    who, changed = SAID[unit, adjacency, enforced]
    wanted = (
        f"All releases together protect {who}: the probability of any outcome is at most e^1 times "
        f"what it would be {changed}, plus 1e-06 (epsilon=1, delta=1e-06, adjacency {adjacency}, "
        f"unit {UNIT[unit]})."
    )
    assert guarantee_text(budget, enforced).sentence == wanted
    stream = Stream(query, budget, 8, "balanced")
    if enforced == "caller":
        said = [stream.step(tick, capped=True).guarantee]
    elif enforced == "evercount" and unit == "user":
        said = [
            stream.guarantee,
            stream.step([1] if tick == 1 else tick, users=["ann|mon"]).guarantee,
        ]
    else:
        said = [stream.guarantee, stream.step(tick).guarantee]
    said += [stream.guarantee, stream.explained.sentence]
    blob = stream.snapshot()
    stream.close()
    said.append(Stream.restore(blob).guarantee)
    assert set(said) == {wanted}


CAPS = [
    (
        {"max_per_tick": 2, "max_ticks": 30},
        "its first 2 events of each TICK, in the first 30 TICKs in which it has one",
    ),
    (
        {"max_per_tick": 1, "period": "1d"},
        "its first event of each TICK, and anew in the next period",
    ),
    (
        {"max_events": 5, "period": "4w"},
        "its first 5 events of a period, and anew in the next period",
    ),
    (
        {"max_events": 5, "max_per_tick": 2, "period": 7},
        (
            "its first 2 events of each TICK, no more than its first 5 events of a period, and "
            "anew in the next period"
        ),
    ),
]
WITHIN = {
    None: "",
    "1d": " on one day",
    "4w": " within one period of 4 weeks",
    7: " within one period of 7 TICKs",
}
TICKS = {"manual": "tick", "1d": "day", "1h": "hour", "1w": "week", "15m": "interval of 15 minutes"}
"""What readers call a tick, by its declared length."""


def said_by(words: str, tick: str) -> str:
    first, _, rest = TICKS[tick].partition(" ")
    return words.replace("TICKs", f"{first}s {rest}".strip()).replace("TICK", TICKS[tick])


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(("caps", "words"), CAPS, ids=repr)
@pytest.mark.parametrize("tick", TICKS)
def test_sentences_about_caps_and_periods(
    caps: dict[str, Any], words: str, adjacency: Adjacency, tick: str
) -> None:
    budget = Budget(1.0, 1e-6, adjacency, unit="user", **caps)
    words, within = said_by(words, tick), said_by(WITHIN[budget.period], tick)
    text = guarantee_text(budget, tick=tick)
    everything = " ".join(
        [text.sentence, text.who, text.question, text.letter, *text.strength, *text.not_protected]
    )
    assert tick == "manual" or "tick" not in everything
    assert "user" not in everything
    comes = "that comes up for counting " if within else ""
    who = f"everything {comes}under the id of any person{within} (evercount counts at most {words})"
    assert text.sentence.startswith(f"All releases together protect {who}: ")
    distorted = distortion_text(budget)
    assert counted_text(budget, tick=tick).removesuffix(f" {distorted}") == (
        "Numbers and intervals are about counted events: of each id, evercount counts at most "
        f"{words}."
    )
    there = " there" if within else ""
    if adjacency == "add-remove":
        came = "that came up for counting " if within else ""
        assert f"if everything {came}under that id{there} had been left out" in text.sentence
    else:
        assert (
            f"if each event counted under that id{there} had been any other legal event in its "
            "place"
        ) in text.sentence
    assert ("period" in text.sentence.split("unit person")[1]) == bool(within)
    assert any("over a longer time" in item for item in text.not_protected) == bool(within)
    assert "the caller promised" in guarantee_text(budget, "caller", tick).sentence


def test_numbers_are_about_counted_events() -> None:
    """Where a cap drops events, intervals hold for what is left: 8,000 streams of a person with ten
    events a tick."""
    assert counted_text(Budget(1.0, 1e-6)) == ""
    assert counted_text(Budget(1.0, 1e-6, unit="user"), "query") == ""
    budget = Budget(1.0, 1e-6, unit="user", max_per_tick=2, period=1)
    assert "at most its first 2 events of each tick" in counted_text(budget)
    stream = Stream(Histogram(8000), budget, 3, views=("per-tick",))
    users, events = (
        [f"u{cell}" for cell in range(8000) for _ in range(10)],
        [c for c in range(8000) for _ in range(10)],
    )
    view = stream.run([events], users=[users]).per_tick()
    low, high = view.interval(0.9)
    assert np.mean((low <= 2) & (high >= 2)) > 0.89
    assert np.mean((low <= 10) & (high >= 10)) < 0.2


def test_a_promise_is_not_forgotten() -> None:
    """Totals that an interface has capped, after ticks for which the caller promised the cap."""
    stream = Stream(Count(), budget_of("user", "add-remove", "caller"), 8)
    stream.run([1], capped="by door")
    assert ITS_FIRST in stream.guarantee
    stream.step(1, capped=True)
    stream.run([1], capped="by door")
    assert PROMISED in stream.guarantee


@pytest.mark.parametrize(("unit", "adjacency", "enforced"), SAID)
def test_the_long_texts_say_the_same(unit: str, adjacency: str, enforced: Enforced) -> None:
    """No text speaks of a person where ids or events are protected, and all of them name the
    encryption."""
    text = guarantee_text(budget_of(unit, adjacency, enforced), enforced)
    assert "any one person" not in text.letter + text.who + text.sentence
    assert text.who.startswith(
        "Every single event." if unit == "event" else "Every id of a person, with everything"
    )
    assert text.who[1:] in text.letter
    assert text.question in text.letter
    assert all(sentence in text.letter for sentence in text.strength)
    assert all(f"\n- {item}" in text.letter for item in text.not_protected)
    assert "cannot break AES-256 encryption or the keyed hash function BLAKE2b." in text.letter
    assert "at most 2.72 times as likely" in text.letter
    assert "at most 1 in 1,000,000" in text.letter
    assert "at most 73.2 %" in text.letter
    limits = " ".join(text.not_protected)
    assert ("several ids" in limits) == (unit == "user")
    assert ("the caller promised" in limits) == (enforced == "caller")
    assert ("this guarantee hides" in limits) == (adjacency == "replace")
    assert ("promised" in text.who) == (enforced == "caller")


@pytest.mark.parametrize("epsilon", [1e-9, 0.5, 3.0, 30.0, 800.0])
@pytest.mark.parametrize("delta", [0.0, 1e-300, 1.2e-6, 0.3])
def test_numbers_of_a_letter_hold(epsilon: float, delta: float) -> None:
    letter = guarantee_text(Budget(epsilon, delta)).letter
    found = re.search(r"at most (\S+) times as likely", letter)
    assert found is not None
    factor = found[1].replace(",", "")
    assert factor == f"e^{epsilon:g}" if epsilon > 20 else float(factor) >= np.exp(epsilon)
    exception = re.search(r"at most 1 in (\S+) \(", letter)
    assert (exception is None) == (delta == 0)
    assert exception is None or 1 / float(exception[1].replace(",", "")) >= delta
    chance = re.search(r"at most (\S+) %", letter)
    assert chance is not None
    away = np.exp(-epsilon)
    assert 50 < float(chance[1]) <= 100
    assert float(chance[1]) >= min(100.0, 100 * (1 + delta * away) / (1 + away))


def test_the_page_for_lawyers_has_this_text() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/lawyer.md").read_text("utf-8")
    quoted = " ".join(line.removeprefix(">") for line in page.splitlines() if line.startswith(">"))
    letter = guarantee_text(Budget(1.0, 1e-6, unit="user", max_events=4)).letter
    assert quoted.split() == letter.split()


def test_a_sparse_counter_says_the_same() -> None:
    assert SparseCount(1.0, 100).guarantee.startswith(Budget(1.0, 0.0).sentence())


# -- brute force over what is printed --------------------------------------------------------------

Place = tuple[int, int]
"""The tick of an event, and its declared order in it."""
PLACES: tuple[Place, ...] = tuple(product((0, 1), (0, 1)))
MOST = 2


def counted(places: Iterable[Place], payloads: Iterable[Any], query: Query) -> Any:
    """The increments of one user's events, where each interface counts the first ones by time and
    order."""
    ticks: list[list[Any]] = [[], []]
    listed = list(places)
    time, order = (np.array([place[i] for place in listed], np.int64) for i in (0, 1))
    turns = last_turns(np.zeros(len(listed), np.int64), time, order)
    for (tick, _), payload, turn in zip(listed, payloads, turns.tolist(), strict=True):
        if turn <= MOST:
            ticks[tick].append(payload)
    return query.encode_run(query.initial_state(), ticks)[0]


CAPPED: list[tuple[Query, list[Any]]] = [
    (Histogram(["a", "b"]), ["a", "b"]),
    (Sum(-1, 1), [-1.0, 1.0]),
    (Rollup([("a",), ("b",)], weights=[1000, 1]), [("a",), ("b",)]),
    (Quantiles(0, 1, 2), [0.2, 0.7]),
]


def printed_pairs(
    query: Query, events: list[Any], adjacency: Adjacency
) -> Iterator[tuple[Any, Any]]:
    """All neighbours of the sentence for one user of up to three events, some of them at one
    place."""
    for number in (1, 2, 3):
        for places in product(PLACES, repeat=number):
            rows = [counted(places, payloads, query) for payloads in product(events, repeat=number)]
            others = rows if adjacency == "replace" else [counted((), (), query)]
            yield from product(rows, others)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(("query", "events"), CAPPED, ids=repr)
def test_printed_neighbours_are_covered(
    query: Query, events: list[Any], adjacency: Adjacency
) -> None:
    """And reached: noise for less would break the sentence. Queries that name users:
    `test_queries_distinct_users`."""
    budget = Budget(1.0, 1e-6, adjacency, unit="user", max_events=MOST)
    assert (
        "at the same time and in the same order" in budget.sentence() or adjacency == "add-remove"
    )
    worst = max(change_norm(*pair, query.grid) for pair in printed_pairs(query, events, adjacency))
    assert worst == pytest.approx(squared_norm(Fresh(1), query, budget, 1))
    apart = (
        max(np.abs(one - other).sum() for one, other in printed_pairs(query, events, adjacency))
        * query.grid
    )
    assert apart <= protected_l1(query, budget, 2)


Events = list[tuple[str, str]]
"""The events of one day, as pairs (id, key), in their order."""


def read_literally(sentence: str, events: Events, cap: int) -> Events:
    """The day of which the sentence speaks as the other one, for ann, taken at its word."""
    changed = re.search(r"what it would be (if .*? had been left out), plus", sentence)
    assert changed is not None, sentence
    own = [number for number, (user, _) in enumerate(events) if user == "ann"]
    leaving = {
        "if everything counted under that id there had been left out": own[:cap],
        "if everything that came up for counting under that id there had been left out": own,
        "if everything under that id had been left out": own,
    }[changed[1]]
    return [event for number, event in enumerate(events) if number not in leaving]


def released_change(events: Events, others: Events, budget: Budget) -> float:
    """How far two days lie apart in what a built stream has counted, as a part of what its noise is
    made for."""
    query, rows = Histogram(["a", "b"]), []
    for day in (events, others):
        stream = Stream(query, budget, 3, factorization="fresh")
        stream.step([key for _, key in day], users=[user for user, _ in day])
        rows.append(np.asarray(true_totals(stream))[None])
    return float(np.sqrt(change_norm(*rows, query.grid) / squared_norm(Fresh(3), query, budget, 3)))


def worst_life(sentence: str, budget: Budget) -> float:
    """The largest change of days of up to three events of ann, and one of bob, for the neighbours
    of a sentence."""
    assert budget.max_events is not None
    worst = 0.0
    for number in (1, 2, 3):
        for keys in product("ab", repeat=number):
            events = [*(("ann", key) for key in keys), ("bob", "a")]
            others = read_literally(sentence, events, budget.max_events)
            worst = max(worst, released_change(events, others, budget))
    return worst


@pytest.mark.parametrize("period", [None, 1])
@pytest.mark.parametrize("cap", [1, 2])
def test_a_vacated_place_under_the_cap_is_no_counterexample(cap: int, period: int | None) -> None:
    """Every neighbour of the sentence, read literally, lies within the noise, for a stream that is
    built and counts.

    Planted: "everything counted under that id there". Of ann's two events on one day, at most one
    of which counts, the second then takes the place of the first: the counts move from a to b, and
    (1, 1e-6) is in truth (1, 2.2e-4).
    """
    budget = Budget(1.0, 1e-6, unit="user", max_events=cap, period=period)
    sentence = guarantee_text(budget).sentence
    assert worst_life(sentence, budget) == pytest.approx(1.0)
    wrong = sentence.replace(
        "everything that came up for counting under", "everything counted under"
    )
    if period is None:
        assert wrong == sentence
        return
    assert wrong != sentence
    moved = worst_life(wrong, budget)
    assert moved > 1.001
    if cap == 1:
        assert moved == pytest.approx(np.sqrt(2))
        assert gaussian.delta_of(moved * budget.mu, 1.0) == pytest.approx(2.2e-4, rel=0.03)


def test_every_sentence_about_a_unit_names_its_period() -> None:
    """Of one stream, and of several noise streams together."""
    compose_sentence = pytest.importorskip("evercount.files.resume_run").compose_sentence
    for budget, unit in (
        (Budget(1.0, 1e-6), "adjacency add-remove, unit event"),
        (Budget(1.0, 1e-6, "replace", unit="user", max_events=2), "adjacency replace, unit person"),
        (
            Budget(1.0, 1e-6, unit="user", max_events=2, period="1w"),
            "adjacency add-remove, unit person, period 1w",
        ),
    ):
        assert stated_unit(budget) == unit
        assert guarantee_text(budget).sentence.endswith(f"delta=1e-06, {unit}).")
        periods = "" if budget.period is None else "604800000000 0"
        cost = Cost(budget, 0.0, TimeRange(0, None, "86400000000", periods))
        assert compose_sentence((cost,), cost).endswith(f"delta=2e-06 ({unit}).")


def test_the_words_about_places_are_needed() -> None:
    """The same events of one user in another order of one tick: of three at one place none counts,
    else two do.

    Under replace the total of a rollup has hardly any noise, because replacing an event never
    changes it: here more than 50 stds lie between the two streams. A sentence about "any other
    events of the same ticks" would be wrong.
    """
    query = CAPPED[2][0]
    budget = Budget(1.0, 1e-6, "replace", unit="user", max_events=MOST)
    tied, apart = ([(0, 0)] * 3, [(0, 0), (0, 0), (0, 1)])
    rows = [counted(places, [("a",)] * 3, query) for places in (tied, apart)]
    assert [row[0, 0] for row in rows] == [0, 2000]
    std = Stream(query, budget, 24).std([24])[0, 0]
    assert std == pytest.approx(0.022, rel=0.02), "docs/limits.md names it"
    assert change_norm(*rows) > 1e5 * squared_norm(Fresh(1), query, budget, 1)


@pytest.mark.parametrize("query", [DistinctUsers(), ActiveUsers()], ids=repr)
def test_the_words_about_one_id_are_needed(query: DistinctUsers) -> None:
    """One id's hundred events that become those of a hundred ids, or of an id that is there
    already."""
    claim = query.user_sensitivity("replace")

    def rows(*ticks: list[str]) -> Any:
        return query.encode_run(query.initial_state(), list(ticks))[0]

    assert change_norm(rows(["u"] * 100), rows([f"v{i}" for i in range(100)])) == 99**2 > claim
    if not isinstance(query, ActiveUsers):
        assert change_norm(rows(["u"], [], ["v"]), rows([], ["v"], ["v"])) == 5 > claim
    assert change_norm(rows(["u"], [], ["v"]), rows([], ["w"], ["v"])) == claim


def test_revised_days_are_spoken_of_by_the_time_of_the_event() -> None:
    budget = Budget(1.0, 1e-6, unit="user", max_events=3, max_per_tick=1, period="1d")
    said = guarantee_text(budget, "revised", "1d").sentence
    caps = "its first event that comes in one day, no more than its first 3 events of a period"
    who = "everything that comes up for counting under the id of any person for one day"
    assert f"{who} (evercount counts at most {caps}, and anew" in said
    assert "that comes in one day" in counted_text(budget, "revised", "1d")


@pytest.mark.parametrize(
    ("caps", "later"),
    [
        ({"max_per_tick": 1}, None),
        ({"max_events": 5, "period": 1}, None),
        ({"max_per_tick": 2, "period": 7}, None),
        ({"max_events": 5}, "later numbers may fall"),
        ({"max_per_tick": 1, "max_ticks": 30}, "later numbers may fall"),
        ({"max_events": 5, "period": 7}, "numbers late in a period may fall"),
        ({"max_per_tick": 1, "max_ticks": 2, "period": "1w"}, "numbers late in a period may fall"),
    ],
    ids=repr,
)
def test_caps_over_time_distort_totals(caps: dict[str, Any], later: str | None) -> None:
    """The marker follows from the budget alone, and readers get it with what is counted."""
    budget = Budget(1.0, 1e-6, unit="user", **caps)
    text = distortion_text(budget)
    assert (later in text) if later else not text
    assert counted_text(budget, tick="1d").endswith(text)
    assert not distortion_text(Budget(1.0, 1e-6))
