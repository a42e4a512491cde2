"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator, Params
from atc.importers.megengine.quantize import convert, integer_product, is_integer_product
from atc.importers.megengine.translation import Rule
from atc.importers.megengine.types import INT32


def matrix_mul(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate MatrixMul: two matrices, each transposed or not."""
    params = _params(b, op)
    if any(b.rank(x.value) != 2 for x in xs[:2]):
        raise b.error("MatrixMul takes matrices")
    if xs[0].dtype.floating and xs[0].dtype == xs[1].dtype:
        attributes = {
            "transA": int(params.flag("transposeA")),
            "transB": int(params.flag("transposeB")),
        }
        chosen = {name: value for name, value in attributes.items() if value}
        return [Var(b.op("Gemm", [x.value for x in xs[:2]], chosen), xs[0].dtype)]
    return [_product(b, op, params, xs)]


def batched_matrix_mul(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate BatchedMatrixMul: the last two axes are multiplied."""
    return [_product(b, op, _params(b, op), xs)]


def _params(b: Builder, op: Operator) -> Params:
    params = op.params("MatrixMul")
    if params.integer("format"):
        raise b.unsupported(
            "a packed memory format of MatrixMul is not covered",
            hint="dump the network without weight preprocessing",
        )
    return params


def _product(b: Builder, op: Operator, params: Params, xs: Sequence[Var]) -> Var:
    left = _transposed(b, xs[0], params.flag("transposeA"))
    right = _transposed(b, xs[1], params.flag("transposeB"))
    if is_integer_product(left, right):
        result = integer_product(b, "MatMulInteger", left, right, {})
        return convert(b, result, op.output_dtype) if op.output_dtype else result
    if left.dtype.floating and left.dtype == right.dtype:
        return Var(b.op("MatMul", [left.value, right.value]), left.dtype)
    if left.dtype.integral and right.dtype.integral:
        wide = [b.cast(x.value, ir.DataType.INT32) for x in (left, right)]
        return Var(b.op("MatMul", wide), INT32)
    raise b.unsupported(f"a product of {left.dtype.name} and {right.dtype.name} is not covered")


def _transposed(b: Builder, x: Var, flag: bool) -> Var:
    if not flag:
        return x
    rank = b.rank(x.value)
    if rank < 2:
        raise b.error(f"cannot transpose a matrix of rank {rank}")
    order = (*range(rank - 2), rank - 1, rank - 2)
    return Var(b.transpose(x.value, order), x.dtype)


def dot(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Dot: the sum of products of two vectors, of shape (1)."""
    left, right = xs
    if left.dtype.quantized or left.dtype != right.dtype:
        raise b.unsupported(f"a product of {left.dtype.name} and {right.dtype.name} is not covered")
    values, dtype = [left.value, right.value], left.dtype
    if not dtype.floating:
        values, dtype = [b.cast(v, ir.DataType.INT32) for v in values], INT32
    total = b.op("ReduceSum", [b.op("Mul", values)], {"keepdims": 1})
    return [Var(total, dtype)]


RULES: Mapping[str, Rule] = {
    "BatchedMatrixMul": Rule(batched_matrix_mul, 2),
    "Dot": Rule(dot, 2),
    "MatrixMul": Rule(matrix_mul, 2),
}
