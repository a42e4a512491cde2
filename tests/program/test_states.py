"""States whose next value is computed in a branch that runs beside others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from branching_models import Sketch
from onnx import TensorProto, helper

from atc.backends.targets import get_target
from atc.memory.arena import plan_memory
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.forks import Workers
from atc.program.steps import Fork, Program, calls
from atc.select.select import select
from support import compile_graph

TARGET = get_target("c99")


def program(reads: str) -> Program:
    """Return two towers, one of which replaces a state that "one" or "both" of them read."""
    s = Sketch()
    s.channels["s"] = 4
    x = s.relu(s.conv("x", 4, 3))
    t = s.node("Softmax", ["s"], 4)
    one = s.add(s.relu(s.conv(x, 4, 3)), t)
    other = s.relu(s.conv(s.pool(x), 4, 3))
    other = s.node("Softmax", ["s"], 4, axis=1) if reads == "both" else other
    model = s.model(s.relu(s.conv(one, 4, 3)), s.relu(s.conv(other, 4, 3)), t)
    shape = [1, 4, s.size, s.size]
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, shape))
    graph = run_passes(replace(compile_graph(model), states=((1, 2),)))
    workers = Workers(2, always=True)
    return build_program(graph, select(graph, TARGET), TARGET, workers=workers)


@pytest.mark.parametrize(("reads", "copied"), [("one", False), ("both", True)])
def test_it_is_replaced_where_no_other_branch_reads_it(reads: str, copied: bool) -> None:
    found = program(reads)
    (state,) = found.states
    forks = [step for step in found.steps if isinstance(step, Fork)]
    assert state.value in {a for call in calls(forks) for a in call.arguments}
    assert state.next.endswith("#next") is copied
    plan_memory(found)  # which is audited
