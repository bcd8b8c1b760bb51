"""Theorem 2, Table 1 and the lower bounds of the paper: how far private running counts are from the
truth.

Everywhere `multiplier` is σ/Δ (the paper's C_{ε,δ}; a Budget's noise_multiplier()), T the horizon,
t the tick, S the query's squared sensitivity. "Corrected" means: one noise vector for all ticks of
the stream, so that the std at tick t is multiplier·√(c_T²·c_t²), with exact norms and exact normal
tails. The `_paper` functions repeat what the paper prints: they inherit Ψ, which is not an upper
bound, √ln(6T), which misses √2, and sensitivities that are wrong for several rows of Table 1.

The paper's lower bounds are Ω-statements. A `Growth` keeps such an expression and its conditions;
its value shows how the error must grow. Do not compare an error with it: the constant in front is
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from evercount._validate import check_count, check_positive, check_probability
from evercount.bounds.norms import Ticks, Values, landau, over_ticks, psi_paper
from evercount.bounds.tails import (
    interval_quantile,
    simultaneous_closed_form,
    simultaneous_paper_proof,
    simultaneous_paper_two_thirds,
    simultaneous_quantile,
    simultaneous_quantile_of_log,
)
from evercount.errors import ParameterError


def _scaled(factor: float, T: int, t: Ticks) -> Values:
    """factor·√(c_T²·c_t²) for ticks 1 ≤ t ≤ T."""
    c_T = landau(check_count("T", T))
    return over_ticks(t, lambda n: factor * np.sqrt(c_T * np.asarray(landau(n))), "t", T)


def theorem2_paper(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """The paper's Theorem 2, C·Ψ(t)·√(2 ln(T/β)): not a bound: Ψ is too small, as is c_t² for
    c_T·c_t."""
    factor = check_positive("multiplier", multiplier) * simultaneous_closed_form(T, beta)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)), "t")


def theorem2_paper_proof(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """√2·C·Ψ(t)·ln(2T/β): what the paper's proof of Theorem 2 shows, which is larger than what the
    theorem states."""
    factor = check_positive("multiplier", multiplier) * simultaneous_paper_proof(T, beta)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)), "t")


def theorem2_std(T: int, t: Ticks, multiplier: float) -> Values:
    """The exact error std of the square-root mechanism at tick t: C·√(c_T²·c_t²)."""
    return _scaled(check_positive("multiplier", multiplier), T, t)


def theorem2_per_tick(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """The exact radius at one tick: the error exceeds it with probability β."""
    return _scaled(check_positive("multiplier", multiplier) * interval_quantile(beta), T, t)


def theorem2_simultaneous_closed_form(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """C·√(c_T²·c_t²)·√(2 ln(T/β)): Theorem 2 corrected. All ticks hold together with probability 1
    − β."""
    return _scaled(
        check_positive("multiplier", multiplier) * simultaneous_closed_form(T, beta), T, t
    )


def theorem2_simultaneous(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """`theorem2_simultaneous_closed_form` with exact normal tails in its union bound: smaller, same
    probability.

    **Guarantee.** With probability at least 1 − β no tick t ≤ T has an error above the value at t,
    for the mechanism M x + L z with one Gaussian z of std multiplier·c_T. Test:
    `tests/bounds/test_counting_error.py::test_simultaneous_bound_covers_simulated_streams`.
    """
    return _scaled(check_positive("multiplier", multiplier) * simultaneous_quantile(T, beta), T, t)


def average_paper(T: int, t: Ticks, multiplier: float) -> Values:
    """The paper's error of the running average, Ψ(t)·C·√ln(6T)/t (probability 2/3). Ψ is too small,
    √2 is missing."""
    factor = check_positive("multiplier", multiplier) * simultaneous_paper_two_thirds(T)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)) / n, "t")


def average(T: int, t: Ticks, multiplier: float, beta: float = 1 / 3) -> Values:
    """The running average's error for all ticks together with probability 1 − β: that of the count,
    divided by t."""
    radius = theorem2_simultaneous(T, t, multiplier, beta)
    return over_ticks(t, lambda n: np.ravel(radius) / n, "t")


def sparse_paper(T: int, ones: int, multiplier: float) -> float:
    """The paper's error for a stream with at most s ones, C·(5 ln T + Ψ(s)·√ln(6s))."""
    # The paper writes Ψ(n)√ln(6n) and does not define n; only n = s makes sense. It quotes an
    # analysis for pure privacy without repeating it for Gaussian noise, so this is a claim and not
    # a proven bound. Ψ(1) is below 1.
    ones = check_count("ones", ones)
    check_count("T", T, least=ones)
    inner = float(psi_paper(ones)) * math.sqrt(math.log(6 * ones))
    return check_positive("multiplier", multiplier) * (5 * math.log(T) + inner)


