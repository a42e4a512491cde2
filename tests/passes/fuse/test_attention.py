"""Attention in one node: where it is made, and that it computes what single operators do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.backends.catalogue import kernels_for
from atc.backends.kernel import workload_of
from atc.backends.targets import get_target
from atc.ir.graph import DType
from atc.ir.ops import Attention
from atc.onnx_backend import AtcBackendRep
from atc.passes import run_passes
from support import assert_close, compile_graph, compile_models, node_model, runnable

F32 = TensorProto.FLOAT
TARGETS = ("c99", "x86-64-avx2", "x86-64-avx512")


@dataclass(frozen=True)
class Case:
    """q [*batch, rows, depth], k [*batch, keys, depth], v [*batch, keys, width] and what is done.

    `mask` is added to the scores, `scale` multiplied before; `large` makes them hundreds; `order`
    transposes the result; `tail` is applied to it. Numbers of a `turned` q lie apart.
    """

    batch: tuple[int, ...] = (2, 3)
    rows: int = 5
    keys: int = 19
    depth: int = 8
    width: int = 17
    mask: tuple[int, ...] | None = None
    blocked: float = -np.inf
    scale: float | None = 0.4
    turned: bool = False
    large: float = 1.0
    order: tuple[int, ...] | None = None
    tail: Sequence[str] = ()
    outputs: tuple[str, ...] = ()
    wild: Mapping[str, float] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        rng = np.random.default_rng(3)
        shapes = {"q": (self.rows, self.depth), "k": (self.keys, self.depth),
                  "v": (self.keys, self.width)}  # fmt: skip
        found = {n: rng.standard_normal((*self.batch, *s)).astype(np.float32)
                 for n, s in shapes.items()}  # fmt: skip
        found["q"] *= np.float32(self.large)
        if self.turned:
            found["q"] = np.ascontiguousarray(found["q"].swapaxes(-1, -2))
        if self.mask is not None:
            mask = np.where(rng.random(self.mask) < 0.4, np.float32(self.blocked), np.float32(0))
            if np.isinf(self.blocked):
                mask[..., 0] = 0
            found["mask"] = mask.astype(np.float32)
        for name, value in self.wild.items():
            found[name].flat[1] = value
        return found

    def model(self) -> onnx.ModelProto:
        rank = len(self.batch)
        transposed = [*range(rank), rank + 1, rank]
        turned = [helper.make_node("Transpose", ["q"], ["qt"], perm=transposed)] * self.turned
        nodes = [*turned, helper.make_node("Transpose", ["k"], ["kt"], perm=transposed),
                 helper.make_node("MatMul", ["qt" if turned else "q", "kt"], ["s"])]  # fmt: skip
        last, constants = "s", {}
        for op, name, value in (("Mul", "scale", self.scale), ("Add", "mask", self.mask)):
            if value is not None:
                nodes.append(helper.make_node(op, [last, name], [f"{last}_{name}"]))
                last = f"{last}_{name}"
        if self.scale is not None:
            constants["scale"] = np.float32(self.scale)
        nodes += [helper.make_node("Softmax", [last], ["p"], axis=-1),
                  helper.make_node("MatMul", ["p", "v"], ["y0"])]  # fmt: skip
        last = "y0"
        if self.order is not None:
            nodes.append(helper.make_node("Transpose", [last], ["transposed"], perm=self.order))
            last = "transposed"
        for op in self.tail:
            nodes.append(helper.make_node(op, [last], [f"{last}_{op}"]))
            last = f"{last}_{op}"
        given = [helper.make_tensor_value_info(n, F32, a.shape) for n, a in self.arrays().items()]
        outputs = [onnx.ValueInfoProto(name=n) for n in (last, *self.outputs)]
        known = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
        graph = helper.make_graph(nodes, "attention", given, outputs, known)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


FUSED = {
    "plain": Case(scale=None),
    "scaled": Case(),
    "one batch": Case(batch=(3,)),
    "no batch": Case(batch=()),
    "row mask": Case(mask=(5, 19)),
    "key mask": Case(mask=(2, 1, 1, 19)),
    "full mask": Case(mask=(2, 3, 5, 19)),
    "finite mask": Case(mask=(5, 19), blocked=-1e9),
    "small mask": Case(mask=(1, 19), blocked=-3.0),
    "large scores": Case(large=300.0),
    "huge scores": Case(large=1e18, scale=None),
    "transposed": Case(order=(0, 2, 1, 3)),
    "epilogue": Case(tail=("Tanh", "Abs")),
    "transposed and epilogue": Case(order=(0, 2, 1, 3), tail=("Relu",)),
    "least": Case(rows=4, keys=8, depth=2, width=2),
    "odd": Case(batch=(1, 1), rows=7, keys=33, depth=13, width=5, mask=(7, 33)),
    "wide": Case(batch=(1,), rows=9, keys=130, depth=40, width=67, mask=(1, 130)),
    "NaN in q": Case(wild={"q": np.nan}),
    "NaN in v": Case(wild={"v": np.nan}),
    "infinity in v": Case(wild={"v": np.inf}),
    "NaN in the mask": Case(mask=(5, 19), wild={"mask": np.nan}),
    "denormal values": Case(wild={"v": 1e-40}),
    **{f"rows: {n}": Case(rows=n, mask=(n, 19)) for n in (1, 3)},
    "rows that lie apart": Case(rows=2, turned=True),
    "a deep row": Case(rows=1, keys=35, depth=100, width=67, order=(0, 2, 1, 3)),
}
KEPT = {
    "few keys": Case(keys=7),
    "scores are read": Case(outputs=("s",)),
    "weights are read": Case(outputs=("p",)),
}


def attentions(case: Case, width: int = 16) -> int:
    graph = run_passes(compile_graph(case.model()), width=width)
    return sum(isinstance(n.op, Attention) for n in graph.nodes)


@pytest.mark.parametrize("name", FUSED)
def test_the_pattern_becomes_one_node(name: str) -> None:
    assert attentions(FUSED[name]) == 1


def test_few_rows_are_fused_where_vectors_compute() -> None:
    assert attentions(Case(rows=3), width=1) == 0
    assert attentions(Case(rows=3)) == 1


@pytest.mark.parametrize("name", KEPT)
def test_small_or_shared_products_stay_what_they_are(name: str) -> None:
    assert attentions(KEPT[name]) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_results_are_those_of_single_operators(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this machine can't run {target}")
    cases = {**FUSED, **KEPT}
    models = [c.model() for c in cases.values()]
    for (name, case), model, run in zip(
        cases.items(), models, compile_models(models, target), strict=True
    ):
        if isinstance(run, Exception):
            raise run
        arrays = case.arrays()
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(model).run(None, arrays)
        try:
            assert_close(run(list(arrays.values())), expected, rtol=2e-3, atol=2e-5)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def in_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of the cases with all floats in float16."""
    done = onnx.ModelProto()
    done.CopyFrom(model)
    for known in done.graph.initializer:
        half = numpy_helper.to_array(known).astype(np.float16)
        known.CopyFrom(numpy_helper.from_array(half, known.name))
    for value in done.graph.input:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return done


