"""Einsum against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from atc.errors import ModelError
from atc.ir.graph import DType
from atc.ir.ops import Map, MatMul, Reduce, Reshape
from support import (
    NUMBERS,
    Batch,
    assert_close,
    compile_graph,
    node_model,
    random_array,
)

EQUATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij->ji": ((3, 4),),
    "ij->": ((3, 4),),
    "ij->j": ((3, 4),),
    "ji": ((3, 4),),
    "ii": ((4, 4),),
    "ii->i": ((4, 4),),
    "iji->ij": ((3, 2, 3),),
    "...ii->...i": ((2, 3, 4, 4),),
    "...ij->...ji": ((2, 3, 4),),
    "i...->...": ((3, 2, 4),),
    "...": ((2, 3),),
    "->": ((),),
    "i,i->": ((5,), (5,)),
    "i,j->ij": ((3,), (4,)),
    "ij,j->i": ((3, 4), (4,)),
    "j,ij->i": ((4,), (3, 4)),
    "ij,jk->ik": ((3, 4), (4, 5)),
    "ij,jk->ki": ((3, 4), (4, 5)),
    "ij,kj->ik": ((3, 4), (5, 4)),
    "ij,jk": ((3, 4), (4, 5)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "bqhd,bkhd->bhqk": ((2, 3, 2, 4), (2, 5, 2, 4)),
    "bhwc,cd->bhwd": ((2, 3, 2, 4), (4, 5)),
    "bhwc,dc->bdhw": ((2, 3, 2, 4), (5, 4)),
    "ijk,jkl->il": ((2, 3, 4), (3, 4, 5)),
    "ijk,kjl->il": ((2, 3, 4), (4, 3, 5)),
    "bhwc,hkc->bhwk": ((2, 3, 2, 4), (3, 5, 4)),
    "ij,ij->ij": ((3, 4), (3, 4)),
    "ij,ij->": ((3, 4), (3, 4)),
    "ijl,jk->ik": ((2, 3, 4), (3, 5)),
    "ij,k->k": ((2, 3), (4,)),
    "...ij,...jk->...ik": ((2, 1, 3, 4), (6, 4, 5)),
    "...ij,jk": ((2, 3, 4), (4, 5)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 5)),
    "i,j,k,l->likj": ((2,), (3,), (2,), (3,)),
    "bi,bj,bk->bijk": ((2, 3), (2, 2), (2, 3)),
    "ij,jk,k->": ((2, 3), (3, 4), (4,)),
    "iij,jk->ik": ((3, 3, 4), (4, 2)),
    "ij,jk->ik ": ((1, 4), (4, 1)),
    "a i j , a j k -> a i k": ((1, 3, 1), (2, 1, 2)),
    "ij, jk->ik": ((3, 0), (0, 2)),
    "ij,jk->i k": ((0, 3), (3, 2)),
    "Ij,jK->KI": ((3, 4), (4, 5)),
}


def spelled(equation: str) -> str:
    """Return the equation as numpy reads it, where outputs may not be padded with blanks."""
    return equation.replace(" ", "")


@pytest.fixture(scope="module")
def compiled() -> Batch:
    return Batch({
        e: node_model("Einsum", [np.zeros(s, np.float32) for s in shapes], equation=e)
        for e, shapes in EQUATIONS.items()
    })  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, compiled: Batch) -> None:
    inputs = [random_array(DType.FLOAT, s, k) for k, s in enumerate(EQUATIONS[equation])]
    wide = [x.astype(np.float64) for x in inputs]
    expected = np.asarray(np.einsum(spelled(equation), *wide)).astype(np.float32)
    assert_close(compiled[equation](inputs), [expected], rtol=1e-5, atol=1e-5)


PRODUCTS = ["ij,jk->ki", "bqhd,bkhd->bhqk", "bhwc,cd->bhwd", "ij,j->i", "ijk,jkl->il"]


@pytest.mark.parametrize("equation", PRODUCTS)
def test_products_are_matrix_products(equation: str) -> None:
    inputs = [np.zeros(s, np.float32) for s in EQUATIONS[equation]]
    graph = compile_graph(node_model("Einsum", inputs, equation=equation))
    ops = [n.op for n in graph.nodes]
    assert sum(isinstance(op, MatMul) for op in ops) == 1
    assert not any(isinstance(op, Reduce) for op in ops)


def test_rows_that_lie_together_are_one_loop() -> None:
    inputs = [np.zeros((2, 3, 2, 4), np.float32), np.zeros((4, 5), np.float32)]
    graph = compile_graph(node_model("Einsum", inputs, equation="bhwc,cd->bhwd"))
    (op,) = [n.op for n in graph.nodes if isinstance(n.op, MatMul)]
    assert (op.batch, op.m, op.n, op.k) == ((), 12, 5, 4)


def test_a_transposition_costs_no_reduction() -> None:
    graph = compile_graph(node_model("Einsum", [np.zeros((3, 4), np.float32)], equation="ij->ji"))
    assert all(isinstance(n.op, Map | Reshape) for n in graph.nodes)


MULTIPLIED = [d for d in NUMBERS if d is not DType.BOOL]


@pytest.fixture(scope="module")
def products_of_dtypes() -> Batch:
    return Batch({
        d.label: node_model(
            "Einsum", [random_array(d, (3, 4)), random_array(d, (4, 5))], equation="ij,jk->ik"
        )
        for d in MULTIPLIED
    })  # fmt: skip


@pytest.mark.parametrize("dtype", MULTIPLIED, ids=lambda d: d.label)
def test_every_type(dtype: DType, products_of_dtypes: Batch) -> None:
    a, b = random_array(dtype, (3, 4), 1), random_array(dtype, (4, 5), 2)
    got = products_of_dtypes[dtype.label]([a, b])
    work = np.float64 if dtype.is_float else dtype.numpy
    expected = np.einsum("ij,jk->ik", a.astype(work), b.astype(work)).astype(dtype.numpy)
    assert_close(got, [expected], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((3, 4), (5, 6))),
        ("ij->ik", ((3, 4),)),
        ("ij->ii", ((3, 4),)),
        ("ij,jk->ik", ((3, 4),)),
        ("ijk->i", ((3, 4),)),
        ("i...j->ij", ((3,),)),
        ("i1->i", ((3, 4),)),
        ("ij->i->j", ((3, 4),)),
        ("......->", ((3, 4),)),
        ("ii->i", ((3, 4),)),
    ],
)
def test_nonsense_is_refused(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = [np.zeros(s, np.float32) for s in shapes]
    with pytest.raises(ModelError, match="Einsum"):
        compile_graph(node_model("Einsum", inputs, equation=equation))
