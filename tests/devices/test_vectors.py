"""Networks in vectors of other processors: what their programs compute under an emulator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from projects import F32, make_model, require
from tiny_networks import keyword_spotting

import atc
from atc.backends.targets import get_target
from atc.backends.toolchain.probe import probe
from atc.devices.network import Device, DeviceNetwork

Array = NDArray[Any]
TARGETS = ("armv7-neon", "riscv64-rvv", "riscv32-rvv", "wasm32-simd128")
VECTORS = ("Exp", "Log", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Softplus", "Round", "Floor")
NO_VECTORS = ("Tan", "Atan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")


def functions() -> onnx.ModelProto:
    """Functions that vectors have, and those that are computed one after the other."""
    nodes = [helper.make_node(op, ["x"], [op.lower()]) for op in (*VECTORS, *NO_VECTORS)]
    model = make_model(nodes, [("x", F32, (37,))],
                       [(op.lower(), F32, (37,)) for op in (*VECTORS, *NO_VECTORS)])  # fmt: skip
    model.ir_version = 10  # which every onnxruntime reads
    return model


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "functions": functions,
    "floats": lambda: keyword_spotting(False),
    "bytes": lambda: keyword_spotting(True),
}


def in_node(folder: Path, name: str, x: Array) -> list[Array]:
    """Return the outputs of a network's npm package."""
    kind = "Int8Array" if x.dtype == np.int8 else "Float32Array"
    (folder / "main.mjs").write_text(
        'import { load } from "./index.mjs";\nconst net = await load();\n'
        f'const out = net.run({{ "{name}": new {kind}({x.ravel().tolist()}) }});\n'
        "const plain = (v) => (Number.isFinite(v) ? v : String(v));\n"
        "const reported = Object.values(out).map((a) => Array.from(a, plain));\n"
        "console.log(JSON.stringify(reported));\n"
    )
    command = [require("node"), "main.mjs"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return [np.array([float(v) for v in row]) for row in json.loads(said)]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_vectors_compute_what_the_reference_does(model: str, target: str, tmp_path: Path) -> None:
    tools = probe(get_target(target), os.environ)
    if tools.compiler is None or tools.no_runner:
        pytest.skip(f"{tools.trouble or tools.no_runner}: {tools.advice}")
    proto = MODELS[model]()
    onnx.save(proto, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (given,) = session.get_inputs()
    rng = np.random.default_rng(9)
    x = np.linspace(-0.97, 0.97, int(np.prod(given.shape)), dtype=np.float32)
    if given.type == "tensor(int8)":
        x = rng.integers(-128, 128, x.shape).astype(np.int8)
    feeds = {given.name: x.reshape(given.shape)}
    wanted = session.run(None, feeds)
    web = get_target(target).arch == "wasm32"
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=target,
                       wrappers="js" if web else "")  # fmt: skip
    if web:
        found = in_node(done.folder / "js", given.name, x)
    else:
        device = Device(get_target(target))
        found = [*DeviceNetwork(done.folder, device, os.environ).run(feeds).values()]
    for got, want in zip(found, wanted, strict=True):
        if want.dtype == np.int8:
            np.testing.assert_array_equal(got.ravel(), want.ravel())
        else:
            np.testing.assert_allclose(got.ravel(), want.ravel(), rtol=1e-5, atol=1e-6)
