"""The comparison runs on a tiny model and reports all that it should; no time is tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.conversion import ConversionError, converted
from benchmarks.layers import least_interrupted
from benchmarks.shares import Share, shares
from onnx import TensorProto, helper, numpy_helper

from atc.options.machine import processor

COMMAND = Path(__file__).with_name("compare.py")


def tiny_model(path: Path, batch: int | str = 1) -> Path:
    """Write a convolution with Relu over 1x2x8x8; return its path."""
    weights = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="the conv"),
            helper.make_node("Relu", ["c"], ["y"], name="the relu"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 2, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3, 6, 6])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def compare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COMMAND), *map(str, arguments), "--rounds=2"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def results(*arguments: str | Path) -> list[dict[str, Any]]:
    done = compare(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_all_that_is_measured_is_reported(tmp_path: Path) -> None:
    options = ("--layers", "--peers=", "--target=c99", "--clock=cpu")
    (result,) = results(tiny_model(tmp_path / "tiny.onnx"), *options)
    assert result["model"] == "tiny"
    assert result["operations"] == 2 * 3 * 6 * 6 * 2 * 9
    assert result["gflops_peak"] > 0
    assert result["library_bytes"] > 0
    assert result["cold_build"] > 0
    assert result["warm_build"] > 0
    (ours,) = result["engines"]
    assert ours["name"] == "atc"
    assert ours["precision"] == "default (float32) <0.0001"
    assert 0 < ours["minimum"] <= ours["median"]
    assert ours["error"] < 1e-5
    assert ours["peak_rss"] > result["bare_rss"] > 0
    assert "the conv" in result["layers"][0]["nodes"]
    assert sum(layer["operations"] for layer in result["layers"]) == result["operations"]
    assert all(layer["kernel"] for layer in result["layers"])
    assert result["layers_peak"] > 0
    assert result["shares"] == []


@pytest.mark.slow
def test_tables_and_a_peer(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = compare(tiny_model(tmp_path / "tiny.onnx"), "--peers=onnxruntime,nothing", "--layers",
                   "--num_threads=2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing isn't installed" in done.stderr
    assert processor() in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("│ tiny")]
    assert len(rows) == 3
    assert "onnxruntime" in rows[1]
    assert "the conv" in done.stdout
    assert "1 models" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "module"), [("mnn", "MNN"), ("ncnn", "pnnx")])
def test_models_are_converted_for_engines_of_other_formats(
    engine: str, module: str, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    (found,) = results(tiny_model(tmp_path / "tiny.onnx"), f"--peers={engine}", "--clock=cpu")
    (ours, peer) = found["engines"]
    assert peer["name"].startswith(engine)
    assert peer["failure"] == ""
    assert 0 < peer["minimum"] <= peer["median"]
    assert peer["error"] < 1e-5


def test_an_engine_that_computes_something_else_is_not_timed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = tiny_model(tmp_path / "tiny.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 2, 8, 8), np.float32))
    said = []
    for wrong in (np.ones((1, 3, 36), np.float32), np.full((1, 3, 6, 6), 99, np.float32)):
        np.save(tmp_path / "expected.npy", wrong)
        job = {
            "cores": None, "threads": 1, "engine": "onnxruntime", "model": str(model),
            "clock": "cpu", "inputs": {"x": str(tmp_path / "x.npy")},
            "outputs": str(tmp_path / "y"), "expected": [str(tmp_path / "expected.npy")],
        }  # fmt: skip
        command = [sys.executable, str(COMMAND.with_name("worker.py")), json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, input="0\n")
        said.append(json.loads(done.stdout)["error"])
    assert said[0] == "ValueError: output 0 has shape (1, 3, 6, 6), not (1, 3, 36)"
    assert said[1].startswith("ValueError: output 0 is wrong: it differs by ")


def test_why_a_model_is_not_converted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, arrays = tiny_model(tmp_path / "tiny.onnx"), {"x": np.ones((1, 2, 8, 8), np.float32)}
    assert converted("onnxruntime", model, arrays, tmp_path) == model
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConversionError, match="pnnx isn't installed"):
        converted("ncnn", model, arrays, tmp_path)
    program = tmp_path / "pnnx"
    program.write_text("#!/bin/sh\necho no such operator >&2; exit 3\n", "utf-8")
    program.chmod(0o755)
    with pytest.raises(ConversionError, match="pnnx ended with status 3: no such operator"):
        converted("ncnn", model, arrays, tmp_path)


@pytest.mark.slow
def test_stored_inputs_decide_the_shapes(tmp_path: Path) -> None:
    x = np.ones((2, 2, 8, 8), np.float32)
    for name, arrays in (("a", {"x": x}), ("b", {"i0": x})):
        (tmp_path / name).mkdir()
        tiny_model(tmp_path / name / "model.onnx", "n")
        stored = "model.in.npz" if name == "a" else "case0_in.npz"
        np.savez(tmp_path / name / stored, **arrays)
    found = results(f"--models={tmp_path}", "--peers=", "--target=c99", "--clock=cpu")
    assert [r["model"] for r in found] == ["a", "b"]
    assert {r["operations"] for r in found} == {2 * 2 * 3 * 6 * 6 * 2 * 9}


@pytest.mark.slow
def test_what_fails_is_reported(tmp_path: Path) -> None:
    done = compare(tmp_path / "none.onnx")
    assert done.returncode != 0
    assert "there is no model" in done.stderr
    done = compare(tiny_model(tmp_path / "tiny.onnx"), "--no_such_option=1")
    assert done.returncode == 1
    assert "unknown option --no_such_option" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_variants_alternate_and_are_no_peers(tmp_path: Path) -> None:
    variant = "--target=c99 --op_select_implmode=high_precision"
    done = compare(
        tiny_model(tmp_path / "tiny.onnx"), "--peers=", "--clock=cpu", f"--variant={variant}"
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("│ tiny")]
    assert any("atc" in row and "high_precision" in row for row in rows)
    assert "fastest peer" not in done.stdout


def test_shares_add_up_large_calls_of_a_kind() -> None:
    def layer(kernel: str, operations: float, ns: float) -> dict[str, object]:
        return {"kernel": kernel, "operations": operations, "ns": ns}

    table = [
        layer("conv_direct(p=14)", 1e8, 1e6), layer("conv_small_oc(rows=2)", 3e8, 4e6),
        layer("conv_winograd(m=4)", 1e8, 1e5), layer("conv_direct(p=14)", 1e6, 1e6),
        layer("matmul_tile(mr=9)", 5e7, 1e6),
    ]  # fmt: skip
    assert shares(table, 200.0) == [
        Share("direct convolutions", 2, 5e-3, 4e8 / 5e6 / 200, 75 / 200),
        Share("matrix products", 1, 1e-3, 0.25, 0.25),
    ]
    assert shares(table, 0.0) == []


def test_runs_that_others_interrupted_do_not_count() -> None:
    assert least_interrupted(["a", "b", "c", "d", "e"], [0.0, 0.5, 0.1, 0.0, 0.3]) == [
        "a", "d", "c",
    ]  # fmt: skip
