"""The decisions of the sampler in exact integer arithmetic: right for infinitely many random bits.

Every function here brackets a real number between two integers over a power of two. A decision is taken only
when the bracket lies on one side; otherwise more random bits are read and the bracket is made narrower.
"""

from __future__ import annotations

from functools import lru_cache

from evercount.noise.prf import Expansion

GUARD = 32  # bits of precision beyond the random bits that a decision has read

BITS_PER_READ = 128  # how many more random bits are read when a decision is still open


def exp_minus(numerator: int, shift: int, bits: int) -> tuple[int, int]:
    """Integers lo ≤ 2^bits · exp(−y) ≤ hi for y = numerator / 2^shift ≥ 0. Proof: `normal_sampler.proof.md`."""
    halvings = max(0, numerator.bit_length() - shift + 4)  # then y / 2^halvings < 1/16
    work = bits + halvings + 16
    scale = work - shift - halvings
    below = numerator << scale if scale >= 0 else numerator >> -scale
    lo, hi = _series(below + 1, work)[0], _series(below, work)[1]
    for _ in range(halvings):
        lo, hi = lo * lo >> work, -(-hi * hi >> work)
    drop = work - bits
    return lo >> drop, -(-hi >> drop)


def _series(argument: int, work: int) -> tuple[int, int]:
    """Integers 0 ≤ lo ≤ 2^work · exp(−argument / 2^work) ≤ hi, for 0 ≤ argument ≤ 2^work."""
    lo = hi = low_term = high_term = 1 << work
    number = 0
    while high_term > 1:
        number += 1
        low_term = (low_term * argument >> work) // number
        high_term = -((-high_term * argument >> work) // number)
        if number % 2:
            lo, hi = lo - high_term, hi - low_term
        else:
            lo, hi = lo + low_term, hi + high_term
    # What follows in the alternating series is smaller than its last term, which is at most one unit.
    return max(0, lo - 1), hi + 1


def sums(bits: int, work: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Brackets, times 2^work, of Σ_{j≤k} exp(−j²/2) for k = 0, 1, … and of the sum over all j ≥ 0."""
    # The list stops at the first k for which exp(−k²/2) < 2^−bits.
    lo = hi = 1 << work
    brackets = [(lo, hi)]
    while hi >> (work - bits):
        lo, hi = exp_minus(len(brackets) ** 2, 1, work)
        brackets.append((brackets[-1][0] + lo, brackets[-1][1] + hi))
    # exp(−(j+1)²/2) < exp(−j²/2) / 2, so the tail beyond the last term is less than that term.
    return brackets, (brackets[-1][0], brackets[-1][1] + hi)


@lru_cache(maxsize=16)
def cumulative(bits: int) -> tuple[tuple[int, int], ...]:
    """Integers lo_k ≤ 2^bits · C_k ≤ hi_k, where C_k = Σ_{j≤k} exp(−j²/2) / Σ_{j≥0} exp(−j²/2)."""
    # The table stops at the first k for which exp(−k²/2) < 2^−bits: a v beyond it needs more bits.
    brackets, (total_lo, total_hi) = sums(bits, bits + 16)
    return tuple(((lo << bits) // total_hi, -((-hi << bits) // total_lo)) for lo, hi in brackets)


def integer_part(bits: Expansion) -> int:
    """The k with C_{k−1} ≤ v < C_k, for the infinite expansion v."""
    read = 63
    while True:
        v = bits.prefix("v", read)
        for k, (lo, hi) in enumerate(cumulative(read + GUARD)):
            if v + 1 << GUARD <= lo:
                return k
            if v << GUARD < hi:
                break
        read += BITS_PER_READ


def accepts(k: int, bits: Expansion) -> bool:
    """Whether u < exp(−x (2k + x) / 2), for the infinite expansions u and x."""
    read = BITS_PER_READ
    while True:
        x, u = bits.prefix("x", read), bits.prefix("u", read)
        shift, precision = 2 * read + 1, read + GUARD
        lower = x * ((2 * k << read) + x)
        upper = (x + 1) * ((2 * k << read) + x + 1)
        if u + 1 << GUARD <= exp_minus(upper, shift, precision)[0]:
            return True
        if u << GUARD >= exp_minus(lower, shift, precision)[1]:
            return False
        read += BITS_PER_READ


@lru_cache(maxsize=1)
def thresholds() -> tuple[int, ...]:
    """⌊2^63 · C_k⌋ for k = 0, 1, …, up to and with the first that is 2^63 − 1 (and so are all after it)."""
    limits: list[int] = []
    for lo, hi in cumulative(63 + 64):
        if lo >> 64 != hi >> 64:
            break
        limits.append(lo >> 64)
        if limits[-1] == 2**63 - 1:
            return tuple(limits)
    raise AssertionError("the bracket of a threshold holds an integer: more bits are needed")
