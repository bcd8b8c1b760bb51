"""Every row of the paper's Table 1: the value that it prints, and the value that is true.

The `_paper` functions repeat the table for reproduction. They inherit Ψ, which is not an upper bound, the factor
√ln(6T), which misses √2, and sensitivities that are wrong for several rows. The others take the noise multiplier σ/Δ,
the query's squared sensitivity S and a probability β, and are exact norms times exact normal tails: with probability
1 − β every published number of every tick is within the bound.
"""

from __future__ import annotations

import math

from evercount._validate import check_count, check_positive, check_probability
from evercount.bounds.normal_tails import (
    simultaneous_paper_two_thirds,
    simultaneous_quantile,
    simultaneous_quantile_of_log,
)
from evercount.bounds.norms import landau, psi_paper
from evercount.errors import ParameterError


def _psi(T: int) -> float:
    return float(psi_paper(check_count("T", T)))


def _worst_std(T: int, multiplier: float, S: float) -> float:
    """Std at the last tick, which is the worst: multiplier·√S·c_T²."""
    root = math.sqrt(check_positive("S", S))
    return check_positive("multiplier", multiplier) * root * float(landau(check_count("T", T)))


def vector_error(T: int, multiplier: float, S: float, cells: int, beta: float = 1 / 3) -> float:
    """The error of `cells` running counts over T ticks under one budget, for all ticks and cells together.

    **Guarantee.** With probability at least 1 − β every cell at every tick is within the result, for the square-root
    mechanism with noise std multiplier·√S·c_T. Test:
    `tests/bounds/test_table1.py::test_vector_error_covers_simulated_streams`.
    """
    return _worst_std(T, multiplier, S) * simultaneous_quantile(T * check_count("cells", cells), beta)


def histogram_paper(T: int, multiplier: float, b: int, u: int) -> float:
    """The paper's row: C·Ψ(T)·√(b·ln(6uT)); its S = b is wrong for the replace adjacency."""
    T, b, u = check_count("T", T), check_count("b", b), check_count("u", u)
    return check_positive("multiplier", multiplier) * _psi(T) * math.sqrt(b * math.log(6 * u * T))


def histogram(T: int, multiplier: float, S: float, u: int, beta: float = 1 / 3) -> float:
    """The corrected row, for u cells; S = b (add-remove) or min(2b, u) (replace)."""
    return vector_error(T, multiplier, S, u, beta)


def graph_function_paper(T: int, multiplier: float, gamma: float = 1.0) -> float:
    """The paper's row: C·Ψ(T)·Γ·√ln(6T), Γ the l2-sensitivity of the differences (1 in the table); not private."""
    scale = check_positive("multiplier", multiplier) * _psi(T) * check_positive("gamma", gamma)
    return scale * simultaneous_paper_two_thirds(T)


def graph_function(T: int, multiplier: float, S: float, beta: float = 1 / 3) -> float:
    """The corrected row: S = max Σ(P² + N²) of the difference sequence, f_1 − f_0 included."""
    return vector_error(T, multiplier, S, 1, beta)


def words(U: int, length: int) -> int:
    """How many words of 1 to `length` letters there are over U letters: the cells of substrings and of episodes."""
    U, length = check_count("U", U), check_count("length", length)
    return sum(U**i for i in range(1, length + 1))


