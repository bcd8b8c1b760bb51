"""Marginals: closed forms against dense least squares, exact sensitivity, refusals, numbers that
add up."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Stream
from evercount.audit.sensitivity import audit_sensitivity
from evercount.errors import InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries import Marginals, build_query

BUDGET = Budget(1.0, 1e-6)
AB, XYZ, ONE = ["a", "b"], ["x", "y", "z"], ["only"]
SHAPES = [
    Marginals([AB, XYZ]),
    Marginals([AB, XYZ], [[0], [1]], [2, 1]),
    Marginals([AB, XYZ], [[0, 1]]),
    Marginals([AB, XYZ], [[], [1], [0, 1]], [3, 1, 2]),
    Marginals([AB, XYZ, AB], [[0, 1], [1, 2], [0]], [1, 2, 5]),
    Marginals([ONE, AB]),
]


def dense(query: Marginals) -> tuple[np.ndarray, np.ndarray]:
    """(outputs × combinations of truth, outputs × cells of least squares), from labels and single
    events only."""
    columns = query.parameters()["columns"]
    events = list(product(*columns))
    measured = np.stack([query.encode(None, [event])[0] for event in events], axis=1).astype(float)
    rows = []
    for label in query.labels:
        wanted = ["*"] * len(columns) if label == "total" else label.split(" / ")
        rows.append(
            [all(w in ("*", v) for w, v in zip(wanted, event, strict=True)) for event in events]
        )
    truth = np.asarray(rows, dtype=float)
    return truth, truth @ np.linalg.pinv(measured)


@pytest.mark.parametrize("query", SHAPES, ids=repr)
def test_closed_forms_are_the_dense_least_squares(query: Marginals) -> None:
    truth, wanted = dense(query)
    found = query.decode_run(1, np.eye(query.cells)).T
    assert np.allclose(found, wanted, atol=1e-12)
    assert np.allclose(query.publishing.norms(), np.linalg.norm(wanted, axis=1), atol=1e-12)
    assert np.allclose(query.publishing.joint(range(query.outputs)), wanted @ wanted.T, atol=1e-12)
    assert np.all(query.publishing.roundings() >= np.abs(wanted).sum(axis=1) - 1e-12)
    counts = np.random.default_rng(1).integers(0, 9, truth.shape[1])
    events = [
        e
        for e, n in zip(product(*query.parameters()["columns"]), counts, strict=True)
        for _ in range(n)
    ]
    cells = query.encode(None, events)[0]
    assert np.allclose(query.decode_run(1, cells[np.newaxis].astype(float))[0], truth @ counts)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", SHAPES, ids=repr)
def test_sensitivity_is_the_exact_maximum(query: Marginals, adjacency: Adjacency) -> None:
    report = audit_sensitivity(query, np.eye(2), adjacency, 2)
    assert report.exhaustive
    assert report.holds
    assert report.reached
    assert not audit_sensitivity(query, np.eye(2), adjacency, 2, claimed=report.S - 1).holds


def test_parameters_build_the_same_query() -> None:
    for query in SHAPES:
        assert build_query("marginals", query.parameters()) == query


@pytest.mark.parametrize(
    "bad",
    [
        {"columns": []},
        {"columns": "ab"},
        {"columns": [ONE]},
        {"columns": [AB, []]},
        {"columns": [["a", "a"]]},
        {"columns": [{"a", "b"}, XYZ]},
        {"columns": [["*", "a"], AB]},
        {"columns": [AB] * 7},
        {"columns": [AB, XYZ], "tables": []},
        {"columns": [AB, XYZ], "tables": [[0], [0]]},
        {"columns": [AB, XYZ], "tables": [[1, 0]]},
        {"columns": [AB, XYZ], "tables": [[2]]},
        {"columns": [AB, XYZ], "weights": [1]},
        {"columns": [AB, XYZ], "weights": [1, 1, 1, 0]},
    ],
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Marginals(**bad)


@pytest.mark.parametrize("event", [("a",), "ax", ("a", "q"), ("a", 1), None, ("x", "a")])
def test_bad_events_are_named(event: Any) -> None:
    with pytest.raises(InputError, match="event 1 "):
        Marginals([AB, XYZ]).encode(None, [("a", "x"), event])


def test_published_numbers_add_up_with_exact_noise() -> None:
    query = Marginals([AB, XYZ])
    rows = Stream(query, BUDGET, 8).run([[("a", "x"), ("b", "z")]] * 8).rows
    x = dict(zip(query.labels, rows.T, strict=True))
    assert np.allclose(x["total"], x["a / *"] + x["b / *"], atol=1e-9)
    assert np.allclose(x["total"], x["* / x"] + x["* / y"] + x["* / z"], atol=1e-9)
    assert np.allclose(x["* / y"], x["a / y"] + x["b / y"], atol=1e-9)
    assert np.allclose(x["a / *"], x["a / x"] + x["a / y"] + x["a / z"], atol=1e-9)
