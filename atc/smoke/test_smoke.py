"""A few networks from model to result, through each door: Python, the command line, C."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import atc
from atc.cli.main import main
from atc.errors import AtcError

RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    """Return random numbers for a tensor of float32."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(kind: str) -> onnx.ModelProto:
    """Return a small network with an input `x` and an output `y`."""
    if kind == "convolutions":
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Softmax", ["f"], ["y"]),
        ]
        constants = {"w": weights(16, 3, 3, 3)}
        shapes: tuple[tuple[int, ...], ...] = ((1, 3, 8, 8), (1, 16))
    else:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Tanh", ["a"], ["y"]),
        ]
        shapes, constants = ((4, 9), (4, 7)), {"w": weights(9, 7), "b": weights(7)}
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    )
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, kind, [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("kind", ["convolutions", "products"])
@pytest.mark.parametrize("target", ["host", "c99"])
def test_a_network_computes_what_the_reference_does(
    kind: str, target: str, tmp_path: Path
) -> None:
    """Compile, load and run a network, and compare with onnx.reference."""
    made = model(kind)
    onnx.save(made, tmp_path / "net.onnx")
    done = atc.compile(tmp_path / "net.onnx", tmp_path / "net", target=target)
    x = weights(*(d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim))
    (wanted,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(atc.load(done.folder)(x), np.asarray(wanted), rtol=1e-4, atol=1e-5)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compile and verify with the program's own function."""
    onnx.save(model("products"), tmp_path / "net.onnx")
    words = [f"--model={tmp_path}/net.onnx", f"--output={tmp_path}/net", "--verify"]
    assert main(words) == 0
    assert "1 of 1 outputs agree" in capsys.readouterr().out
    assert (tmp_path / "net/include/net.h").is_file()


def test_what_the_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Ask `atc doctor`, whose status says that networks compile here."""
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"]


def test_an_error_is_one_line(tmp_path: Path) -> None:
    """Refuse what is no model."""
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    with pytest.raises(AtcError) as caught:
        atc.compile(tmp_path / "net.onnx", tmp_path / "net")
    assert "\n" not in str(caught.value)
