"""Networks of ranges of shapes, and those with states, on a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cuda_networks import compiled, mixed_model
from decoders import DECODERS
from dynamic_models import CASES, Case, Net, floats
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from whole import test_growing_states as growing
from whole import test_states as states
from whole.test_cuda import Tensor, loop_model

from atc.runtime.load import load

REFUSED = ("voxels",)
"""Cases whose smallest shapes no network computes."""
ON_THE_HOST = {
    "greedy_decode", "recurrent", "until_close", "branches", "branches_sliced", "conditional_rows",
    "growing_state", "rows_one_by_one", "nucleus",
}  # fmt: skip
"""Cases most of which are control flow, or count."""


def close(found: Any, wanted: Any, message: str = "") -> None:
    """Products in halves err by 1e-4 of the largest number, in the worst case."""
    scale = max(float(np.abs(wanted).max()), 1.0) if wanted.size else 1.0
    assert found.shape == wanted.shape, message
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * scale, err_msg=message)


def network_of(case: Case, folder: Path, **options: Any) -> Any:
    values = {"value_range": case.values} if case.values else {}
    return compiled(case.model, folder, input_shape=case.shapes, **values, **options)


def expected(case: Case, feed: Mapping[str, Any]) -> Sequence[Any]:
    found: Sequence[Any] = onnxruntime.InferenceSession(case.model.SerializeToString()).run(
        None, dict(feed)
    )
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n == "masked_sums" else pytest.mark.slow)
        for n in CASES if n not in REFUSED
    ],
)  # fmt: skip
def test_a_network_is_right_at_every_shape(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    done = network_of(case, tmp_path)
    if name not in ON_THE_HOST:
        sides = [node["runs_on"] for node in done.report["nodes"]]
        assert sides.count("device") > sides.count("host")
    net = load(tmp_path / "net")
    for feed in (*case.feeds, *case.feeds):  # the second time they are graphs
        shown = str({n: a.shape for n, a in feed.items()})
        for got, want in zip(net.run(feed).values(), expected(case, feed), strict=True):
            close(got, want, shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["genai_llama", "optimum_gpt2", "optimum_whisper"])
def test_a_decoder_runs_from_the_first_word(name: str, tmp_path: Path) -> None:
    decoder = DECODERS[name]()
    done = compiled(decoder.model, tmp_path, input_shape=decoder.shapes)
    assert {node["runs_on"] for node in done.report["nodes"]} == {"device"}
    assert (tmp_path / "net/src/net.c").read_text("utf-8").count("gpu_replay(") == 1
    net = load(tmp_path / "net")
    session = onnxruntime.InferenceSession(decoder.model.SerializeToString())
    for prompt in (5, 1):
        for feed, wanted in decoder.calls(lambda feed: session.run(None, dict(feed)), prompt):
            for got, want in zip(net.run(dict(feed)).values(), wanted, strict=True):
                close(got, want)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order"), [(n, ("reverse", "forward")[k % 2]) for k, n in enumerate(DECODERS)]
)
def test_caches_grow_on_the_device(
    name: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATC_EMULATED_ORDER", order)
    done = growing.compiled(name, tmp_path, target="cuda-emulated")
    assert {s.value: s.next for s in done.program.states} == dict(growing.decoder(name).caches)
    net = load(tmp_path / "net")
    for prompt in (growing.PROMPT, 1):
        growing.check(net, [*growing.calls(name, prompt)])
        net.reset()
    calls = [*growing.calls(name)]
    growing.check(net, calls[:2])
    saved = net.save_state()
    for _ in range(2):
        growing.check(net, calls[2:])
        net.restore_state(saved)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n == "two change places" else pytest.mark.slow)
        for n in states.CASES
    ],
)  # fmt: skip
def test_states_last_on_the_device(name: str, tmp_path: Path) -> None:
    case = states.CASES[name]
    states.compiled(case, tmp_path, target="cuda-emulated")
    runs = states.expected(case)
    net = load(tmp_path / "net")
    for _ in range(2):
        states.check(case, net, runs)
        net.reset()


def state_beside_a_text() -> onnx.ModelProto:
    """Return a model whose state the host reads and the GPU writes."""
    nodes = [
        helper.make_node("Cast", ["s"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["old"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["old", "x"], ["t"]),
        helper.make_node("Neg", ["t"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value(n, TensorProto.FLOAT, (2, 200)) for n in "xs"],
        [value(n, TensorProto.FLOAT, (2, 200)) for n in "ty"],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda-emulated", "cuda-emulated,c99", "c99,cuda-emulated"])
def test_a_state_that_both_sides_use_is_where_it_is_read(target: str, tmp_path: Path) -> None:
    compiled(state_beside_a_text(), tmp_path, state="s:t", target=target)
    net = load(tmp_path / "net")
    x = np.round(floats(2, 200) * 64) / 64
    for k in range(1, 4):
        np.testing.assert_array_equal(net.run({"x": x})["y"], -k * x)
    saved = net.save_state()
    net.reset()
    np.testing.assert_array_equal(net.run({"x": x})["y"], -x)
    net.restore_state(saved)
    np.testing.assert_array_equal(net.run({"x": x})["y"], -4 * x)


def rows_model(depth: int = 48, columns: int = 40) -> Case:
    """Return a network that fills many blocks, or a part of one."""
    n = Net()
    y = n("Softmax", n("MatMul", n("Exp", "x"), n.weight(depth, columns, scale=0.05)))
    model = n.model({"x": ("f", ["rows", depth])}, {y: "f"})
    return Case(model, f"x:1~300,{depth}", [{"x": floats(rows, depth)} for rows in (1, 300, 65)])


CACHE = """<ir_version: 8, opset_import: ["" : 17]>
scores (float[1, words, 64] q, float[1, past, 64] keys, float[1, 4, past, 16] values)
    => (float[1, 4, words, 16] y) {
    heads = Constant<value_ints = [0, 0, 4, 16]>()
    q4 = Reshape(q, heads)
    keys4 = Reshape(keys, heads)
    turned = Transpose<perm = [0, 2, 1, 3]>(q4)
    columns = Transpose<perm = [0, 2, 3, 1]>(keys4)
    weights = MatMul(turned, columns)
    y = MatMul(weights, values)
}"""


@pytest.mark.parametrize("target", ["x86-64-avx2", "c99", "cuda-emulated"])
def test_a_cache_that_may_be_empty_is_read_through_its_transpose(
    target: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(CACHE)
    done = compiled(
        model, tmp_path, target=target,
        input_shape="q:1,words=1~3,64;keys:1,past=0~9,64;values:1,4,past,16",
    )  # fmt: skip
    assert [node["op"] for node in done.report["nodes"]] == ["MatMul", "MatMul"]
    net = load(tmp_path / "net")
    for past in (4, 0, 9):
        q, keys = floats(1, 2, 64).reshape(1, 2, 4, 16), floats(1, past, 64)
        values = floats(1, 4, past, 16)
        scores = np.einsum("bqhd,bkhd->bhqk", q, keys.reshape(1, past, 4, 16))
        feed = {"q": q.reshape(1, 2, 64), "keys": keys, "values": values}
        close(net.run(feed)["y"], scores @ values)


@pytest.mark.slow
def test_tensors_of_other_shapes_stay_on_the_device(tmp_path: Path) -> None:
    case = rows_model()
    network_of(case, tmp_path)
    source = (tmp_path / "net/src/net.c").read_text("utf-8")
    assert "gpu_launch_blocks(" in source
    assert "gpu_launch(" not in source  # all grids are those of the run
    net = load(tmp_path / "net")
    for feed in (*case.feeds, *case.feeds):
        x = feed["x"]
        y = net(Tensor(x))
        assert y.array.shape == (len(x), 40)
        close(y.array, expected(case, feed)[0])
    with pytest.raises(ValueError, match=r"must have a shape in \[1~300, 48\], not \(301, 48\)"):
        net(Tensor(floats(301, 48)))


@pytest.mark.slow
def test_results_whose_size_the_values_determine_are_cut_on_the_device(tmp_path: Path) -> None:
    n = Net()
    found = n("Compress", n("Exp", "x"), "keep", axis=0)
    case = Case(
        n.model({"x": ("f", ["rows", 8]), "keep": ("b", ["rows"])}, {found: "f"}),
        "x:1~40,8;keep:1~40", [],
    )  # fmt: skip
    network_of(case, tmp_path)
    net = load(tmp_path / "net")
    for rows in (3, 40, 3):
        feed = {"x": floats(rows, 8), "keep": np.arange(rows) % 2 == 0}
        close(net.run(feed)[found], expected(case, feed)[0])


@pytest.mark.slow
def test_one_more_than_the_kept_shapes_is_right(tmp_path: Path) -> None:
    case = rows_model()
    network_of(case, tmp_path)
    net = load(tmp_path / "net")
    for rows in (*range(1, 8), *range(1, 8), 7, 7, 1, 1):
        feed = {"x": floats(rows, 48)}
        close(net(feed["x"]), expected(case, feed)[0])


@pytest.mark.slow
def test_kernels_of_any_extents_are_timed(tmp_path: Path) -> None:
    case = rows_model()
    network_of(case, tmp_path, profile=True)
    net = load(tmp_path / "net")
    for feed in case.feeds:
        close(net(feed["x"]), expected(case, feed)[0])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there")
def test_products_of_any_rows_compile_for_a_gpu(tmp_path: Path) -> None:
    case = rows_model(192, 160)
    report = network_of(case, tmp_path, target="cuda-sm90").report
    kernels = {node["kernel"].partition("(")[0] for node in report["nodes"]}
    assert kernels == {"cuda_map_vectors", "cuda_matmul_bf16x3", "cuda_softmax"}
    # What moves at most: the largest input and result.
    assert report["moved"] == {"to_device": 300 * 192 * 4, "to_host": 300 * 160 * 4}


def test_what_no_gpu_has_room_for_is_computed_on_the_host(tmp_path: Path) -> None:
    """The most numbers that there may be take 16 GiB."""
    graph = helper.make_graph(
        [helper.make_node("Range", ["nought", "n", "one"], ["r"]),
         helper.make_node("Neg", ["r"], ["y"])],
        "counted", [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["count"])],
        [helper.make_tensor("nought", TensorProto.INT64, [], [0]),
         helper.make_tensor("one", TensorProto.INT64, [], [1])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    done = compiled(model, tmp_path, value_range="n:1~2147483647")
    assert any("too much of a GPU's memory" in warning for warning in done.warnings)
    with load(tmp_path / "net") as net:
        np.testing.assert_array_equal(net.run({"n": np.int64(5)})["y"], -np.arange(5))


@pytest.mark.slow
def test_parts_of_a_cache_that_grows_are_joined(tmp_path: Path) -> None:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    shapes = {"q": (1, 4, 1, 16), "k": (1, 2, "keys", 16), "v": (1, 2, "keys", 24)}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "word", [value(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [value("y", TensorProto.FLOAT, (1, 4, 1, 24))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    given = "q:1,4,1,16;k:1,2,keys=0~700,16;v:1,2,keys,24"
    done = compiled(model, tmp_path, input_shape=given)
    (kernel,) = (n["kernel"] for n in done.report["nodes"] if n["op"] == "Attention")
    assert kernel.startswith("cuda_attention_parts(")
    net = load(tmp_path / "net")
    for keys in (700, 1, 129, 0, 700):
        feed = {n: floats(*(keys if d == "keys" else d for d in s)) for n, s in shapes.items()}
        found = net.run(feed)["y"]
        (wanted,) = ReferenceEvaluator(model).run(None, feed) if keys else (np.zeros_like(found),)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


PROFILES = {
    "profiles alone": ("x:-1,48", "1;65", "cuda-emulated"),
    "beside ranges": ("x:1~70,48", "1;65", "cuda-emulated"),
    "one beside ranges": ("x:1~70,48", "1", "cuda-emulated"),
    "and a CPU": ("x:-1,48", "1;65", "cuda-emulated,c99"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n == "beside ranges" else pytest.param(n, marks=pytest.mark.slow)
             for n in PROFILES]
)  # fmt: skip
def test_shape_profiles_are_computed_on_the_device(name: str, tmp_path: Path) -> None:
    shape, profiles, target = PROFILES[name]
    case = rows_model()
    done = compiled(
        case.model, tmp_path, input_shape=shape, dynamic_dims=profiles, target=target
    )  # fmt: skip
    assert not done.warnings
    source = next(f for f in tmp_path.glob("net/**/src/net*.c") if "gpu_open" in f.read_text())
    text = source.read_text("utf-8")
    with_ranges, count = "~" in shape, len(profiles.split(";"))
    assert text.count("gpu_replay(") == text.count("static int segment_") == count + with_ranges
    assert text.count("gpu_launch_blocks(") == 3 * with_ranges  # those of the ranges alone
    net = load(tmp_path / "net")
    sizes = (1, 65, 1, *((7, 65, 7, 1, 7) if with_ranges else (65,)))
    for rows in sizes:
        feed = {"x": floats(rows, 48)}
        close(net(feed["x"]), expected(case, feed)[0])
        there = net(Tensor(feed["x"]))
        close(there.array, expected(case, feed)[0])
    with pytest.raises(ValueError, match="shape"):
        net(floats(71, 48))


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "shape"), [(mixed_model, "x:-1,6"), (loop_model, "x:1~5,6")])
def test_profiles_of_which_the_host_computes_a_part(
    whole: Callable[[], onnx.ModelProto], shape: str, tmp_path: Path
) -> None:
    model = whole()
    model.ir_version = 10
    inner = [a.g for node in model.graph.node for a in node.attribute if a.HasField("g")]
    for value in (v for g in (model.graph, *inner) for v in (*g.input, *g.output)):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    compiled(model, tmp_path, input_shape=shape, dynamic_dims="2;4")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    net = load(tmp_path / "net")
    for rows in (2, 4, *((5, 1, 5, 2) if "~" in shape else (2,))):
        feed = {"x": floats(rows, 6)}
        if len(net.inputs) > 1:
            feed["trips"] = np.array(3)
        for got, want in zip(net.run(feed).values(), session.run(None, feed), strict=True):
            close(got, want)
