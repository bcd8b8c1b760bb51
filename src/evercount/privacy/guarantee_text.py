"""guarantee_text: every sentence about what a stream protects, made from its budget and from who
keeps to the cap.

The library, files, the service with its dashboard, Spark and the page for lawyers print these texts
and no others, so a claim is worded once. What the words say is proved in
`queries/user_cap.proof.md` and `queries/distinct_users.proof.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import TYPE_CHECKING, Literal

from evercount._validate import stated

if TYPE_CHECKING:
    from evercount.privacy.budget import Budget
    from evercount.privacy.composition import Cost

Enforced = Literal["evercount", "caller", "query", "revised"]
"""Who keeps to the caps, where persons are protected: evercount (a stream whose ticks name users,
files, the service, Spark), the caller by a promise (`capped=True`), or the query, which reads ids
from events and needs no cap. "revised": evercount, by the time of the event and not by when it is
counted (`engine/revisions.proof.md`)."""


MANUAL = "manual"
"""The declared tick length of a stream that is closed by hand: no clock says which events a tick
counts."""
_UNITS = {"ms": "millisecond", "s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}


@dataclass(frozen=True)
class GuaranteeText:
    """One guarantee in words, short and long.

    Args:
        sentence: the formal claim in one sentence, with its numbers rounded up.
        who: who is protected.
        question: what readers find out little about, to follow "find out about".
        strength: how strong the guarantee is, in two sentences, with numbers rounded so that they
            hold.
        not_protected: what the guarantee does not cover, one sentence or more each.
        letter: several paragraphs for readers without mathematics, a privacy notice for example.

    >>> from evercount import Budget
    >>> guarantee_text(Budget(1.0, 1e-6)).strength[0]
    'Whatever is published is at most 2.72 times as likely with the event as without it, plus ...'
    """

    sentence: str
    who: str
    question: str
    strength: tuple[str, str]
    not_protected: tuple[str, ...]
    letter: str


@dataclass(frozen=True)
class _Words:
    """How one unit and adjacency is spoken of."""

    protected: str  # to follow "protect"
    changed: str  # what the neighbour is, to follow "what it would be"
    question: str
    compared: str
    shown: str  # what neighbours have in common, so what stays visible; empty where nothing does
    unit: str  # what is protected, as a sentence and what follows from it for a person


def guarantee_text(
    budget: Budget, enforced: Enforced = "evercount", tick: str = MANUAL
) -> GuaranteeText:
    """The guarantee of all releases of one stream together, in words.

    **Guarantee.** Each text speaks of the neighbours for which the sensitivity is proved and of no
    others: one event that is absent, or another one in its place; all events under one id absent
    (with periods, all that belong to the ticks of one of them, counted or beyond the cap); each
    counted event under an id another one in its place, with the places of all of them kept
    (`user_cap.proof.md`); or, where a query reads ids from events, everything under an id replaced
    by anything under one id that occurs nowhere else (`distinct_users.proof.md`). Tests:
    tests/privacy/test_guarantee_text.py::test_printed_neighbours_are_covered,
    ::test_a_vacated_place_under_the_cap_is_no_counterexample and ::test_every_sentence.

    Args:
        budget: the promise.
        enforced: who keeps to the cap; without meaning for unit="event".
        tick: the declared length of a tick, such as "1d": readers then see "day" instead of "tick".

    Returns:
        The texts.

    >>> from evercount import Budget
    >>> guarantee_text(Budget(1.0, 1e-6, "replace")).question
    'what an event was'
    """
    tick = tick_word(tick)
    if budget.unit == "event":
        words = _event_words(budget)
    else:
        words = _person_words(budget, enforced, tick)
    limits = _not_protected(budget, enforced, words, _within(budget, enforced, tick))
    strength = _strength(budget, words)
    letter = _letter(words, strength, limits)
    return GuaranteeText(
        _sentence(budget, words), words.unit, words.question, strength, limits, letter
    )


def successor_text(cost: Cost) -> str:
    """What the next stream of the same kind costs once this one is over: for the next year, say.

    **Guarantee.** It says that a successor costs nothing more only where every protected unit lies
    in one of the two ranges; else it states what both together keep (`compose`). Tests:
    tests/privacy/test_successors.py, test_the_text and test_persons_who_come_back_cost_the_sum;
    tests/privacy/test_periods_together.py, test_what_is_said_of_a_successor.

    Args:
        cost: what the stream costs (`Stream.cost`).

    Returns:
        One sentence or two.

    >>> from evercount import Budget
    >>> from evercount.privacy import Cost
    >>> successor_text(Cost(Budget(1.0, 1e-6, unit="user"), 0.0))
    'A new stream counts the same persons again: both together keep epsilon=1.40326, delta=2e-06.'
    """
    budget = cost.budget
    if cost.span is None or cost.span.end is None:
        whom = "may count the same events" if budget.unit == "event" else "counts the same persons"
        alike = ""
        if budget.period is not None:
            alike = " whose periods begin at the same times as these"
        return f"A new stream{alike} {whom} again: both together keep {_promise_of_two(cost)}."
    if cost.chain:
        return (
            "The stream that is renewed from this one costs nothing more, because it continues "
            "with what persons have used of their caps: both together keep "
            f"{stated_promise(budget)}."
        )
    if budget.unit == "event":
        one = "each event is"
        later = ""
    else:
        one = "what a person does in one period is"
        later = " and a whole number of periods after this start"
    free = (
        f"A new stream that starts at this end or later{later} costs nothing more: {one} in only "
        f"one of the two, and both together keep {stated_promise(budget)}."
    )
    if cost.span == cost.during:
        return free
    from evercount.privacy.time_range import Grid  # it needs budgets, and budgets need these texts

    grid = Grid.of(cost.span.periods)
    if grid is None or grid.zone is None:
        return (
            "A new stream that starts at this end, in the middle of a period, has periods of its "
            f"own, and what both cost together is not stated: a ledger refuses it. {free}"
        )
    return (
        "A new stream that starts at this end, in the middle of a period, counts what the same "
        f"persons do in that period again: both together keep {_promise_of_two(cost)}. {free}"
    )


def _promise_of_two(cost: Cost) -> str:
    """State what two streams of this cost keep together that count the same units."""
    # it needs budgets, and budgets need these texts
    from evercount.privacy.composition import compose
    from evercount.privacy.time_range import TimeRange

    same_time = None
    if cost.budget.period is not None:
        same_time = TimeRange(0, None, MANUAL, "the same periods")
    return stated_promise(compose([replace(cost, during=same_time)] * 2))


def stated_promise(budget: Budget) -> str:
    """The numbers of a promise, rounded up."""
    return f"epsilon={stated(budget.epsilon)}, delta={stated(budget.delta)}"


def stated_unit(budget: Budget) -> str:
    """Who a promise is about: adjacency, unit and, where there is one, period."""
    unit = "person" if budget.unit == "user" else budget.unit
    period = "" if budget.period is None else f", period {budget.period}"
    return f"adjacency {budget.adjacency}, unit {unit}{period}"


def guess_chance(budget: Budget) -> float:
    """The largest chance of a right guess which of two equally likely cases holds: (e^ε + δ)/(1 +
    e^ε). It follows from a total variation of at most (e^ε − 1 + 2δ)/(e^ε + 1)."""
    away = math.exp(-budget.epsilon)
    return min(1.0, (1 + budget.delta * away) / (1 + away))


def _event_words(budget: Budget) -> _Words:
    """Choose the words where single events are protected."""
    unit = (
        "Every single event. Someone who causes several events is protected for each of them, but "
        "less well for all of them together."
    )
    if budget.adjacency == "add-remove":
        changed = "if that event had been left out"
        question = "whether an event is in the data at all"
        return _Words("any one event", changed, question, "with the event as without it", "", unit)
    return _Words(
        "any one event",
        "if that event had been any other legal event in its place",
        "what an event was",
        "with the event as with any other in its place",
        "That an event happened, and when: this guarantee hides what the event was.",
        unit,
    )


def _person_words(budget: Budget, enforced: Enforced, tick: str) -> _Words:
    """Choose the words where persons are protected, by adjacency and by who keeps to the cap."""
    within = _within(budget, enforced, tick)
    cap = _cap(budget, enforced, tick)
    # all of it, and not what is counted of it: without that, other events would take its places
    # under the cap
    that_comes = that_came = at = there = ""
    if within:
        that_comes = "that comes up for counting "
        that_came = "that came up for counting "
        at = f" {within}"
        there = " there"
    protected = f"everything {that_comes}under the id of any person{at} ({cap})"
    unit = (
        f"Every id of a person, with everything {that_comes}under it{at} ({cap}). Someone "
        "with several ids is protected for each of them, but less well for all of them together."
    )
    everything = f"everything {that_comes}under the id{at}"
    if budget.adjacency == "add-remove":
        changed = f"if everything {that_came}under that id{there} had been left out"
        if within:
            question = f"whether anything was counted under a person's id{at}"
        else:
            question = "whether anything under a person's id is in the data at all"
        return _Words(
            protected,
            changed,
            question,
            f"with {everything} as without it",
            "",
            unit,
        )
    if enforced == "query":
        state = "was counted" if within else "is"
        return _Words(
            protected,
            f"if everything {that_came}under that id{there} had been anything else{there} under "
            "one id that occurs nowhere else",
            f"what {state} under a person's id{at}, and which id that is",
            f"with {everything} as with anything else under one id of its own",
            "That someone was counted: this guarantee hides who it was, when and under what.",
            unit,
        )
    return _Words(
        protected,
        f"if each event counted under that id{there} had been any other legal event in its place "
        "(under the same id, at the same time and in the same order)",
        f"what the events under a person's id{at} were",
        "with the events under the id as with any others in their places",
        "That an id has events, how many and when: this guarantee hides what the events were.",
        unit,
    )


def _within(budget: Budget, enforced: Enforced = "evercount", tick: str = "tick") -> str:
    """In which time an id is protected; empty for all time.

    >>> from evercount import Budget
    >>> for period in ("1d", "4w", 1, 30, None):
    ...     _within(Budget(1.0, 0, unit="user", max_per_tick=1, period=period))
    'on one day'
    'within one period of 4 weeks'
    'in one tick'
    'within one period of 30 ticks'
    ''
    """
    if budget.period is None:
        return ""
    if isinstance(budget.period, int):
        number = budget.period
        unit = tick
    else:
        number = int(budget.period[:-1])
        unit = {"d": "day", "w": "week"}[budget.period[-1]]
    if enforced == "revised":  # a period is one tick, and what is counted for it comes in several
        return f"for one {unit if number == 1 else tick}"
    if number > 1:
        return f"within one period of {number} {_several(unit)}"
    if unit == "day":
        return "on one day"
    return f"in one {unit}"


def tick_word(tick: str) -> str:
    """What readers call a tick of a declared length.

    >>> [tick_word(tick) for tick in ("1d", "1h", "15m", "manual")]
    ['day', 'hour', 'interval of 15 minutes', 'tick']
    """
    if tick == MANUAL:
        return "tick"
    number = tick.strip().rstrip("mshdw").strip()
    unit = _UNITS[tick.strip().removeprefix(number).strip()]
    if int(number) == 1:
        return unit
    return f"interval of {int(number)} {unit}s"


def _several(tick: str) -> str:
    """The plural, which is that of the first word.

    >>> [_several(word) for word in ("day", "interval of 15 minutes")]
    ['days', 'intervals of 15 minutes']
    """
    first, *rest = tick.split(" ")
    return " ".join([f"{first}s", *rest])


def _counted(budget: Budget, enforced: Enforced = "evercount", tick: str = "tick") -> str:
    """What is counted of one id; empty where there is no cap.

    >>> from evercount import Budget
    >>> _counted(Budget(1.0, 0, unit="user", max_per_tick=1, max_ticks=30), tick="day")
    'its first event of each day, in the first 30 days in which it has one'
    """
    most, each, ticks = budget.caps
    parts = []
    if each is not None:
        first = _first_events(each)
        if enforced == "revised":
            comes = "that comes" if each == 1 else "that come"
            parts.append(f"{first} {comes} in one {tick}")
        else:
            parts.append(f"{first} of each {tick}")
    if ticks is not None:
        days = tick if ticks == 1 else f"{ticks} {_several(tick)}"
        where = f"the first {days} in which it has"
        parts.append(f"in {where} one" if parts else f"what it does in {where} an event")
    if most is not None:
        scope = "of the whole stream" if budget.period is None else "of a period"
        first = f"{_first_events(most)} {scope}"
        parts.append(f"no more than {first}" if parts else first)
    return ", ".join(parts)


def _first_events(number: int) -> str:
    """Name the first events of an id."""
    if number == 1:
        return "its first event"
    return f"its first {number} events"


def _cap(budget: Budget, enforced: Enforced, tick: str) -> str:
    """How much of one unit is counted, and who sees to that."""
    counted = _counted(budget, enforced, tick)
    if not counted:
        return "however many events that is"
    anew = ", and anew in the next period" if budget.period is not None else ""
    who = "the caller promised to count" if enforced == "caller" else "evercount counts"
    return f"{who} at most {counted}{anew}"


def counted_text(budget: Budget, enforced: Enforced = "evercount", tick: str = MANUAL) -> str:
    """What the published numbers and their intervals are about, where not all events are counted;
    else empty.

    Args:
        budget: the promise.
        enforced: who keeps to the caps.
        tick: the declared length of a tick.

    Returns:
        A sentence, with a second one if the caps distort totals over time; or an empty text.

    **Guarantee.** Intervals hold for the numbers of counted events: true sums are those after the
    caps. Test: tests/privacy/test_guarantee_text.py::test_numbers_are_about_counted_events.

    >>> from evercount import Budget
    >>> counted_text(Budget(1.0, 0, unit="user", max_events=5, period="1d"))
    'Numbers and intervals are about counted events: of each id, evercount counts at most its ...'
    """
    if not _counted(budget):
        return ""
    about = (
        "Numbers and intervals are about counted events: of each id, "
        f"{_cap(budget, enforced, tick_word(tick))}."
    )
    return " ".join(filter(None, [about, distortion_text(budget)]))


def distortion_text(budget: Budget) -> str:
    """What caps do to totals over time, where they look beyond one tick; else empty. It follows
    from the budget alone.

    >>> from evercount import Budget
    >>> distortion_text(Budget(1.0, 0, unit="user", max_per_tick=1, max_ticks=30))
    'Caps distort totals over time: whoever has reached a cap counts no more, so that ...'
    >>> distortion_text(Budget(1.0, 0, unit="user", max_per_tick=1))
    ''
    """
    events, _, ticks = budget.caps
    if (events is None and ticks is None) or budget.period_ticks == 1:
        return ""
    until = ""
    later = "later numbers"
    if budget.period is not None:
        until = " until the next period"
        later = "numbers late in a period"
    return (
        f"Caps distort totals over time: whoever has reached a cap counts no more{until}, so that "
        f"{later} may fall although the events do not."
    )


def _sentence(budget: Budget, words: _Words) -> str:
    """State the guarantee in one sentence."""
    failure = f", plus {stated(budget.delta)}" if budget.delta else ""
    return (
        f"All releases together protect {words.protected}: the probability of any outcome is at "
        f"most e^{stated(budget.epsilon)} times what it would be {words.changed}{failure} "
        f"({stated_promise(budget)}, {stated_unit(budget)})."
    )


def _not_protected(
    budget: Budget, enforced: Enforced, words: _Words, within: str
) -> tuple[str, ...]:
    """List what the guarantee does not cover."""
    half = "the guarantee is only about half as strong, and so on."
    several = f"A person with several ids, taken together. For two ids {half}"
    if budget.unit == "event":
        several = f"Many events of one person taken together. For two events {half}"
    lasting = (
        f"What one id does over a longer time, taken together. For two such times ({within}) {half}"
    )
    promised = (
        "Ids for which more is counted than the caller promised: only the caller has checked that "
        "there are none."
    )
    items = (
        "Facts about everyone. If the numbers show that a disease spreads in a region, that is "
        "learned about all who live there, in the data or not.",
        several,
        lasting if within else "",
        promised if budget.unit == "user" and enforced == "caller" else "",
        words.shown,
        (
            "What is public anyway: the list of cells, the times of publication, and that these "
            "statistics exist."
        ),
        (
            "The operator. Events are collected and added up before the noise; the guarantee is "
            "about what is published."
        ),
        (
            "Other publications about the same events. Each new one makes the guarantee for all of "
            "them together weaker."
        ),
    )
    return tuple(item for item in items if item)


def _strength(budget: Budget, words: _Words) -> tuple[str, str]:
    """Say what ε and δ mean: as a ratio, and as the chance of a right guess."""
    epsilon = stated(budget.epsilon)
    delta = stated(budget.delta)
    if budget.epsilon <= 20:
        factor = _digits(math.exp(budget.epsilon), up=True)
    else:
        factor = f"e^{epsilon}"
    if budget.delta:
        exception = f", plus a chance of at most 1 in {_digits(1 / Decimal(delta), up=False)}"
    else:
        exception = ""
    chance = _digits(100 * guess_chance(budget), up=True)
    return (
        f"Whatever is published is at most {factor} times as likely {words.compared}{exception} "
        f"(epsilon {epsilon}, delta {delta}).",
        "Someone who has to guess which of two equally likely cases is true can be right with a "
        f"chance of at most {chance} %; blind guessing gives 50 %.",
    )


def _letter(words: _Words, strength: tuple[str, str], limits: tuple[str, ...]) -> str:
    """Write the guarantee for those whom the data are about."""
    paragraphs = (
        "We publish statistics that are updated for as long as the system runs. Before each "
        "publication a computer adds random noise. The noise is chosen so that all publications "
        f"together reveal little about {words.question}.",
        f"Who is protected: {words.unit[0].lower()}{words.unit[1:]}",
        f'"Little" has a number. {" ".join(strength)}',
        "The guarantee does not depend on what the reader already knows, on other data that may "
        "appear in future, or on the computers of an attacker who cannot break AES-256 encryption "
        "or the keyed hash function BLAKE2b. It is a mathematical theorem, and anyone can test the "
        "program that keeps it.",
        "The guarantee does not say that nothing can be learned. It does not cover:",
        "\n".join(f"- {item}" for item in limits),
    )
    return "\n\n".join(paragraphs)


def _digits(number: float | Decimal, *, up: bool) -> str:
    """A number in three digits, rounded so that the claim still holds, with commas in long ones.

    >>> _digits(2.71828, up=True), _digits(1 / Decimal("1.2e-06"), up=False)
    ('2.72', '833,000')
    """
    with localcontext(prec=3, rounding=ROUND_CEILING if up else ROUND_FLOOR):
        shown = +Decimal(number)
    if shown >= 10**15:
        return f"{shown:.3g}"
    if shown == shown.to_integral_value():
        return f"{int(shown):,}"
    return f"{shown:f}"
