"""Own functions of floats: no libm, no double where a core has none, the same bits everywhere."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator
from projects import F32, emit_model, make_model, require

import atc
from atc.backends.targets import get_target
from atc.devices.network import Device, DeviceNetwork
from atc.errors import OptionError

Floats = NDArray[np.float32]
STEPS, WIDTH = 6, 8
UNARY = ("Tan", "Atan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Exp", "Log",
         "Sqrt", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Softplus", "Round", "Floor", "Ceil",
         "Gelu")  # fmt: skip


def recurrent() -> onnx.ModelProto:
    """An LSTM, normalizations, a convolution, attention's products, softmaxes, powers."""
    rng = np.random.default_rng(8)

    def weights(*shape: int) -> Floats:
        return rng.standard_normal(shape).astype(np.float32)

    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=WIDTH),
        helper.make_node("Squeeze", ["h", "one"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "gamma"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"], perm=[1, 2, 0]),
        helper.make_node("Conv", ["t", "k"], ["c"], pads=[1, 1]),
        helper.make_node("Softmax", ["c"], ["p"], axis=1),
        helper.make_node("LogSoftmax", ["c"], ["q"]),
        helper.make_node("Mul", ["p", "q"], ["m"]),
        helper.make_node("Abs", ["c"], ["a"]),
        helper.make_node("Pow", ["a", "p"], ["b"]),
        helper.make_node("Mod", ["b", "p"], ["d"], fmod=1),
        helper.make_node("LpNormalization", ["d"], ["l"], axis=1),
        helper.make_node("ReduceSum", ["l", "two"], ["e"]),
        helper.make_node("Add", ["m", "e"], ["y"]),
    ]
    values = {
        "w": weights(1, 4 * WIDTH, 5), "r": weights(1, 4 * WIDTH, WIDTH), "gamma": weights(WIDTH),
        "k": weights(12, WIDTH, 3), "one": np.array([1]), "two": np.array([2]),
    }  # fmt: skip
    return make_model(nodes, [("x", F32, (STEPS, 1, 5))], [("y", F32, (1, 12, STEPS))], values)


def functions() -> onnx.ModelProto:
    """Every function of one float, of the same row."""
    nodes = [helper.make_node(op, ["x"], [op.lower()]) for op in UNARY]
    outputs = [(op.lower(), F32, (64,)) for op in UNARY]
    return make_model(nodes, [("x", F32, (64,))], outputs)


def row() -> Floats:
    """Small and large arguments of both signs, tiny, infinite and none."""
    ends = np.array([0.0, -0.0, 1e-41, 3e38, 1e30, -1e22, 33000.0, np.inf, -np.inf, np.nan])
    return np.r_[np.linspace(-1.2, 1.2, 34), np.geomspace(1e-6, 400, 20), ends].astype(np.float32)


MODELS = {
    "recurrent": (recurrent, {"x": np.linspace(-3, 3, STEPS * 5, dtype=np.float32)
                                     .reshape(STEPS, 1, 5)}),
    "functions": (functions, {"x": row()}),
}  # fmt: skip
NATIVE = "c99"
TARGETS = {
    "x86-64-avx2": ("gcc",),
    "aarch64-neon": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
    "armv7-neon": ("arm-linux-gnueabihf-gcc", "qemu-arm-static"),
    "riscv64-rvv": ("clang-19", "riscv64-linux-gnu-gcc", "qemu-riscv64-static"),
    "riscv32-rvv": ("clang-19", "riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    "c99-big-endian": ("s390x-linux-gnu-gcc", "qemu-s390x-static"),
    "cortex-m0plus": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "cortex-m4f": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "cortex-m55": ("arm-none-eabi-gcc", "qemu-system-arm"),
}  # fmt: skip


def outputs(model: str, target: str, folder: Path) -> Mapping[str, Floats]:
    """Compile for a target and run there."""
    make, feeds = MODELS[model]
    onnx.save(make(), folder / "m.onnx")
    where = atc.compile(
        folder / "m.onnx", folder / f"{model}_{target}".replace("-", "_"), target=target,
        deterministic_math=True,
    ).folder  # fmt: skip
    device = Device(get_target(target))
    net = atc.load(where) if device.loads else DeviceNetwork(where, device, os.environ)
    found: Mapping[str, Floats] = net.run(feeds)
    return found


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Floats]]:
    return {name: outputs(name, NATIVE, tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_every_target_computes_the_same_bits(
    model: str, target: str, native: Mapping[str, Mapping[str, Floats]], tmp_path: Path
) -> None:
    for tool in TARGETS[target]:
        require(tool)
    if target == "x86-64-avx2" and not Device(get_target(target)).loads:
        pytest.skip("needs a processor of x86-64")
    for name, value in outputs(model, target, tmp_path).items():
        expected = native[model][name]
        both = np.isnan(value) & np.isnan(expected)
        same = (value.view(np.uint32) == expected.view(np.uint32)) | both
        assert same.all(), (name, np.argwhere(~same)[:4], value[~same][:4], expected[~same][:4])


@pytest.mark.slow
def test_the_results_are_right(native: Mapping[str, Mapping[str, Floats]]) -> None:
    make, feeds = MODELS["recurrent"]
    (expected,) = ReferenceEvaluator(make()).run(None, feeds)
    np.testing.assert_allclose(native["recurrent"]["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("option", ["fast_run", "machine"])
def test_what_measures_this_machine_is_refused(option: str, tmp_path: Path) -> None:
    given = {option: "zen4" if option == "machine" else True}
    with pytest.raises(OptionError, match=f"which --{option} does not"):
        atc.compile("m.onnx", tmp_path / "n", deterministic_math=True, **given)  # type: ignore[arg-type]


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a GPU"):
        atc.compile("m.onnx", tmp_path / "n", target="cuda-sm80", deterministic_math=True)


def undefined(library: Path, nm: str) -> set[str]:
    """Return the symbols that a static library wants of others."""
    said = subprocess.run([nm, library], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r" [TtRrDdVW] (\S+)$", said, re.MULTILINE))
    return set(re.findall(r" U (\S+)$", said, re.MULTILINE)) - known


MEMORY = {"memcpy", "memset", "memmove", "memcmp"}
"""Functions that every compiler demands, also of programs without a C library."""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4f", "cortex-m55"])
@pytest.mark.parametrize("model", MODELS)
def test_small_cores_need_no_c_library_and_no_double(
    model: str, target: str, tmp_path: Path
) -> None:
    require("arm-none-eabi-gcc")
    onnx.save(MODELS[model][0](), tmp_path / "m.onnx")
    folder = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=target).folder
    wanted = undefined(folder / "libnet.a", require("arm-none-eabi-nm")) - MEMORY
    assert not {name for name in wanted if not name.startswith("__")}
    assert not {n for n in wanted if re.match(r"__aeabi_(d|\w+2d$|c?d)", n)}
    if get_target(target).float_bits:  # what is left are 64-bit integers
        assert all(re.match(r"__aeabi_u?l(div|mul|lsl|lsr|asr)", name) for name in wanted)
    assert "needs no libm" in (folder / "include/net.h").read_text()


def test_the_header_states_what_is_equal(tmp_path: Path) -> None:
    plain = emit_model(recurrent(), target="c99").files["include/net.h"].decode()
    assert "deterministic_math" not in plain
