"""Collection: one form of the local model for all clients and the server of a survey; hierarchical
unless named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from evercount._validate import check_name
from evercount.errors import ParameterError
from evercount.local.client_and_server import LocalClient, LocalServer
from evercount.local.collection_plan import LocalPlan
from evercount.local.hierarchical import HierarchyClient, HierarchyPlan, HierarchyServer
from evercount.local.losses import Loss
from evercount.noise import Secret

CollectionForm: TypeAlias = Literal["hierarchical", "one-counter", "two-counter"]


@dataclass(frozen=True)
class Collection:
    """What clients and the server of one collection agree on; it builds both. All of it is public.

    The default form, "hierarchical", is pure ε-LDP, has messages of six bytes and the least error
    (`evercount reproduce local-learning`). "two-counter" is the paper's, "one-counter" its better
    half; both have Gaussian noise and need delta and n.

    Args:
        epsilon: Privacy of one client.
        form: Which protocol.
        delta: For the Gaussian forms; the default form has none.
        n: Number of clients that is planned for, for the Gaussian forms.
        buckets: Buckets of [0, 1]; by default 64, or ⌈ε√n⌉ for the Gaussian forms.

    Raises:
        ParameterError: If the form needs what is missing, or does not take what is given.

    **Guarantee.** Messages are ε-LDP (hierarchical) or (ε, δ)-LDP. Proofs: `hierarchical.proof.md`,
    `local.proof.md`. Test:
    tests/local/test_local_collection.py::test_the_default_is_hierarchical_and_other_forms_are_named.

    >>> collection = Collection(1.0)
    >>> server = collection.server()
    >>> server.add_many(collection.client().message(value / 500) for value in range(500))
    500
    >>> 0 < server.estimate().median < 1
    True
    """

    epsilon: float
    form: CollectionForm = "hierarchical"
    delta: float | None = None
    n: int | None = None
    buckets: int | None = None

    def __post_init__(self) -> None:
        check_name("form of a collection", self.form, get_args(CollectionForm))
        _ = self.plan  # refuses what is out of range

    @cached_property
    def plan(self) -> HierarchyPlan | LocalPlan:
        """The public parameters of the chosen form."""
        if self.form == "hierarchical":
            if self.delta:
                raise ParameterError(
                    f"the hierarchical form has no delta: omit it, got {self.delta!r}"
                )
            return HierarchyPlan(self.epsilon, 64 if self.buckets is None else self.buckets)
        if self.delta is None or self.n is None:
            raise ParameterError(f"the form {self.form!r} needs delta and n")
        return LocalPlan(self.epsilon, self.delta, self.n, self.form, self.buckets)

    def client(
        self, secret: Secret | None = None, *, loss: Loss | None = None
    ) -> HierarchyClient | LocalClient:
        """A client, for one message; it makes its own secret unless one is given.

        Args:
            secret: The client's own secret; None for a fresh one.
            loss: What the server will minimise; None for the absolute loss.

        Returns:
            The client of the chosen form.
        """
        plan = self.plan
        if isinstance(plan, HierarchyPlan):
            return HierarchyClient(plan, secret, loss=loss)
        return LocalClient(plan, secret, loss=loss)

    def server(self) -> HierarchyServer | LocalServer:
        """A server that adds up messages of this collection.

        Returns:
            The server of the chosen form.
        """
        plan = self.plan
        if isinstance(plan, HierarchyPlan):
            return HierarchyServer(plan)
        return LocalServer(plan)