def fresh_noise_overspend(T: int) -> float:
    """How many times the claimed sensitivity the paper's proof of Theorem 2 really has: √Σ_{t≤T}
    1/c_t⁴."""
    # The proof draws a fresh vector in every round. Round t then shows a change of one in the first
    # bit at std C·c_t², independently of the other rounds, so the rounds add up in squares: 11.1 at
    # T=1024, 60.5 at T=65536. Not private.
    if check_count("T", T) > 2**26:
        raise ParameterError(f"fresh_noise_overspend adds T terms; T={T} is above 2^26.")
    return float(math.sqrt(np.sum(1 / np.asarray(landau(np.arange(1, T + 1))) ** 2)))


def sampling_error(n: int, beta: float) -> float:
    """√(ln(2/β)/2n): how far the distribution of n samples is from the true one (Dvoretzky, Kiefer
    and Wolfowitz)."""
    return math.sqrt(math.log(2 / check_probability("beta", beta)) / (2 * check_count("n", n)))


@dataclass(frozen=True)
class Growth:
    """An Ω-statement: `quantity` grows at least like `expression`, under `conditions`.

    Attributes:
        name: Its key in `GROWTHS`.
        quantity: What grows.
        expression: How fast, up to a constant factor.
        parameters: The names that `evaluate` takes.
        conditions: When the statement holds.
        where: Its place in the paper.
        caveat: What is missing in its proof; empty if nothing.

    >>> from evercount.bounds import GROWTHS
    >>> print(GROWTHS["maximum-sum-pure"])
    error α of the d-dimensional maximum sum = Ω(min{√(T/ε), d/ε, T}), ε in (0,1), ...
    >>> GROWTHS["maximum-sum-pure"].evaluate(T=10000, epsilon=0.25, d=10)
    40.0
    """

    name: str
    quantity: str
    expression: str
    parameters: tuple[str, ...]
    conditions: str
    where: str
    _formula: Callable[..., float] = field(repr=False, compare=False)
    caveat: str = ""

    def evaluate(self, **params: float) -> float:
        """The value of the growth expression. Not a lower bound: the constant in front of it is
        unknown.

        Args:
            **params: A positive number for each name in `parameters`.

        Returns:
            The value.

        Raises:
            ParameterError: Another set of names, or the expression has no positive value there.
        """
        if set(params) != set(self.parameters):
            raise ParameterError(
                f"{self.name} needs exactly {', '.join(self.parameters)}, not "
                f"{', '.join(sorted(params)) or 'nothing'}."
            )
        values = {key: check_positive(key, value) for key, value in params.items()}
        try:
            value = self._formula(**values)
        except (ValueError, ZeroDivisionError, OverflowError):
            value = math.nan
        if not 0 < value < math.inf:
            raise ParameterError(
                f"{self.expression} has no positive value at {params}: {self.conditions}."
            )
        return value

    def __str__(self) -> str:
        return f"{self.quantity} = Ω({self.expression}), {self.conditions}"


def _approximate(T: float, epsilon: float, d: float) -> float:
    """min{T^{1/3}/(ε^{2/3} log^{2/3}(εT)), √d/(ε log d), T} of Jain et al., maximum sum."""
    cube_root = math.cbrt(T) / math.cbrt((epsilon * math.log(epsilon * T)) ** 2)
    return min(cube_root, math.sqrt(d) / (epsilon * math.log(d)), T)


