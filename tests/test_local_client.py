"""Clients: exact arithmetic of the message, one message only, the reduction of losses to medians."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from evercount.errors import AlreadyReleased, InputError, ParameterError
from evercount.local import Absolute, ConvexLoss, Hinge, LocalClient, LocalPlan, Quantile, simulate
from evercount.local.client import entries_of, floors
from evercount.local.messages import HEAD, unpack
from evercount.noise import ExactNoise, Normals, Secret

SECRET = Secret.from_hex("6" * 64)


def test_floors_equal_integer_arithmetic() -> None:
    z = ExactNoise(SECRET).normals(0, 40, 50)
    for scale in (1, 3, 2**20 + 7, 2**31 - 1):
        want = [value * scale >> 128 for value in z.to_ints().ravel()]
        assert floors(scale, z).ravel().tolist() == want


def test_floors_where_the_lower_bits_decide() -> None:
    """Planted close calls: a carry out of the lower word, whole numbers, and numbers just below them."""
    top = 2**64 - 1
    hi = np.asarray([0, 0, top, top, 2**63, 2**63, top // 3, 0], dtype=np.uint64)
    lo = np.asarray([0, 1, top, 0, 0, 1, top, top], dtype=np.uint64)
    for sign in (1, -1):
        z = Normals(np.full(8, sign, np.int8), np.asarray([0, 0, 1, 1, 2, 2, 0, 5]), hi, lo)
        for scale in (1, 2, 3, 2**31 - 1):
            assert floors(scale, z).tolist() == [value * scale >> 128 for value in z.to_ints()]


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_message_is_the_rounding_of_the_exact_sum(form: str) -> None:
    """⌊(R e_j + N z)/2^m + ½⌋ in big integers, from the client's own secret."""
    client = LocalClient(0.5, 1e-6, 2000, SECRET, form)  # type: ignore[arg-type]
    plan = client.plan
    got = unpack(plan, client.message(0.31)).astype(int)
    z = ExactNoise(SECRET.derive("local noise")).normals(0, 1, plan.entries).to_ints()[0]
    j = int(np.ceil(0.31 * plan.w)) - 1
    mean = [0] * plan.entries
    for t in range(j, plan.w):
        mean[t] = int(plan.factor[t - j])
    if form == "two-counter":
        k = plan.w - 1 - j
        for t in range(k, plan.w):
            mean[plan.w + t] = int(plan.factor[t - k])
    one = 1 << 128
    fast = entries_of(
        plan,
        np.asarray([j + 1]),
        floors(plan.scale, ExactNoise(SECRET.derive("local noise")).normals(0, 1, plan.entries)),
    )
    assert (fast[0] == got).all()
    want = [
        (2 * (a * one + plan.scale * v) + (one << plan.shift)) // (one << plan.shift + 1)
        for a, v in zip(mean, z, strict=True)
    ]
    assert got.tolist() == want


def test_noise_is_normal_with_the_declared_std_and_a_planted_bug_is_caught() -> None:
    """Kolmogorov–Smirnov at 1e-6 on 60,000 entries; 5 % less noise must be seen."""
    plan = LocalPlan(0.5, 1e-6, 2000)
    entries = simulate(plan, np.full(3000, 0.5), SECRET).astype(float) * plan.entry
    from evercount.local.client import means

    z = (entries - means(plan)[plan.bucket([0.5])[0] - 1]) / plan.sigma
    sample = z.ravel()[:60000]
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert stats.kstest(sample * 0.95, "norm").pvalue < 1e-6


def test_one_message_only() -> None:
    client = LocalClient(0.5, 1e-6, 1000, SECRET)
    first = client.message(0.25)
    assert client.message(0.25) == first
    with pytest.raises(AlreadyReleased):
        client.message(0.26)
    other = LocalClient(0.5, 1e-6, 1000)
    assert other.message(0.25) != first
    assert len(first) == HEAD + 2 * client.plan.w
    prepared = LocalClient(0.5, 1e-6, 1000, SECRET)
    prepared.prepare()
    assert prepared.message(0.25) == first


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_bad_values_are_refused_and_not_shown(value: object) -> None:
    client = LocalClient(0.5, 1e-6, 1000)
    with pytest.raises(InputError) as caught:
        client.message(value)
    if isinstance(value, float):
        assert str(value) not in str(caught.value)
    client.message(0.5)  # nothing was sent by the refused call


def test_too_large_vectors_are_sent_as_zeros() -> None:
    plan = LocalPlan(0.5, 1e-6, 1000)
    noise = np.zeros((2, plan.entries), np.int64)
    noise[1] = 10**12
    made = entries_of(plan, np.asarray([1, 1]), noise)
    assert made[0].any()
    assert not made[1].any()


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
    (ConvexLoss(lambda t, d: (t - d) ** 2 / 2, lambda t, d: t - d), 0.6),
]


@pytest.mark.parametrize(("loss", "data"), LOSSES)
def test_reduction_reproduces_the_loss(loss: object, data: object) -> None:
    """E|θ − Z| − E|0 − Z| = ℓ(θ) − ℓ(0), with E over a fine grid of u: exact up to the grid."""
    count = 4000
    z = np.asarray([loss.sample(data, (i + 0.5) / count) for i in range(count)])  # type: ignore[attr-defined]
    assert ((z >= 0) & (z <= 1)).all()
    for theta in np.linspace(0, 1, 41):
        reduced = np.abs(theta - z).mean() - z.mean()
        direct = loss.value(theta, data) - loss.value(0.0, data)  # type: ignore[attr-defined]
        assert reduced == pytest.approx(direct, abs=2e-3)


def test_closed_forms_agree_with_the_general_sampler() -> None:
    for loss, data in LOSSES[1:6]:
        general = ConvexLoss(loss.value, loss.derivative)
        for u in (0.01, 0.1, 0.26, 0.49, 0.51, 0.74, 0.93, 0.99):
            assert general.sample(data, u) == pytest.approx(loss.sample(data, u), abs=1e-12)


def test_a_loss_that_is_too_steep_is_refused() -> None:
    steep = ConvexLoss(lambda t, d: 2 * abs(t - d), lambda t, d: 2.0 if t >= d else -2.0)
    with pytest.raises(InputError, match="Lipschitz"):
        LocalClient(0.5, 1e-6, 1000, loss=steep).message(0.5)
    with pytest.raises(ParameterError):
        LocalClient(0.5, 1e-6, 1000, loss="hinge")  # type: ignore[arg-type]
