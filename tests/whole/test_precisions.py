"""What kernels compute products in: which a mode allows, what a library states, what it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.accuracy.bf16x3 import with_bf16x3_decided
from atc.backends.target import host_features
from atc.backends.targets import get_target
from atc.cache import ContentStore
from atc.cache.secret import Secret
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.options.options import Options
from atc.passes import run_passes
from atc.pipeline.contract import contract_of
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.request import Decisions, resolve_request
from atc.select.select import Limits, select
from support import compile_graph, run_model

AMX, BF16 = "x86-64-amx", "x86-64-avx512-bf16"
RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 1100)).astype(np.float32)
WEIGHTS = [(RNG.standard_normal(s) / s[0] ** 0.5).astype(np.float32)
           for s in ((1100, 200), (200, 70))]  # fmt: skip


def two_products(rows: int | str = 64) -> onnx.ModelProto:
    """Return a model of two matrix products, `first` and `second`."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w1"], ["y"], "second"),
    ]
    known = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(WEIGHTS)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, X.shape[1]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 70])
    graph = helper.make_graph(nodes, "g", [x], [y], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def truth(x: Any = X) -> Any:
    w0, w1 = WEIGHTS
    return np.maximum(x.astype(np.float64) @ w0, 0) @ w1


def chosen(tmp_path: Path, target: str, **given: Any) -> dict[str, str]:
    """Return the precision of each node's products under options, and all as `products`."""
    path = tmp_path / "model.onnx"
    onnx.save(two_products(), path)
    options = Options(model=path, output=tmp_path / "net", target=target, **given)
    request = resolve_request(options)
    model = read_model(request, Diagnostics())
    graph = optimise(model, request, Diagnostics()).graph
    selection = select(graph, get_target(target), limits=request.limits(model))
    found: dict[str, str] = {}
    for node in graph.nodes:
        choice = selection.get(node.outputs[0])
        for name in node.origin if choice else ():
            found[name] = choice.candidate.kernel.precision
    return {**found, "products": "+".join(contract_of(request, selection).products)}


KEEP = "first\n"
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "by default": (AMX, {}, {"first": "bf16x3", "second": "bf16x3", "products": "float32+bf16x3"}),
    "high precision": (AMX, {"op_select_implmode": "high_precision"}, {"products": "float32"}),
    "forced": (AMX, {"precision_mode": "force_fp32"}, {"products": "float32"}),
    "one kept": (
        AMX, {"keep_dtype": KEEP}, {"first": "float32", "second": "bf16x3"}
    ),
    "bf16": (AMX, {"precision_mode": "allow_mix_precision_bf16"},
             {"first": "bf16", "second": "bf16", "products": "float32+bf16"}),
    "bf16 but one": (
        AMX, {"precision_mode": "allow_fp32_to_bf16", "keep_dtype": KEEP},
        {"first": "float32", "second": "bf16"},
    ),
    "float16": (AMX, {"precision_mode": "allow_fp32_to_fp16"}, {"products": "float32+bf16x3"}),
    "without tiles": (BF16, {"precision_mode": "allow_mix_precision_bf16"},
                      {"first": "bf16", "second": "bf16"}),
    "without tiles by default": (BF16, {}, {"products": "float32"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_precisions_are_those_that_options_allow(case: str, tmp_path: Path) -> None:
    target, options, expected = CASES[case]
    if "keep_dtype" in options:
        (tmp_path / "kept.txt").write_text(options["keep_dtype"])
        options = {**options, "keep_dtype": tmp_path / "kept.txt"}
    found = chosen(tmp_path, target, **options)
    assert {name: found[name] for name in expected} == expected


def test_a_network_of_split_products_keeps_the_default_bound() -> None:
    if missing := get_target(BF16).features - host_features():
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    (y,) = run_model(two_products(), [X], AMX)
    error = np.abs(y - truth()).max() / np.abs(truth()).max()
    assert 1e-7 < error < 2e-5


def near_copies(apart: float) -> onnx.ModelProto:
    """Return x @ w - x @ (w + apart * v): what both products err weighs the more, the nearer."""
    w, v = WEIGHTS[0], WEIGHTS[0][::-1]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "one"),
        helper.make_node("MatMul", ["x", "near"], ["b"], "other"),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    known = [numpy_helper.from_array(w, "w"),
             numpy_helper.from_array(np.asarray(w + apart * v, np.float32), "near")]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 200])
    graph = helper.make_graph(nodes, "g", [x], [y], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def decided(
    path: Path, model: onnx.ModelProto, diagnostics: Diagnostics | None = None, **given: Any
) -> Decisions:
    onnx.save(model, path)
    options = Options(model=path, output=path.with_suffix(""), target=AMX, **given)
    return with_bf16x3_decided(resolve_request(options), diagnostics or Diagnostics()).decisions


def test_products_are_split_only_where_the_network_does_not_magnify_their_errors(
    tmp_path: Path,
) -> None:
    near, far, plain = (
        decided(tmp_path / "m.onnx", near_copies(apart), **given)
        for apart, given in ((1e-3, {}), (1.0, {}), (1e-3, {"precision_mode": "force_fp32"}))
    )
    assert near.float32_nodes == {"one", "other"}
    assert far.float32_nodes == plain.float32_nodes == frozenset()
    assert far.predicted_error is not None
    assert 1e-7 < far.predicted_error < 2e-5


def test_what_was_predicted_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(near_copies(1.0), tmp_path / "m.onnx")
    request = resolve_request(Options(tmp_path / "m.onnx", tmp_path / "m", target=AMX))
    store = ContentStore(tmp_path, "kept", Secret(b"key"))
    first = with_bf16x3_decided(request, Diagnostics(), store)
    monkeypatch.setattr("atc.accuracy.bf16x3.SHARES", ())  # which would leave all in float32
    assert with_bf16x3_decided(request, Diagnostics(), store) == first
    onnx.save(near_copies(0.5), tmp_path / "m.onnx")
    other = with_bf16x3_decided(request, Diagnostics(), store).decisions
    assert (other.float32_nodes, other.predicted_error) == ({"one", "other"}, 0.0)


def test_no_more_products_are_left_in_float32_than_about_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"product{k}" for k in range(16)]
    nodes = [
        helper.make_node("MatMul", [f"x{k}", "w"], [f"x{k + 1}"], n) for k, n in enumerate(names)
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in ("x0", "x16"))
    w = numpy_helper.from_array(WEIGHTS[0][:64, :64].copy(), "w")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [w]), ir_version=8)

    def evaluate(model: Any, outputs: Any, feeds: Any, split: Any = ()) -> tuple[str, list[Any]]:
        error = 0.0 if {*split} <= {*names[6:]} else 1.0
        return "", [np.asarray([1.0 + error])]

    monkeypatch.setattr("atc.accuracy.bf16x3.run_in_double", evaluate)
    assert decided(tmp_path / "m.onnx", model).float32_nodes == {*names[:6]}


