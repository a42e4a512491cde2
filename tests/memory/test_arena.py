"""The arena of a program: shared where values are dead, intact where they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from projects import build_shared, emit_model, write_project

from atc.backends.targets import get_target
from atc.errors import InternalError
from atc.ir.graph import Array
from atc.memory.arena import Arena, plan_memory, stacked
from atc.memory.audit import _meeting, _Span, audit_memory
from atc.memory.check import check_stack
from atc.memory.planner import Buffer, plan_arena, plan_no_reuse
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.forks import Workers
from atc.program.steps import Fork, Program, calls
from atc.runtime.network import Network
from atc.select.select import select
from support import compile_graph

TARGET = get_target("c99")


def chain(length: int, size: int = 256) -> onnx.ModelProto:
    """Return Conv after Conv, each with a Relu: two buffers suffice."""
    nodes = []
    for k in range(length):
        nodes.append(helper.make_node("Conv", [f"t{k}", "w"], [f"c{k}"]))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"t{k + 1}"]))
    return _model(nodes, f"t{length}", size, w=np.ones((4, 4, 1, 1)))


def branchy(size: int = 64) -> onnx.ModelProto:
    """Return a model whose If reads an outer value in one branch only."""
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Exp", ["t1"], ["b"])], "then", [], [value])
    other = helper.make_graph([helper.make_node("Neg", ["t0"], ["b"])], "else", [], [value])
    nodes = [
        helper.make_node("Sigmoid", ["t0"], ["t1"]),
        helper.make_node("ReduceMax", ["t0"], ["m"], keepdims=0),
        helper.make_node("Greater", ["m", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["y", "t1"], ["out"]),
    ]
    return _model(nodes, "out", size, zero=np.zeros(()))


def _model(
    nodes: list[onnx.NodeProto], output: str, size: int, **constants: np.ndarray
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("t0", TensorProto.FLOAT, [1, 4, 1, size])
    known = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name=output)], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def program_of(model: onnx.ModelProto) -> Program:
    graph = run_passes(compile_graph(model))
    return build_program(graph, select(graph, TARGET), TARGET)


def test_a_chain_needs_two_buffers() -> None:
    arena = plan_memory(program_of(chain(10)))
    row = 256 * 4
    assert arena.plan.size == arena.plan.lower_bound == 2 * 4 * row + row  # and a row of scratch


def test_without_reuse_every_buffer_has_its_place() -> None:
    program = program_of(chain(10))
    arena = plan_memory(program, reuse=False)
    assert arena.plan.size > 9 * 4 * 256 * 4


def test_inputs_outputs_and_constants_have_no_offset() -> None:
    program = program_of(chain(3))
    arena = plan_memory(program)
    assert not {*program.inputs, *program.outputs, *program.constants} & set(arena.offsets)


@pytest.mark.parametrize("model", [chain(4), branchy()], ids=["chain", "branchy"])
def test_the_audit_catches_a_value_moved_over_another(model: onnx.ModelProto) -> None:
    program = program_of(model)
    arena = plan_memory(program, reuse=False)
    audit(program, arena)
    values = list(arena.offsets)
    caught = 0
    for victim in values[1:]:
        moved = {**arena.offsets, victim: arena.offsets[values[0]]}
        try:
            audit(program, replace(arena, offsets=moved))
        except InternalError:
            caught += 1
    assert caught


def test_the_audit_catches_what_leaves_the_arena() -> None:
    program = program_of(chain(4))
    arena = plan_memory(program)
    far = dict.fromkeys(arena.offsets, arena.plan.size)
    with pytest.raises(InternalError, match="outside the arena"):
        audit(program, replace(arena, offsets=far))


def mirrored(size: int = 8) -> onnx.ModelProto:
    """Return t + reversed t, of a t that dies there: each element is read twice."""
    nodes = [
        helper.make_node("Softmax", ["t0"], ["t1"]),
        helper.make_node("Slice", ["t1", "start", "end", "axis", "step"], ["t2"]),
        helper.make_node("Add", ["t1", "t2"], ["t3"]),
        helper.make_node("Softmax", ["t3"], ["y"]),
    ]
    model = _model(nodes, "y", size)
    numbers = {"start": -1, "end": -size - 1, "axis": 3, "step": -1}
    constants = (numpy_helper.from_array(np.array([n]), name) for name, n in numbers.items())
    model.graph.initializer.extend(constants)
    return model


def test_an_operand_that_is_also_read_elsewhere_is_not_written_over(tmp_path: Path) -> None:
    emission = emit_model(mirrored())
    network = Network(build_shared(write_project(tmp_path, emission), level="-O0"), emission.name)
    x = np.random.default_rng(0).standard_normal((1, 4, 1, 8)).astype(np.float32)

    def softmax(v: Array) -> Array:
        return np.exp(v) / np.exp(v).sum(-1, keepdims=True)

    t = softmax(x)
    np.testing.assert_allclose(network(x), softmax(t + t[..., ::-1]), rtol=1e-5)


def test_the_audit_catches_an_operand_that_is_also_read_elsewhere() -> None:
    program = program_of(mirrored())
    joined = next(c for c in calls(program.steps) if len({*c.arguments}) < len(c.arguments))
    assert joined.in_place == ()
    wrong = replace(joined, in_place=joined.arguments[:1])
    program = replace(
        program, steps=tuple(wrong if step is joined else step for step in program.steps)
    )
    with pytest.raises(InternalError, match="writes over"):
        plan_memory(program)


def audit(program: Program, arena: Arena) -> None:
    audit_memory(program, arena.offsets, arena.scratch, arena.plan.size)


def random_buffers(seed: int, count: int = 40) -> list[Buffer]:
    rng = np.random.default_rng(seed)
    births, sizes = rng.integers(0, 30, count), rng.choice([0, 64, 128, 640], count)
    lives = rng.choice([0, 1, 2, 5, 30], count)
    return [
        Buffer(f"b{k}", int(n), int(t), int(t + life), 64)
        for k, (n, t, life) in enumerate(zip(sizes, births, lives, strict=True))
    ]


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_buffers_that_live_together_are_one_above_the_other(seed: int, reuse: bool) -> None:
    buffers = random_buffers(seed)
    plan = plan_arena(buffers) if reuse else plan_no_reuse(buffers)
    order = sorted(buffers, key=lambda b: (plan.offsets[b.name], b.name))
    below = stacked(order, plan, reuse=reuse)
    check_stack(order, below, reuse=reuse)
    ends = [0] * len(order)  # what all sizes grown at once make of the plan
    for k, b in enumerate(order):
        ends[k] = max([ends[j] for j in below[k]], default=0) + b.size * (k % 3 + 1)
    begins = [ends[k] - b.size * (k % 3 + 1) for k, b in enumerate(order)]
    for k, b in enumerate(order):
        for j, a in enumerate(order[:k]):
            if (a.first <= b.last and b.first <= a.last) and a.size and b.size:
                assert ends[j] <= begins[k]
    assert sum(map(len, below)) < 4 * len(order)


@pytest.mark.parametrize("seed", range(8))
def test_a_pair_without_an_order_is_found(seed: int) -> None:
    buffers = random_buffers(seed)
    plan = plan_arena(buffers)
    order = sorted(buffers, key=lambda b: (plan.offsets[b.name], b.name))
    below = [list(j) for j in stacked(order, plan, reuse=True)]
    k = max(range(len(order)), key=lambda k: (len(below[k]), k))
    below[k].pop()  # it lives with k, and no other way leads there
    with pytest.raises(InternalError, match="have no order in the arena"):
        check_stack(order, below, reuse=True)


def span(begin: int, end: int, branch: int, writes: bool) -> tuple[_Span, int, bool]:
    return _Span(begin, end), branch, writes


@pytest.mark.parametrize("seed", range(20))
def test_branches_that_meet_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spans = [
        span(int(b), int(b + n), int(k), bool(w))
        for b, n, k, w in zip(
            rng.integers(0, 400, 9), rng.integers(0, 30, 9), rng.integers(0, 3, 9),
            rng.integers(0, 2, 9), strict=True,
        )
    ]  # fmt: skip
    meet = any(
        a[0].meets(b[0]) and a[1] != b[1] and (a[2] or b[2])
        for a in spans for b in spans if a[0].begin < a[0].end and b[0].begin < b[0].end
    )  # fmt: skip
    assert (_meeting(spans) is not None) is meet


def test_an_output_has_no_room_that_another_branch_reads_an_input_in() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[2, 300] x, float[2, 300] z) => (float[2, 300] y, float[2, 300] w) {
        a = Exp(x)
        t = Softmax(a)
        b = Neg(z)
        c = Softmax(b)
        y = LpNormalization(c)
        w = Add(y, z)
        v = Add(t, w)
    }"""
    text = text.replace("float[2, 300] w)", "float[2, 300] v)")
    graph = run_passes(compile_graph(onnx.parser.parse_model(text)))
    program = build_program(
        graph, select(graph, TARGET), TARGET, workers=Workers(2, always=True)
    )
    assert any(isinstance(step, Fork) for step in program.steps)
    plan_memory(program, io=True)  # which is audited
