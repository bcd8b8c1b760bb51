"""How much one event, or one user, can change the increments of a query: what its noise is calibrated to.

Guarantee. For every pair of neighbouring streams under `adjacency`, and every cell, let P and N be the sums
over all ticks of the positive and of the negative parts of the change of that cell's increments (in real
units: increment × grid). Then Σ_cells (P² + N²) ≤ squared_sensitivity(adjacency). With a factorization whose R
has a nonnegative Gram matrix and column norm c this implies ‖R(X−X′)‖_F ≤ c·√S: see
`factorizations/sensitivity.proof.md`. Each subclass proves its S beside its code; `evercount audit sensitivity`
attacks the claim by enumeration or random search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from evercount.errors import ParameterError
from evercount.privacy import Budget
from evercount.queries.capabilities import Adjacency, Capabilities


class Sensitivities(Capabilities, ABC):
    """The claims of a query about its neighbours, and what they are for the unit that a budget protects."""

    @abstractmethod
    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of the guarantee at the top of this module, in real units squared.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            S.

        Raises:
            UnknownName: there is no such adjacency.
            ParameterError: the query declares no S for it.
        """

    def protected_l1(self, budget: Budget) -> float:
        """Δ₁ for what the budget protects: one event, a user of at most k events, or a user of any number of them.

        Args:
            budget: What is protected.

        Returns:
            Δ₁ for one protected unit.

        Raises:
            ParameterError: no Δ₁ of the query is known, so it has no noise for δ = 0.

        **Guarantee.** A query's own user-level Δ₁ is taken only where the budget protects users. Test:
        tests/queries/test_queries_distinct_users.py::test_pure_noise_is_calibrated_to_the_unit.
        """
        if budget.unit == "user" and self.people is not None:
            return self.people.user_l1_sensitivity(budget.adjacency)
        return self.l1_sensitivity(budget.adjacency) * budget.max_events

    def protected_sensitivity(self, budget: Budget, S: float, falling: bool = False, values: bool = False) -> float:
        """S for what the budget protects, from the S of one event; the query's own user-level S is never scaled.

        Args:
            budget: What is protected.
            S: The squared sensitivity for one event.
            falling: Whether the Gram matrix of R falls; as `People.user_sensitivity`.
            values: Whether R is the running-count matrix.

        Returns:
            The squared sensitivity for one protected unit.

        **Guarantee.** As `protected_l1`. Test:
        tests/queries/test_queries_distinct_users.py::test_noise_is_calibrated_to_the_unit.
        """
        if budget.unit == "user" and self.people is not None:
            return self.people.user_sensitivity(budget.adjacency, falling=falling, values=values)
        return budget.scale_sensitivity(S)

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        """A smaller S for factorizations whose Gram matrix falls away from the diagonal; None where there is none.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            The smaller S, or None.

        **Guarantee.** For every pair of neighbours and every R with `Factorization.falling_gram`, ‖R(X−X′)‖_F² is at
        most c² times this. Proof: `factorizations/sensitivity.proof.md`, "Changes that take turns". Test:
        tests/queries/test_queries_matching.py::test_no_neighbours_beat_the_smaller_claim.
        """
        return None

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float | None:
        """v²: the most that one event changes the values of a tick, Σ_cells (change of the running sum)².

        None where nothing better than the increments' S is known. It is what the factorization `direct` needs.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            v², or None.

        Raises:
            UnknownName: there is no such adjacency.

        **Guarantee.** For every pair of neighbours and every tick, Σ over cells of the squared difference of their
        running sums is at most this, in real units. Then ‖M(X−X′)‖_F² ≤ T·v², M the running-count matrix. Proof:
        `factorizations/sensitivity.proof.md`, "Values". Tests: tests/queries/test_queries_values.py.
        """
        return None

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """The most that one event changes all increments together, Σ_cells (P + N), in real units: what δ = 0 needs.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            Δ₁.

        Raises:
            ParameterError: The query does not declare it.

        **Guarantee.** For every pair of neighbours Σ over cells and ticks of |change of increment|·grid is at most
        this. Proof: `mechanisms/laplace_noise.proof.md`, lemma 3. Queries that do not declare it are refused under δ =
        0. Test: tests/mechanisms/test_laplace_stream.py::test_l1_sensitivity_by_enumeration.
        """
        raise ParameterError(
            f"{type(self).__name__} does not declare an l1 sensitivity, which pure privacy (delta=0) needs; "
            "choose a small positive delta"
        )