def test_products_in_branches_are_decided_as_those_outside(tmp_path: Path) -> None:
    """What branches compute has types of its own."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, X.shape[:1] + (200,)) for n in "yz"]
    taken, other = (
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["p"], f"in {name}"),
             helper.make_node(name, ["p"], ["y"])],
            name, [], ends[:1],
        )
        for name in ("Relu", "Sigmoid")
    )  # fmt: skip
    choice = helper.make_node("If", ["c"], ["z"], then_branch=taken, else_branch=other)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape),
              helper.make_tensor_value_info("c", TensorProto.BOOL, [])]  # fmt: skip
    known = [numpy_helper.from_array(WEIGHTS[0], "w")]
    graph = helper.make_graph([choice], "g", inputs, ends[1:], known)
    found = decided(tmp_path / "m.onnx", helper.make_model(graph, ir_version=8))
    assert found.float32_nodes == frozenset()
    assert found.predicted_error is not None
    assert 0 < found.predicted_error < 2e-5


def test_what_can_not_be_predicted_is_not_split(tmp_path: Path) -> None:
    model = near_copies(1.0)
    model.graph.node[2].op_type = "FusedMatMul"  # which onnx.reference doesn't know
    model.graph.node[2].domain = "com.microsoft"
    model.graph.node[2].attribute.append(helper.make_attribute("transB", 1))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 64
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    warned: list[str] = []
    found = decided(tmp_path / "m.onnx", model, Diagnostics(warn=warned.append))
    assert found.float32_nodes is not None
    assert found.float32_nodes >= {"one", "other"}
    assert "the error of bf16x3 is unknown: products are in float32" in warned[0]


@pytest.mark.parametrize(
    ("mode", "product"),
    [("allow_mix_precision_bf16", "matmul_bf16"), ("force_fp16", "matmul_tile")],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_the_run_counts_meet_weights_of_16_bits(
    mode: str, product: str, threads: int, tmp_path: Path
) -> None:
    """The range goes beyond the rows that the second cache holds."""
    if missing := get_target(BF16).features - host_features():
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    onnx.save(two_products("rows"), tmp_path / "model.onnx")
    done = atc.compile(
        tmp_path / "model.onnx", tmp_path / "net", target=BF16, precision_mode=mode,
        input_shape="x:1~400,1100", num_threads=threads, machine="zen5",
    )  # fmt: skip
    kernels = {n["kernel"].split("(")[0] for n in done.report["nodes"] if "first" in n["origin"]}
    assert kernels == {product}
    network = atc.load(done.folder)
    for rows in (1, 2, 15, 174, 175, 176, 350, 383):
        x = np.random.default_rng(rows).standard_normal((rows, 1100)).astype(np.float32)
        y = network(x)
        assert y.shape == (rows, 70)
        assert np.abs(y - truth(x)).max() < 2e-2 * np.abs(truth(x)).max()


@pytest.mark.slow
def test_without_tiles_a_library_says_so_and_never_runs(tmp_path: Path) -> None:
    onnx.save(two_products(), tmp_path / "model.onnx")
    done = atc.compile(tmp_path / "model.onnx", tmp_path / "net", target=AMX)
    assert {n["precision"] for n in done.report["nodes"]} == {"bf16x3"}
    assert done.report["precision"]["products"] == ["float32", "bf16x3"]
    source = (done.folder / "src" / "net.c").read_text()
    assert "products=float32+bf16x3;" in source
    assert "tiles_are_allowed()" in source
    if get_target(AMX).features <= host_features():
        pytest.skip("this CPU has tiles")
    with pytest.raises(RuntimeError, match="lacks instructions of the target, or the system"):
        atc.load(tmp_path / "net")


def test_a_policy_of_nodes_goes_by_their_origin() -> None:
    graph = run_passes(compile_graph(two_products()), width=16)
    low = Limits(precisions=frozenset({"float32", "bf16"}), bf16_nodes=frozenset({"second"}))
    selection = select(graph, get_target(AMX), limits=low)
    found = [c.candidate.kernel.precision for c in selection.values()]
    assert found == ["float32", "bf16"]
    reasons = {reason for c in selection.values() for _, reason in c.excluded}
    assert reasons == {"computes in bf16x6", "computes in bf16x3", "computes in bf16"}


def test_nodes_that_keep_all_bits_are_multiplied_in_float32_or_six_products() -> None:
    graph = run_passes(compile_graph(two_products()), width=16)
    for limits, wanted in (
        (Limits(wide_nodes=frozenset({"first"})), ["bf16x6", "bf16x3"]),
        (Limits(float_nodes=frozenset({"first"})), ["float32", "bf16x3"]),
        (Limits(exact=True), ["float32", "float32"]),
    ):
        selection = select(graph, get_target(AMX), limits=limits)
        assert [c.candidate.kernel.precision for c in selection.values()] == wanted


@pytest.mark.slow
def test_an_error_bound_allows_bf16_where_it_is_kept(tmp_path: Path) -> None:
    if missing := get_target(BF16).features - host_features():
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    onnx.save(two_products(), tmp_path / "model.onnx")

    def compiled(error: float) -> tuple[float, list[str]]:
        done = atc.compile(
            tmp_path / "model.onnx", tmp_path / f"net{error}", target=BF16, max_error=error
        )
        measured = done.report["precision"]["measured_error"]
        assert measured <= error
        return measured, sorted(n["precision"] for n in done.report["nodes"])

    both, precisions = compiled(2e-2)
    assert precisions == ["bf16", "bf16"]
    assert compiled(0.99 * both)[1] == ["bf16", "float32"]
    assert compiled(2e-4)[1] == compiled(1e-5)[1] == ["float32", "float32"]


@pytest.mark.slow
def test_an_error_bound_is_predicted_where_the_target_can_not_run(tmp_path: Path) -> None:
    if get_target(AMX).features <= host_features():
        pytest.skip("this CPU has tiles")
    onnx.save(two_products(), tmp_path / "model.onnx")

    def compiled(error: float) -> tuple[float, list[str]]:
        done = atc.compile(
            tmp_path / "model.onnx", tmp_path / f"net{error}", target=AMX, max_error=error
        )
        stated = done.report["precision"]
        assert stated["measured_error"] is None
        assert stated["error_bound"] == error
        assert stated["predicted_error"] <= 0.6 * error
        return stated["predicted_error"], sorted(n["precision"] for n in done.report["nodes"])

    both, precisions = compiled(5e-2)
    assert precisions == ["bf16", "bf16"]
    assert compiled(0.99 * both / 0.6)[1] == ["bf16", "bf16x3"]
    assert compiled(1e-4)[1] == ["bf16x3", "bf16x3"]
    with pytest.raises(OptionError, match="must be measured, and this machine can't run"):
        compiled(1e-5)