def computed_in_halves(case: Case) -> Any:
    """Return what the operators give, each computed in double and rounded once to float16."""

    def rounded(values: Any) -> Any:
        return values.astype(np.float16).astype(np.float64)

    arrays = {n: rounded(a) for n, a in case.arrays().items()}
    with np.errstate(all="ignore"):
        s = rounded(arrays["q"] @ arrays["k"].swapaxes(-1, -2))
        s = s if case.scale is None else rounded(s * float(np.float16(case.scale)))
        s = rounded(s + arrays["mask"]) if case.mask else s
        p = np.exp(s - s.max(-1, keepdims=True))
        return rounded(rounded(p / p.sum(-1, keepdims=True)) @ arrays["v"])


HALVES = {n: FUSED[n] for n in ("plain", "scaled", "full mask", "odd", "wide")}


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS[1:])
def test_halves_are_rounded_as_single_operators_round_them(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this machine can't run {target}")
    models = [in_halves(case.model()) for case in HALVES.values()]
    for model in models:
        graph = run_passes(compile_graph(model), width=16)
        assert [n.op.weights for n in graph.nodes if isinstance(n.op, Attention)] == [
            DType.FLOAT16
        ]
    for case, run in zip(HALVES.values(), compile_models(models, target), strict=True):
        assert not isinstance(run, Exception), run
        (got,) = run([a.astype(np.float16) for a in case.arrays().values()])
        expected = computed_in_halves(case)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=4e-3)


