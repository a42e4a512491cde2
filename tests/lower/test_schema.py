"""Element types that an operator can't have are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from atc.errors import ModelError
from atc.ir.graph import DType
from atc.lower.schema import type_error
from support import node_model, run_model


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus", "Exp", "Sqrt", "Softmax", "Erf", "Elu"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_functions_of_reals_take_no_integers(op: str, dtype: type) -> None:
    x = np.ones((2, 3), dtype)
    with pytest.raises(ModelError, match=rf"input 0 is .*int|bool.*\({op}\)"):
        run_model(node_model(op, [x]), [x])


def test_operands_of_one_type_variable_agree() -> None:
    x, y = np.ones(3, np.float32), np.ones(3, np.int32)
    with pytest.raises(ModelError, match="inputs 0 and 1 are float and int32"):
        run_model(node_model("Add", [x, y]), [x, y])


@pytest.mark.parametrize(
    ("op", "opset", "types", "fits"),
    [
        ("Add", 7, [DType.INT8, DType.INT8], True),  # later versions take it
        ("Add", 21, [DType.BOOL, DType.BOOL], False),
        ("Gather", 21, [DType.BOOL, DType.INT64], True),
        ("Gather", 21, [DType.FLOAT, DType.FLOAT], False),
        ("Pow", 21, [DType.FLOAT, DType.INT64], True),
        ("Concat", 21, [DType.FLOAT, DType.DOUBLE], False),
        ("Loop", 21, [DType.INT64, DType.BOOL, DType.FLOAT, DType.INT32], True),
        ("Clip", 21, [DType.FLOAT, None, DType.DOUBLE], False),
        ("Unheard", 21, [DType.FLOAT], True),
        ("Gelu", 19, [DType.FLOAT], False),
        ("Gelu", 20, [DType.FLOAT], True),
        ("LayerNormalization", 11, [DType.FLOAT, DType.FLOAT], True),  # as onnxruntime writes it
    ],
)
def test_types_are_compared_with_the_standard(
    op: str, opset: int, types: list[DType | None], fits: bool
) -> None:
    assert (type_error(op, "", opset, types) == "") is fits


@pytest.mark.parametrize(
    ("op", "opset", "since"),
    [("Gelu", 13, 20), ("GroupNormalization", 17, 18), ("Einsum", 11, 12), ("Where", 8, 9)],
)
def test_an_operator_that_came_later_is_refused_by_name(op: str, opset: int, since: int) -> None:
    given = {"Where": [np.ones(3, np.bool_)]}.get(op, []) + [np.ones((1, 4), np.float32)] * 3
    attributes = {"Einsum": {"equation": "ij,ij,ij"}, "GroupNormalization": {"num_groups": 2}}
    model = node_model(op, given, opset=opset, **attributes.get(op, {}))
    with pytest.raises(
        ModelError, match=rf"came with opset {since}, the model imports {opset} .*\({op}\)"
    ):
        run_model(model, given)
