"""The rules of the ops that move and sample data: what breaks one is named."""

from __future__ import annotations

import numpy as np
import pytest

from atc.ir.expr import Expr, Input, const
from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.data import Concat, Cumulate, Gather, Pad, Scatter, TopK, source_index
from atc.ir.ops.sampling import GridSample, Resample, RoiAlign, RoiPool
from atc.ir.ops.signal import Dft
from atc.ir.view import View


def f32(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT, shape)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.INT64, shape)


INDEX: Expr = Input(DType.INT64, 0)
NEW: Expr = Input(DType.FLOAT, 1)
ROWS = (View((1,)),)

Case = tuple[Op, list[TensorType | None], list[TensorType]]

SOUND: dict[str, Case] = {
    "concat": (Concat(2, (3, 1)), [f32(2, 3), f32(2)], [f32(2, 4)]),
    "pad": (Pad("constant", (2, 3), (0, 1), (1, 0)), [f32(2, 3), f32()], [f32(3, 4)]),
    "gather": (Gather((4,), 3, INDEX, ROWS), [f32(5, 3), i64(4)], [f32(4, 3)]),
    "scatter": (
        Scatter((4,), 3, INDEX, ROWS, NEW),
        [f32(5, 3), f32(4, 3), i64(4)],
        [f32(5, 3)],
    ),
    "cumulate": (Cumulate("Sum", 2, 3, 1), [f32(2, 3)], [f32(2, 3)]),
    "top_k": (TopK(2, 5, 1, 3, True), [f32(2, 5)], [f32(2, 3), i64(2, 3)]),
    "resample": (Resample(2, 3, 4, 6, 2), [f32(2, 3, 4), i64(6, 2), f32(6, 2)], [f32(2, 6, 4)]),
    "grid": (
        GridSample(1, 2, (3, 4), 5, "linear", "zeros", False),
        [f32(1, 2, 3, 4), f32(1, 5, 2)],
        [f32(1, 2, 5)],
    ),
    "roi align": (
        RoiAlign(1, 2, (4, 4), 3, (2, 2), 1.0, 0, "Average", True),
        [f32(1, 2, 4, 4), f32(3, 4), i64(3)],
        [f32(3, 2, 2, 2)],
    ),
    "roi pool": (
        RoiPool(1, 2, (4, 4), 3, (2, 2), 1.0),
        [f32(1, 2, 4, 4), f32(3, 5)],
        [f32(3, 2, 2, 2)],
    ),
    "dft": (Dft(2, 8, 1, 1, 8, 5), [f32(2, 8, 1), f32(8, 2)], [f32(2, 5, 2)]),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_node_is_accepted(name: str) -> None:
    op, inputs, outputs = SOUND[name]
    op.check(inputs, outputs)


@pytest.mark.parametrize("name", SOUND)
def test_every_operand_s_size_counts(name: str) -> None:
    op, inputs, outputs = SOUND[name]
    for k, type_ in enumerate(inputs):
        assert type_ is not None
        wrong = [*inputs[:k], TensorType(type_.dtype, (*type_.shape, 7)), *inputs[k + 1 :]]
        if isinstance(op, Gather) or (isinstance(op, Scatter) and k == 2):
            continue  # they may be larger than what is read
        with pytest.raises(ValueError, match=r"."):
            op.check(wrong, outputs)


@pytest.mark.parametrize("name", SOUND)
def test_every_result_s_size_counts(name: str) -> None:
    op, inputs, outputs = SOUND[name]
    for k, type_ in enumerate(outputs):
        wrong = [*outputs[:k], TensorType(type_.dtype, (*type_.shape, 7)), *outputs[k + 1 :]]
        with pytest.raises(ValueError, match=r"."):
            op.check(inputs, wrong)


@pytest.mark.parametrize("name", SOUND)
def test_the_result_s_type_counts(name: str) -> None:
    op, inputs, outputs = SOUND[name]
    wrong = [TensorType(DType.INT8, outputs[0].shape), *outputs[1:]]
    with pytest.raises(ValueError, match=r"."):
        op.check(inputs, wrong)


BROKEN: dict[str, Case] = {
    "a negative pad": (Pad("constant", (4,), (-1,), (0,)), [f32(4)], [f32(3)]),
    "a value to be reflected": (Pad("edge", (4,), (1,), (0,)), [f32(4), f32()], [f32(5)]),
    "an unknown mode": (Pad("mirror", (4,), (1,), (0,)), [f32(4)], [f32(5)]),
    "nothing to repeat": (Pad("wrap", (0,), (1,), (0,)), [f32(0)], [f32(1)]),
    "an address of real type": (
        Gather((4,), 1, const(0.0, DType.FLOAT), ()), [f32(5)], [f32(4)],
    ),
    "an index operand read outside": (
        Gather((4,), 1, INDEX, (View((2,)),)), [f32(5), i64(4)], [f32(4)],
    ),
    "a run longer than the data": (Gather((4,), 6, INDEX, ROWS), [f32(5), i64(4)], [f32(4, 6)]),
    "more than there is": (TopK(2, 5, 1, 6, True), [f32(2, 5)], [f32(2, 6), i64(2, 6)]),
    "an unknown sum": (Cumulate("Mean", 1, 3, 1), [f32(3)], [f32(3)]),
    "more frequencies than the length": (
        Dft(1, 8, 1, 1, 8, 9), [f32(8, 1), f32(8, 2)], [f32(9, 2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_node_is_refused(name: str) -> None:
    op, inputs, outputs = BROKEN[name]
    with pytest.raises(ValueError, match=r"."):
        op.check(inputs, outputs)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize(("size", "begin", "end"), [(1, 2, 3), (3, 1, 2), (4, 9, 5), (2, 0, 7)])
def test_source_index_is_numpy_s_pad(mode: str, size: int, begin: int, end: int) -> None:
    expected = np.pad(np.arange(size), (begin, end), mode)  # type: ignore[call-overload]
    assert (source_index(mode, size, begin, end) == expected).all()
