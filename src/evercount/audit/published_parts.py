"""From published numbers to parts with independent noise, where a query publishes linear maps of its noisy sums.

Consistent trees and tables publish more numbers than they have independent ones. A replay prices a difference by the
covariance of the noise; these parts have the covariance of single cells.
"""

from __future__ import annotations

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import ParameterError
from evercount.queries.base import Query
from evercount.queries.histogram import OTHER


def parts_of(query: Query, pure: bool) -> FloatArray | None:
    """The matrix that turns published numbers into parts with the noise of one cell each; None for cells themselves.

    **Guarantee.** With A the map from noisy sums to outputs and A = U·S·Vᵀ, published·V·S⁻¹ = sums·U: orthonormal
    combinations of cells, which hold all that is published. Test:
    tests/audit/test_replay_doors.py::test_parts_hold_all_that_is_published.
    """
    if query.discovery is not None:
        return None
    refused = ParameterError(
        f"{query!r} publishes other numbers than linear maps of its noisy sums: audit it by the library door"
    )
    cells = np.eye(query.cells)
    zero = query.decode_run(1, 0 * cells[:1])
    outputs = query.decode_run(1, cells) - zero
    probe = np.arange(1.0, 1 + 3 * query.cells).reshape(3, query.cells)
    known = query.publishing.no_views is None or query.outputs == query.cells
    if not known or not np.allclose(query.decode_run(5, probe) - zero, probe @ outputs):
        raise refused
    if outputs.shape == cells.shape and np.allclose(outputs, cells):
        return None
    if pure:
        raise refused
    _, size, right = np.linalg.svd(outputs)
    kept = size > 1e-9 * size.max()
    return np.asarray(right[: len(size)][kept].T / size[kept])


def table_of(releases: list[dict[str, float]]) -> tuple[tuple[str, ...], FloatArray]:
    """Labels and numbers of ticks that may have different labels; 0 where a label is missing.

    Where keys are discovered, `other` follows from the other numbers and is left out.
    """
    labels = tuple(dict.fromkeys(label for row in releases for label in row))
    return labels, np.asarray([[row.get(label, 0.0) for label in labels] for row in releases]).reshape(-1, len(labels))


def published_table(
    query: Query, parts: FloatArray | None, releases: list[dict[str, float]]
) -> tuple[tuple[str, ...], FloatArray]:
    """(labels, numbers) with independent noise in every column."""
    if query.discovery is not None:
        releases = [{label: number for label, number in row.items() if label != OTHER} for row in releases]
    labels, values = table_of(releases)
    if parts is None:
        return labels, values
    return tuple(f"part {number}" for number in range(parts.shape[1])), values @ parts
