"""GenProt: exact pure privacy by enumeration, exact bits, unbiased estimates, and utility next to
the Gaussian form."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from loss_values import risk_above_zero

from evercount.errors import (
    AlreadyReleased,
    InputError,
    MessageRejected,
    ParameterError,
    SnapshotError,
    TooLarge,
    UnknownName,
)
from evercount.local import Hinge, LocalPlan, Loss, Quantile
from evercount.local.estimate import LocalEstimate
from evercount.local.genprot import GenProtClient, GenProtServer, choose
from evercount.local.genprot_plan import (
    BITS,
    GenProtPlan,
    choice_weights,
    exact_ratio,
    pure_epsilon,
    widest_clip,
)
from evercount.noise import Secret
from independent_streams import least_share
from product_internals import sums_of
from soak_cases import soak_except


def secret(seed: int) -> Secret:
    return Secret.from_hex(f"{seed:064x}")


def simulate_genprot(plan: GenProtPlan, points: np.ndarray, seed: int) -> np.ndarray:
    """The server's sum for many clients, all randomness from numpy: the protocol once more, for
    speed."""
    rng = np.random.default_rng(seed)
    values = np.asarray(points, np.float64)
    total = np.zeros(plan.shape.w + 1)
    for start in range(0, len(values), 4096):
        part = plan.directions[plan.shape.bucket(values[start : start + 4096]) - 1]
        y = rng.standard_normal((len(part), plan.candidates, plan.shape.w + 1))
        p = plan.bit_probabilities(np.einsum("itk,ik->it", y, part)) * 2.0**-BITS
        bits = rng.random(p.shape) < p
        bits[~bits.any(axis=1)] = True
        chosen = np.argmax(np.where(bits, rng.random(p.shape), -1.0), axis=1)
        total += y[np.arange(len(part)), chosen].sum(axis=0)
    return total


def law_by_enumeration(p: list[Fraction]) -> list[Fraction]:
    """P(message) for given bit probabilities, by all 2^T patterns of bits."""
    count = len(p)
    found = [Fraction(0)] * count
    for bits in itertools.product((0, 1), repeat=count):
        weight = math.prod(
            (q if b else 1 - q for b, q in zip(bits, p, strict=True)), start=Fraction(1)
        )
        ones = [t for t in range(count) if bits[t]] or list(range(count))
        for t in ones:
            found[t] += weight / len(ones)
    return found


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_exact_privacy_by_enumeration(count: int) -> None:
    """Two inputs choose any bit probabilities in [lo, hi]: the worst ratio over all corners (and
    middles)."""
    low, high = Fraction(2, 5), Fraction(3, 5)
    grid = [low, high] if count > 3 else [low, Fraction(1, 2), high]
    laws = [law_by_enumeration(list(p)) for p in itertools.product(grid, repeat=count)]
    for p in itertools.product(grid, repeat=count):
        assert sum(law_by_enumeration(list(p))) == 1
    worst = max(max(law[0] for law in laws) / min(law[0] for law in laws), Fraction(1))
    assert worst == exact_ratio(2, 3, 5, count)
    total = 5**count * math.lcm(*range(1, count + 1))
    corners = [Fraction(v, total) for v in choice_weights(2, 3, 5, count)]
    assert corners[-2] == law_by_enumeration([low] + [high] * (count - 1))[0]
    assert corners[1] == law_by_enumeration([high] + [low] * (count - 1))[0]


def test_the_clip_is_as_wide_as_the_promise_allows() -> None:
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        for count in (2, 4, 16):
            c = widest_clip(epsilon, count)
            assert pure_epsilon(c, count) <= epsilon
            assert c == math.log(2) or pure_epsilon(c * (1 + 1e-6), count) > epsilon
    # Large T: ratios of p and of the sum of the others, e^(2c) each.
    assert widest_clip(0.5, 32) == pytest.approx(0.125, rel=1e-3)


def test_a_wider_clip_is_caught() -> None:
    """Negative control: at four candidates a clip of ε/4 keeps the promise and one of ε/3 does
    not."""
    assert pure_epsilon(0.5 / 4, 4) <= 0.5
    assert pure_epsilon(0.5 / 3, 4) > 0.5


def test_lemma_6_2_holds_with_room() -> None:
    """Clip 2ε gives pure 10ε (Bun, Nelson and Stemmer); exactly, about 8ε for many candidates."""
    for inner in (0.05, 0.1, 0.2):
        for count in (4, 8, 32):
            assert pure_epsilon(2 * inner, count) <= 10 * inner
        assert pure_epsilon(2 * inner, 32) == pytest.approx(8 * inner, rel=2e-2)


@pytest.mark.parametrize("rule", ["best", "paper"])
def test_probabilities_never_leave_the_limits(rule: str) -> None:
    plan = GenProtPlan(0.8, 400, "public", rule=rule)  # type: ignore[arg-type]
    low, high = plan.limits
    p = plan.bit_probabilities(np.concatenate([np.linspace(-40, 40, 4001), [-1e300, 1e300, 0.0]]))
    assert p.min() >= low
    assert p.max() <= high
    assert 0 < low < 2 ** (BITS - 1) < high <= 2**BITS
    assert plan.exact_epsilon <= plan.epsilon


def test_choose_has_the_exact_law() -> None:
    """12,000 secrets: frequencies against the exact law, 5 standard errors; a planted change of
    0.03 would be seen."""
    plan = GenProtPlan(1.0, 400, "public")
    low, high = plan.limits
    p = np.asarray([low, high, high, low])
    seen = np.bincount([choose(plan, p, secret(i)) for i in range(12000)], minlength=4) / 12000
    want = [float(v) for v in law_by_enumeration([Fraction(int(v), 2**BITS) for v in p])]
    spread = 5 * math.sqrt(0.25 / 12000)
    assert (np.abs(seen - want) < spread).all()
    assert spread < 0.03
    assert abs(want[0] - want[1]) > spread


def test_client_and_server_agree_on_public_randomness() -> None:
    plan = GenProtPlan(1.0, 100, "public seed")
    a, b = plan.candidate(3, 1), GenProtPlan(1.0, 100, "public seed").candidate(3, 1)
    assert (a == b).all()
    for other in (
        plan.candidate(3, 2),
        plan.candidate(4, 1),
        GenProtPlan(1.0, 100, "other").candidate(3, 1),
    ):
        assert np.abs(a - other).max() > 0.1
    table = np.stack([plan.candidate(i, 0) for i in range(2000)])
    assert abs(table.mean()) < 5 / math.sqrt(table.size)
    assert table.std() == pytest.approx(1, abs=5 / math.sqrt(2 * table.size))
    client = GenProtClient(plan, 3, secret(1))
    message = client.message(0.4)
    assert 0 <= message < 4
    assert client.message(0.4) == message
    with pytest.raises(AlreadyReleased):
        client.message(0.5)


def test_all_directions_have_norm_one_and_the_ball_is_tight() -> None:
    plan = GenProtPlan(0.5, 65536, "s")
    assert np.allclose(np.linalg.norm(plan.directions, axis=1), 1)
    diameter = LocalPlan(0.5, 1e-6, 65536).sensitivity / 2**20
    assert diameter / 2 <= plan.radius <= diameter * 0.75


def test_end_to_end_through_clients() -> None:
    plan = GenProtPlan(2.0, 3000, "round 7", buckets=12)
    data = np.random.default_rng(2).beta(2, 5, 3000)
    left, right = GenProtServer(plan), GenProtServer(plan)
    for i, value in enumerate(data):
        message = GenProtClient(plan, i, secret(1000 + i)).message(float(value))
        (left if i % 2 else right).add(i, message)
    left.merge(right)
    estimate = left.estimate()
    truth = np.asarray([2 * (data <= k / 12).mean() - 1 for k in range(13)])
    assert left.accepted == 3000
    assert (np.abs(estimate.x - truth) <= estimate.band(0.9999) + 1e-9).all()
    assert abs(estimate.median - np.median(data)) < 0.25


@pytest.mark.parametrize("rule", soak_except(["best"], ["best", "paper"]))
def test_estimates_are_unbiased_and_stds_right(rule: str) -> None:
    """1,000 studies of 150 clients: mean within 5 standard errors, std of one entry within 10 %,
    bands of 90 % hold."""
    plan = GenProtPlan(1.0, 400, "s", rule=rule)  # type: ignore[arg-type]
    data, studies = np.random.default_rng(3).random(150), 1_000
    truth = np.asarray([2 * (data <= k / plan.shape.w).mean() - 1 for k in range(plan.shape.w + 1)])
    errors = []
    for seed in range(studies):
        server = GenProtServer(plan)
        server._sums, server.accepted = simulate_genprot(plan, data, seed), len(data)
        errors.append(server.estimate().x - truth)
    std = server.estimate().std[1:-1]
    mean = np.mean(errors, axis=0)[1:-1]
    assert (np.abs(mean) < 5 * std / math.sqrt(studies)).all()
    ratio = np.sqrt(np.mean((np.asarray(errors)[:, 1:-1] / std) ** 2, axis=0))
    assert ratio == pytest.approx(1, abs=0.1)
    inside, narrow = (
        np.mean((np.abs(errors) <= part * server.estimate().band(0.9) + 1e-9).all(axis=1))
        for part in (1.0, 0.85)
    )
    assert inside >= least_share(0.9, studies)
    assert narrow < least_share(0.9, studies), "planted: a band that is 15 % too narrow"


def test_utility_against_the_gaussian_form() -> None:
    """n·Var at ε = 0.5, w = 128: two bits and δ = 0 do better than (0.5, 1e-6); the paper's route
    is far worse."""
    gauss = LocalEstimate(LocalPlan(0.5, 1e-6, 65536), 1, np.zeros(129)).std.max() ** 2
    best, paper = (GenProtPlan(0.5, 65536, "s", rule=rule) for rule in ("best", "paper"))

    def variance(plan: GenProtPlan) -> float:
        server = GenProtServer(plan)
        server.accepted = 1
        return float(server.estimate().std.max() ** 2)

    assert variance(best) < gauss
    assert variance(paper) > 20 * gauss
    assert best.bits == 2


def test_a_poisoned_message_moves_no_more_than_its_share() -> None:
    """The worst of 20,000 (client, message) pairs in place of the opposite one: near the bound, and
    never beyond."""
    plan = GenProtPlan(1.0, 500, "s")
    pairs = [(client, t) for client in range(5000) for t in range(4)]
    table = np.stack([plan.candidate(*pair)[:-1] for pair in pairs])
    along = table @ LocalEstimate(plan.shape, 1, np.zeros(plan.shape.w + 1)).rows.T
    t = int(np.argmax(along.max(axis=0) - along.min(axis=0)))
    base = [(10**6 + i, i % 4) for i in range(99)]
    found = []
    for pick in (int(along[:, t].argmax()), int(along[:, t].argmin())):
        server = GenProtServer(plan)
        server.add_many([*base, pairs[pick]])
        found.append(server.estimate().x)
    limit = server.poison_bound() / server.accepted
    assert 0.35 * limit < np.abs(found[0] - found[1]).max() <= limit


def test_no_candidate_lies_beyond_the_reach() -> None:
    """The limit is what bounds a message; a planted smaller one shows that it acts, and on which
    candidates."""
    plan, tight = GenProtPlan(1.0, 500, "s"), GenProtPlan(1.0, 500, "s")
    # the typical norm: about half of them pass it
    tight.__dict__["reach"] = math.sqrt(plan.shape.w + 1)
    zeros = 0
    for client in range(400):
        full, cut = plan.candidate(client, 0), tight.candidate(client, 0)
        assert 0 < np.linalg.norm(full) <= plan.reach
        assert (cut == (full if np.linalg.norm(full) <= tight.reach else 0)).all()
        zeros += not cut.any()
    assert 100 < zeros < 300


def test_batches_dumps_and_merges_agree() -> None:
    plan = GenProtPlan(1.0, 100, "é|s", buckets=7)
    pairs: list[object] = [
        (np.int64(i), GenProtClient(plan, i, secret(i)).message(i / 100)) for i in range(100)
    ]
    bad: list[object] = [
        None,
        5,
        (1,),
        (1, 2, 3),
        (-5, 0),
        (3.7, 0),
        ("a", 0),
        (None, 0),
        (True, 0),
        (2**63, 0),
        (0, 4),
    ]
    single, batch, left, right, third = (GenProtServer(plan) for _ in range(5))
    for number, message in pairs:  # type: ignore[misc]
        single.add(number, message)
    assert batch.add_many(iter([*bad, *pairs])) == 100
    assert (batch.accepted, batch.rejected) == (100, len(bad))
    left.add_many(pairs[:30])
    right.add_many(pairs[30:60])
    third.add_many(pairs[60:])
    left.merge(GenProtServer.load(right.dump()), third)
    assert (sums_of(batch) == sums_of(single)).all()
    assert sums_of(left) == pytest.approx(sums_of(single), abs=1e-12)
    loaded = GenProtServer.load(batch.dump())
    assert (sums_of(loaded) == sums_of(batch)).all()
    assert (loaded.accepted, loaded.rejected, loaded.plan) == (100, len(bad), plan)
    for one in (b"12", "12", 5):
        with pytest.raises(InputError, match="batch"):
            batch.add_many(one)  # type: ignore[arg-type]


def test_damaged_dumps_are_refused() -> None:
    server = GenProtServer(GenProtPlan(1.0, 100, "s"))
    server.add(1, 1)
    good = server.dump()
    GenProtServer.load(good)
    changes = [
        (b'"format": 1', b'"format": 2'),
        (b'"accepted": 1', b'"accepted": 0'),
        (b'"accepted": 1', b'"accepted": 1.5'),
        (b'"rejected": 0', b'"rejected": -1'),
        (b'"sums": [', b'"sums": [NaN, '),
        (b'"s", 4', b'"t", 4'),
        (b'"sums": [', b'"sums": [1e9], "rest": ['),
    ]
    for old, new in changes:
        assert old in good
        with pytest.raises(SnapshotError):
            GenProtServer.load(good.replace(old, new))
    for blob in (b"", b"{}", b"[]", b"\xff", good[:-5]):
        with pytest.raises(SnapshotError):
            GenProtServer.load(blob)


@pytest.mark.parametrize("loss", [Quantile(0.8), pytest.param(Hinge(0.2), marks=pytest.mark.soak)])
def test_losses_go_through_the_same_reduction(loss: Loss) -> None:
    """With the points that the reduction draws, the risk of the loss itself: within noise, buckets
    and sampling."""
    n = 1500
    plan = GenProtPlan(2.0, n, "losses", buckets=16)
    x = np.random.default_rng(6).beta(2, 4, n)
    data: list[object] = x.tolist()
    if isinstance(loss, Hinge):
        data = list(zip(x.tolist(), np.where(x > 0.4, -1, 1).tolist(), strict=True))
    server = GenProtServer(plan)
    server.add_many(
        (i, GenProtClient(plan, i, secret(i + 1), loss=loss).message(d)) for i, d in enumerate(data)
    )
    estimate = server.estimate()
    thetas = np.linspace(0, 1, 21)
    truth = np.asarray([risk_above_zero(loss, t, data) for t in thetas])
    off = np.abs(estimate.f(thetas, raw=True) - truth)
    limit = estimate.bound(0.999, population=True, raw=True)
    assert (off <= limit).all()
    plain = np.asarray([np.abs(t - x).mean() - x.mean() for t in thetas])
    assert np.abs(estimate.f(thetas, raw=True) - plain).max() > off.max()  # not the default loss


def test_a_client_is_not_copied() -> None:
    client = GenProtClient(GenProtPlan(1.0, 100, "s"), 1, secret(1))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ParameterError, match=r"not copied|not pickled"):
            attempt(client)


def test_plans_are_checked_at_construction() -> None:
    with pytest.raises(TooLarge, match="buckets"):
        GenProtPlan(10.0, 10**6, "s")
    with pytest.raises(TooLarge, match="buckets"):
        GenProtPlan(1.0, 100, "s", buckets=10**6)
    for wrong in (
        {"delta": 0.0},
        {"delta": "a"},
        {"buckets": 1},
        {"buckets": [4]},
        {"seed": "\ud800"},
        {"seed": 5},
        {"n": 10**400},
        {"n": 10.0},
        {"epsilon": True},
        {"rule": ["best"]},
        {"candidates": 4.0},
    ):
        with pytest.raises(ParameterError):
            GenProtPlan(**{"epsilon": 1.0, "n": 100, "seed": "s"} | wrong)  # type: ignore[arg-type]
    assert GenProtPlan(1, np.int64(100), "s", buckets=10) == GenProtPlan(1.0, 100, "s")  # type: ignore[arg-type]


def test_refusals() -> None:
    plan = GenProtPlan(1.0, 100, "s")
    server = GenProtServer(plan)
    for message in (4, -1, "1", None, 1.0, True):
        with pytest.raises(MessageRejected):
            server.add(0, message)
    for number in (-5, 3.7, "a", None, True, 2**63, 10**5000, [1]):
        with pytest.raises(MessageRejected, match="number of a client"):
            server.add(number, 0)
    assert (server.accepted, server.rejected) == (0, 14)
    assert not sums_of(server).any()
    for other in (server, 5):
        with pytest.raises(ParameterError):
            server.merge(other)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        GenProtServer("plan")  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        GenProtClient(plan, 1, loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(InputError):
        server.estimate()
    with pytest.raises(ParameterError):
        server.merge(GenProtServer(GenProtPlan(2.0, 100, "s")))
    with pytest.raises(UnknownName):
        GenProtPlan(1.0, 100, "s", rule="worst")  # type: ignore[arg-type]
    for arguments in (
        (0.0, 100, "s"),
        (1.0, 0, "s"),
        (1.0, 100, ""),
        (1.0, 100, "s", 1),
        (1.0, 100, "s", 65),
    ):
        with pytest.raises(ParameterError):
            GenProtPlan(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        GenProtClient(plan, -1)
    with pytest.raises(InputError):
        GenProtClient(plan, 1).message(2.0)


def test_whole_numbers_of_numpy_are_taken_as_they_are_elsewhere():
    plan = GenProtPlan(1.0, np.int64(50), "seed", candidates=np.int64(64), buckets=np.int64(8))
    assert plan == GenProtPlan(1.0, 50, "seed", candidates=64, buckets=8)
    assert [type(number) for number in (plan.n, plan.candidates, plan.buckets)] == [int] * 3
    assert GenProtServer.load(GenProtServer(plan).dump()).plan == plan
