"""Softmax between bytes in integers."""

from __future__ import annotations

from atc.backends.cpu.small.steps import plus
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops.quantize import SoftmaxBytes

ELEMENT, ROW = 25.0, 150.0
"""Instructions of an element, and of a row."""


class SoftmaxTable(Kernel[SoftmaxBytes]):
    """Maximum, sum of exponentials from the table, and a product for every result."""

    name = "softmax_bytes"
    op = SoftmaxBytes
    template = "cpu/small/softmax.c.j2"
    bitwise_reproducible = True

    def values(
        self, w: Workload[SoftmaxBytes], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the numbers, and the bounds that a result may leave."""
        op, y = w.op, w.outputs[0].dtype
        low, high = (-128, 127) if y is DType.INT8 else (0, 255)
        whole = 1 << (16 + op.shift)  # the least sum: the largest element's exponential
        half = 1 << (op.bits - 1)
        most = (65536 * ((op.numerator + whole // 2) // whole) + half) >> op.bits
        return {
            "op": op, "half": half, "zero": plus(op.zero), "element": y.c,
            "source": w.input(0).dtype.c,
            "least": low - op.zero if op.zero < low else None,
            "most": high - op.zero if most + op.zero > high else None,
        }  # fmt: skip

    def in_place(self, w: Workload[SoftmaxBytes]) -> tuple[int, ...]:
        """x, which the last pass reads where it then writes."""
        return (0,) if w.outputs[0].dtype is w.input(0).dtype else ()

    def cost(self, w: Workload[SoftmaxBytes], params: Params, target: Target) -> float:
        """Estimated instructions."""
        return w.op.outer * w.op.inner * (ROW + ELEMENT * w.op.axis)


KERNELS = (SoftmaxTable(),)
