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
    n, e, q, t = norms, counting_error, normal_tails, table1
    intro, thm1, thm2, proof = "Introduction", "Theorem 1", "Theorem 2", "Proof of Theorem 2"
    rows: list[tuple[Callable[..., Any], str, str]] = [
        (n.psi_paper, thm1, "not an upper bound: the sum is bounded by an integral in the wrong direction"),
        (n.psi, thm1, ""),
        (n.landau, thm1, ""),
        (n.landau_closed_form, "–", ""),
        (n.gamma_hat, intro + ", equation of Mathias", ""),
        (n.gamma_hat_integral_paper, "Proof of Theorem 3", "said to bound γ̂ from above; γ̂ is larger for every T"),
        (n.mathias_lower, intro + ", equation of Mathias", ""),
        (n.mathias_upper, intro + ", equation of Mathias", ""),
        (n.haagerup_upper, "Not in the paper (Haagerup; Kraus)", ""),
        (n.nuclear_lower, "–", ""),
        (n.gap_to_mathias_paper, intro + ", figure of the gap", "the gap of Ψ, not of the norm, which is about 0.58"),
        (n.gap_to_mathias, intro + ", figure of the gap", ""),
        (n.binary_norm_paper, "Remark on the binary mechanism", "the square root is missing"),
        (n.binary_norm_smooth, "Remark on the binary mechanism", ""),
        (n.binary_norm, "Remark on the binary mechanism", ""),
        (n.binary_std, "Remark on the binary mechanism", ""),
        (n.binary_ratio, "Remark on the binary mechanism", ""),
        (q.simultaneous_paper_proof, proof, "the logarithm should stand under the square root"),
        (q.simultaneous_paper_two_thirds, "Section 1.1", "the tail bound gives √(2 ln(6T)), not √ln(6T)"),
        (q.simultaneous_closed_form, thm2, ""),
        (q.simultaneous_quantile, thm2, ""),
        (e.theorem2_paper, thm2, _PSI + "; the std at t has c_T·c_t, not c_t², when the release is private"),
        (e.theorem2_paper_proof, proof, _PSI + "; fresh noise in every round is not private"),
        (e.theorem2_std, thm2, ""),
        (e.theorem2_per_tick, thm2, ""),
        (e.theorem2_simultaneous_closed_form, thm2, ""),
        (e.theorem2_simultaneous, thm2, ""),
        (e.fresh_noise_overspend, proof, ""),
        (e.rescaled_noise_overspend, proof, ""),
        (e.average_paper, intro + ", Applications", _TABLE),
        (e.average, intro + ", Applications", ""),
        (e.sparse_paper, "On sparse streams", _PSI + "; n is not defined, and the pure analysis is only quoted"),
        (t.cuts_paper, "Table 1, cuts", _TABLE),
        (t.cuts, "Table 1, cuts", ""),
        (t.cut, "Table 1, cuts", ""),
        (t.all_cuts, "Table 1, cuts", ""),
        (t.histogram_paper, "Table 1, histogram", _TABLE + "; S = b is wrong for replace"),
        (t.histogram, "Table 1, histogram", ""),
        (t.graph_function_paper, "Table 1, graph functions", _TABLE + "; the l2-sensitivity is the wrong one"),
        (t.graph_function, "Table 1, graph functions", ""),
        (t.substrings_paper, "Table 1, substrings", _TABLE + "; S = ℓ² is too small"),
        (t.substrings_paper_corollary, "Corollary on substrings", "disagrees with Table 1; S = ℓ² is too small"),
        (t.substrings, "Table 1, substrings", ""),
        (t.episodes_paper, "Table 1, episodes", _TABLE + "; the sensitivity proof is invalid"),
        (t.episodes_paper_corollary, "Corollary on episodes", "disagrees with Table 1; the proof is invalid"),
        (t.episodes, "Table 1, episodes", ""),
        (
            t.local_learning_paper,
            "Table 1, local learning",
            "wrong sensitivity, interval width 0, β where 2β is proved",
        ),
        (t.local_learning, "Table 1, local learning", ""),
    ]
    statements = {f.__name__: Statement(f.__name__, f, where, wrong) for f, where, wrong in rows}
    for growth in asymptotic.GROWTHS.values():
        name = f"growth:{growth.name}"
        statements[name] = Statement(name, growth.evaluate, growth.where, growth.caveat)
    return statements


STATEMENTS: dict[str, Statement] = _statements()  # every statement by name, in the order of the paper
