"""`--max_error`, the bounds that libraries state, and `atc verify --float64`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from networks import conv_net
from onnx import TensorProto, helper, numpy_helper, save

import atc
from atc.accuracy.max_error import measured_error
from atc.cli.main import main
from atc.errors import OptionError
from atc.pipeline.pipeline import Compilation


def said(done: Compilation) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in atc.load(done.folder).build_info.split("; "))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "precision", "bound"),
    [
        ({}, "default", 1e-4),
        pytest.param(
            {"op_select_implmode": "high_precision"}, "high_precision", 1e-5, marks=pytest.mark.slow
        ),
        pytest.param(
            {"precision_mode": "allow_fp32_to_bf16"}, "allow_fp32_to_bf16", 32 * 2**-8,
            marks=pytest.mark.slow,
        ),
        ({"precision_mode_v2": "fp16"}, "force_fp16", 32 * 2**-11),
        ({"max_error": 1e-3}, "default", 1e-3),
    ],
)
def test_a_library_states_its_precision_and_keeps_it(
    options: dict[str, str], precision: str, bound: float, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = conv_net(tmp_path / "net.onnx")
    done = atc.compile(model, tmp_path / "net", target="c99", **options)  # type: ignore[arg-type]
    stated = said(done)
    assert stated["precision"] == precision
    assert float(stated["error_bound"]) == pytest.approx(bound, rel=1e-2)
    report = json.loads((tmp_path / "net" / "net.report.json").read_text())["precision"]
    assert (report["precision"], report["error_bound"]) == (precision, bound)
    assert (report["measured_error"] is None) == ("max_error" not in options)
    if "max_error" in options:
        assert 0 < float(stated["measured_error"]) < 1e-5
    library = f"--library={tmp_path / 'net'}"
    assert main(["verify", f"--model={model}", library, "--float64"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"precision {precision}: the largest error is ")
    assert "against onnx.reference in float64" in line
    assert line.endswith(f"the bound of {float(stated['error_bound']):g} is kept")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_model_of_16_bits_rounds_as_it_says_itself(
    dtype: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = np.random.default_rng(0).standard_normal((32, 32))
    x, y = (helper.make_tensor_value_info(n, dtype, [4, 32]) for n in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])],
        "g", [x], [y], [helper.make_tensor("w", dtype, weights.shape, weights.ravel())],
    )  # fmt: skip
    model, opsets = tmp_path / "net.onnx", [helper.make_opsetid("", 18)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    done = atc.compile(model, tmp_path / "net")
    bound = 32 * (2**-11 if dtype == TensorProto.FLOAT16 else 2**-8)
    assert float(said(done)["error_bound"]) == pytest.approx(bound, rel=1e-2)
    library = f"--library={tmp_path / 'net'}"
    assert main(["verify", f"--model={model}", library, "--float64"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("is kept")
    assert main(["verify", f"--model={model}", library]) == 0


def test_a_bound_that_is_not_kept_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "net.onnx")
    done = atc.compile(model, tmp_path / "net", target="c99")
    doctored = tmp_path / "net" / "libnet.so"
    data = doctored.read_bytes()
    assert data.count(b"error_bound=0.0001") == 1
    doctored.write_bytes(data.replace(b"error_bound=0.0001", b"error_bound=1e-019"))
    arguments = ["verify", f"--model={model}", f"--library={done.folder}", "--float64"]
    assert main(arguments) == 5
    reported = capsys.readouterr()
    assert "the bound of 1e-19 is not kept" in reported.out
    assert "1e-19 is allowed" in reported.err


def test_a_library_with_a_self_test_in_steps_keeps_an_error(tmp_path: Path) -> None:
    """The networks that are measured have hooks, which steps haven't."""
    options = {"target": "c99", "selftest": True, "step": True}
    done = atc.compile(conv_net(tmp_path / "net.onnx"), tmp_path / "net", max_error=1e-2, **options)
    header = (done.folder / "include/net.h").read_text()
    assert "net_selftest(" in header
    assert "net_step(" in header


def test_an_error_that_no_kernel_keeps_says_what_was_reached(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "net.onnx")
    wanted = r"1e-12 .* can't be kept: the best error reached is \S*e-0[678]"
    with pytest.raises(OptionError, match=wanted):
        atc.compile(model, tmp_path / "net", target="c99", max_error=1e-12)
    assert not (tmp_path / "net").exists()


def test_several_shapes_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "xy")
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    for shape, more in (("x:1~3,2", ""), ("x:-1,2", "1,2")):
        with pytest.raises(OptionError, match="can't be measured for several shapes"):
            atc.compile(
                tmp_path / "m.onnx", tmp_path / "net", target="c99", max_error=1e-3,
                input_shape=shape, dynamic_batch_size=more,
            )  # fmt: skip


def winograd_net(path: Path) -> Path:
    random = np.random.default_rng(0)
    weights = [(random.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w1"], ["y"], "second", pads=[1] * 4),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64, 56, 56]) for n in "xy")
    known = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", [x], [y], known)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def imprecise(done: Compilation) -> int:
    chosen = [c.candidate for c in done.selection.values()]
    return sum(not c.kernel.exact(c.params) for c in chosen)


@pytest.mark.slow
def test_the_fastest_kernels_that_keep_the_error_are_chosen(tmp_path: Path) -> None:
    model = winograd_net(tmp_path / "net.onnx")

    def compiled(name: str, max_error: float = 0, mode: str = "high_performance") -> Compilation:
        return atc.compile(
            model, tmp_path / name, max_error=max_error, op_select_implmode=mode,
            op_compiler_cache_mode="enable", op_compiler_cache_dir=tmp_path / "cache",
        )  # fmt: skip

    fast = compiled("fast")
    if imprecise(fast) < 2:
        pytest.skip("no kernel of this machine errs more than the definition")
    precise = compiled("precise", mode="high_precision")
    loose, tight = measured_error(fast), measured_error(precise)
    assert tight < loose
    allowed = {"loose": loose * 1.01, "between": (loose * tight) ** 0.5, "tight": tight * 1.01}
    left = {}
    for name, most in allowed.items():
        done = compiled(name, most)
        assert float(said(done)["measured_error"]) <= most * 1.01
        assert measured_error(done) <= most * 1.01
        left[name] = imprecise(done)
    assert (left["loose"], left["tight"]) == (2, 0)
    assert left["between"] < 2
