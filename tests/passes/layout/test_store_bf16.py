"""Which tensors are stored in bfloat16: where that is allowed, and where it costs less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import atc
from atc.backends.target import host_features
from atc.backends.targets import get_target
from atc.ir.expr import Input, call, cast
from atc.ir.graph import DType, Graph, Node, TensorType
from atc.ir.ops import ConvBlocked, Epilogue, Map, Pool, Softmax, Window, identity_epilogue
from atc.ir.verify import verify
from atc.ir.view import View, dense
from atc.passes.layout import Task
from atc.passes.layout.store_bf16 import KernelCost, Storing, store_bf16

F, B = DType.FLOAT, DType.BFLOAT16
SHAPE = (1, 2, 8, 8, 16)
STEPS = dense(SHAPE).strides
ONE = Window((1, 1), (1, 1), (1, 1), (0, 0))


def conv(name: str, x: str, shortcut: str = "") -> Node:
    """Return a convolution called `name`, whose result is that, too."""
    expr, views = Input(F, 0), ()
    if shortcut:
        expr, views = call("Add", expr, Input(F, 1)), (View(STEPS),)
    op = ConvBlocked(ONE, 1, Epilogue(expr, views))
    return Node(op, (x, "w", *[shortcut] * bool(shortcut)), (name,), (name,))


def tanh(name: str, x: str) -> Node:
    return Node(Map(SHAPE, call("Tanh", Input(F, 0)), (View(STEPS),)), (x,), (name,), (name,))


def pool(name: str, x: str) -> Node:
    window = Window((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0))
    return Node(Pool("Max", window, (0, 0, 0)), (x,), (name,), (name,))


def softmax(name: str, x: str) -> Node:
    return Node(Softmax(2, 64, 16, False, identity_epilogue(F)), (x,), (name,), (name,))


def graph(*nodes: Node) -> Graph:
    """Return a network of x with the last node's result."""
    types = {n: TensorType(F, SHAPE) for n in ("x", *(n.outputs[0] for n in nodes))}
    types["w"] = TensorType(F, (32, 32, 1, 1))
    return Graph("g", ("x", "w"), nodes[-1].outputs, nodes, types)


@dataclass(frozen=True)
class Prices:
    """Kernels of bfloat16 for the convolutions but `floats`, where one of floats takes as long as
    `best` says, and none for nodes of `portable` with bfloat16."""

    floats: str = ""
    best: float = 1.0
    portable: str = ""
    kept: str = ""
    unrounded: str = ""

    def kernel_cost(self, node: Node, task: Task) -> KernelCost | None:
        name = node.outputs[0]
        x = task.inputs[0]
        assert x is not None
        bf16 = isinstance(node.op, ConvBlocked) and name not in self.floats
        slower = x.dtype is B and not bf16 and isinstance(node.op, ConvBlocked)
        return KernelCost(
            1e4 if slower else self.best, x.dtype is F or name not in self.portable, bf16
        )

    def storing(self) -> Storing:
        return Storing(self.kernel_cost, lambda n: n.outputs[0] not in self.unrounded,
                       lambda n: n.outputs[0] in self.kept)  # fmt: skip


