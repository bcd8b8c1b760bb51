"""The registry of statements: each function with its place in the paper and what is wrong with the paper's form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evercount.bounds import asymptotic, counting_error, normal_tails, norms, table1

_PSI = "uses Ψ, which is below the true norm for every T"
_TABLE = _PSI + "; √ln(6T) misses the factor √2 of its own tail bound"


@dataclass(frozen=True)
class Statement:
    """One statement of the paper, or its corrected form.

    Attributes:
        name: Its key in `STATEMENTS`.
        function: The formula.
        where: Its place in the paper; "–" if the paper does not have it.
        wrong: What is wrong with it; empty if nothing.

    >>> from evercount.bounds import STATEMENTS
    >>> STATEMENTS["psi_paper"].form, STATEMENTS["psi_paper"].where
    ('paper', 'Theorem 1')
    >>> STATEMENTS["binary_norm_paper"].wrong
    'the square root is missing'
    """

    name: str
    function: Callable[..., Any]
    where: str
    wrong: str = ""

    @property
    def form(self) -> str:
        """Whether this is the paper's own form or the corrected one."""
        return "paper" if "_paper" in self.name else "corrected"


def _statements() -> dict[str, Statement]:
    intro, thm1, thm2 = "Introduction", "Theorem 1", "Theorem 2"
    rows: list[tuple[Callable[..., Any], str, str]] = [
        (norms.psi_paper, thm1, "not an upper bound: the sum is bounded by an integral in the wrong direction"),
        (norms.psi, thm1, ""),
        (norms.landau, thm1, ""),
        (norms.landau_closed_form, "–", ""),
        (norms.gamma_hat, intro + ", equation of Mathias", ""),
        (norms.gamma_hat_integral_paper, "Proof of Theorem 3", "said to bound γ̂ from above; γ̂ is larger for every T"),
        (norms.mathias_lower, intro + ", equation of Mathias", ""),
        (norms.mathias_upper, intro + ", equation of Mathias", ""),
        (norms.haagerup_upper, "Not in the paper (Haagerup; Kraus)", ""),
        (norms.nuclear_lower, "–", ""),
        (
            norms.gap_to_mathias_paper,
            intro + ", figure of the gap",
            "the gap of Ψ, not of the norm, which is about 0.58",
        ),
        (norms.gap_to_mathias, intro + ", figure of the gap", ""),
        (norms.binary_norm_paper, "Remark on the binary mechanism", "the square root is missing"),
        (norms.binary_norm_smooth, "Remark on the binary mechanism", ""),
        (norms.binary_norm, "Remark on the binary mechanism", ""),
        (norms.binary_std, "Remark on the binary mechanism", ""),
        (norms.binary_ratio, "Remark on the binary mechanism", ""),
        (
            normal_tails.simultaneous_paper_proof,
            "Proof of Theorem 2",
            "the logarithm should stand under the square root",
        ),
        (normal_tails.simultaneous_paper_two_thirds, "Section 1.1", "the tail bound gives √(2 ln(6T)), not √ln(6T)"),
        (normal_tails.simultaneous_closed_form, thm2, ""),
        (normal_tails.simultaneous_quantile, thm2, ""),
        (
            counting_error.theorem2_paper,
            thm2,
            _PSI + "; the std at t has c_T·c_t, not c_t², when the release is private",
        ),
        (
            counting_error.theorem2_paper_proof,
            "Proof of Theorem 2",
            _PSI + "; fresh noise in every round is not private",
        ),
        (counting_error.theorem2_std, thm2, ""),
        (counting_error.theorem2_per_tick, thm2, ""),
        (counting_error.theorem2_simultaneous_closed_form, thm2, ""),
        (counting_error.theorem2_simultaneous, thm2, ""),
        (counting_error.fresh_noise_overspend, "Proof of Theorem 2", ""),
        (counting_error.rescaled_noise_overspend, "Proof of Theorem 2", ""),
        (counting_error.average_paper, intro + ", Applications", _TABLE),
        (counting_error.average, intro + ", Applications", ""),
        (
            counting_error.sparse_paper,
            "On sparse streams",
            _PSI + "; n is not defined, and the pure analysis is only quoted",
        ),
        (table1.cuts_paper, "Table 1, cuts", _TABLE),
        (table1.cuts, "Table 1, cuts", ""),
        (table1.cut, "Table 1, cuts", ""),
        (table1.all_cuts, "Table 1, cuts", ""),
        (table1.histogram_paper, "Table 1, histogram", _TABLE + "; S = b is wrong for replace"),
        (table1.histogram, "Table 1, histogram", ""),
        (table1.graph_function_paper, "Table 1, graph functions", _TABLE + "; the l2-sensitivity is the wrong one"),
        (table1.graph_function, "Table 1, graph functions", ""),
        (table1.substrings_paper, "Table 1, substrings", _TABLE + "; S = ℓ² is too small"),
        (table1.substrings_paper_corollary, "Corollary on substrings", "disagrees with Table 1; S = ℓ² is too small"),
        (table1.substrings, "Table 1, substrings", ""),
        (table1.episodes_paper, "Table 1, episodes", _TABLE + "; the sensitivity proof is invalid"),
        (table1.episodes_paper_corollary, "Corollary on episodes", "disagrees with Table 1; the proof is invalid"),
        (table1.episodes, "Table 1, episodes", ""),
        (
            table1.local_learning_paper,
            "Table 1, local learning",
            "wrong sensitivity, interval width 0, β where 2β is proved",
        ),
        (table1.local_learning, "Table 1, local learning", ""),
    ]
    statements = {f.__name__: Statement(f.__name__, f, where, wrong) for f, where, wrong in rows}
    for growth in asymptotic.GROWTHS.values():
        name = f"growth:{growth.name}"
        statements[name] = Statement(name, growth.evaluate, growth.where, growth.caveat)
    return statements


STATEMENTS: dict[str, Statement] = _statements()  # every statement by name, in the order of the paper
