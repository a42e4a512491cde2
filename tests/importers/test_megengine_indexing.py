"""Slices, gathers and writes of MegEngine dumps, written by hand, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import Case, Const, check

RNG = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def index(*numbers: int) -> Const:
    return Const(np.array(numbers, np.int32))


X, M, V = normal(5, 6, 7), normal(4, 9), normal(20)


def items(*entries: tuple[int, str]) -> dict[str, dict[str, object]]:
    """Return index parameters: an axis, and letters for begin, end, step and index."""
    rows = [(axis, *(letter in word for letter in "besi")) for axis, word in entries]
    return {"IndexDescMaskDump": {"items": rows}}


def assigned(x: np.ndarray, where: object, value: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[where] = value
    return y


def increased(x: np.ndarray, where: object, value: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    np.add.at(y, where, value)
    return y


ROWS, COLUMNS = index(3, 0, 3, 1), index(1, 5, 0, 2)
R, C = ROWS.array, COLUMNS.array
LABELS = RNG.integers(0, 6, (5, 7)).astype(np.int32)
TAKEN = np.take_along_axis(X, LABELS[:, None], 1)
WRITTEN = np.zeros_like(X)
np.put_along_axis(WRITTEN, LABELS[:, None], 2.0, 1)
INDEXING = [
    Case(
        "Subtensor", [X, index(1), index(-1)], items((1, "be")), lambda x, *_: x[:, 1:-1], "range"
    ),
    Case(
        "Subtensor",
        [X, index(-2), index(0), index(-2), index(2), index(1)],
        items((2, "bes"), (1, "b"), (0, "i")),
        lambda x, *_: x[1, 2:, -2:0:-2],
        "unsorted",
    ),
    Case("Subtensor", [X, index(-1)], items((1, "s")), lambda x, *_: x[:, ::-1], "reversed"),
    Case("Subtensor", [X, index(-99), index(99)], items((0, "be")), lambda x, *_: x, "clamped"),
    Case(
        "Subtensor",
        [X, index(-1), index(2)],
        items((2, "i"), (0, "i")),
        lambda x, *_: x[2, :, -1],
        "indices",
    ),
    Case("Subtensor", [V, index(3)], items((0, "i")), lambda x, *_: x[3:4], "scalar"),
    Case("Subtensor", [X, np.array([4], np.int32)], items((0, "i")), lambda x, i: x[4], "computed"),
    Case(
        "SetSubtensor",
        [X, normal(2, 3, 7), index(1), index(3), index(2)],
        items((0, "be"), (1, "s")),
        lambda x, v, *_: assigned(x, np.s_[1:3, ::2], v),
    ),
    Case(
        "SetSubtensor",
        [X, normal(7), index(-1)],
        items((1, "i")),
        lambda x, v, *_: assigned(x, np.s_[:, -1], v),
        "broadcast",
    ),
    Case(
        "IncrSubtensor",
        [X, normal(5, 6, 2), index(5)],
        items((2, "b")),
        lambda x, v, *_: increased(x, np.s_[:, :, 5:], v),
    ),
    Case("IndexingMultiAxisVec", [X, ROWS], items((0, "i")), lambda x, i: x[i]),
    Case(
        "IndexingMultiAxisVec",
        [X, COLUMNS, ROWS],
        items((1, "i"), (0, "i")),
        lambda x, *_: x[R, C],
        "pair",
    ),
    Case(
        "IndexingMultiAxisVec",
        [X, COLUMNS, ROWS],
        items((2, "i"), (1, "i")),
        lambda x, *_: x[:, R, C],
        "later",
    ),
    Case(
        "IndexingMultiAxisVec",
        [X, COLUMNS, ROWS],
        items((2, "i"), (0, "i")),
        lambda x, *_: x[R, :, C].transpose(0, 1),
        "apart",
    ),
    Case(
        "IndexingMultiAxisVec",
        [X, index(1), index(4), ROWS],
        items((1, "be"), (0, "i")),
        lambda x, *_: x[R, 1:4],
        "range",
    ),
    Case(
        "IndexingSetMultiAxisVec",
        [X, normal(2, 6, 7), index(3, 0)],
        items((0, "i")),
        lambda x, v, i: assigned(x, i, v),
    ),
    Case(
        "IndexingSetMultiAxisVec",
        [X, normal(5, 4), COLUMNS, ROWS],
        items((2, "i"), (1, "i")),
        lambda x, v, *_: assigned(x, np.s_[:, R, C], v),
        "pair",
    ),
    Case(
        "IndexingIncrMultiAxisVec",
        [X, normal(4, 6, 7), ROWS],
        items((0, "i")),
        lambda x, v, i: increased(x, i, v),
    ),
    Case(
        "MeshIndexing",
        [X, ROWS, COLUMNS],
        items((0, "i"), (1, "i")),
        lambda x, i, j: x[np.ix_(i, j)],
    ),
    Case("IndexingOneHot", [X, LABELS], {"Axis": {"axis": 1}}, lambda x, i: TAKEN),
    Case(
        "IndexingSetOneHot",
        [np.zeros_like(X), LABELS, Const(np.full((5, 1, 7), 2, np.float32))],
        {"Axis": {"axis": 1}},
        lambda *_: WRITTEN,
    ),
    *(
        Case(
            "CondTake",
            [V, np.round(M).ravel()[:20]],
            {"CondTake": {"mode": word, "val": 1.0}},
            lambda x, m, f=f: (x[f(m, 1)], np.flatnonzero(f(m, 1))),
            word,
        )
        for word, f in (
            ("EQ", np.equal),
            ("NEQ", np.not_equal),
            ("LT", np.less),
            ("LEQ", np.less_equal),
            ("GT", np.greater),
            ("GEQ", np.greater_equal),
        )
    ),
    Case(
        "CondTake",
        [V, V > 0],
        {"CondTake": {"val": 1.0}},
        lambda x, m: (x[m], np.flatnonzero(m)),
        "bool",
    ),
]


@pytest.mark.parametrize("case", INDEXING, ids=str)
def test_indexing(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
