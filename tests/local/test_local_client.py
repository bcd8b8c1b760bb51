"""Clients: exact arithmetic of the message, one message only, the reduction of losses to
medians."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loss_values import loss_value
from scipy import stats
from test_local_sensitivity import means

import evercount.local.client_and_server as client_module
from evercount.errors import AlreadyReleased, InputError, ParameterError
from evercount.local import (
    Absolute,
    ConvexLoss,
    GenProtServer,
    HierarchyClient,
    HierarchyPlan,
    HierarchyServer,
    Hinge,
    LocalClient,
    LocalPlan,
    LocalServer,
    Loss,
    Quantile,
    simulate,
)
from evercount.local.collection_plan import UNIT
from evercount.local.message_server import HEAD, unpack
from evercount.noise import ExactNoise, Secret
from evercount.noise.normal_sampler import NormalSequence
from product_internals import secret_of

SECRET = Secret.from_hex("6" * 64)
PLAN = LocalPlan(0.5, 1e-6, 1000)


def rounded(plan: LocalPlan, j: int, z: list[int]) -> list[int]:
    """⌊(R e_j + N z)/2^m + ½⌋ in big integers, for z·2^128 and bucket j from 1; no code is shared
    with the client."""
    mean = [0] * plan.entries
    for start, place in zip((0, plan.w), (j - 1, plan.w - j), strict=True):
        for t in range(place, plan.w) if start < plan.entries else ():
            mean[start + t] = int(plan.factor[t - place])
    one = 1 << 128
    half, whole = one << plan.shift - 1, one << plan.shift
    return [(a * one + plan.scale * v + half) // whole for a, v in zip(mean, z, strict=True)]


def entries_list(plan: LocalPlan, bucket: int, noise: object) -> list[int]:
    return np.frombuffer(client_module.entries(plan, bucket, noise), "<i2").tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
@pytest.mark.parametrize("buckets", [2, 23, 128, 1000])
def test_message_is_the_rounding_of_the_exact_sum(form: str, buckets: int) -> None:
    """In big integers, from the client's own secret, at both ends and inside."""
    for value in (0.0, 0.31, 1.0):
        client = LocalClient(LocalPlan(0.5, 1e-6, 2000, form, buckets), SECRET)  # type: ignore[arg-type]
        plan = client.plan
        got = unpack(plan, client.message(value)).astype(int)
        noise = NormalSequence(secret_of(client), plan.entries)
        z = [noise.exact(number) for number in range(plan.entries)]
        j = max(1, int(np.ceil(value * plan.w)))
        assert got.tolist() == rounded(plan, j, z)
        client.close()  # the next one has the same secret


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_simulated_entries_are_those_of_the_exact_sum(form: str) -> None:
    plan = LocalPlan(0.5, 1e-6, 2000, form)  # type: ignore[arg-type]
    z = ExactNoise(SECRET).normals(7, 47, plan.entries).to_ints().tolist()
    values = np.linspace(0, 1, 40)
    exact = [rounded(plan, j, row) for j, row in zip(plan.bucket(values).tolist(), z, strict=True)]
    assert simulate(plan, values, SECRET, 7).tolist() == exact


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_rounding_in_integers_gives_the_same_entries(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a margin of 1 no entry is left to doubles."""
    plan = LocalPlan(0.5, 1e-6, 2000, form)  # type: ignore[arg-type]
    for number in range(20):
        noise = NormalSequence(SECRET.derive(str(number)), plan.entries)
        usual = entries_list(plan, 7, noise)
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "ROUNDING_MARGIN", 1.0)
            counted = Written([noise.exact(i) for i in range(plan.entries)])
            assert entries_list(plan, 7, counted) == usual
            assert counted.asked == plan.entries


class Written:
    """Noise that is written by hand as z·2^128, with what a `NormalSequence` offers."""

    def __init__(self, z: list[int]) -> None:
        self.z = z
        self.near = np.asarray([v / 2**128 for v in z])
        self.asked = 0

    def exact(self, number: int) -> int:
        self.asked += 1
        return self.z[number]


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 8.0])
def test_entries_that_are_too_close_are_rounded_in_integers(form: str, epsilon: float) -> None:
    """The least z that reaches a boundary and the one just below it: doubles cannot tell them
    apart."""
    plan = LocalPlan(epsilon, 1e-6, 2000, form, buckets=20)  # type: ignore[arg-type]
    bucket = 6
    mean = rounded_units(plan, bucket)
    for below in (0, 1):
        z = []
        for number, a in enumerate(mean):
            target = (2 * (number - 9) + 1) << plan.shift - 1  # (whole + ½)·2^m, in units
            z.append(-(-((target - a) << 128) // plan.scale) - below)
        noise = Written(z)
        made = entries_list(plan, bucket, noise)
        assert made == [number - 8 - below for number in range(plan.entries)]
        assert made == rounded(plan, bucket, z)
        assert noise.asked == plan.entries


def rounded_units(plan: LocalPlan, bucket: int) -> list[int]:
    """R·e_bucket in units."""
    return (means(plan)[bucket - 1] * UNIT).astype(int).tolist()


def test_means_of_the_plan_are_the_columns_of_r() -> None:
    for form in ("one-counter", "two-counter"):
        plan = LocalPlan(0.5, 1e-6, 2000, form)  # type: ignore[arg-type]
        table = means(plan) / plan.entry
        for bucket in range(1, plan.w + 1):
            assert np.array_equal(plan.mean(bucket), table[bucket - 1])
            assert len(plan.mean(bucket)) == plan.entries


def test_messages_are_normal_with_the_declared_std_and_a_planted_bug_is_caught() -> None:
    """Real clients: Kolmogorov–Smirnov at 1e-6 on 46,000 entries of 2,000 clients; 5 % less noise
    must be seen."""
    plan = LocalPlan(0.5, 1e-6, 2000)
    received = [
        unpack(plan, LocalClient(plan, SECRET.derive(str(i))).message(0.5)) for i in range(2000)
    ]
    z = (
        (np.asarray(received) * plan.entry - means(plan)[plan.bucket([0.5])[0] - 1]) / plan.sigma
    ).ravel()
    assert stats.kstest(z, "norm").pvalue > 1e-6
    assert stats.kstest(z * 0.95, "norm").pvalue < 1e-6


def test_noise_is_normal_with_the_declared_std_and_a_planted_bug_is_caught() -> None:
    """Kolmogorov–Smirnov at 1e-6 on 60,000 entries; 5 % less noise must be seen."""
    plan = LocalPlan(0.5, 1e-6, 2000)
    entries = simulate(plan, np.full(3000, 0.5), SECRET).astype(float) * plan.entry
    z = (entries - means(plan)[plan.bucket([0.5])[0] - 1]) / plan.sigma
    sample = z.ravel()[:60000]
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert stats.kstest(sample * 0.95, "norm").pvalue < 1e-6


def test_one_message_only() -> None:
    client = LocalClient(PLAN, SECRET)
    first = client.message(0.25)
    assert client.message(0.25) == first
    with pytest.raises(AlreadyReleased):
        client.message(0.26)
    other = LocalClient(PLAN)
    assert other.message(0.25) != first
    assert len(first) == HEAD + 2 * client.plan.w
    client.close()
    assert LocalClient(PLAN, SECRET).message(0.25) == first


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_bad_values_are_refused_and_not_shown(value: object) -> None:
    client = LocalClient(PLAN)
    with pytest.raises(InputError) as caught:
        client.message(value)
    if isinstance(value, float):
        assert str(value) not in str(caught.value)
    client.message(0.5)  # nothing was sent by the refused call


def test_too_large_vectors_are_sent_as_zeros() -> None:
    plan = LocalPlan(0.5, 1e-6, 1000)
    for large in (10, 60, 10**6, 10**30):  # also far beyond 16 bits
        z = [0] * plan.entries
        z[3] = large << 128
        made = entries_list(plan, 1, Written(z))
        inside = sum(v * v for v in rounded(plan, 1, z)) <= plan.radius**2
        assert inside is (large == 10)
        assert any(made) is inside


def test_one_vector_outside_empties_both_counters() -> None:
    plan = LocalPlan(0.5, 1e-6, 1000, "two-counter")
    for far in (0, plan.w):
        z = [1 << 120] * plan.entries
        assert any(entries_list(plan, 1, Written(z)))
        z[far] = 10**6 << 128
        assert not any(entries_list(plan, 1, Written(z)))


def test_buckets_hold_their_right_end() -> None:
    plan = LocalPlan(0.5, 1e-6, 400)
    assert plan.w == 10
    assert plan.bucket([0.0, 0.05, 0.1, 0.11, 0.5, 0.51, 1.0]).tolist() == [1, 1, 1, 2, 5, 6, 10]


LOSSES = [
    (Absolute(), 0.37),
    (Quantile(0.2), 0.37),
    (Quantile(0.9), 0.0),
    (Hinge(0.1), (0.4, 1)),
    (Hinge(0.1), (0.4, -1)),
    (Hinge(0.3), (0.9, 1)),
]


@pytest.mark.parametrize(("loss", "data"), LOSSES)
def test_reduction_reproduces_the_loss(loss: Loss, data: Any) -> None:
    """E|θ − Z| − E|0 − Z| = ℓ(θ) − ℓ(0), with E over a fine grid of u: exact up to the grid."""
    count = 4000
    z = np.asarray([loss.sample(data, (i + 0.5) / count) for i in range(count)])
    assert ((z >= 0) & (z <= 1)).all()
    for theta in np.linspace(0, 1, 41):
        reduced = np.abs(theta - z).mean() - z.mean()
        direct = loss_value(loss, theta, data) - loss_value(loss, 0.0, data)
        assert reduced == pytest.approx(direct, abs=2e-3)


@pytest.mark.parametrize("u", [0.0, 0.01, 0.1, 0.26, 0.49, 0.51, 0.74, 0.93, 0.99])
def test_the_reduction_of_losses_with_a_kink(u: float) -> None:
    """The pinball loss gives 0, d or 1 with probabilities (1 − τ)/2, 1/2 and τ/2, the hinge its
    kink or one end."""
    for d in (0.0, 0.3, 0.37, 1e-9, 1.0):
        assert Quantile(0.2).sample(d, u) == (0.0 if u < 0.4 else d if u < 0.9 else 1.0)
        assert Hinge(0.1).sample((d, 1), u) == (min(d + 0.1, 1.0) if u < 0.5 else 1.0)
        assert Hinge(0.1).sample((d, -1), u) == (0.0 if u < 0.5 else max(d - 0.1, 0.0))
        assert ConvexLoss(Absolute().derivative).sample(d, u) == Absolute().sample(d, u)


def test_a_loss_that_is_too_steep_is_refused() -> None:
    steep = ConvexLoss(lambda t, d: 2.0 if t >= d else -2.0)
    with pytest.raises(InputError, match="Lipschitz"):
        LocalClient(PLAN, loss=steep).message(0.5)
    with pytest.raises(ParameterError):
        LocalClient(PLAN, loss="hinge")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [[1], {}, "1", True, None, np.ones(2), 10**400, float("nan"), -1.0]
)
def test_bad_parameters_are_refused(wrong: Any) -> None:
    with pytest.raises(ParameterError):
        LocalPlan(wrong, 1e-6, 1)
    with pytest.raises(ParameterError):
        LocalPlan(1.0, wrong, 1)
    with pytest.raises(ParameterError):
        LocalPlan(1.0, 1e-6, wrong)
    for kind in (LocalClient, HierarchyClient, LocalServer, HierarchyServer, GenProtServer):
        with pytest.raises(ParameterError, match="plan must be"):
            kind(wrong)  # type: ignore[operator]
    with pytest.raises(ParameterError):
        LocalClient(PLAN, secret=wrong if wrong is not None else "no secret")
    with pytest.raises(ParameterError):
        Quantile(wrong)
    with pytest.raises(ParameterError):
        Hinge(wrong if wrong is not None else 2.0)
    with pytest.raises(ParameterError):
        ConvexLoss(wrong)


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.float16(0.5), np.int64(1), np.float64(0.25), 1]
)
def test_losses_take_the_numbers_that_the_default_takes(value: Any) -> None:
    LocalClient(PLAN).message(value)
    LocalClient(PLAN, loss=Quantile(0.3)).message(value)
    LocalClient(PLAN, loss=Hinge()).message((value, np.int64(-1)))
    assert Absolute().sample(value, 0.5) == float(value)


@pytest.mark.parametrize(
    "value", [np.bool_(True), np.asarray(0.5), 10**400, (0.5, True), (0.5, "1"), (0.5, np.ones(2))]
)
def test_losses_refuse_what_is_no_number(value: Any) -> None:
    loss = Hinge() if isinstance(value, tuple) else Quantile(0.3)
    with pytest.raises(InputError):
        LocalClient(PLAN, loss=loss).message(value)


def test_a_slope_must_be_a_number() -> None:
    for wrong in (None, "1", 1j, float("nan")):
        loss = ConvexLoss(lambda t, d, wrong=wrong: wrong)  # type: ignore[misc]
        with pytest.raises(InputError):
            LocalClient(PLAN, loss=loss).message(0.5)


def test_a_second_value_is_refused_if_it_asks_for_another_message() -> None:
    """Any data may go with a loss of one's own; what counts is the point that its loss reduces it
    to."""
    client = LocalClient(PLAN, SECRET, loss=ConvexLoss(lambda t, d: t - d[0].mean()))
    sent = client.message((np.asarray([0.1, 0.4]), 1))
    assert client.message((np.asarray([0.1, 0.4]), 2)) == sent
    with pytest.raises(AlreadyReleased):
        client.message((np.asarray([0.1, 0.5]), 1))


def test_a_second_live_client_of_one_secret_and_plan_is_refused() -> None:
    """The same noise on two values would reveal their difference; other plans and losses have other
    noise."""
    first = LocalClient(PLAN, SECRET)
    with pytest.raises(ParameterError, match="live in this process"):
        LocalClient(PLAN, SECRET)
    others = [
        LocalClient(LocalPlan(0.5, 1e-6, 2000), SECRET),
        LocalClient(PLAN, SECRET, loss=Quantile(0.5)),
    ]
    assert len({client.message(0.5) for client in (first, *others)}) == 3
    plan = HierarchyPlan(1.0)
    bits = HierarchyClient(plan, SECRET)
    with pytest.raises(ParameterError, match="live in this process"):
        HierarchyClient(plan, SECRET)
    bits.close()
    assert HierarchyClient(plan, SECRET).message(0.5)
    assert len({LocalClient(PLAN).message(0.5) for _ in range(3)}) == 3  # fresh secrets never clash


def test_losses_that_differ_in_a_parameter_share_no_randomness() -> None:
    """With the same randomness, the difference of two messages would be that of the values."""
    clients = [LocalClient(PLAN, SECRET, loss=Quantile(q)) for q in (0.5, 0.9)]
    assert len({secret_of(client).hex() for client in clients}) == 2
    messages = {client.message(1.0) for client in clients}
    assert len(messages) == 2
    with pytest.raises(ParameterError, match="live"):
        LocalClient(PLAN, SECRET, loss=Quantile(0.5))