def substrings_paper(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's row: C·Ψ(T)·ℓ·√ln(6T·U^ℓ); its S = ℓ² is too small (true replace: ℓ(ℓ+1)(ℓ+2)/3)."""
    T, U, length = check_count("T", T), check_count("U", U), check_count("length", length)
    return check_positive("multiplier", multiplier) * _psi(T) * length * math.sqrt(math.log(6 * T * U**length))


def substrings_paper_corollary(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's corollary, C·Ψ(T)·ℓ·√(ln(2U^ℓ)·ln(6T)): a product of logarithms where the table has one."""
    T, U, length = check_count("T", T), check_count("U", U), check_count("length", length)
    logs = math.log(2 * U**length) * math.log(6 * T)
    return check_positive("multiplier", multiplier) * _psi(T) * length * math.sqrt(logs)


def substrings(T: int, multiplier: float, S: float, U: int, length: int, beta: float = 1 / 3) -> float:
    """The corrected row: all words of up to `length` letters; S = ℓ(ℓ+1)(2ℓ+1)/6 or ℓ(ℓ+1)(ℓ+2)/3 (replace)."""
    return vector_error(T, multiplier, S, words(U, length), beta)


def episodes_paper(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's row: 2C·Ψ(T)·ℓ·√(U^{ℓ−1}·ℓ·ln(6T·U^ℓ)); one ℓ more than its proof, and the proof is invalid."""
    T, U, length = check_count("T", T), check_count("U", U), check_count("length", length)
    inside = U ** (length - 1) * length * math.log(6 * T * U**length)
    return 2 * check_positive("multiplier", multiplier) * _psi(T) * length * math.sqrt(inside)


def episodes_paper_corollary(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's corollary, C·Ψ(T)·√(U^{ℓ−1}·ℓ·ln(2U^ℓ)·ln(6T)): 2ℓ smaller outside and a product of logarithms."""
    T, U, length = check_count("T", T), check_count("U", U), check_count("length", length)
    inside = U ** (length - 1) * length * math.log(2 * U**length) * math.log(6 * T)
    return check_positive("multiplier", multiplier) * _psi(T) * math.sqrt(inside)


def episodes(T: int, multiplier: float, S: float, U: int, length: int, beta: float = 1 / 3) -> float:
    """The corrected row: all episodes of up to `length` events; S from the episode automaton."""
    return vector_error(T, multiplier, S, words(U, length), beta)


def cuts_paper(T: int, multiplier: float, s: int, p: int) -> float:
    """The paper's row: 3C·|S|·Ψ(T)·√((|S|+|P|)·ln(|S|+|P|)·ln(6T)), for every cut (S, P) with these sizes."""
    s, p = check_count("s", s), check_count("p", p)
    inside = (s + p) * math.log(s + p) * math.log(6 * check_count("T", T))
    return 3 * check_positive("multiplier", multiplier) * s * _psi(T) * math.sqrt(inside)


def cut_std(T: int, multiplier: float, S: float, s: int, p: int) -> float:
    """The exact std of the noise on one cut of sizes s and p at the last tick: multiplier·√S·c_T²·√(s·p)."""
    return _worst_std(T, multiplier, S) * math.sqrt(check_count("s", s) * check_count("p", p))


def cut(T: int, multiplier: float, S: float, s: int, p: int, beta: float = 1 / 3) -> float:
    """The error of one given cut, for all ticks together."""
    return cut_std(T, multiplier, S, s, p) * simultaneous_quantile(T, beta)


def cuts(T: int, multiplier: float, S: float, n: int, s: int, p: int, beta: float = 1 / 3) -> float:
    """The corrected row: every cut with sizes s and p in a graph of n nodes and every tick together."""
    # A union bound over the n!/(s!·p!·(n−s−p)!) choices and T ticks, with exact normal tails.
    n, s, p = check_count("n", n), check_count("s", s), check_count("p", p)
    if s + p > n:
        raise ParameterError(f"a cut of sizes {s} and {p} does not fit into {n} nodes.")
    choices = math.comb(n, s) * math.comb(n - s, p)
    return cut_std(T, multiplier, S, s, p) * simultaneous_quantile(T * choices, beta)


def all_cuts(T: int, multiplier: float, S: float, n: int, s: int, p: int, beta: float = 1 / 3) -> float:
    """The error of a cut with sizes s and p when all 3^n pairs of disjoint sets and all ticks must hold together."""
    n = check_count("n", n)
    if check_count("s", s) + check_count("p", p) > n:
        raise ParameterError(f"a cut of sizes {s} and {p} does not fit into {n} nodes.")
    log_count = math.log(check_count("T", T)) + n * math.log(3)
    return cut_std(T, multiplier, S, s, p) * simultaneous_quantile_of_log(log_count, beta)


def local_learning_paper(epsilon: float, n: int, half_multiplier: float) -> float:
    """The paper's row: β + 2/(ε√n), β = C_{ε/2,δ/2}·√(ln(6(ε√n+1))/2n)·(1 + ln((4ε√n−3)/5)/π)."""
    # `half_multiplier` is C_{ε/2,δ/2}. The corollary has 2β. The clients' sensitivity is wrong (one-hot vectors differ
    # in two places), and its interval width ⌊1/(ε√n)⌋ is 0 whenever ε√n > 1.
    w = check_positive("epsilon", epsilon) * math.sqrt(check_count("n", n))
    if 4 * w <= 3:
        raise ParameterError(f"epsilon·√n must be above 0.75 for the paper's formula, and it is {w:.3g}.")
    tail = math.sqrt(math.log(6 * (w + 1)) / (2 * n))
    noise = check_positive("half_multiplier", half_multiplier) * tail * (1 + math.log((4 * w - 3) / 5) / math.pi)
    return noise + 2 / w


def local_learning(epsilon: float, n: int, client_variance: float, beta: float = 1 / 3) -> float:
    """The corrected row: error of the estimated risk against the empirical risk, at every point, with chance 1 − β."""
    # w = ⌈ε√n⌉ buckets of width 1/w; `client_variance` is n times the largest variance of an entry of x̂ (what one
    # client's message contributes). Noise of the w entries by the union bound, plus 2/w for the buckets. Both sides up
    # to the constant risk at 0. For the population's risk add 2·sampling_error(n, β′).
    w = math.ceil(check_positive("epsilon", epsilon) * math.sqrt(check_count("n", n)))
    std = math.sqrt(check_positive("client_variance", client_variance) / n)
    return std * simultaneous_quantile(w, check_probability("beta", beta)) + 2 / w
