"""Every pass keeps what a graph computes, and does what it is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.expr import Input, call, const
from atc.ir.graph import DType, Graph, Node, Op, TensorType
from atc.ir.ops import Conv, Epilogue, Map, MatMul, Reduce, Reshape
from atc.ir.view import View
from atc.passes import PASSES, layout_passes, run_passes
from support import Runner, compile_graph, compile_models

F = DType.FLOAT

RNG = np.random.default_rng(7)


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], outputs: list[str],
    **constants: np.ndarray,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a.astype(np.float32) if a.dtype == np.float64 else a, n)
         for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"n_{outputs}", **attributes)


def conv_bn_relu() -> onnx.ModelProto:
    w, s, b, m = (RNG.standard_normal(n) for n in ((8, 3, 3, 3), 8, 8, 8))
    return model(
        [node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
         node("BatchNormalization", "c s b m v", "n"), node("Relu", "n", "y")],
        {"x": (2, 3, 9, 7)}, ["y"], w=w, s=s, b=b, m=m, v=RNG.random(8) + 0.5,
    )  # fmt: skip


def residual() -> onnx.ModelProto:
    return model(
        [node("Conv", "x w1", "a"), node("Conv", "x w2", "b"), node("Add", "a b", "s"),
         node("Relu", "s", "y")],
        {"x": (1, 4, 5, 5)}, ["y"],
        w1=RNG.standard_normal((6, 4, 1, 1)), w2=RNG.standard_normal((6, 4, 1, 1)),
    )  # fmt: skip


def silu_after_gemm() -> onnx.ModelProto:
    return model(
        [node("Gemm", "x w b", "g", transB=1), node("Sigmoid", "g", "s"), node("Mul", "g s", "y")],
        {"x": (3, 10)}, ["y"], w=RNG.standard_normal((7, 10)), b=RNG.standard_normal(7),
    )  # fmt: skip


def attention_heads() -> onnx.ModelProto:
    shape = np.array([1, 5, 2, 4])
    back = np.array([1, 5, 8])
    return model(
        [node("Reshape", "q shape", "q1"), node("Transpose", "q1", "q2", perm=[0, 2, 1, 3]),
         node("Reshape", "k shape", "k1"), node("Transpose", "k1", "k2", perm=[0, 2, 3, 1]),
         node("MatMul", "q2 k2", "s"), node("Mul", "s scale", "t"),
         node("Transpose", "t", "u", perm=[0, 2, 1, 3]), node("ReduceSum", "u axes", "y")],
        {"q": (1, 5, 8), "k": (1, 5, 8)}, ["y"],
        shape=shape, scale=np.array(0.5), axes=np.array([3]), unused=back,
    )  # fmt: skip


def decomposed_layer_norm() -> onnx.ModelProto:
    return model(
        [node("ReduceMean", "x axes", "m"), node("Sub", "x m", "d"), node("Mul", "d d", "q"),
         node("ReduceMean", "q axes", "v"), node("Add", "v eps", "e"), node("Sqrt", "e", "r"),
         node("Div", "d r", "z"), node("Mul", "z g", "h"), node("Add", "h b", "y")],
        {"x": (2, 6, 16)}, ["y"], axes=np.array([-1]), eps=np.array(1e-5),
        g=RNG.standard_normal(16), b=RNG.standard_normal(16),
    )  # fmt: skip


def movement() -> onnx.ModelProto:
    return model(
        [node("Transpose", "x", "t", perm=[2, 0, 1]), node("Slice", "t i0 i3 ax st", "s"),
         node("Reshape", "s shape", "r"), node("Neg", "r", "n"), node("Expand", "n to", "e"),
         node("Add", "e x2", "y")],
        {"x": (3, 4, 6), "x2": (2, 36, 1)}, ["y"], i0=np.array([-1]), i3=np.array([-100]),
        ax=np.array([0]), st=np.array([-2]), shape=np.array([36]), to=np.array([2, 1, 36]),
    )  # fmt: skip


def shared_values() -> onnx.ModelProto:
    return model(
        [node("Relu", "x", "a"), node("Relu", "x", "b"), node("Exp", "a", "p"),
         node("Tanh", "b", "q"), node("Mul", "p q", "y"), node("Transpose", "b", "z")],
        {"x": (4, 5)}, ["y", "z", "a"],
    )  # fmt: skip


def passthrough() -> onnx.ModelProto:
    return model(
        [node("Identity", "x", "y"), node("Reshape", "x shape", "z"), node("Neg", "x", "n"),
         node("Reshape", "n shape", "r")],
        {"x": (2, 6)}, ["y", "z", "n", "r"], shape=np.array([3, 4]),
    )  # fmt: skip


def equal_fills_of_two_shapes() -> onnx.ModelProto:
    return model(
        [node("ConstantOfShape", "wide", "a"), node("ConstantOfShape", "tall", "b"),
         node("Conv", "x a", "m"), node("Conv", "m b", "y")],
        {"x": (1, 250, 2, 1)}, ["y"],
        wide=np.array([270, 250, 1, 1]), tall=np.array([250, 270, 1, 1]),
    )  # fmt: skip


def chosen_by_place() -> onnx.ModelProto:
    """A reduction over coordinates, with an operand that others compute and one that is moved."""
    return model(
        [node("ArgMax", "x", "index", axis=1, keepdims=0),
         node("OneHot", "index depth values", "hot", axis=1), node("Mul", "x hot", "kept"),
         node("ReduceSum", "kept axes", "sum", keepdims=0), node("Neg", "z", "e"),
         node("Mul", "sum e", "s"), node("Transpose", "w", "t"), node("Add", "s t", "y")],
        {"x": (5, 7, 3), "z": (5, 3), "w": (3, 5)}, ["y"],
        depth=np.array(7), values=np.array([0.0, 1.0]), axes=np.array([1]),
    )  # fmt: skip


def triangle_of_a_sum() -> onnx.ModelProto:
    """Coordinates on both sides of a reduction."""
    return model(
        [node("Sigmoid", "x", "a"), node("Trilu", "a", "low", upper=0),
         node("ReduceMean", "low axes", "mean", keepdims=0), node("Trilu", "mean", "up"),
         node("Abs", "z", "t"), node("Sub", "up t", "y")],
        {"x": (4, 5, 6), "z": (4, 5)}, ["y"], axes=np.array([2]),
    )  # fmt: skip


SAMPLES: dict[str, Callable[[], onnx.ModelProto]] = {
    f.__name__: f
    for f in (conv_bn_relu, residual, silu_after_gemm, attention_heads, decomposed_layer_norm,
              movement, shared_values, passthrough, equal_fills_of_two_shapes,
              chosen_by_place, triangle_of_a_sum)
}  # fmt: skip


def feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        v.name: rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for v in proto.graph.input
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "left_out", ["nothing", *dict.fromkeys(p.switch for p in PASSES)]
)
def test_results_are_kept_with_any_pass_left_out(
    left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import support

    protos = {name: make() for name, make in SAMPLES.items()}
    skip = frozenset({left_out})
    monkeypatch.setattr(support, "run_passes", partial(run_passes, skip=skip))
    runners = compile_models([*protos.values()])
    for (name, proto), runner in zip(protos.items(), runners, strict=True):
        if isinstance(runner, Exception):
            raise runner
        inputs = feeds(proto)
        expected = ReferenceEvaluator(proto).run(None, inputs)
        for got, want in zip(runner(list(inputs.values())), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)


OPERANDS: dict[str, tuple[tuple[int, ...], Op, Callable[[np.ndarray], np.ndarray]]] = {
    "computed": ((4,), Map((4,), call("Neg", Input(F, 0)), (View((1,)),)), lambda z: -z),
    "moved": ((4,), Map((4,), Input(F, 0), (View((-1,), 3),)), lambda z: z[::-1]),
    "reshaped": ((2, 2), Reshape(), lambda z: z.reshape(4)),
}
"""What an epilogue reads: the shape it is made of, how, and the same in numpy."""


@pytest.mark.few(2)
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("split", [False, True], ids=["as it is", "after its loops are split"])
def test_a_coordinate_stays_what_it_is_beside_an_operand_of_the_epilogue(
    name: str, split: bool
) -> None:
    shape, op, change = OPERANDS[name]
    kept = call("Where", call("Less", Input(DType.INT64, 1), const(2, DType.INT64)),
                Input(F, 0), const(0.0, F))  # fmt: skip
    added = Epilogue(call("Add", Input(F, 0), Input(F, 1)), (View((1,)),))
    some = Reduce("Sum", (4,), (3,), kept, (View((3, 1)),), added, (View((0, 1)),))
    transposed = Map((2, 2, 3), Input(F, 0), (View((3, 6, 1)),))
    nodes = [Node(op, ("z",), ("e",)), Node(some, ("t" if split else "x", "e"), ("y",))]
    if split:
        nodes.insert(0, Node(transposed, ("x",), ("t",)))
    shapes = {"x": (4, 3), "t": (4, 3), "z": shape, "e": (4,), "y": (4,)}
    types = {n: TensorType(F, s) for n, s in shapes.items()}
    graph = Graph("g", ("x", "z"), ("y",), tuple(nodes), types)
    x, z = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 3), shape))
    (runner,) = compile_models([graph])
    assert isinstance(runner, Runner)
    rows = x[[0, 2, 1, 3]] if split else x
    np.testing.assert_allclose(runner([x, z])[0], rows[:, :2].sum(1) + change(z), rtol=1e-6)


@pytest.mark.parametrize("prefix", ["", "v_"])
@pytest.mark.parametrize("two", [2, 3])
def test_a_level_of_trees_without_operators_of_trees(prefix: str, two: int) -> None:
    """As converters write decision trees where ai.onnx.ml is not wanted."""
    rows, features, trees = 5, 13, 15
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, features, 9)
    limits = rng.standard_normal(9).astype(np.float32)
    x = (rng.standard_normal((rows, features)) * 3).astype(np.float32)
    at = rng.integers(0, 9, rows * trees)
    steps = [
        node("Gather", "features at", "column", axis=0), node("Reshape", "column square", "picked"),
        node("OneHot", "picked depth values", "hot", axis=1), node("Cast", "hot", "real", to=1),
        node("Unsqueeze", "x", "wide", axes=[2]), node("Mul", "wide real", "kept"),
        node("ReduceSum", "kept", "sum", axes=[1], keepdims=0), node("Reshape", "sum flat", "seen"),
        node("Mul", "at two", "left"), node("Gather", "limits at", "limit", axis=0),
        node("Less", "seen limit", "below"), node("Not", "below", "above"),
        node("Cast", "above", "right", to=7), node("Add", "left right", "next"),
    ]
    made = {step.output[0] for step in steps}
    for step in steps:  # the order in which an epilogue takes operands depends on names, too
        step.output[0] = prefix + step.output[0]
        step.input[:] = [prefix + i if i in made else i for i in step.input]
    constants = {
        "features": nodes, "limits": limits, "depth": np.array([features]), "two": np.array(two),
        "square": np.array([-1, trees]), "flat": np.array([-1]), "values": np.array([0, 1]),
    }  # fmt: skip
    proto = model(steps, {"x": x.shape, "at": at.shape}, [f"{prefix}next"], **constants)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    proto.opset_import[0].version = 11
    (runner,) = compile_models([proto])
    assert isinstance(runner, Runner)
    (got,) = runner([x, at])
    seen = x[np.repeat(np.arange(rows), trees), nodes[at]]
    np.testing.assert_array_equal(got, at * two + (seen >= limits[at]))


def final(sample: str) -> Graph:
    return run_passes(compile_graph(SAMPLES[sample]()))


def kinds(graph: Graph) -> list[type]:
    return [type(n.op) for n in graph.nodes]


def test_batch_norm_and_relu_vanish_into_the_convolution() -> None:
    graph = final("conv_bn_relu")
    assert kinds(graph) == [Conv]
    assert graph.nodes[0].origin == ("n_c", "n_n", "n_y")
    assert len(graph.nodes[0].inputs) == 3  # x, scaled weights, one shift


def test_an_activation_that_reads_twice_is_still_an_epilogue() -> None:
    assert kinds(final("silu_after_gemm")) == [MatMul]


def test_transposes_around_a_matmul_become_views() -> None:
    graph = final("attention_heads")
    assert [k for k in kinds(graph) if k is not Reshape] == [MatMul, Reduce]


def test_normalisation_by_hand_becomes_two_reductions_and_one_loop() -> None:
    found = [k for k in kinds(final("decomposed_layer_norm")) if k is not Reshape]
    assert found.count(Reduce) == 2
    assert found.count(Map) <= 2


def test_every_pass_is_observed_and_named_once() -> None:
    seen: list[str] = []
    run_passes(compile_graph(conv_bn_relu()), lambda name, graph: seen.append(name))
    assert seen == ["lowering", *(p.name for p in (*PASSES, *layout_passes(1)))]
    assert len(set(seen)) == len(seen)