def _pure(T: float, epsilon: float, d: float) -> float:
    """min{√(T/ε), d/ε, T} of Jain et al., maximum sum under pure privacy."""
    return min(math.sqrt(T / epsilon), d / epsilon, T)


_APPROXIMATE = "ε in (0,1), δ > 0, δ = o(ε/T), T large enough, εT > 1"
_PURE = "ε in (0,1), δ = 0, T large enough"
_REDUCTION = (
    "the reduction answers with the count of the most frequent letter, but the maximum sum needs "
    "the largest coordinate, which adds up many letters: a claim, not a proof"
)


def _both_kinds(
    name: str,
    quantity: str,
    size: str,
    conditions: tuple[str, str],
    where: str,
    log: bool = False,
    caveat: str = "",
) -> Iterator[Growth]:
    """The bound of a problem that contains the maximum sum, for approximate and for pure
    privacy."""
    # `size` names the problem's size; the dimension of the maximum sum in it is that, or its
    # logarithm.
    d = f"log {size}" if log else size
    kinds = (
        (
            "",
            f"min{{T^(1/3)/(ε^(2/3)·log^(2/3)(εT)), √{d}/(ε·log {d}), T}}",
            _APPROXIMATE,
            _approximate,
        ),
        ("-pure", f"min{{√(T/ε), {d}/ε, T}}", _PURE, _pure),
    )
    for (ending, expression, condition, bound), more in zip(kinds, conditions, strict=True):

        def formula(
            T: float, epsilon: float, bound: Callable[..., float] = bound, **sizes: float
        ) -> float:
            return bound(T, epsilon, math.log(sizes[size]) if log else sizes[size])

        names = ("T", "epsilon", size)
        place = f"Section 'Lower bounds', {where}"
        yield Growth(
            name + ending, quantity, expression, names, condition + more, place, formula, caveat
        )


_COUNTING = Growth(
    "counting",
    "max over streams of E‖error‖²_∞",
    "ln²(T)/ε²",
    ("T", "epsilon"),
    "ε and δ below a small constant, noise independent of the data, streams fixed in advance, T > "
    "1",
    "Theorem 3 (lower bound)",
    lambda T, epsilon: (math.log(T) / epsilon) ** 2,
)
_CUT = "error α of the minimum cut, or of the minimum degree, of a multigraph"
_WORDS = "error α of counting substrings over an alphabet of U letters"
_GROWTHS = (
    _COUNTING,
    *_both_kinds(
        "maximum-sum",
        "error α of the d-dimensional maximum sum",
        "d",
        (", d > 1", ""),
        "quoted from Jain et al.",
    ),
    *_both_kinds("minimum-cut", _CUT, "n", (", n ≥ 3 nodes", ", n ≥ 3 nodes"), "first theorem"),
    *_both_kinds(
        "substrings",
        _WORDS,
        "U",
        (", log U > 1", ", U > 1"),
        "second theorem",
        log=True,
        caveat=_REDUCTION,
    ),
)
GROWTHS: dict[str, Growth] = {growth.name: growth for growth in _GROWTHS}
"""Every lower bound of the paper's section on lower bounds, by name."""


def _psi(T: int) -> float:
    """Compute the paper's Ψ for a number of ticks that is checked."""
    return float(psi_paper(check_count("T", T)))


def _worst_std(T: int, multiplier: float, S: float) -> float:
    """Std at the last tick, which is the worst: multiplier·√S·c_T²."""
    root = math.sqrt(check_positive("S", S))
    return check_positive("multiplier", multiplier) * root * float(landau(check_count("T", T)))


def vector_error(T: int, multiplier: float, S: float, cells: int, beta: float = 1 / 3) -> float:
    """The error of `cells` running counts over T ticks under one budget, for all ticks and cells
    together.

    **Guarantee.** With probability at least 1 − β every cell at every tick is within the result,
    for the square-root mechanism with noise std multiplier·√S·c_T. Test:
    `tests/bounds/test_table1.py::test_vector_error_covers_simulated_streams`.
    """
    return _worst_std(T, multiplier, S) * simultaneous_quantile(
        T * check_count("cells", cells), beta
    )


