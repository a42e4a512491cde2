"""Reductions in vectors, against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target

from atc.backends.cpu.map.portable import ReduceLoops
from atc.backends.cpu.map.reduce import ReduceColumns, ReduceRows, loop_slices, merged
from atc.backends.kernel import Kernel, Workload
from atc.backends.targets import get_target
from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Epilogue, Reduce, identity_epilogue
from atc.ir.view import View, dense, gather_view
from support import node_model, run_models

F = DType.FLOAT
X, Y = Input(F, 0), Input(F, 1)
HOWS: dict[str, Callable[..., Any]] = {
    "Sum": np.sum, "Prod": np.prod, "Max": np.max, "Min": np.min,
}  # fmt: skip
EXPRESSIONS: dict[str, tuple[Expr, int, Callable[..., Any]]] = {
    "x": (X, 1, lambda x: x),
    "exp": (call("Exp", X), 1, np.exp),
    "square": (call("Mul", X, X), 1, np.square),
    "difference": (call("Mul", call("Sub", X, Y), call("Sub", X, Y)), 2,
                   lambda x, y: (x - y) ** 2),
}  # fmt: skip


def workload(
    how: str, expr: Expr, shape: Sequence[int], reduced: Sequence[int], views: Sequence[View],
    epilogue: Epilogue | None = None,
) -> Workload:  # fmt: skip
    """Return a Reduce whose operands are as long as their views reach."""
    after = epilogue or identity_epilogue(F)
    op = Reduce(how, tuple(shape), tuple(reduced), expr, tuple(views), after)
    loops = (*shape, *reduced)
    sizes = [
        *(v.bounds(loops)[1] + 1 for v in views),
        *(v.bounds(shape)[1] + 1 for v in after.views),
    ]
    types = tuple(TensorType(F, (s,)) for s in sizes)
    return Workload(op, types, (TensorType(F, tuple(shape)),), tuple(False for _ in types))


def expected(w: Workload, arrays: Sequence[Any], truth: Callable[..., Any]) -> Any:
    """Return the reduction in float64, before the epilogue."""
    op = w.op
    assert isinstance(op, Reduce)
    loops = (*op.shape, *op.reduced)
    operands = [gather_view(a, loops, v).astype(np.float64)
                for a, v in zip(arrays, op.views, strict=False)]  # fmt: skip
    axes = tuple(range(len(op.shape), len(loops)))
    return HOWS[op.how](truth(*operands), axis=axes)


def sample(w: Workload, seed: int, low: float = -1.0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(low, 1.2, t.shape).astype(np.float32) for t in w.inputs if t is not None]


def check(cases: Sequence[tuple[Kernel, Workload, Callable[..., Any]]], target: str) -> None:
    record = vector_target(target)
    calls = []
    for seed, (kernel, w, _) in enumerate(cases):
        assert kernel.accepts(w, record), w
        low = 0.9 if isinstance(w.op, Reduce) and w.op.how == "Prod" else -1.0
        calls.append(Call(kernel, {}, w, sample(w, seed, low)))
    results = run_calls(calls, record)
    got: Any
    for each, (got,), (_, w, truth) in zip(calls, results, cases, strict=True):
        want = expected(w, [a for a in each.inputs if a is not None], truth)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(each))


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_every_reduction_along_rows_and_down_columns(target: str) -> None:
    cases: list[tuple[Kernel, Workload, Callable[..., Any]]] = []
    for how in HOWS:
        for expr, count, truth in EXPRESSIONS.values():
            rows = workload(how, expr, (5,), (37,), [dense((5, 37)), View((1, 0))][:count])
            cases.append((ReduceRows(), rows, truth))
            down = workload(how, expr, (37,), (5,), [View((1, 37)), View((1, 0))][:count])
            cases.append((ReduceColumns(), down, truth))
    check(cases, target)


@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_every_extent(target: str) -> None:
    cases: list[tuple[Kernel, Workload, Callable[..., Any]]] = []
    expr, _, truth = EXPRESSIONS["exp"]
    for extent in (8, 15, 16, 17, 64, 100, 300):
        cases.append(
            (ReduceRows(), workload("Sum", expr, (3,), (extent,), [dense((3, extent))]), truth)
        )
        w = workload("Sum", expr, (2, extent), (3,), [View((3 * extent, 1, extent))])
        cases.append((ReduceColumns(), w, truth))
    check(cases, target)


def of_integers(kernel: Kernel, how: str, expr: Expr, dtype: DType, count: int) -> Workload:
    """Return the reduction of 20 rows, or columns, of so many integers, as floats."""
    view = dense((20, count)) if isinstance(kernel, ReduceRows) else View((1, 20))
    after = Epilogue(cast(Input(expr.dtype, 0), F), ())
    op = Reduce(how, (20,), (count,), expr, (view,), after)
    x, y = TensorType(dtype, (20 * count,)), TensorType(F, (20,))
    return Workload(op, (x,), (y,), (False,))


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_integers_of_16_bits(target: str) -> None:
    """Extremes, and sums that a float holds exactly; longer ones are left to integers."""
    record, rng, calls = vector_target(target), np.random.default_rng(1), []
    for dtype, longest in ((DType.UINT16, 256), (DType.INT16, 512)):
        x, limits = Input(dtype, 0), np.iinfo(dtype.numpy)
        for how, expr in (("Sum", cast(x, DType.INT32)), ("Max", x), ("Min", x)):
            for kernel in (ReduceRows(), ReduceColumns()):
                w = of_integers(kernel, how, expr, dtype, longest)
                assert kernel.accepts(w, record), w
                longer = of_integers(kernel, how, expr, dtype, longest + 1)
                assert kernel.accepts(longer, record) == (how != "Sum")
                given = rng.integers(limits.min, limits.max, 20 * longest, dtype.numpy, True)
                given[: 3 * longest] = limits.max
                calls.append(Call(kernel, {}, w, [given]))
    got: Any
    for each, (got,) in zip(calls, run_calls(calls, record), strict=True):
        want = expected(each.workload, [each.inputs[0]], lambda v: v)
        np.testing.assert_array_equal(got, want, err_msg=str(each))


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_strides_offsets_and_many_loops(target: str) -> None:
    expr, _, truth = EXPRESSIONS["x"]
    gaps = View((400, 40, 1), 3)
    rows = [
        workload("Sum", expr, (2,), (3, 20), [gaps]),
        workload("Max", expr, (2, 3), (2, 2, 20), [View((0, 400, 100, 50, 1))]),
        workload("Sum", expr, (), (1000,), [View((1,))]),
    ]
    columns = [
        workload("Sum", expr, (2, 20), (3,), [View((400, 1, 40), 3)]),
        workload("Min", expr, (3, 70), (2, 4), [View((-100, 1, 300, 0), 200)]),
    ]
    cases: list[tuple[Kernel, Workload, Callable[..., Any]]] = []
    cases += [(ReduceRows(), w, truth) for w in rows]
    cases += [(ReduceColumns(), w, truth) for w in columns]
    check(cases, target)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_long_sums_of_a_vector_of_columns(target: str) -> None:
    """Sums of images' pixels, channel by channel, of large numbers: each image has its own sum."""
    width = vector_target(target).vector_bytes // 4
    expr, _, truth = EXPRESSIONS["difference"]
    views = [View((5000 * width, 1, 15000 * width, width)), View((width, 1, 0, 0))]
    check([
        (ReduceColumns(), workload(how, expr, (3, columns), (4, 5000), views), truth)
        for how, columns in (("Sum", width), ("Sum", width - 1), ("Max", width))
    ], target)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_epilogues(target: str) -> None:
    record = vector_target(target)
    mean = call("Add", call("Div", X, const(20, F)), Y)
    calls = []
    for kernel, views, shape in (
        (ReduceRows(), [dense((4, 18, 20))], (4, 18)),
        (ReduceColumns(), [View((360, 1, 18))], (4, 18)),
    ):
        after = Epilogue(call("Sqrt", call("Abs", mean)), (View((0, 1)),))
        w = workload("Sum", X, shape, (20,), views, after)
        assert kernel.accepts(w, record)
        calls.append(Call(kernel, {}, w, sample(w, 5)))
    got: Any
    for each, (got,) in zip(calls, run_calls(calls, record), strict=True):
        x, y = each.inputs
        want = np.sqrt(np.abs(expected(each.workload, [x], lambda v: v) / 20 + y))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_nan_and_infinity_are_kept(target: str) -> None:
    record = vector_target(target)
    calls = []
    for how in ("Max", "Min", "Sum"):
        for kernel, view in ((ReduceRows(), dense((20, 20))), (ReduceColumns(), View((1, 20)))):
            w = workload(how, X, (20,), (20,), [view])
            (x,) = sample(w, 1)
            x.reshape(20, 20)[3, 18], x.reshape(20, 20)[7, 2] = np.nan, -np.inf
            calls.append(Call(kernel, {}, w, [x]))
    got: Any
    for each, (got,) in zip(calls, run_calls(calls, record), strict=True):
        want = expected(each.workload, [each.inputs[0]], lambda v: v)
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=str(each))


