"""The memory that compiling takes, by the size of the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SIDE, LAYERS = 2048, 8

COMPILE = """
import sys
from pathlib import Path
import atc.pipeline.pipeline
from atc.cli.main import main

def peak():
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak()
assert main(sys.argv[1:]) == 0
print(f"\\n{peak() - before}")
"""


def products(path: Path) -> int:
    """Write a model of products in a row; return its bytes."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((SIDE, SIDE), np.float32), f"w{k}")
        for k in range(LAYERS)
    ]
    nodes = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(LAYERS)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, SIDE])
        for name in ("x0", f"x{LAYERS}")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path.stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_compiler_takes_at_most_twice_the_models_memory(tmp_path: Path) -> None:
    """Beyond what Python and its packages take."""
    size = products(tmp_path / "net.onnx")
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, f"--model={tmp_path / 'net.onnx'}",
         f"--output={tmp_path / 'net'}"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(run.stdout.splitlines()[-1]) < 2 * size
