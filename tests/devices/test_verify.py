"""`--verify` and `atc verify` where this machine can't load the library: through a runner."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from accuracy.test_diff import doctored
from networks import conv_net
from onnx import helper
from projects import F32, affine_model, make_model, require

import atc
from atc.backends.target import host_arch
from atc.cli.main import main
from atc.devices.network import Device, DeviceNetwork
from atc.errors import ModelError, OptionError, ToolchainError
from atc.pipeline import writing

ROOT = Path(__file__).parents[2]
KEYWORDS = ROOT / "samples/keywords.onnx"
TOOLS = {
    "cortex-m4f": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "cortex-m55": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "aarch64-neon": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
    "armv7-neon": ("arm-linux-gnueabihf-gcc", "qemu-arm-static"),
    "riscv32": ("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    "riscv32-rvv": ("clang-19", "riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    "wasm32-simd128": ("clang-19", "wasm-ld-19", "node"),
    "riscv64-rvv": ("clang-19", "riscv64-linux-gnu-gcc", "qemu-riscv64-static"),
    "c99-big-endian": ("s390x-linux-gnu-gcc", "qemu-s390x-static"),
}


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    onnx.save(affine_model(), tmp_path / "affine.onnx")
    return tmp_path / "affine.onnx"


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TOOLS)
def test_a_compilation_is_verified_under_the_emulator(
    target: str, affine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for tool in TOOLS[target]:
        require(tool)
    if target == "c99-big-endian":
        monkeypatch.delenv("CC", raising=False)  # it may be a compiler for the target
    words = [f"--model={affine}", f"--output={tmp_path / 'net'}", f"--target={target}"]
    assert main([*words, "--verify"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 outputs agree" in said
    assert "rmse" in said
    assert main(["verify", str(tmp_path / "net"), f"--model={affine}", "--runner=local"]) == 0
    other = affine.with_name("other.onnx")
    onnx.save(affine_model(seed=1), other)
    assert main(["verify", str(tmp_path / "net"), f"--model={other}"]) != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["host", "cortex-m4f", "riscv32", "aarch64-neon", "wasm32-simd128"]
)
def test_a_device_is_compared_node_by_node(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for tool in TOOLS.get(target, ()):
        require(tool)
    model = conv_net(tmp_path / "m.onnx")
    words = ["verify", str(tmp_path / "net"), f"--model={model}", "--runner=qemu"]
    if target == "host":
        words[-1] = "--runner=local"
    whole = {"optimization_switch": "cascade:off"}  # a cascade's first result is never whole
    atc.compile(model, tmp_path / "net", target=target, step=True, **whole)
    assert main(words) == 0
    nodes = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert {"relu1", "conv2", "softmax"} <= nodes.keys()
    assert not any(line.endswith("differs") for line in nodes.values())
    monkeypatch.setattr(writing, "emit", doctored("conv1", "{out}[1] += 2.0f;"))
    atc.compile(model, tmp_path / "net", target=target, step=True, **whole)
    assert main(words) != 0
    nodes = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert nodes["relu1"].endswith("differs")
    largest, rmse = (float(nodes["relu1"].split("] ")[1].split()[k]) for k in (0, 2))
    assert largest == pytest.approx(2)
    assert rmse == pytest.approx(2 / 256**0.5, rel=1e-2)  # of one element among 256


@pytest.mark.slow
def test_riscv32_takes_no_atomic_instructions(tmp_path: Path) -> None:
    objdump = require("riscv64-unknown-elf-objdump")
    require("riscv64-unknown-elf-gcc")
    folder = atc.compile(KEYWORDS, tmp_path / "net", target="riscv32").folder
    command = [objdump, "-d", folder / "libnet.a"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = {line.split("\t")[2].strip() for line in said.splitlines() if line.count("\t") > 2}
    assert "lw" in words
    assert not [word for word in words if word.startswith(("lr.", "sc.", "amo"))]


@pytest.mark.slow
def test_the_program_is_built_by_the_compiler_that_cc_names(
    affine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcc = require(TOOLS["cortex-m4f"][0])
    require(TOOLS["cortex-m4f"][1])
    compiler, calls = tmp_path / "own-cc", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$@" >>"{calls}"\nexec {gcc} "$@"\n')
    compiler.chmod(0o755)
    atc.compile(affine, tmp_path / "net", target="cortex-m4f")
    monkeypatch.setenv("CC", str(compiler))
    assert main(["verify", str(tmp_path / "net"), f"--model={affine}"]) == 0
    assert "run.c" in calls.read_text()


@pytest.mark.slow
def test_external_weights_go_along(affine: Path, tmp_path: Path) -> None:
    for tool in TOOLS["cortex-m4f"]:
        require(tool)
    folder = atc.compile(affine, tmp_path / "net", target="cortex-m4f", external_weight=2).folder
    x = np.random.default_rng(3).standard_normal((2, 5)).astype(np.float32)
    from atc.backends.targets import get_target

    net = DeviceNetwork(folder, Device(get_target("cortex-m4f")), os.environ)
    here = atc.load(atc.compile(affine, tmp_path / "here", target="c99").folder).run({"x": x})
    for name, value in net.run({"x": x}).items():
        np.testing.assert_allclose(value, here[name], rtol=1e-5)
    data = bytearray((folder / "net_weights.bin").read_bytes())
    data[0] ^= 1
    (folder / "net_weights.bin").write_bytes(data)
    with pytest.raises(ToolchainError, match="another network's"):
        net.run({"x": x})


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program `ssh` first on PATH that runs its last argument here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "ssh.log"
    lines = ["#!/bin/sh", f'echo "$@" >> {shlex.quote(str(log))}', "for last; do :; done",
             'exec sh -c "$last"']  # fmt: skip
    text = "\n".join(lines) + "\n"
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


@pytest.mark.slow
def test_a_machine_that_ssh_reaches(fake_ssh: Path, affine: Path, tmp_path: Path) -> None:
    folder = atc.compile(affine, tmp_path / "net").folder
    words = ["verify", str(folder), f"--model={affine}", "--runner=ssh:me@there:2222"]
    assert main(words) == 0
    assert "-p 2222 -- me@there" in fake_ssh.read_text()
    assert main([*words[:-1], "--runner=adb"]) != 0


@pytest.mark.slow
def test_a_machine_that_ssh_does_not_reach(
    affine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = atc.compile(affine, tmp_path / "net").folder
    (tmp_path / "ssh").write_text("#!/bin/sh\necho no route to host >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    words = ["verify", str(folder), f"--model={affine}", "--runner=ssh:x"]
    assert main(words) != 0
    assert "no route to host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "text"),
    [("cortex-m4f", "need qemu-system-arm"), ("riscv32", "need qemu-system-riscv32"),
     ("wasm32-simd128", "need node to run on this machine")],
)  # fmt: skip
def test_what_cannot_run_is_reported_before_anything_is_compiled(
    target: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler, no emulator
    with pytest.raises(OptionError, match=text):
        atc.compile(KEYWORDS, tmp_path / "net", target=target, verify=True)
    assert not (tmp_path / "net").exists()


def test_loading_a_foreign_library_says_so(affine: Path, tmp_path: Path) -> None:
    other = "aarch64-neon" if host_arch() == "x86_64" else "x86-64"
    if other == "aarch64-neon":
        require("aarch64-linux-gnu-gcc")
    folder = atc.compile(affine, tmp_path / "net", target=other).folder
    with pytest.raises(ModelError, match="another processor or system"):
        atc.load(folder)
    assert main(["load_and_run", str(folder)]) != 0


@pytest.mark.slow
def test_loading_what_is_for_a_microcontroller_says_so(affine: Path, tmp_path: Path) -> None:
    require("arm-none-eabi-gcc")
    folder = atc.compile(affine, tmp_path / "net", target="cortex-m3").folder
    with pytest.raises(ModelError, match="without an operating system"):
        atc.load(folder)


def test_networks_of_several_shapes_are_refused(tmp_path: Path) -> None:
    require("arm-none-eabi-gcc")
    relu = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(make_model([relu], [("x", F32, ("n", 3))], [("y", F32, ("n", 3))]), tmp_path / "m")
    folder = atc.compile(
        tmp_path / "m", tmp_path / "net", target="cortex-m4f", input_shape="x:1~4,3"
    ).folder
    from atc.backends.targets import get_target

    with pytest.raises(OptionError, match="several shapes"):
        DeviceNetwork(folder, Device(get_target("cortex-m4f")), os.environ)
