"""Stored results of the automaton of `episode_sensitivity.py`, for lengths where it needs from a second to ten minutes.

They do not depend on the alphabet. Test: tests/queries/test_queries_episodes.py::test_stored_tables_are_computed_again.
"""

from __future__ import annotations

APART: dict[int, tuple[tuple[int, ...], ...]] = {
    5: ((0, 6, 59, 53, 9), (1, 86, 138, 31, 0), (178, 1036, 956, 174, 0)),
    6: ((0, 7, 154, 268, 109, 11), (1, 252, 787, 446, 56, 0), (492, 4584, 7122, 2848, 292, 0)),
    7: (
        (0, 8, 377, 1138, 834, 194, 13),
        (1, 692, 3712, 3778, 1110, 89, 0),
        (1328, 18912, 44738, 29766, 6658, 442, 0),
    ),
}
"""Length → the three lists of `episode_sensitivity.apart`."""
