"""The precision that a library states."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.kernel import Workload
from atc.ir.expr import Call, expressions, walk
from atc.ir.graph import DType
from atc.ir.ops import Map, Reshape, SubView
from atc.ir.ops.data import Concat
from atc.pipeline.request import Request
from atc.select.select import Selection

DEFAULT_BOUND, PRECISE_BOUND = 1e-4, 1e-5
"""What errors of float32 kernels are to stay under, as a part of the output's scale."""

PRECISIONS = ("float32", "bf16x6", "bf16x3", "tf32", "bf16", "int8")
"""What kernels compute products in, most precise first."""

_ROUNDINGS = 32  # roundings to 16 bits, or 19, one on another
_TF32 = 2.0**-11
_ROUNDED = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8}
_MOVING = (Concat, Map, Reshape, SubView)


@dataclass(frozen=True)
class Contract:
    """The precision that a library states: `error_bound` is a part of the output's scale.

    `products` is what the chosen kernels multiply in, of PRECISIONS. `measured_error` is against
    float64, where it was measured when compiling; `predicted_error` what products in bf16x3 or bf16
    alone add, as far as that was predicted.
    """

    precision: str
    implmode: str
    error_bound: float
    measured_error: float | None
    products: tuple[str, ...]
    predicted_error: float | None = None

    @property
    def text(self) -> str:
        """The contract as `<name>_build_info()` states it."""
        note = f"precision={self.precision}; implmode={self.implmode}; "
        note += f"products={'+'.join(self.products)}; error_bound={self.error_bound:.3g}"
        if self.predicted_error is not None:
            note += f"; predicted_error={self.predicted_error:.2e}"
        if self.measured_error is None:
            return note
        return f"{note}; measured_error={self.measured_error:.2e}"


def contract_of(request: Request, selection: Selection) -> Contract:
    """Return what a library of this request and these kernels states of its precision."""
    options, decisions = request.options, request.decisions
    implmode = options.op_select_implmode
    precise = implmode.startswith("high_precision") and not options.optypelist_for_implmode
    plain = PRECISE_BOUND if precise else DEFAULT_BOUND
    name = request.policy.mode or ("high_precision" if precise else "default")
    used = {choice.candidate.kernel.precision for choice in selection.values()}
    rounded = max((_rounding(choice.workload) for choice in selection.values()), default=0.0)
    epsilon = max(request.policy.epsilon, rounded, _TF32 if "tf32" in used else 0.0)
    bound = options.max_error or max(plain, _ROUNDINGS * epsilon)
    products = tuple(p for p in PRECISIONS if p in used or p == PRECISIONS[0])
    split = decisions.predicted_error if {"bf16x3", "bf16"} & used else None
    return Contract(name, implmode, bound, decisions.measured_error, products, split)


def _rounding(w: Workload) -> float:
    """Return the relative error by which a node rounds floats to 16 bits, 0 where it doesn't."""
    made = [e.dtype for expr in expressions(w.op) for e in walk(expr) if isinstance(e, Call)]
    if not made and not isinstance(w.op, _MOVING):
        made = [type_.dtype for type_ in w.outputs]
    return max((_ROUNDED.get(dtype, 0.0) for dtype in made), default=0.0)