def histogram_paper(T: int, multiplier: float, b: int, u: int) -> float:
    """The paper's row: C·Ψ(T)·√(b·ln(6uT)); its S = b is wrong for the replace adjacency."""
    T = check_count("T", T)
    b = check_count("b", b)
    u = check_count("u", u)
    return check_positive("multiplier", multiplier) * _psi(T) * math.sqrt(b * math.log(6 * u * T))


def histogram(T: int, multiplier: float, S: float, u: int, beta: float = 1 / 3) -> float:
    """The corrected row, for u cells; S = b (add-remove) or min(2b, u) (replace)."""
    return vector_error(T, multiplier, S, u, beta)


def graph_function_paper(T: int, multiplier: float, gamma: float = 1.0) -> float:
    """The paper's row: C·Ψ(T)·Γ·√ln(6T), Γ the l2-sensitivity of the differences (1 in the table);
    not private."""
    scale = check_positive("multiplier", multiplier) * _psi(T) * check_positive("gamma", gamma)
    return scale * simultaneous_paper_two_thirds(T)


def graph_function(T: int, multiplier: float, S: float, beta: float = 1 / 3) -> float:
    """The corrected row: S = max Σ(P² + N²) of the difference sequence, f_1 − f_0 included."""
    return vector_error(T, multiplier, S, 1, beta)


def words(U: int, length: int) -> int:
    """How many words of 1 to `length` letters there are over U letters: the cells of substrings and
    of episodes."""
    U = check_count("U", U)
    length = check_count("length", length)
    return sum(U**i for i in range(1, length + 1))


def substrings_paper(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's row: C·Ψ(T)·ℓ·√ln(6T·U^ℓ); its S = ℓ² is too small (true replace:
    ℓ(ℓ+1)(ℓ+2)/3)."""
    T = check_count("T", T)
    U = check_count("U", U)
    length = check_count("length", length)
    return (
        check_positive("multiplier", multiplier)
        * _psi(T)
        * length
        * math.sqrt(math.log(6 * T * U**length))
    )


def substrings_paper_corollary(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's corollary, C·Ψ(T)·ℓ·√(ln(2U^ℓ)·ln(6T)): a product of logarithms where the table
    has one."""
    T = check_count("T", T)
    U = check_count("U", U)
    length = check_count("length", length)
    logs = math.log(2 * U**length) * math.log(6 * T)
    return check_positive("multiplier", multiplier) * _psi(T) * length * math.sqrt(logs)


def substrings(
    T: int, multiplier: float, S: float, U: int, length: int, beta: float = 1 / 3
) -> float:
    """The corrected row: all words of up to `length` letters; S = ℓ(ℓ+1)(2ℓ+1)/6 or ℓ(ℓ+1)(ℓ+2)/3
    (replace)."""
    return vector_error(T, multiplier, S, words(U, length), beta)


