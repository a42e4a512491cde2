"""What a library built with --profile tells of each kernel call beside its time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from atc.backends.kernel import Workload
from atc.names import c_string
from atc.ops import Conv, ConvBlocked, ConvTranspose, MatMul, Recurrent
from atc.ops.quantize import MatMulPacked
from atc.program import Program, calls

_LONGEST = 1000
"""Characters of the nodes' names; with 4 bytes each still a string that C99 compilers take."""


@dataclass(frozen=True)
class ProfiledCall:
    """A kernel call: C strings of the nodes that it computes and of the kernel; what it does."""

    nodes: str
    op: str
    kernel: str
    operations: int
    bytes: int


def profiled_calls(program: Program) -> tuple[ProfiledCall, ...]:
    """Return all kernel calls in the order in which they are written."""
    return tuple(
        ProfiledCall(
            c_string((" + ".join(call.node.origin) or "a copy")[:_LONGEST]),
            c_string(call.node.op.kind),
            c_string(call.choice.candidate.label),
            operations(call.choice.workload),
            _bytes(call.choice.workload),
        )
        for call in calls(program.steps)
    )


def operations(w: Workload) -> int:
    """Return the additions and multiplications by the op's definition; 0 where they don't count.

    Only sums of products count. A fast algorithm (Winograd) does fewer.
    """
    shapes = [() if t is None else t.shape for t in w.inputs]
    match w.op:
        case Conv():
            return 2 * w.outputs[0].size * prod(shapes[1][1:])
        case ConvBlocked():
            y = w.outputs[0].shape
            return 2 * y[0] * prod(y[2:-1]) * prod(shapes[1])
        case ConvTranspose():
            return 2 * prod(shapes[0]) * prod(shapes[1][1:])
        case MatMul():
            return w.op.flops
        case MatMulPacked():
            return 2 * w.op.m * w.op.n * w.op.k
        case Recurrent():
            return 2 * prod(shapes[0]) * w.op.hidden
    return 0


def _bytes(w: Workload) -> int:
    return sum(t.nbytes for t in (*w.inputs, *w.outputs) if t is not None)
