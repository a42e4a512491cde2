"""Big-endian processors: constants the other way round, the same numbers, under the emulator."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from networks import conv_net
from onnx import TensorProto, helper
from projects import F32, affine_model, cmake, make_model, reference, require, typed_model
from tiny_networks import keyword_spotting

import atc
from atc.backends.targets import get_target
from atc.devices.network import Device, DeviceNetwork
from atc.errors import OptionError, ToolchainError
from atc.files.byte_order import in_byte_order

ROOT = Path(__file__).parents[2]
TARGET = "c99-big-endian"
X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    require("s390x-linux-gnu-gcc")
    require("qemu-s390x-static")
    monkeypatch.delenv("CC", raising=False)


def network(model: Path, folder: Path, **options: object) -> DeviceNetwork:
    """Return a network that was compiled for a big-endian processor, to run under the emulator."""
    done = atc.compile(model, folder, target=TARGET, **options)  # type: ignore[arg-type]
    return DeviceNetwork(done.folder, Device(get_target(TARGET)), os.environ)


def narrow_types() -> onnx.ModelProto:
    """Constants of 16, 8 and 4 bits, of 64-bit integers, of double and bool."""
    rng = np.random.default_rng(5)
    values = {
        "h": rng.standard_normal(6).astype(np.float16),
        "b": rng.standard_normal(6).astype(ml_dtypes.bfloat16),
        "e": rng.standard_normal(6).astype(ml_dtypes.float8_e4m3fn),
        "n": np.arange(-3, 3).astype(ml_dtypes.int4),
        "d": rng.standard_normal(6),
        "i": np.arange(6, dtype=np.int64) << 33,
        "m": np.arange(6) % 2 == 0,
    }
    nodes = [helper.make_node("Cast", [name], [f"{name}_32"], to=TensorProto.FLOAT)
             for name in values]  # fmt: skip
    nodes.append(helper.make_node("Sum", ["x", *(f"{name}_32" for name in values)], ["y"]))
    return make_model(nodes, [("x", F32, (6,))], [("y", F32, (6,))], values)


def model_of(name: str, folder: Path) -> Path:
    if name in ("digits", "keywords"):
        return ROOT / f"samples/{name}.onnx"
    if name == "convolutions":
        return conv_net(folder / "convolutions.onnx")
    made = {"narrow types": narrow_types, "int8": lambda: keyword_spotting(True)}[name]()
    onnx.save(made, folder / "model.onnx")
    return folder / "model.onnx"


def drawn(net: DeviceNetwork) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in net.inputs}


@pytest.mark.parametrize("name", [
    "narrow types",
    *(pytest.param(n, marks=pytest.mark.slow)
      for n in ("digits", "keywords", "convolutions", "int8")),
])  # fmt: skip
def test_it_computes_the_same_bits_as_little_endian_ones(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    net = network(model, tmp_path / "net", deterministic_math=True)
    inputs = drawn(net)
    here = atc.compile(model, tmp_path / "here", target="c99", deterministic_math=True)
    for output, value in atc.load(here.folder).run(dict(inputs)).items():
        np.testing.assert_array_equal(net.run(inputs)[output], value)
        assert np.isfinite(value).all()


@pytest.mark.slow
def test_every_element_type_crosses_the_border(tmp_path: Path) -> None:
    onnx.save(typed_model(), tmp_path / "typed.onnx")
    net = network(tmp_path / "typed.onnx", tmp_path / "net")
    inputs = {t.name: (np.arange(np.prod(t.shape)) * 77).reshape(t.shape).astype(t.dtype)
              for t in net.inputs}  # fmt: skip
    here = atc.load(atc.compile(tmp_path / "typed.onnx", tmp_path / "here", target="c99").folder)
    for output, value in here.run(inputs).items():
        np.testing.assert_array_equal(net.run(inputs)[output], value)


@pytest.mark.slow
def test_weights_beside_the_library_are_checked_and_read(tmp_path: Path) -> None:
    onnx.save(affine_model(), tmp_path / "affine.onnx")
    net = network(tmp_path / "affine.onnx", tmp_path / "net", external_weight=2)
    wanted = reference(affine_model(), X)[0]
    np.testing.assert_allclose(net.run({"x": X})["y"], wanted, rtol=1e-5)
    little = atc.compile(tmp_path / "affine.onnx", tmp_path / "here", target="c99",
                         external_weight=2).folder  # fmt: skip
    (tmp_path / "net/net_weights.bin").write_bytes((little / "here_weights.bin").read_bytes())
    with pytest.raises(ToolchainError, match="another network's"):
        net.run({"x": X})


@pytest.mark.slow
@pytest.mark.parametrize("text", ["ON", "OFF"])
def test_cmake_builds_it_with_weights_in_either_form(text: str, tmp_path: Path) -> None:
    onnx.save(affine_model(), tmp_path / "affine.onnx")
    folder = atc.compile(tmp_path / "affine.onnx", tmp_path / "net", target=TARGET).folder
    build = cmake(
        folder, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_C_COMPILER=s390x-linux-gnu-gcc",
        "-DCMAKE_FIND_ROOT_PATH=/usr/s390x-linux-gnu", "-DCMAKE_EXE_LINKER_FLAGS=-static",
        f"-DNET_WEIGHTS_AS_TEXT={text}",
        build=tmp_path / "build",
    )  # fmt: skip
    np.save(tmp_path / "big.npy", X.astype(">f4"))
    np.save(tmp_path / "little.npy", X)
    program = [require("qemu-s390x-static"), build / "net_example"]
    done = subprocess.run([*program, tmp_path / "big.npy"], check=True, capture_output=True)
    y = [float(v) for v in done.stdout.split(b"]")[1].split(b"hidden")[0].split()]
    np.testing.assert_allclose(y, reference(affine_model(), X)[0].ravel(), rtol=1e-4)
    refused = subprocess.run([*program, tmp_path / "little.npy"], check=False, capture_output=True)
    assert refused.returncode != 0


def test_both_byte_orders_in_one_library_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="targets of both byte orders"):
        atc.compile(ROOT / "samples/digits.onnx", tmp_path / "net", target=f"c99,{TARGET}")


def test_a_little_endian_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", require("gcc"))
    with pytest.raises(ToolchainError, match="which is little-endian") as caught:
        atc.compile(ROOT / "samples/digits.onnx", tmp_path / "net", target=TARGET)
    assert "apt install gcc-s390x-linux-gnu" in caught.value.hint


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int16, ml_dtypes.bfloat16, np.int8, np.bool_, "S4"]
)
def test_the_bytes_of_elements_are_turned_round(dtype: type | str) -> None:
    array = np.array([[1, 0], [3, 4]]).astype(dtype)
    little, big = (in_byte_order(array, big_endian) for big_endian in (False, True))
    size = 1 if array.dtype.kind == "S" else array.itemsize
    np.testing.assert_array_equal(little.reshape(-1, size)[:, ::-1].ravel(), big)
    assert little.tobytes() == array.tobytes()
