"""What is said about a declaration: what it publishes, what is risky in it, and how it differs from
a known one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND, UNITS
from evercount.declarations.settle import Settled, settle
from evercount.declarations.tick_marks import TickMark
from evercount.declarations.view_names import DAYS, most_ticks, noise_views, view_spans
from evercount.engine.build import PER_TICK, RUNNING, view_width
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.noise_choice import BEST, kept_budget
from evercount.engine.state import enforced_by
from evercount.engine.worst_errors import REFERENCE_TICKS, worst_std
from evercount.privacy import GuaranteeText, counted_text, guarantee_text
from evercount.privacy.guarantee_text import tick_word

FREE = ("views", "late", "wait")  # what may change while a stream runs
NOISE = ("budget", "factorization", "noise_for")  # what `settle` names


def _with_noise_filled_in(current: Settled, wanted: StreamDeclaration) -> dict[str, Any]:
    """Write a declaration as a table; where it leaves the noise open, put what the stream has.

    Nothing is chosen or fitted. A declaration with some δ that names no noise accepts Laplace
    noise, with δ = 0.
    """
    has = current.to_dict()
    if wanted.revise_for != current.revise_for:  # its noise differs too, which is not the reason
        return wanted.to_dict() | {field: has[field] for field in NOISE}
    if not wanted.noise_for:
        wanted = replace(wanted, noise_for=current.noise_for)
    filled_in = wanted.to_dict()
    if _accepts_noise(wanted, current):
        filled_in["factorization"] = has["factorization"]
    if current.budget.pure and _accepts_laplace(wanted):
        filled_in["budget"] |= {field: has["budget"][field] for field in ("delta", "calibration")}
    return filled_in


def _accepts_noise(wanted: StreamDeclaration, current: Settled) -> bool:
    """Whether a declaration leaves the noise open, or names that of a stream without its fitted
    numbers."""
    if wanted.factorization in (None, BEST):
        return True
    fitted = current.factorization
    return isinstance(fitted, dict) and wanted.factorization == fitted["name"]


def _accepts_laplace(wanted: StreamDeclaration) -> bool:
    """Whether a declaration may run on Laplace noise: it names none, or such noise."""
    name = wanted.factorization
    return name in (None, BEST) or kept_budget(wanted.budget, name).pure


def declares_again(current: Settled, wanted: StreamDeclaration) -> bool:
    """Whether a stream is declared again, in every field that makes it this one or that readers
    see."""
    has, asks = ((one.name, one.description, one.public) for one in (current, wanted))
    return has == asks and not differences(current, wanted)


def differences(current: Settled, wanted: StreamDeclaration) -> list[str]:
    """What makes `wanted` another stream, in words; empty where it declares the current one again.
    A start may be left open by either. Names, descriptions, views, who may read, and what becomes
    of late events do not matter here."""
    has = current.to_dict()
    asks = _with_noise_filled_in(current, wanted)
    if current.query.name == wanted.query.name:
        changes = _changes(has["query"]["parameters"], asks["query"]["parameters"])
    else:
        changes = _changes(has, asks, ["query"])
    changes += _changes(has["budget"], asks["budget"])
    apart = ("name", "description", "public", *FREE, "query", "budget", "tick", "start", "zone")
    changes += _changes(has, asks, [name for name in has if name not in apart])
    if not current.schedule.same_ticks(wanted.schedule):
        changes += _changes(has, asks, ["tick", "start", "zone"])
    if (
        current.stream_postprocess != wanted.stream_postprocess
        and current.postprocess == wanted.postprocess
    ):
        # with views they are post-processed, and not the releases
        changes += _changes(has, asks, ["views"])
    return changes


def changed_noise(current: Settled, wanted: StreamDeclaration) -> str:
    """What to say where a declaration asks a running stream for the noise of other views; empty
    where it does not."""
    if wanted.noise_for in ((), current.noise_for):
        return ""
    return (
        f" (its noise is for {', '.join(current.noise_for)} and stays so: noise_for of a running "
        "stream cannot change, while views may)"
    )


def _changes(
    before: dict[str, Any], after: dict[str, Any], names: Iterable[str] | None = None
) -> list[str]:
    """Describe each of these fields, or of all, that has another value after than before."""
    if names is None:
        names = {**before, **after}
    return [
        _change(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _change(name: str, before: Any, after: Any) -> str:
    """Describe the change of one field; lists of keys are too long to be shown."""
    if name in ("keys", "paths"):
        return f"the {name} are different, or in a different order"
    return f"{name} was {before!r} and is now {after!r}"


TINY_EPSILON = 0.01  # below this a count of one hundred is lost in the noise, unless delta is large
# above this an outcome may be more than 22,000 times as likely with an event as without it
WEAK_EPSILON = 10.0


def declared_text(declaration: StreamDeclaration) -> GuaranteeText:
    """The guarantee of a declared stream, in whose words a tick is a day where the schedule says
    so."""
    return guarantee_text(
        declaration.budget, enforced_by(declaration.released_query, None), declaration.tick
    )


def cautions(declaration: StreamDeclaration) -> list[str]:
    """What an operator should think about again.

    >>> def declared(epsilon, tick):
    ...     return StreamDeclaration.from_dict({"name": "s", "query": "count", "tick": tick,
    ...         "budget": {"epsilon": epsilon, "delta": 1e-9}})
    >>> cautions(declared(1.0, "1h"))
    []
    >>> [text.partition(":")[0] for text in cautions(declared(12.0, "100ms"))]
    ['epsilon=12 is a weak promise', 'ticks of 100ms are very short']
    >>> [text.partition(":")[0] for text in cautions(declared(0.0001, "1h"))]
    ['epsilon=0.0001 is very small']
    """
    sentences = []
    epsilon = declaration.budget.epsilon
    schedule = declaration.schedule
    if epsilon > WEAK_EPSILON:
        factor = f"{math.exp(min(epsilon, 700)):.2g}"
        sentences.append(
            f"epsilon={epsilon:g} is a weak promise: an outcome may be {factor} times as likely "
            "with an event as without it. Usual values are 0.1 to 3."
        )
    if epsilon < TINY_EPSILON:
        sentences.append(
            f"epsilon={epsilon:g} is very small: what is published may be noise and little else. "
            "Usual values are 0.1 to 3; `evercount plan` prints the errors before anything is "
            "spent."
        )
    if not schedule.manual and schedule.length < SECOND:
        a_day = UNITS["d"] // schedule.length
        sentences.append(
            f"ticks of {schedule.tick} are very short: they release {a_day:,} times a day, without "
            "a pause, and the error grows with the number of ticks. Did you mean 1s, 1m or 1h?"
        )
    for name in empty_views(declaration):
        span = name.removeprefix("per-")
        hint = " (weeks begin on Monday)" if span == "week" else ""
        sentences.append(
            f"view {name!r} will never have a number: no whole {span} lies between the start and "
            f"the end of the stream. Begin earlier, or choose a longer horizon{hint}."
        )
    return sentences


def empty_views(declaration: StreamDeclaration) -> list[str]:
    """The views of days and weeks of which the stream holds none that is whole."""
    schedule = declaration.schedule
    horizon = declaration.horizon
    if schedule.manual or schedule.start is None or horizon is None:
        return []
    named = [name for name in declaration.views if name in DAYS]
    # others hold a whole one
    short = [name for name in named if horizon < 2 * most_ticks(name, schedule)]
    return [name for name in short if not len(view_spans(name, schedule, 0, horizon)[1])]


def published_line(declaration: StreamDeclaration, *, new: bool = True, before: float = 0.0) -> str:
    """What a stream publishes with which error; of a new one without views, what declaring some
    would change.

    `before` is the std of the totals that its running totals go on from.

    >>> hourly = {"name": "s", "query": "count", "tick": "1h", "horizon": 365,
    ...     "budget": {"epsilon": 1, "delta": 1e-6}, "views": ["per-tick", "last-7"]}
    >>> published_line(StreamDeclaration.from_dict(hourly))
    'Published: new events per tick (std 1.36), the last 7 ticks (std 3.59). Noise: fresh, ...'
    """
    settled = settle(declaration)
    written = settled.written
    stream = settled.build(replay=True)
    model = stream._errors
    kind = "Laplace" if stream.budget.pure else "Gaussian"
    if declaration.revise_for is not None:
        first, last = model.errors([1]).std[0][[0, -1]]
        return (
            f"Published: new events per tick (std {first:.3g}), again after each of the next "
            f"{declaration.revise_for} ticks (std {last:.3g} in the end). Noise: "
            f"{stream.factorization.name}, {kind}."
        )
    if not declaration.has_views:
        return "Published: the statistic of all events so far."
    if declaration.query.publishing.own_ticks:
        std = worst_std(model, 1, declaration.horizon or REFERENCE_TICKS)
        line = f"Published: the keys of each tick with their new events (std {std:.3g})."
        if new:
            return f"{line} For keys that stay public, declare more views, such as running."
        return line
    shown = []
    for name in noise_views(declaration.views, declaration.schedule) or settled.noise_for:
        width = view_width(name)
        what = {RUNNING: "running totals", PER_TICK: "new events per tick"}.get(
            name, f"the last {width} ticks"
        )
        std = worst_std(model, width, declaration.horizon or REFERENCE_TICKS)
        if name == RUNNING:
            std = math.hypot(std, before)
        shown.append(f"{what} (std {std:.3g})")
    why = ", chosen for them"
    if written.factorization is not None:
        why = ", as declared" if new else ""
    line = f"Published: {', '.join(shown)}. Noise: {stream.factorization.name}, {kind}{why}."
    if not new or declaration.views or written.noise_for:
        return line
    other, view = "single ticks", PER_TICK
    if declaration.main_view == PER_TICK:
        other, view = "running totals", RUNNING
    return f"{line} For {other} or weeks declare `views` {view}, last-7: they have different noise."


def late_text(declaration: StreamDeclaration) -> str:
    """What becomes of events that come late, for readers: the rule, never whether some came. Empty
    where ticks are closed by hand, as no event is late then.

    >>> daily = {"name": "s", "query": "count", "tick": "1d", "zone": "UTC",
    ...     "budget": {"epsilon": 1, "delta": 1e-9}}
    >>> late_text(StreamDeclaration.from_dict(daily))
    'an event that arrives after its day was published is not counted'
    """
    if declaration.schedule.manual:
        return ""
    word = tick_word(declaration.tick)
    if declaration.late == "next":
        where = f"is counted in the {word} that is published next, whose number is then higher"
        return f"an event that arrives after its {word} was published {where}"
    if declaration.revise_for is None:
        return f"an event that arrives after its {word} was published is not counted"
    again = (
        f"a number is published {declaration.revise_for} more times, with the events that have "
        "arrived by then"
    )
    return f"{again}; what arrives later is not counted"


def public_facts(
    declaration: StreamDeclaration,
    guarantee: str,
    marks: Sequence[TickMark],
    *,
    full_digits: bool,
    carried: CarriedTotals | None = None,
) -> dict[str, Any]:
    """What readers of a table must know: ε, δ, who is protected, what intervals are about."""
    budget = declaration.budget
    remarks = [mark.facts(declaration.schedule) for mark in marks if mark.hides is None]
    late = late_text(declaration)
    facts: dict[str, Any] = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "adjacency": budget.adjacency,
        "unit": "person" if budget.unit == "user" else "event",
        "period": budget.period,
        "counted": counted_text(
            budget, enforced_by(declaration.released_query, None), declaration.tick
        ),
        "guarantee": guarantee,
        "query": declaration.query.name,
        "tick": declaration.tick,
        "zone": declaration.schedule.zone,
    }
    if late:
        facts["late events"] = late
    facts["postprocess"] = list(declaration.postprocess)
    facts["digits"] = "all" if full_digits else "as many as the error allows"
    if carried is not None:
        since = declaration.schedule.show(carried.since)
        facts["running totals"] = f"since {since}, with the errors of all streams since then"
    if remarks:
        facts["remarks"] = remarks
    facts["made with"] = "evercount"
    return facts