def test_the_first_or_the_last_nan_is_the_extreme() -> None:
    x = np.array([[1, 5, 3, 5], [np.nan, 7, np.nan, 2], [np.inf, -np.inf, 0, np.nan]], np.float32)
    cases = [(how, last) for how in ("ArgMax", "ArgMin") for last in (0, 1)]
    models = [
        node_model(how, [x], 1, opset=13, axis=1, keepdims=0, select_last_index=last)
        for how, last in cases
    ]
    for (how, last), found in zip(cases, run_models(models, [[x]] * 4), strict=True):
        assert not isinstance(found, Exception), found
        find = np.argmax if how == "ArgMax" else np.argmin
        wanted = 3 - find(x[:, ::-1], axis=1) if last else find(x, axis=1)
        np.testing.assert_array_equal(found[0], wanted, f"{how} {last}")


def test_loops_merge_on_their_own_side_only() -> None:
    w = workload("Sum", X, (2, 3), (4, 5), [dense((2, 3, 4, 5))])
    assert isinstance(w.op, Reduce)
    op = merged(w.op)
    assert (op.shape, op.reduced, op.views) == ((6,), (20,), (View((20, 1)),))


@pytest.mark.parametrize("extent", [1, 16, 63, 64, 65, 200])
def test_loop_slices_cover_a_loop_once(extent: int) -> None:
    found = loop_slices(extent, 16)
    assert [s.first for s in found] == [0, *(s.last for s in found[:-1])]
    assert found[-1].last == extent
    for s in found:
        assert s.count < 16
        assert s.count or (s.last - s.first) % (16 * s.vectors) == 0


def test_what_vectors_cannot_do_is_refused() -> None:
    target = get_target("x86-64-avx2")
    rows, columns = ReduceRows(), ReduceColumns()
    narrow = workload("Sum", X, (20,), (3,), [dense((20, 3))])
    assert not rows.accepts(narrow, target)
    assert not columns.accepts(narrow, target), "the columns aren't dense"
    wide = workload("Sum", X, (20,), (30,), [dense((20, 30))])
    assert rows.accepts(wide, target)
    assert not rows.accepts(wide, get_target("c99"))
    assert rows.cost(wide, {}, target) < ReduceLoops().cost(wide, {}, target)
    tangent = workload("Sum", call("Tan", X), (20,), (30,), [dense((20, 30))])
    assert not rows.accepts(tangent, target)
