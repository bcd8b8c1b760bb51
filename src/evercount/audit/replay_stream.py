"""The one place where the audit opens streams with a given secret, twice or more."""

from __future__ import annotations

from evercount.engine.stream import Stream
from evercount.factorizations import Factorization
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query


def open_for_replay(
    query: Query,
    budget: Budget,
    horizon: int | None = None,
    factorization: str | Factorization | None = None,
    *,
    secret: Secret,
    noise: str = "exact",
) -> Stream:
    """A stream that may share its secret with other streams of the same declaration: for audits only.

    Two streams with one secret reveal how their data differ. That is what an audit measures, on synthetic data; nothing
    that such a stream releases may be published. It is a stream like any other, so that snapshots are audited too:
    close it before the next one with the same secret is opened.
    """
    if noise == "insecure-float":  # float noise has a seed in place of a secret
        seed = int(secret.derive("seed of an audit").hex()[:15], 16)
        return Stream(query, budget, horizon, factorization, noise, seed=seed)
    return Stream(query, budget, horizon, factorization, noise, secret=secret)
