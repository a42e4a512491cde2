"""Values between products are stored in the 16 bits that they are rounded to, for GPUs."""

from __future__ import annotations

from functools import cache, partial

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from cuda_cases import TARGET, choose_exact
from joined_sources import compile_joined
from onnx import TensorProto, helper
from projects import make_model

from atc.ir.graph import Graph
from atc.ir.ops import Conv, MatMul
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.runtime.network import Network

N = helper.make_node
KINDS = {np.float16: TensorProto.FLOAT16, ml_dtypes.bfloat16: TensorProto.BFLOAT16}


def transformer(dtype: type) -> onnx.ModelProto:
    """Return a model whose products read what normalisations, products and functions make."""
    rng = np.random.default_rng(0)
    nodes = [
        N("LayerNormalization", ["x", "s"], ["n"]), N("MatMul", ["n", "w"], ["a"]),
        N("Gelu", ["a"], ["b"]), N("MatMul", ["b", "w"], ["c"]), N("Add", ["c", "x"], ["d"]),
        N("LayerNormalization", ["d", "s"], ["e"]), N("MatMul", ["e", "w"], ["h"]),
        N("Softmax", ["h"], ["k"]), N("MatMul", ["k", "w"], ["y"]),
    ]  # fmt: skip
    constants = {"w": rng.normal(size=(24, 24)) / 5, "s": np.ones(24)}
    return model(nodes, (40, 24), dtype, constants)


def inverted(dtype: type) -> onnx.ModelProto:
    """Return a model of convolutions with a gate: what it multiplies is read twice."""
    rng = np.random.default_rng(1)
    nodes = [
        N("Conv", ["x", "f"], ["a"]), N("Sigmoid", ["a"], ["b"]), N("Mul", ["a", "b"], ["c"]),
        N("GlobalAveragePool", ["c"], ["p"]), N("Conv", ["p", "f"], ["q"]),
        N("Sigmoid", ["q"], ["r"]), N("Mul", ["c", "r"], ["s"]), N("Conv", ["s", "f"], ["y"]),
    ]
    return model(nodes, (1, 24, 8, 8), dtype, {"f": rng.normal(size=(24, 24, 1, 1)) / 5})


def heads(dtype: type) -> onnx.ModelProto:
    """Return a model of attention whose heads are moved before products read them."""
    rng = np.random.default_rng(3)
    nodes = [
        *(N("MatMul", ["x", f"w{k}"], [f"{k}0"]) for k in "qkv"),
        *(N("Reshape", [f"{k}0", "apart"], [f"{k}1"]) for k in "qkv"),
        *(N("Transpose", [f"{k}1"], [k], perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3])
          for k in "qkv"),
        N("MatMul", ["q", "k"], ["a"]), N("Softmax", ["a"], ["p"]), N("MatMul", ["p", "v"], ["o"]),
        N("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]), N("Reshape", ["o1", "whole"], ["o2"]),
        N("MatMul", ["o2", "wv"], ["z"]), N("Add", ["z", "x"], ["y"]),
    ]  # fmt: skip
    constants = {f"w{k}": rng.normal(size=(48, 48)) / 12 for k in "qkv"}
    made = model(nodes, (2, 24, 48), dtype, constants)
    for name, shape in (("apart", (2, 24, 3, 16)), ("whole", (2, 24, 48))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape), name))
    return made


def model(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], dtype: type,
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:  # fmt: skip
    kind = KINDS[dtype]
    made = make_model(
        nodes, [("x", kind, shape)], [("y", kind, shape)],
        {name: array.astype(dtype) for name, array in constants.items()},
    )
    made.opset_import[0].version = 22
    return made


def lowered(made: onnx.ModelProto) -> tuple[Graph, dict[str, np.ndarray]]:
    shape = tuple(d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim)
    dtype = next(d for d, kind in KINDS.items()
                 if kind == made.graph.input[0].type.tensor_type.elem_type)  # fmt: skip
    x = np.random.default_rng(2).normal(size=shape).astype(dtype)
    return AtcBackendRep(made, TARGET.name).lower({"x": x}), {"x": x}


def factors(graph: Graph) -> set[str]:
    """Return the types of what products multiply."""
    products = [n for n in graph.nodes if isinstance(n.op, MatMul | Conv)]
    return {graph.types[name].dtype.label for n in products for name in n.inputs[:2]}


CASES = [(made, dtype) for made in (transformer, inverted, heads) for dtype in KINDS]


@cache
def compiled() -> list[Network]:
    """Return the cases' networks, in one library."""
    graphs = [lowered(made(dtype))[0] for made, dtype in CASES]
    return compile_networks(graphs, TARGET, "O0", choose=choose_exact, compile_all=compile_joined)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "case", range(len(CASES)), ids=[f"{made.__name__}-{dtype.__name__}" for made, dtype in CASES]
)
def test_products_read_what_is_rounded_as_it_is(case: int) -> None:
    made, dtype = CASES[case]
    graph, feeds = lowered(made(dtype))
    run = partial(run_passes, graph, width=1, device=True)
    assert "f32" in factors(run(skip=frozenset(["store_halves"])))
    assert factors(run()) == {"f16" if dtype is np.float16 else "bf16"}
    (right,) = onnx.reference.ReferenceEvaluator(made(np.float16)).run(
        None, {"x": feeds["x"].astype(np.float16)}
    )
    found = next(iter(compiled()[case].run(feeds).values())).astype(np.float32)
    rounding = 4e-3 if dtype is np.float16 else 5e-2  # the reference has no bfloat16
    scale = np.abs(right).max()
    np.testing.assert_allclose(found, right.astype(np.float32), atol=rounding * scale, rtol=0)


def test_what_others_read_or_filters_of_floats_multiply_stays() -> None:
    """Of the sum a Normalize reads the floats, as does who uses the network; 0.1 is no float16."""
    kinds = TensorProto.FLOAT16, TensorProto.FLOAT
    w = np.full((24, 24), 0.1, np.float32)
    made = make_model(
        [N("Exp", ["x"], ["a"]), N("Cast", ["a"], ["b"], to=kinds[1]),
         N("MatMul", ["b", "w"], ["y"])],
        [("x", kinds[0], (40, 24))], [("y", kinds[1], (40, 24))], {"w": w},
    )  # fmt: skip
    graph, _ = lowered(made)
    assert factors(run_passes(graph, width=1, device=True)) == {"f32"}
    graph, _ = lowered(transformer(np.float16))
    done = run_passes(graph, width=1, device=True)
    read = {done.types[n.inputs[0]].dtype.label for n in done.nodes if n.op.kind == "Normalize"}
    assert read == {"f32"}
