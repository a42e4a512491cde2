"""Packed layouts between convolutions on tiles: the same bits as without, and fewer copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir
import pytest
from kernel_program import vector_target
from onnx import TensorProto, helper, numpy_helper

from atc.accuracy.float64 import run_in_double
from atc.backends.cpu.amx.conv import (
    ConvTiles,
    ConvTilesBf16,
    ConvTilesBf16x3,
    ConvTilesBf16x6,
    ConvTilesBytes,
)
from atc.backends.kernel import Candidate
from atc.backends.target import Target
from atc.codegen.emit import emit
from atc.codegen.project_options import ProjectOptions
from atc.ir.graph import Array, Graph
from atc.ir.ops import ConvBlocked
from atc.memory.arena import plan_memory
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.packed_layouts import propagate_packed_layouts
from atc.program.partition import Worth
from atc.program.steps import calls
from atc.select.select import Selection, select
from support import Runner, _compile, compile_graph

AMX = "x86-64-amx"
RNG = np.random.default_rng(5)
KERNELS = {"bf16x6": ConvTilesBf16x6(), "bf16x3": ConvTilesBf16x3(), "bf16": ConvTilesBf16()}


def network(batch: int, *, quantised: bool = False) -> onnx.ModelProto:
    """Return convolutions of every kind of window, with a shortcut, strides and two readers.

    Quantised ones have twice the channels.
    """
    known: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    times = 2 if quantised else 1

    def constant(name: str, array: Array) -> str:
        known.append(numpy_helper.from_array(array, name))
        return name

    def node(op: str, inputs: Sequence[str], y: str, **more: object) -> str:
        nodes.append(helper.make_node(op, inputs, [y], y, **more))
        return y

    def quantise(x: str, zero: int = 100) -> str:
        if not quantised:
            return x
        grid = (constant(f"{x}_scale", np.float32(0.02)), constant(f"{x}_zero", np.uint8(zero)))
        return node("DequantizeLinear", [node("QuantizeLinear", [x, *grid], f"{x}_q"), *grid],
                    f"{x}_d")  # fmt: skip

    def conv(x: str, y: str, ic: int, oc: int, kernel: int, **more: object) -> str:
        ic, oc = ic * times, oc * times
        w = RNG.standard_normal((oc, ic, kernel, kernel)) / (ic * kernel * kernel) ** 0.5
        bias = constant(f"{y}_b", RNG.standard_normal(oc).astype(np.float32) / 4)
        if not quantised:
            return node("Conv", [x, constant(f"{y}_w", w.astype(np.float32)), bias], y, **more)
        step = np.float32(np.abs(w).max() / 127)
        grid = (constant(f"{y}_step", step), constant(f"{y}_none", np.int8(0)))
        bytes_ = constant(f"{y}_w", np.rint(w / step).astype(np.int8))
        weights = node("DequantizeLinear", [bytes_, *grid], f"{y}_wd")
        return node("Conv", [x, weights, bias], y, **more)

    def act(op: str, *inputs: str) -> str:
        return quantise(node(op, inputs, f"{inputs[0]}_{op}"), 100 if op == "Add" else 0)

    a = act("Relu", conv(quantise("x"), "a", 32, 64, 1))
    b = act("Relu", conv(a, "b", 64, 64, 3, pads=[1] * 4))
    c = act("Relu", act("Add", quantise(conv(b, "c", 64, 64, 1)), a))
    d = act("Relu", conv(c, "d", 64, 64, 3, pads=[1] * 4, strides=[2, 2]))
    e = quantise(conv(d, "e", 64, 96, 1))
    e = act("Add", e, quantise(conv(c, "f", 64, 96, 1, strides=[2, 2])))
    g = act("Sigmoid", conv(e, "g", 96, 32, 3, pads=[2] * 4, dilations=[2, 2]))
    h = conv(g, "h", 32, 48, 5, pads=[0, 1, 2, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 32 * times, 14, 11])
    y = helper.make_tensor_value_info(h, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], known)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def on_tiles(graph: Graph, kernel: ConvTiles, target: Target) -> Selection:
    """Return a selection in which a kernel computes all convolutions that it can."""
    found = dict(select(graph, target))
    for name, choice in found.items():
        w = choice.workload
        if isinstance(w.op, ConvBlocked) and kernel.accepts(w, target):
            params = kernel.parameters(w, target)[0]
            found[name] = replace(choice, candidate=Candidate(kernel, params))
    return found


def compiled(
    graph: Graph, selection: Selection, target: Target, threads: Sequence[int]
) -> list[Runner]:
    """Return libraries without planes, then with them for each number of threads."""
    parts = []
    for k, count in enumerate([0, *threads]):
        program = build_program(
            graph, selection, target, threads=max(count, 1), packed_layouts=count > 0,
            worth=Worth(always=True),
        )
        kept = [c for c in calls(program.steps) if "planes" in c.choice.candidate.label]
        assert bool(kept) == (count > 0)
        options = ProjectOptions(name=f"m{k}", model="test.onnx", threads=max(count, 1))
        emission = emit(program, plan_memory(program), target, options)
        parts.append((graph, emission))
    found = []
    for runner in _compile(parts, target, ()):
        assert isinstance(runner, Runner), runner
        found.append(runner)
    return found


def on_planes(graph: Graph, selection: Selection, target: Target, threads: int) -> set[str]:
    """Return the nodes whose results are handed over as planes."""
    handed = propagate_packed_layouts(graph, selection, target, threads)
    return {name for n in graph.nodes if n.outputs[0] in handed.types for name in n.origin}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "bf16x6"])
def test_the_same_numbers_as_without(precision: str) -> None:
    target, model = vector_target(AMX), network(1)
    graph = run_passes(compile_graph(model), width=16)
    selection = on_tiles(graph, KERNELS[precision], target)
    assert on_planes(graph, selection, target, 3) >= {"a", "b", "c", "d", "f", "g"}
    x = RNG.standard_normal((1, 32, 14, 11)).astype(np.float32)
    plain, planes, shared = (r([x])[0] for r in compiled(graph, selection, target, [1, 3]))
    np.testing.assert_array_equal(planes, shared)
    name = model.graph.output[0].name
    wanted = run_in_double(onnx_ir.from_proto(model), [name], {"x": x})[1][0]
    scale = np.abs(wanted).max()
    # What only products read is rounded as before; a shortcut loses what planes don't hold.
    bound = {"bf16x6": 1e-6, "bf16x3": 3e-5, "bf16": 3e-2}[precision]
    assert np.abs(plain - wanted).max() < bound * scale
    assert np.abs(planes - wanted).max() < bound * scale


@pytest.mark.slow
def test_the_same_bytes_as_without() -> None:
    target = vector_target(AMX)
    graph = run_passes(compile_graph(network(1, quantised=True)), width=16)
    selection = on_tiles(graph, ConvTilesBytes(), target)
    assert on_planes(graph, selection, target, 3) >= {"a", "b", "d"}
    x = RNG.standard_normal((1, 64, 14, 11)).astype(np.float32)
    plain, planes, shared = (r([x])[0] for r in compiled(graph, selection, target, [1, 3]))
    np.testing.assert_array_equal(planes, plain)
    np.testing.assert_array_equal(shared, plain)


@pytest.mark.slow
def test_several_images_and_infinities() -> None:
    target = vector_target(AMX)
    graph = run_passes(compile_graph(network(2)), width=16)
    selection = on_tiles(graph, ConvTilesBf16x3(), target)
    assert on_planes(graph, selection, target, 1) >= {"a", "b"}
    assert not on_planes(graph, selection, target, 2)
    x = RNG.standard_normal((2, 32, 14, 11)).astype(np.float32)
    plain, planes = compiled(graph, selection, target, [1])
    (first,), (second,) = plain([x]), planes([x])
    np.testing.assert_allclose(second, first, rtol=0, atol=3e-5 * np.abs(first).max())
    x[1, 3, 0, 0] = np.inf
    (first,), (second,) = plain([x]), planes([x])
    np.testing.assert_array_equal(np.isfinite(second), np.isfinite(first))
    np.testing.assert_array_equal(np.isnan(second), np.isnan(first))