CHAIN = (conv("a", "x"), conv("b", "a"), conv("c", "b"))
RESIDUAL = (conv("a", "x"), conv("b", "a"), conv("c", "b", "a"), conv("d", "c"))
POOLED = (conv("a", "x"), pool("p", "a"), conv("b", "p"), conv("c", "p"))
MAPPED = (conv("a", "x"), tanh("t", "a"), conv("b", "t"))
CASES = {
    "a chain": (CHAIN, Prices(), "ab"),
    "rounded anyway": (CHAIN, Prices(unrounded="ab"), "ab"),
    "a kernel of floats is faster": (CHAIN, Prices(floats="b"), "b"),
    "a reader is to keep its operands": (CHAIN, Prices(kept="c"), "a"),
    "a shortcut": (RESIDUAL, Prices(), "abc"),
    "a shortcut that mustn't be rounded": (RESIDUAL, Prices(unrounded="a"), "bc"),
    "moved": (POOLED, Prices(), "ap"),
    "moved by a portable loop": (POOLED, Prices(portable="p"), ""),
    "computed between": (MAPPED, Prices(), "at"),
    "computed between, not to be rounded": (MAPPED, Prices(unrounded="a"), "t"),
    "on the way to an output": (MAPPED[:2], Prices(), ""),
    "read by what isn't a product": ((conv("a", "x"), softmax("s", "a"), conv("b", "s")),
                                     Prices(), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_stored(case: str) -> None:
    nodes, prices, expected = CASES[case]
    stored = store_bf16(graph(*nodes), {}, prices.storing())
    verify(stored, case)
    assert {n for n, t in stored.types.items() if t.dtype is B} == {*expected}


def test_expressions_round_once_and_widen() -> None:
    given = graph(*RESIDUAL)
    rounded = cast(cast(Input(F, 0), B), F)  # as a mode that rounds all results has it
    first = replace(given.nodes[0], op=ConvBlocked(ONE, 1, Epilogue(rounded)))
    stored = store_bf16(replace(given, nodes=(first, *given.nodes[1:])), {}, Prices().storing())
    exprs = [n.op.epilogue.expr for n in stored.nodes if isinstance(n.op, ConvBlocked)]
    assert exprs[0] == cast(Input(F, 0), B)
    assert exprs[2] == cast(call("Add", Input(F, 0), cast(Input(B, 1), F)), B)
    assert exprs[3] == Input(F, 0)


def test_without_a_permission_nothing_changes() -> None:
    given = graph(*CHAIN)
    assert store_bf16(given, {}, None) is given


def chain(path: Path, shortcut: bool) -> Path:
    """Write four convolutions of a row, the last of which may add what the first one made."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((32, 32, k, k)) / (6 * k) for k in (1, 1, 3, 1)]
    known = [numpy_helper.from_array(w.astype(np.float32), f"w{n}") for n, w in enumerate(weights)]
    nodes, x = [], "x"
    for n, k in enumerate((1, 1, 3, 1)):
        pads = [k // 2] * 4
        nodes.append(helper.make_node("Conv", [x, f"w{n}"], [f"c{n}"], f"conv{n}", pads=pads,
                                      strides=[1 + n // 2 % 2] * 2))  # fmt: skip
        total = f"c{n}"
        if n == 1 and shortcut:
            total = "s"
            nodes.append(helper.make_node("Add", ["c1", "r0"], [total], "add"))
        x = f"r{n}"
        nodes.append(helper.make_node("Relu", [total], [x], f"relu{n}"))
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 24, 24]),
            helper.make_tensor_value_info("r3", TensorProto.FLOAT, [1, 32, 6, 6])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], known)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("shortcut", [False, True])
def test_a_network_keeps_its_results(shortcut: bool, tmp_path: Path) -> None:
    target = "x86-64-avx512-bf16"
    if not get_target(target).features <= host_features():
        pytest.skip(f"this CPU can't run {target}")
    model, mixed = chain(tmp_path / "m.onnx", shortcut), "allow_mix_precision_bf16"
    x = np.random.default_rng(1).standard_normal((1, 32, 24, 24)).astype(np.float32)
    (exact,) = ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})
    kept = {"fusion_switch_file": tmp_path / "off.cfg"}
    kept["fusion_switch_file"].write_text("store_bf16:off\n")
    got, halves = {}, {}
    for name, given in {"stored": {}, "threads": {"num_threads": 2}, "kept": kept}.items():
        done = atc.compile(model, tmp_path / name, target=target, precision_mode=mixed, **given)
        got[name] = atc.load(done.folder)(x)
        halves[name] = sum(t.dtype is B for t in done.graph.types.values())
    assert halves["stored"] == halves["threads"] == 3
    assert not halves["kept"]
    np.testing.assert_array_equal(got["threads"], got["stored"])
    scale = np.abs(exact).max()
    assert np.abs(got["stored"] - exact).max() < 2e-2 * scale
    if not shortcut:  # products round the same numbers
        np.testing.assert_array_equal(got["kept"], got["stored"])