def test_a_row_without_any_key_is_nan_as_for_single_operators() -> None:
    case = Case(mask=(5, 19))
    arrays = case.arrays()
    arrays["mask"][2] = -np.inf
    (run,) = compile_models([case.model()])
    assert not isinstance(run, Exception), run
    (y,) = run(list(arrays.values()))
    assert np.isnan(y[:, :, 2]).all()
    assert np.isfinite(y[:, :, [0, 1, 3, 4]]).all()


POSITIONS = {
    "causal": ((1, 2, 9, 16), (1, 2, 20, 16), {"is_causal": 1}, True),
    "heads that share keys": ((1, 4, 9, 16), (1, 2, 20, 16), {"is_causal": 1}, True),
    "one query": ((1, 4, 1, 16), (1, 2, 20, 16), {}, True),
    "few keys": ((1, 2, 9, 16), (1, 2, 7, 16), {"is_causal": 1}, False),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_masks_of_positions_and_single_queries_are_fused_for_a_gpu(name: str) -> None:
    rows, keys, attributes, fused = POSITIONS[name]
    arrays = [np.zeros(s, np.float32) for s in (rows, keys, keys)]
    model = node_model("Attention", arrays, opset=23, **attributes)
    feeds = {f"x{k}": a for k, a in enumerate(arrays)}
    lowered = AtcBackendRep(model, "cuda-emulated").lower(feeds)
    for device in (True, False):
        nodes = run_passes(lowered, device=device).nodes
        assert any(isinstance(n.op, Attention) for n in nodes) == (fused and device)


def decoded(heads: int, groups: int, queries: int, window: int) -> tuple[onnx.ModelProto, Any]:
    """Return an attention over 16 keys of the past, the queries' own and a window, and operands."""
    rng = np.random.default_rng(queries)
    past = (1, groups, 16, 24)
    shapes = {"q": (1, queries, heads * 24), "k": (1, queries, groups * 24),
              "v": (1, queries, groups * 24), "past_key": past, "past_value": past}  # fmt: skip
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    known = [numpy_helper.from_array(np.array(v, np.int32), n)
             for n, v in (("last", [15 + queries]), ("total", 16 + queries))]  # fmt: skip
    node = helper.make_node(
        "GroupQueryAttention", [*shapes, "last", "total"], ["y", "present_key", "present_value"],
        domain="com.microsoft", num_heads=heads, kv_num_heads=groups, local_window_size=window,
    )  # fmt: skip
    given, made = (
        [helper.make_tensor_value_info(n, F32, s) for n, s in named]
        for named in (shapes.items(), [("y", shapes["q"]), *((n, None) for n in node.output[1:])])
    )
    graph = helper.make_graph([node], "decoded", given, made, known)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), arrays


DECODED = [
    decoded(heads, groups, queries, window)
    for heads, groups in ((6, 2), (3, 3), (5, 1))
    for queries, window in ((1, -1), (1, 3), (3, 5), (21, 9))
]


def test_positions_that_bound_keys_are_fused_where_vectors_compute() -> None:
    for model, arrays in DECODED:
        for width in (1, 16):
            graph = run_passes(compile_graph(model), width=width)
            found = [n.op.keys for n in graph.nodes if isinstance(n.op, Attention)]
            assert found == [16 + arrays["q"].shape[1]] * (width > 1)


def test_only_kernels_that_know_positions_take_them() -> None:
    model, _ = DECODED[3]
    graph = run_passes(compile_graph(model), width=16)
    (node,) = (n for n in graph.nodes if isinstance(n.op, Attention))
    w = workload_of(graph, node, {})
    target = get_target("x86-64-amx")
    taken = {k.name for k in kernels_for(target)
             if k.op is Attention and k.accepts(w, target)}
    assert taken == {
        "attention", "attention_tile", "attention_amx_bf16", "attention_amx_bf16x3"
    }  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_queries_see_the_keys_that_positions_show(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this machine can't run {target}")
    models = [model for model, _ in DECODED]
    for (model, arrays), run in zip(DECODED, compile_models(models, target), strict=True):
        assert not isinstance(run, Exception), run
        session = onnxruntime.InferenceSession(model.SerializeToString())
        expected = session.run(None, arrays)
        assert_close(run(list(arrays.values())), expected, rtol=1e-4, atol=1e-5)
