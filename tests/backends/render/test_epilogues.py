"""Every kernel with an epilogue, where that ends in another type than it computes in."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from support import assert_close, compile_models, runnable

F32 = TensorProto.FLOAT
HEADS = {
    "Conv": ([("x", (2, 4, 6, 7)), ("w", (5, 4, 3, 3))], {"pads": [1, 1, 1, 1]}),
    "ConvTranspose": ([("x", (2, 4, 5, 6)), ("w", (4, 3, 2, 2))], {"strides": [2, 2]}),
    "MatMul": ([("x", (2, 5, 9)), ("w", (2, 9, 17))], {}),
    "ReduceSum": ([("x", (3, 5, 40))], {"keepdims": 0}),
    "Softmax": ([("x", (3, 40))], {}),
    "LayerNormalization": ([("x", (3, 40)), ("w", (40,))], {}),
    "Attention": ([("q", (2, 5, 8)), ("k", (2, 8, 19)), ("v", (2, 19, 6))], {}),
}
TAILS = {
    "bool": [("IsNaN", {})],
    "half": [("Cast", {"to": TensorProto.FLOAT16})],
    "double": [("Cast", {"to": TensorProto.DOUBLE}), ("Neg", {})],
    "int": [("Mul100", {}), ("Cast", {"to": TensorProto.INT32})],
    "byte": [("Mul100", {}), ("Abs", {}), ("Cast", {"to": TensorProto.UINT8})],
}


def model(head: str, tail: str) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """Return an operator followed by elementwise ones that end in another type, and its inputs."""
    given, attributes = HEADS[head]
    rng = np.random.default_rng(len(head))
    arrays = [rng.standard_normal(s).astype(np.float32) for _, s in given]
    names = [n for n, _ in given]
    constants = {"hundred": np.float32(100), "axes": np.array([1])}
    if head == "Attention":
        nodes = [
            helper.make_node("MatMul", ["q", "k"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["t"]),
        ]
    else:
        more = ["axes"] if head == "ReduceSum" else []
        nodes = [helper.make_node(head, [*names, *more], ["t"], **attributes)]
    last = "t"
    for k, (op, attributes) in enumerate(TAILS[tail]):
        inputs = [last, "hundred"] if op == "Mul100" else [last]
        last = f"e{k}"
        nodes.append(helper.make_node(op.removesuffix("100"), inputs, [last], **attributes))
    graph = helper.make_graph(
        nodes, head, [helper.make_tensor_value_info(n, F32, s) for n, s in given],
        [onnx.ValueInfoProto(name=last)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), arrays


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c99", "x86-64-avx2", "x86-64-avx512"])
def test_an_epilogue_may_end_in_another_type(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this machine can't run {target}")
    cases = [model(head, tail) for head in HEADS for tail in TAILS]
    runners = compile_models([m for m, _ in cases], target)
    for (proto, arrays), runner in zip(cases, runners, strict=True):
        if isinstance(runner, Exception):
            raise runner
        feeds = dict(zip([v.name for v in proto.graph.input], arrays, strict=True))
        expected = ReferenceEvaluator(proto).run(None, feeds)
        got = runner(arrays)
        if got[0].dtype.kind in "iu":  # rounding may differ where numbers are cut off
            wide = [a.astype(np.int64) for a in (got[0], expected[0])]
            assert np.abs(wide[0] - wide[1]).max() <= 1
        else:
            assert_close(got, expected, rtol=2e-3, atol=1e-5)
