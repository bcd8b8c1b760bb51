"""Noise for what is published: the choice by views, what it keeps, what it stores, and every view's
stated error."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from evercount import Average, Budget, Count, DiscoveredKeys, Histogram, Stream
from evercount.declarations.cautions import declares_again, differences
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule
from evercount.declarations.settle import Settled, settle, with_noise_of
from evercount.engine import noise_choice, worst_errors
from evercount.engine.build import choose_engine
from evercount.engine.error_model import ErrorModel
from evercount.engine.noise_choice import MARGIN, candidates, choose_noise, least_alone
from evercount.engine.worst_errors import view_stds
from evercount.errors import BudgetExceeded, ParameterError, UnknownName
from evercount.factorizations.blend import round_root
from evercount.factorizations.laplace_choice import is_pure_name
from evercount.noise import Secret
from evercount.noise.secret import insecure_secret
from evercount.planning import plan, plan_views
from evercount.privacy import Ledger
from evercount.queries.base import Query
from many_streams import least_share

SECRET = Secret.from_hex("7" * 64)
SMALL, LARGE = Budget(0.5, 1e-10), Budget(0.5, 1e-3)
YEAR = 365
GAUSSIAN, PURE = Budget(1.0, 1e-6), Budget(1.0, 0.0)
ALL = ("per-tick", "last-7", "running")
RUNNING = ("running",)


def worst(stream: Stream) -> list[float]:
    return [float(stream.std(np.arange(1, YEAR + 1), view=view).max()) for view in stream.views]


@pytest.mark.parametrize("budget", [GAUSSIAN, PURE])
def test_days_and_weeks_have_the_noise_of_one_day(budget: Budget) -> None:
    """ε = 1: a beginner's Laplace noise per day has 1.36 and 3.6; running totals would have 5.9 and
    13."""
    assert worst(Stream(Count(), budget, YEAR, views=["per-tick"])) == pytest.approx(
        [1.357], abs=0.001
    )
    both = Stream(Count(), budget, YEAR, views=["per-tick", "last-7"])
    assert worst(both) == pytest.approx([1.357, 3.591], abs=0.001)
    assert both.budget.delta == 0.0
    running = Stream(Count(), budget, YEAR)
    assert running.views == ("running",)
    assert running.factorization.name == ("bridge" if budget.pure else "balanced")


def test_a_blend_serves_three_views_at_once() -> None:
    stream = Stream(Count(), GAUSSIAN, YEAR, "blend", views=ALL)
    assert all(own <= bar for own, bar in zip(worst(stream), (5.45, 9.75, 14.7), strict=True))
    again = Stream(Count(), GAUSSIAN, YEAR, stream.factorization.spec, views=ALL)
    assert (
        again.factorization.public_parameters()[0].tolist()
        == stream.factorization.public_parameters()[0].tolist()
    )
    assert again.sigma == stream.sigma


def test_the_choice_is_the_least_of_the_largest_ratios() -> None:
    """For each budget and sets of views, among all candidates; Gaussian noise stays where Laplace
    gains little."""
    few: tuple[tuple[str, ...], ...] = (("per-tick",), ("per-tick", "running"))
    ticks = 100
    for budget, sets in (
        (GAUSSIAN, (("last-30",), ALL, *few)),
        (Budget(0.1, 1e-2), few),
        (PURE, few),
    ):
        for views in sets:
            found = candidates(Count(), budget, ticks, views, MARGIN)
            least = least_alone(Count(), budget, ticks, views, found)
            kept, engine = choose_noise(Count(), budget, ticks, None, views)
            score = {(one.budget.pure, one.engine.name): one.score(least) for one in found}
            chosen = score[kept.pure, engine.name]
            same = min(value for (pure, _), value in score.items() if pure == kept.pure)
            assert chosen == same
            other = [value for (pure, _), value in score.items() if pure != kept.pure]
            if kept.pure and other:
                assert min(other) > MARGIN * chosen
            elif other:
                assert chosen <= MARGIN * min(other)


def test_queries_of_many_cells_stay_gaussian() -> None:
    """One event in eight keys: l1 norms are large, and Laplace noise gains nothing."""
    stream = Stream(
        Histogram(10, max_keys_per_event=8), Budget(0.2, 1e-3), YEAR, views=["per-tick"]
    )
    assert not stream.budget.pure
    assert stream.factorization.name == "fresh"


@pytest.mark.parametrize(
    ("name", "budget"), [("fresh", GAUSSIAN), ("fresh", PURE), ("blend", GAUSSIAN)]
)
def test_intervals_of_every_view_hold(name: str, budget: Budget) -> None:
    """8,000 cells as independent streams; an interval that is 10 % too narrow is caught."""
    cells, ticks = 8000, 12
    stream = Stream(Histogram(cells), budget, YEAR, name, secret=SECRET.derive(name), views=ALL)
    releases = stream.run_totals(np.zeros((ticks, cells), np.int64))
    for view in (releases.per_tick(), releases.last(7), releases.running()):
        inside = np.mean(np.abs(view.values) <= view._half_widths(0.95), axis=1)
        assert np.all(inside >= least_share(0.95, cells)), view.name
    narrow = np.mean(
        np.abs(releases.last(7).values) <= 0.85 * releases.last(7)._half_widths(0.95), axis=1
    )
    assert np.all(narrow < least_share(0.95, cells))


@pytest.mark.parametrize("budget", [GAUSSIAN, PURE])
def test_bounds_of_a_view_hold_for_all_its_numbers_at_once(budget: Budget) -> None:
    """2,000 groups of four cells over twelve ticks; a bound for single numbers would fail."""
    groups, ticks = 2000, 12
    stream = Stream(
        Histogram(4 * groups), budget, YEAR, "fresh", secret=SECRET.derive("bound"), views=ALL
    )
    view = stream.run_totals(np.zeros((ticks, 4 * groups), np.int64)).last(7)
    off = np.abs(view.values).reshape(len(view), groups, 4)
    wide = view.only(*view.cells[:4]).bound(0.95)[:, np.newaxis]
    assert np.mean(np.all(off <= wide, axis=(0, 2))) >= least_share(0.95, groups)
    single = view.only(*view.cells[:4])._half_widths(0.95)[:, np.newaxis]
    assert np.mean(np.all(off <= single, axis=(0, 2))) < 0.7, "planted"


@pytest.mark.parametrize(
    ("horizon", "views"),
    [
        (None, ("per-tick",)),
        (48, ("per-tick",)),
        (48, ("per-tick", "last-24")),
        # its fit is that of tests/planning/test_compare.py::test_a_plan_without_a_horizon…, and
        # takes as long
        pytest.param(None, ("per-tick", "last-24"), marks=pytest.mark.soak),
    ],
)
def test_unlisted_keys_take_the_noise_that_they_can_have(
    views: tuple[str, ...], horizon: int | None
) -> None:
    """Keys of the day have fresh noise; for keys that stay, that of running totals or a blend
    serves their views."""
    stream = Stream(DiscoveredKeys(), Budget(2.0, 1e-6), horizon, views=views)
    assert stream.factorization.name in (
        ("fresh",) if len(views) == 1 else ("anytime", "balanced", "blend")
    )
    stream.step(["oslo"] * 500)
    stream.close()


def test_views_are_part_of_the_key_and_of_the_snapshot() -> None:
    one = Stream(
        Count(), GAUSSIAN, YEAR, "balanced", secret=SECRET, views=["per-tick"], replay=True
    ).run([0] * 20)
    other = Stream(
        Count(), GAUSSIAN, YEAR, "balanced", secret=SECRET, views=["running"], replay=True
    ).run([0] * 20)
    assert np.mean(one.values == other.values) < 0.3
    stream = Stream(Count(), GAUSSIAN, YEAR, "blend", secret=SECRET, views=ALL)
    first = stream.run([1, 2, 3])
    blob = stream.snapshot()
    stream.close()
    again = Stream.restore(blob)
    assert again.views == ALL
    assert again.factorization.spec == stream.factorization.spec
    whole = Stream(Count(), GAUSSIAN, YEAR, "blend", secret=SECRET, views=ALL, replay=True).run(
        [1, 2, 3, 4]
    )
    assert whole.values[:3].tolist() == first.values.tolist()
    assert again.step(4).value == whole.values[3]


def test_a_persons_week_has_taps() -> None:
    """Days and running totals of persons whose week is protected: stored with the stream, and
    continued."""
    person = Budget(1.0, 1e-6, unit="user", max_per_tick=1, period=7)
    stream = Stream(Count(), person, 64, secret=SECRET, views=["per-tick", "running"])
    spec = stream.factorization.spec
    assert isinstance(spec, dict)
    assert len(spec["taps"]) == 6
    R = stream.factorization.dense()[1]
    cost = stream.sigma**2 / person.noise_multiplier() ** 2
    weeks = [R[:, first : first + 7] for first in range(58)]
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(7)) & 1)
    worst = max(float(np.square(signs @ week.T).sum(axis=1).max()) for week in weeks)
    assert 0.97 * cost < worst <= cost, (
        "no change of a week costs more than the noise is for, and some nearly that"
    )
    first = stream.run([5] * 40, capped=True).values
    blob = stream.snapshot()
    stream.close()
    again = Stream.restore(blob)
    rest = again.run([5] * 24, capped=True).values
    again.close()
    named = Stream(
        Count(), person, 64, spec, secret=SECRET, views=["per-tick", "running"], replay=True
    )
    whole = named.run([5] * 64, capped=True).values
    assert whole.tolist() == [*first.tolist(), *rest.tolist()]
    with pytest.raises(ParameterError, match="horizon"):
        Stream(Count(), person, None, spec, views=["per-tick", "running"])


def test_refusals() -> None:
    with pytest.raises(UnknownName, match="view"):
        Stream(Count(), GAUSSIAN, YEAR, views=["per-month"])
    with pytest.raises(ParameterError, match="list of names"):
        Stream(Count(), GAUSSIAN, YEAR, views="per-tick")
    with pytest.raises(ParameterError, match="per-tick"):
        Stream(Average(), GAUSSIAN, YEAR, views=["per-tick"])
    with pytest.raises(ParameterError, match="Gaussian"):
        Stream(Count(), PURE, YEAR, "blend", views=ALL)
    with pytest.raises(ParameterError, match="poles"):
        Stream(
            Count(), GAUSSIAN, YEAR, {"name": "blend", "poles": [0.5], "zeros": [0.25]}, views=ALL
        )


# -- declarations ----------------------------------------------------------------------------------


def declared(**more: object) -> StreamDeclaration:
    fields = {
        "name": "flu",
        "query": "count",
        "budget": {"epsilon": 1, "delta": 1e-6},
        "tick": "1d",
        "zone": "UTC",
    }
    return StreamDeclaration.from_dict({**fields, "start": "2026-01-01", "horizon": YEAR, **more})


def test_a_declaration_freezes_what_its_first_views_choose() -> None:
    first = settle(declared(views=["per-day", "per-week"]))
    assert first.noise_for == ("per-tick", "last-7")
    assert (first.factorization, first.budget.delta) == ("fresh", 0.0)
    stored = Settled.from_dict(first.to_dict())
    assert stored == first
    shown = declared(views=["per-day", "running"])
    assert settle(shown).noise_for == ("per-tick", "running")
    assert declares_again(stored, shown), "views may change: the noise stays"
    assert not differences(stored, shown)
    asked = declared(views=["per-day"], noise_for=["running"])
    assert not declares_again(stored, asked)
    assert any("noise_for" in line for line in differences(stored, asked))
    plain = settle(declared())
    assert (plain.noise_for, plain.factorization) == (("per-tick",), "fresh")
    manual = settle(declared(tick="manual", zone=None, start=None))
    assert (manual.noise_for, manual.factorization) == (("running",), "balanced")
    later = declared(query={"name": "discovered-keys", "parameters": {"every": 7}})
    assert settle(later).noise_for == ("running",), "keys that stay have no single ticks"


def test_a_declaration_is_data_and_settled_once() -> None:
    """What an operator writes stays as it is; `settle` names what it leaves open, and settles
    nothing twice."""
    asked = declared(views=["per-day", "per-week"])
    assert (asked.noise_for, asked.factorization, asked.budget.delta) == ((), None, 1e-6)
    settled = settle(asked)
    assert settle(settled) is settled
    assert settled.written is asked
    assert asked.to_dict() == StreamDeclaration.from_dict(asked.to_dict()).to_dict()
    for change in ({"factorization": None}, {"noise_for": ()}):
        with pytest.raises(ParameterError, match="names its noise"):
            replace(settled, **change)


def test_what_a_declaration_leaves_open_is_no_difference() -> None:
    """Nobody knows any more what was asked for when a stream began: what is said now is compared
    with what it has."""
    stored = settle(declared(views=["per-day"]))
    budget = {"epsilon": 1, "delta": 1e-6}
    open_: list[dict[str, object]] = [{}, {"factorization": "best"}]
    for same in (*open_, *({"budget": {**budget, "delta": delta}} for delta in (0, 0.1))):
        assert declares_again(stored, declared(**same)), same
    gaussian = settle(declared(views=["per-day"], factorization="balanced"))
    assert declares_again(gaussian, declared(factorization="balanced"))
    assert declares_again(gaussian, declared()), "it leaves the noise open"
    others: list[tuple[Settled, dict[str, object], str]] = [
        (stored, {"budget": {**budget, "epsilon": 2}}, "epsilon was 1.0 and is now 2.0"),
        (stored, {"factorization": "balanced"}, "factorization was 'fresh' and is now 'balanced'"),
        (stored, {"factorization": "fresh"}, "delta was 0.0 and is now 1e-06"),
        (stored, {"noise_for": ["running"]}, "noise_for was"),
        (stored, {"late": "revise", "revise_for": 2}, "revise_for was None and is now 2"),
        (gaussian, {"budget": {**budget, "delta": 1e-9}}, "delta was 1e-06 and is now 1e-09"),
        (gaussian, {"budget": {**budget, "delta": 0}}, "delta was 1e-06 and is now 0.0"),
        (
            gaussian,
            {"factorization": "square-root"},
            "factorization was 'balanced' and is now 'square-root'",
        ),
    ]
    for known, change, said in others:
        assert any(line.startswith(said) for line in differences(known, declared(**change))), (
            change,
            said,
        )


def test_a_blend_is_stored_with_its_numbers() -> None:
    first = settle(declared(views=["per-day", "per-week", "running"], factorization="blend"))
    assert isinstance(first.factorization, dict)
    assert Settled.from_dict(first.to_dict()) == first
    assert declares_again(first, declared(views=["per-day"], factorization="blend"))
    assert first.build(secret=insecure_secret(1)).factorization.spec == first.factorization


def test_a_fit_on_another_processor_declares_the_same_stream() -> None:
    """A fit ends at other last digits there (`OPENBLAS_CORETYPE` shows it): a stream that goes on
    keeps its own."""
    asked: dict[str, object] = {
        "views": ["per-day", "per-week", "running"],
        "factorization": "blend",
    }
    here = settle(declared(**asked))
    assert isinstance(here.factorization, dict)
    zeros = [number * (1 - 2.0**-14) for number in here.factorization["zeros"]]
    other = {**here.factorization, "zeros": list(map(round_root, zeros))}
    there = settle(declared(**{**asked, "factorization": other}))
    assert there.factorization != here.factorization
    assert declares_again(there, declared(**asked)), differences(there, declared(**asked))
    assert with_noise_of(declared(**asked), there).factorization == there.factorization
    longer = declared(**{**asked, "horizon": 2 * YEAR})
    assert any("horizon" in line for line in differences(there, longer))
    named = declared(**{**asked, "factorization": here.factorization})
    assert any("factorization" in line for line in differences(there, named)), (
        "numbers that are named count"
    )


def test_hours_plan_the_longest_day() -> None:
    assert declared(
        tick="1h", zone="Europe/Vienna", views=["per-day"], horizon=50
    ).views_of_noise == ("last-25",)
    assert declared(tick="1h", views=["per-day"], horizon=50).views_of_noise == ("last-24",)
    assert Schedule("1h", 0, "UTC").length * 24 == Schedule("1d", 0, "UTC").length


# -- the name "best" -------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "name"), [(SMALL, "bridge"), (LARGE, "balanced")])
def test_best_has_the_least_worst_std_and_says_what_it_keeps(budget: Budget, name: str) -> None:
    stream = Stream(Count(), budget, 2**12, "best", secret=SECRET.derive(name))
    assert stream.factorization.name == name
    assert stream.budget.delta == (0.0 if name == "bridge" else budget.delta)
    assert stream.budget.epsilon == budget.epsilon
    found = plan(budget, 2**12, Count())
    assert found.best["worst tick"] == name == found.rows[0].name
    stds = stream.std(np.arange(1, 2**12 + 1))
    assert float(stds.max()) == pytest.approx(found.rows[0].worst_std, rel=1e-3)
    blob = stream.snapshot()
    stream.close()
    restored = Stream.restore(blob)
    assert restored.budget == stream.budget
    named = Stream(Count(), budget, 2**12, name, secret=SECRET.derive(name), replay=True)
    assert restored.step(3).value == named.step(3).value


def test_a_pure_stream_is_accounted_as_one() -> None:
    """A ledger is asked for ε with δ = 0: as a Gaussian stream it would be charged too little."""
    stream = Stream(Count(), SMALL, 2**12, "best", secret=SECRET.derive("accounted"))
    assert stream.budget.pure
    ledger = Ledger(Budget(1.0, 1e-9))
    ledger.spend("one", stream.cost)
    ledger.spend("two", stream.cost)
    with pytest.raises(BudgetExceeded):
        ledger.spend("three", stream.cost)


def test_names() -> None:
    assert is_pure_name("bridge")
    assert is_pure_name("pure-tree-7")
    assert not is_pure_name("balanced")
    assert not is_pure_name(None)
    assert choose_noise(Count(), SMALL, 100, None, RUNNING)[1].name == "bridge", (
        "better by more than the margin"
    )
    assert choose_noise(Count(), LARGE, 100, None, RUNNING)[1].name == "balanced"
    assert choose_noise(Count(), SMALL, 100, "pure-tree", RUNNING)[0].delta == 0
    assert (
        choose_noise(Count(), Budget(1.0, 0.0), None, "best", RUNNING)[1].name == "endless-bridge"
    )

    class Silent(Count):
        l1_sensitivity = Query.l1_sensitivity

    assert choose_noise(Silent(), SMALL, 2**16, "best", RUNNING)[1].name == "balanced"
    with pytest.raises(ParameterError):
        Stream(Count(), SMALL, 100, "no such thing")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("horizon", [8, 100, 365, 3000])
@pytest.mark.parametrize("views", [RUNNING, ("last-7",), ("per-tick", "running"), ALL])
@pytest.mark.parametrize("delta", [0.0, 1e-10, 1e-6])
def test_no_named_noise_beats_best(
    epsilon: float, horizon: int, views: tuple[str, ...], delta: float
) -> None:
    budget = Budget(epsilon, delta)
    own, engine = choose_noise(Count(), budget, horizon, "best", views)
    stds = view_stds(Count(), own, horizon, engine, views)
    found = candidates(Count(), budget, horizon, views)
    least = least_alone(Count(), budget, horizon, views, found)
    score = max(std / one for std, one in zip(stds, least, strict=True))
    names = ["bridge", "pure-tree", "pure-binary", "fresh", "terrace"]
    if delta:
        names += [
            "balanced",
            "normalized",
            "square-root",
            "binary-tree",
            "honaker-full",
            "fresh",
            "blend",
        ]
    for number, name in enumerate(names):
        promise = Budget(epsilon, 0.0) if number < 5 else budget
        with suppress(ParameterError):  # no terrace of a few ticks
            other = choose_engine(Count(), promise, horizon, name, views)
            others = view_stds(Count(), promise, horizon, other, views)
            assert score <= 1.01 * max(std / one for std, one in zip(others, least, strict=True)), (
                name
            )


def test_totals_follow_the_rule_of_other_views() -> None:
    short, engine = choose_noise(Count(), Budget(1.0, 1e-10), 100, None, RUNNING)
    assert (short.delta, engine.name) == (0.0, "bridge")
    assert view_stds(Count(), short, 100, engine, RUNNING)[0] < 7.5
    large, engine = choose_noise(Count(), Budget(8.0, 0.0), 365, None, RUNNING)
    assert engine.name == "fresh"
    assert view_stds(Count(), large, 365, engine, RUNNING)[0] < 0.5
    stored = settle(
        declared(
            tick="manual", zone=None, start=None, horizon=100, budget={"epsilon": 1, "delta": 1e-10}
        )
    )
    assert (stored.budget.delta, stored.factorization) == (0.0, "bridge")
    assert Settled.from_dict(stored.to_dict()) == stored


def test_running_averages_have_noise_for_averages() -> None:
    budget, engine = choose_noise(Average(), GAUSSIAN, YEAR, None, RUNNING)
    assert (budget.delta, engine.name) == (0.0, "fresh")
    stream = Stream(Average(), GAUSSIAN, YEAR)
    assert math.sqrt(float((stream.std(np.arange(1, YEAR + 1)) ** 2).mean())) < 0.19
    balanced = Stream(Average(), GAUSSIAN, YEAR, "balanced")
    assert math.sqrt(float((balanced.std(np.arange(1, YEAR + 1)) ** 2).mean())) > 0.6


def test_a_terrace_is_declared_once() -> None:
    first = settle(
        declared(views=["per-day", "per-week", "running"], budget={"epsilon": 1, "delta": 0})
    )
    assert isinstance(first.factorization, dict)
    assert first.factorization["name"] == "terrace"
    assert Settled.from_dict(first.to_dict()) == first
    stream = first.build(secret=insecure_secret(1))
    assert stream.factorization.spec == first.factorization
    rows = stream.run([5] * 100).rows
    blob = stream.snapshot()
    stream.close()
    rest = Stream.restore(blob).run([5] * 30).rows
    whole = first.build(secret=insecure_secret(1), replay=True)
    assert whole.run([5] * 130).rows.tolist() == [*rows.tolist(), *rest.tolist()]
    with pytest.raises(ParameterError, match="at least four ticks"):
        Stream(Count(), PURE, 3, "terrace", views=["running"])
    assert Stream(Count(), GAUSSIAN, YEAR, first.factorization, views=["running"]).budget.pure


def test_a_declaration_settles_best_once() -> None:
    table = {
        "name": "visits",
        "query": "count",
        "budget": {"epsilon": 0.5, "delta": 1e-10},
        "horizon": 65536,
        "factorization": "best",
    }
    settled = settle(StreamDeclaration.from_dict(table))
    assert settled.factorization == "bridge"
    assert settled.budget.pure
    assert Settled.from_dict(settled.to_dict()) == settled
    assert settled.build(secret=SECRET).factorization.name == "bridge"
    plain = StreamDeclaration.from_dict({**table, "factorization": None})
    assert (plain.to_dict()["factorization"], plain.budget.delta) == (None, 1e-10)
    assert (settle(plain).factorization, settle(plain).budget.delta) == ("balanced", 1e-10)
    with pytest.raises(ParameterError, match="factorization must be"):
        StreamDeclaration.from_dict({**table, "factorization": 3})


@pytest.mark.parametrize("horizon", [50, None])
def test_a_plan_computes_each_error_once(
    monkeypatch: pytest.MonkeyPatch, horizon: int | None
) -> None:
    """The noise is chosen, compared with the best for each view alone, and shown: three times the
    same errors."""
    for kept in (
        noise_choice.candidates,
        noise_choice._least_error,
        noise_choice._engine,
        noise_choice._view_std,
    ):
        kept.cache_clear()
    seen, own = [], worst_errors.worst_std

    def watched(model: ErrorModel, width: int | None, last: int) -> float:
        engine = model.factorization
        fitted = (tuple(part.tobytes() for part in engine.public_parameters()), id(engine))
        seen.append(
            (engine.name, model.pure, width, fitted if engine.name in noise_choice.FITTED else ())
        )
        return own(model, width, last)

    monkeypatch.setattr(worst_errors, "worst_std", watched)
    plan_views(GAUSSIAN, horizon, ALL)
    assert len(seen) > 10
    assert len(seen) == len(set(seen))
