"""Tables of a library built with --profile: facts of each kernel call beside its time."""

from __future__ import annotations

from dataclasses import dataclass

from atc.ir.text import node_text
from atc.names import c_string
from atc.program.steps import Program, calls

_LONGEST = 1000
"""Most characters of the nodes' names; with 4 bytes each, C99 compilers still accept them."""


@dataclass(frozen=True)
class ProfiledCall:
    """A kernel call: C strings of its nodes and its kernel, its operations and bytes."""

    nodes: str
    op: str
    kernel: str
    operations: int
    bytes: int


def profiled_calls(program: Program) -> tuple[ProfiledCall, ...]:
    """Return all kernel calls in the order in which they are written."""
    return tuple(
        ProfiledCall(
            c_string(node_text(call.node)[:_LONGEST]),
            c_string(call.node.op.kind),
            c_string(call.choice.candidate.label),
            call.operations,
            call.traffic,
        )
        for call in calls(program.steps)
    )
