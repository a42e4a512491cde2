"""GroupedMatMul by any kernel of its product: that is called for each run of rows of one matrix."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from atc.backends.kernel import (
    AnyKernel,
    Candidate,
    Kernel,
    Pack,
    Splittable,
    Workload,
    WorkSplit,
    weight_type,
)
from atc.backends.kernel_source import nested_function
from atc.backends.render.packing import PackInParts
from atc.backends.target import Target
from atc.dims import Symbol, dim, max_value
from atc.errors import InternalError
from atc.ir.graph import Array, TensorType
from atc.ir.ops import MatMul
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked


def rows_of_one(w: Workload[GroupedMatMul], rows: int | None = None) -> Workload[Any]:
    """Return the workload of neighbours with the same index: as many as only the run counts, or
    so many."""
    op = w.op
    if rows is None:
        rows = dim(Symbol(0, "rows", 1, max(2, max_value(op.product.m))))
    product = replace(op.product, m=rows)
    (x, *others), y = op.operands_of_one(w.inputs), w.outputs[0]
    assert x is not None
    inputs = (TensorType(x.dtype, (rows, product.k)), *others)
    return Workload(product, inputs, (TensorType(y.dtype, (rows, product.n)),), w.constant[:-1])


class Grouped(Kernel[GroupedMatMul, Any]):
    """The kernel of a product with one matrix, called for one run of rows after the other."""

    op = GroupedMatMul
    template = "cpu/matmul/grouped.c.j2"
    dynamic = True
    accepts_16_bit_weights = True

    def __init__(self, inner: AnyKernel) -> None:
        self.inner = inner
        self.name = f"grouped_{inner.name}"  # type: ignore[misc]  # facts of the inner kernel
        self.portable = inner.portable  # type: ignore[misc]
        self.headers = inner.headers  # type: ignore[misc]
        self.approximate = inner.approximate  # type: ignore[misc]
        self.precision = inner.precision  # type: ignore[misc]
        self.bitwise_reproducible = inner.bitwise_reproducible  # type: ignore[misc]

    def accepts(self, w: Workload[GroupedMatMul], target: Target) -> bool:
        """Accept what the inner kernel does, for any number of rows."""
        inner, one = self.inner, rows_of_one(w)
        if not isinstance(one.op, inner.op) or not inner.supports_extents(one):
            return False
        stored = inner.accepts_16_bit_weights or weight_type(one) is None
        return stored and inner.accepts(one, target)

    def parameters(self, w: Workload[GroupedMatMul], target: Target) -> Sequence[Any]:
        """Return those of the inner kernel."""
        return self.inner.parameters(rows_of_one(w), target)

    def packs(
        self, w: Workload[GroupedMatMul], params: Any, target: Target
    ) -> Mapping[int, Pack]:
        """Pack one matrix after the other."""
        inner = self.inner.packs(rows_of_one(w), params, target)
        sizes = self._sizes(w, params, target)
        return {k: _of_all(w, k, pack, sizes[k]) for k, pack in inner.items()}

    def _sizes(
        self, w: Workload[GroupedMatMul], params: Any, target: Target
    ) -> dict[int, int]:
        """Return the elements in memory of the operands that each matrix has its own of."""
        one = rows_of_one(w)
        packs, how = self.inner.packs(one, params, target), Candidate(self.inner, params).label
        types = {k: t for k, t in enumerate(one.inputs) if k and t is not None}
        return {
            k: _size(_Packed(f"{target.name} {k} {how} {one.op}", t, packs[k]))
            if k in packs else t.size
            for k, t in types.items()
        }  # fmt: skip

    def packing(self, w: Workload[GroupedMatMul], params: Any, target: Target) -> str:
        """Kernels whose inner ones share a layout share one."""
        name = self.inner.packing(rows_of_one(w), params, target)
        return name and f"{w.op.matrices} times {name}"

    def packing_overhead(self, w: Workload[GroupedMatMul], params: Any, target: Target) -> int:
        """Return that of all matrices."""
        return w.op.matrices * self.inner.packing_overhead(rows_of_one(w), params, target)

    def scratch(self, w: Workload[GroupedMatMul], params: Any, target: Target) -> int:
        """Reserve what the inner kernel needs if all rows are of one matrix."""
        return self.inner.scratch(rows_of_one(w, w.op.product.m), params, target)

    def exact(self, params: Any) -> bool:
        """Return whether the inner kernel is."""
        return self.inner.exact(params)

    def precise_params(self, w: Workload[GroupedMatMul], params: Any, target: Target) -> Any:
        """Return those of the inner kernel."""
        return self.inner.precise_params(rows_of_one(w), params, target)

    def shared_params(
        self, w: Workload[GroupedMatMul], params: Any, target: Target, threads: int
    ) -> Sequence[Any]:
        """Threads share each call as they do one of the inner kernel."""
        if not isinstance(self.inner, Splittable):
            return ()
        return self.inner.shared_params(rows_of_one(w), params, target, threads)

    def work_split(self, w: Workload[GroupedMatMul], params: Any, target: Target) -> WorkSplit:
        """Return the inner kernel's."""
        if not isinstance(self.inner, Splittable):
            return WorkSplit()
        return self.inner.work_split(rows_of_one(w), params, target)

    def values(
        self, w: Workload[GroupedMatMul], params: Any, target: Target
    ) -> dict[str, object]:
        """Return the inner kernel as a function, and the steps between matrices."""
        op, one = w.op, rows_of_one(w)
        candidate = Candidate(self.inner, params)
        function, arguments = nested_function(candidate, one, target, "multiply_rows", rows_in_c)
        product = op.product
        step = product.a_view.strides[0] if isinstance(product, MatMul) else product.k
        sizes = {f"x{k}": n for k, n in self._sizes(w, params, target).items()}
        return {
            "op": op, "function": function, "index": f"x{len(w.inputs) - 1}",
            "arguments": [_argument(a.name, step, product.n, sizes) for a in arguments],
        }  # fmt: skip

    def cost(self, w: Workload[GroupedMatMul], params: Any, target: Target) -> float:
        """Return the cycles of rows that are spread evenly over the matrices."""
        rows = w.op.product.m
        groups = max(1, min(rows, w.op.matrices))
        one = rows_of_one(w, -(-rows // groups))
        return groups * self.inner.cost(one, params, target)


def _argument(name: str, step: int, columns: int, sizes: Mapping[str, int]) -> str:
    """Return the C of an argument of the inner function for rows from `first` on."""
    match name:
        case "x0":
            return f"x0 + first * {step}"
        case "y0":
            return f"y0 + first * {columns}"
        case "rows":
            return "end - first"
    return f"{name} + matrix * {sizes[name]}" if name in sizes else name


def _of_all(w: Workload[GroupedMatMul], k: int, pack: Pack, size: int) -> Pack:
    """Return what packs operand k of all matrices, where each takes `size` elements."""
    count, shape = w.op.matrices, _shape_of_one(w, k)

    def parts(constant: Array) -> Iterator[tuple[int, Array]]:
        for e, matrix in enumerate(constant.reshape(count, *shape)):
            yield e * size, np.ascontiguousarray(pack(matrix)).reshape(-1)

    return PackInParts(parts, count * size)


def _shape_of_one(w: Workload[GroupedMatMul], k: int) -> tuple[int, ...]:
    found = w.op.operands_of_one(w.inputs)[k]
    assert found is not None
    return found.shape


@dataclass(frozen=True)
class _Packed:
    """An operand of one matrix as a kernel packs it: `how` names the packing."""

    how: str
    type: TensorType
    pack: Pack = field(compare=False)


@lru_cache(256)  # a large matrix takes a while
def _size(packed: _Packed) -> int:
    """Return the elements that a packed operand has."""
    if isinstance(packed.pack, PackInParts):
        return packed.pack.size
    return packed.pack(np.zeros(packed.type.shape, packed.type.dtype.numpy)).size


def rows_in_c(extent: str) -> str:
    """Return the C of an extent over `d[0]`, the rows of a run, which are at least one."""

    class Written(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            return ast.Name("rows")

        def visit_Call(self, node: ast.Call) -> ast.expr:
            a, b = (self.visit(each) for each in node.args)
            operators = {"atc_div": ast.Div(), "atc_mod": ast.Mod()}
            function = ast.unparse(node.func)
            if function not in operators:
                raise InternalError(f"rows of a run in {extent}")
            return ast.BinOp(a, operators[function], b)

    return ast.unparse(Written().visit(ast.parse(extent, mode="eval")))


def grouped(kernels: Sequence[AnyKernel]) -> tuple[AnyKernel, ...]:
    """Return kernels of GroupedMatMul by all of these that take rows which only the run counts."""
    products = (MatMul, MatMulPacked)
    return tuple(Grouped(k) for k in kernels if k.op in products and k.dynamic)