def episodes_paper(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's row: 2C·Ψ(T)·ℓ·√(U^{ℓ−1}·ℓ·ln(6T·U^ℓ)); one ℓ more than its proof, and the proof
    is invalid."""
    T = check_count("T", T)
    U = check_count("U", U)
    length = check_count("length", length)
    inside = U ** (length - 1) * length * math.log(6 * T * U**length)
    return 2 * check_positive("multiplier", multiplier) * _psi(T) * length * math.sqrt(inside)


def episodes_paper_corollary(T: int, multiplier: float, U: int, length: int) -> float:
    """The paper's corollary, C·Ψ(T)·√(U^{ℓ−1}·ℓ·ln(2U^ℓ)·ln(6T)): 2ℓ smaller outside and a product
    of logarithms."""
    T = check_count("T", T)
    U = check_count("U", U)
    length = check_count("length", length)
    inside = U ** (length - 1) * length * math.log(2 * U**length) * math.log(6 * T)
    return check_positive("multiplier", multiplier) * _psi(T) * math.sqrt(inside)


def episodes(
    T: int, multiplier: float, S: float, U: int, length: int, beta: float = 1 / 3
) -> float:
    """The corrected row: all episodes of up to `length` events; S from the episode automaton."""
    return vector_error(T, multiplier, S, words(U, length), beta)


def cuts_paper(T: int, multiplier: float, s: int, p: int) -> float:
    """The paper's row: 3C·|S|·Ψ(T)·√((|S|+|P|)·ln(|S|+|P|)·ln(6T)), for every cut (S, P) with these
    sizes."""
    s = check_count("s", s)
    p = check_count("p", p)
    inside = (s + p) * math.log(s + p) * math.log(6 * check_count("T", T))
    return 3 * check_positive("multiplier", multiplier) * s * _psi(T) * math.sqrt(inside)


def cut_std(T: int, multiplier: float, S: float, s: int, p: int) -> float:
    """The exact std of the noise on one cut of sizes s and p at the last tick:
    multiplier·√S·c_T²·√(s·p)."""
    return _worst_std(T, multiplier, S) * math.sqrt(check_count("s", s) * check_count("p", p))


def cut(T: int, multiplier: float, S: float, s: int, p: int, beta: float = 1 / 3) -> float:
    """The error of one given cut, for all ticks together."""
    return cut_std(T, multiplier, S, s, p) * simultaneous_quantile(T, beta)


def cuts(T: int, multiplier: float, S: float, n: int, s: int, p: int, beta: float = 1 / 3) -> float:
    """The corrected row: every cut with sizes s and p in a graph of n nodes and every tick
    together."""
    # A union bound over the n!/(s!·p!·(n−s−p)!) choices and T ticks, with exact normal tails.
    n = check_count("n", n)
    s = check_count("s", s)
    p = check_count("p", p)
    if s + p > n:
        raise ParameterError(f"a cut of sizes {s} and {p} does not fit into {n} nodes.")
    choices = math.comb(n, s) * math.comb(n - s, p)
    return cut_std(T, multiplier, S, s, p) * simultaneous_quantile(T * choices, beta)


def all_cuts(
    T: int, multiplier: float, S: float, n: int, s: int, p: int, beta: float = 1 / 3
) -> float:
    """The error of a cut with sizes s and p when all 3^n pairs of disjoint sets and all ticks must
    hold together."""
    n = check_count("n", n)
    if check_count("s", s) + check_count("p", p) > n:
        raise ParameterError(f"a cut of sizes {s} and {p} does not fit into {n} nodes.")
    log_count = math.log(check_count("T", T)) + n * math.log(3)
    return cut_std(T, multiplier, S, s, p) * simultaneous_quantile_of_log(log_count, beta)


def local_learning_paper(epsilon: float, n: int, half_multiplier: float) -> float:
    """The paper's row: β + 2/(ε√n), β = C_{ε/2,δ/2}·√(ln(6(ε√n+1))/2n)·(1 + ln((4ε√n−3)/5)/π)."""
    # `half_multiplier` is C_{ε/2,δ/2}. The corollary has 2β. The clients' sensitivity is wrong
    # (one-hot vectors differ in two places), and its interval width ⌊1/(ε√n)⌋ is 0 whenever ε√n
    # > 1.
    w = check_positive("epsilon", epsilon) * math.sqrt(check_count("n", n))
    if 4 * w <= 3:
        raise ParameterError(
            f"epsilon·√n must be above 0.75 for the paper's formula, and it is {w:.3g}."
        )
    tail = math.sqrt(math.log(6 * (w + 1)) / (2 * n))
    noise = (
        check_positive("half_multiplier", half_multiplier)
        * tail
        * (1 + math.log((4 * w - 3) / 5) / math.pi)
    )
    return noise + 2 / w


def local_learning(epsilon: float, n: int, client_variance: float, beta: float = 1 / 3) -> float:
    """The corrected row: error of the estimated risk against the empirical risk, at every point,
    with chance 1 − β."""
    # w = ⌈ε√n⌉ buckets of width 1/w; `client_variance` is n times the largest variance of an entry
    # of x̂ (what one client's message contributes). Noise of the w entries by the union bound, plus
    # 2/w for the buckets. Both sides up to the constant risk at 0. For the population's risk add
    # 2·sampling_error(n, β′).
    w = math.ceil(check_positive("epsilon", epsilon) * math.sqrt(check_count("n", n)))
    std = math.sqrt(check_positive("client_variance", client_variance) / n)
    return std * simultaneous_quantile(w, check_probability("beta", beta)) + 2 / w
