"""Networks that carry states on devices: runs in a row, under emulators and over a serial line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from devices.test_serial import board, qemus_board
from devices.test_verify import TOOLS
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from projects import require

import atc
from atc.backends.targets import get_target
from atc.cli.main import main
from atc.devices.network import Device, DeviceNetwork
from atc.devices.serial_line import Span, open_line, run_over

Arrays = Mapping[str, np.ndarray]
RUNS = 4
WEIGHTS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "window": {"w": (6, 4, 3)},
    "lstm": {"w": (1, 16, 4), "r": (1, 16, 4), "b": (1, 32)},
    "count": {},
}
TEXTS = {
    "window": """(float[1, 4, 1] x, float[1, 4, 2] s) => (float[1, 6, 1] y, float[1, 4, 2] s2) {
        z = Tanh(x)
        whole = Concat<axis = 2>(s, z)
        s2 = Slice(whole, one, end, two)
        sums = Conv(whole, w)
        y = Relu(sums) }""",
    "lstm": """(float[1, 1, 4] x, float[1, 1, 4] h, float[1, 1, 4] c)
        => (float[1, 1, 1, 4] y, float[1, 1, 4] h2, float[1, 1, 4] c2) {
        y, h2, c2 = LSTM<hidden_size = 4>(x, w, r, b, , h, c) }""",
    "count": """(float[2, 3] x, float[2, 3] s, int64[1] n)
        => (float[2, 3] y, float[2, 3] s2, int64[1] n2) {
        s2 = Add(s, x)
        n2 = Add(n, one)
        share = Cast<to = 1>(n2)
        y = Div(s2, share) }""",
}
STATES = {"window": "s:s2", "lstm": "h:h2;c:c2", "count": "s:s2;n:n2"}
CONSTANTS = {"one": np.array([1]), "two": np.array([2]), "end": np.array([99])}


def model(name: str, folder: Path, seed: int = 0) -> Path:
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> net {TEXTS[name]}')
    random = np.random.default_rng(seed)
    arrays = {k: random.standard_normal(shape).astype(np.float32) / 2
              for k, shape in WEIGHTS[name].items()}  # fmt: skip
    used = {i for node in made.graph.node for i in node.input}
    arrays |= {k: v for k, v in CONSTANTS.items() if k in used}
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in arrays.items())
    path = folder / f"{name}{seed}.onnx"
    onnx.save(made, path)
    return path


def runs_of(name: str, path: Path, runs: int = RUNS) -> tuple[list[Arrays], list[np.ndarray]]:
    """Return inputs of some runs, and y of each by the standard's reference, states handed on."""
    random, evaluator = np.random.default_rng(1), ReferenceEvaluator(str(path))
    zeros = {
        i.name: np.zeros([d.dim_value for d in i.type.tensor_type.shape.dim],
                         helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
        for i in onnx.load(path).graph.input
    }  # fmt: skip
    x = zeros.pop("x")
    inputs = [{"x": random.standard_normal(x.shape).astype(np.float32)} for _ in range(runs)]
    found = []
    for each in inputs:
        results = dict(zip(evaluator.output_names, evaluator.run(None, {**each, **zeros}),
                           strict=True))  # fmt: skip
        zeros = {a: results[b] for a, b in (p.split(":") for p in STATES[name].split(";"))}
        found.append(results["y"])
    return inputs, found


def check(net: DeviceNetwork, inputs: Sequence[Arrays], wanted: Sequence[np.ndarray]) -> None:
    for got, y in zip(net.run_each(inputs), wanted, strict=True):
        np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("target", TOOLS)
def test_runs_go_on_under_the_emulator(
    target: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in TOOLS[target]:
        require(tool)
    if target == "c99-big-endian":
        monkeypatch.delenv("CC", raising=False)  # it may be a compiler for the target
    path = model(name, tmp_path)
    inputs, wanted = runs_of(name, path)
    done = atc.compile(path, tmp_path / "net", target=target, state=STATES[name])
    net = DeviceNetwork(done.folder, Device(get_target(target)), os.environ)
    check(net, inputs, wanted)
    check(net, inputs[:1], wanted[:1])  # states are zero again


@pytest.mark.parametrize(
    ("target", "runner"), [("host", "local"), ("cortex-m4f", "qemu"), ("aarch64-neon", "qemu")]
)
def test_verify_counts_the_runs(
    target: str, runner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in TOOLS.get(target, ()):
        require(tool)
    path = model("window", tmp_path)
    atc.compile(path, tmp_path / "net", target=target, state="s:s2", step=True)
    words = ["verify", str(tmp_path / "net"), f"--model={path}", "--state=s:s2"]
    assert main([*words, f"--runner={runner}", "--runs=6"]) == 0  # more than a window is long
    said = capsys.readouterr().out
    assert "6 of 6 outputs agree" in said
    assert any(line.startswith("z ") for line in said.splitlines())  # node by node, of the last
    assert not any(line.endswith("differs") for line in said.splitlines())
    x = np.random.default_rng(0).standard_normal((5, 1, 4, 1)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    assert main([*words, f"--runner={runner}", f"--input={tmp_path / 'x.npz'}"]) == 0
    assert "5 of 5 outputs agree" in capsys.readouterr().out
    other = model("window", tmp_path, seed=1)
    assert main([*words[:2], f"--model={other}", *words[3:], f"--runner={runner}"]) != 0


@pytest.mark.slow
def test_a_state_that_is_not_carried_rightly_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run is right: h and c, which change places, are zero."""
    path = model("lstm", tmp_path)
    atc.compile(path, tmp_path / "net", state="h:c2;c:h2")
    words = ["verify", str(tmp_path / "net"), f"--model={path}", "--state=h:h2;c:c2"]
    assert main([*words, "--runner=local"]) != 0
    marks = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "run " in line]
    assert marks == ["ok", "DIFFERS", "DIFFERS"]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1 << 30, 150])
@pytest.mark.parametrize("name", TEXTS)
def test_runs_go_on_over_a_serial_line(name: str, noise: int, tmp_path: Path) -> None:
    """Each verification begins anew; requests that are repeated aren't done twice."""
    require("arm-none-eabi-gcc")
    path = model(name, tmp_path)
    inputs, wanted = runs_of(name, path)
    done = atc.compile(
        path, tmp_path / "net", target="cortex-m4f", state=STATES[name], starter=True
    )
    with board(done.folder, tmp_path, noise) as device, open_line(device) as line:
        patient = replace(line, tries=20, patience=0.5)
        for spans in ([], [Span(0, 0, 0, 8)]):
            data = [[x["x"].tobytes()] for x in inputs]
            found, seen = run_over(patient, lambda _: True, data, [wanted[0].nbytes], spans)
            assert len(seen) == len(spans)
            for (got,), y in zip(found, wanted, strict=True):
                values = np.frombuffer(got, np.float32).reshape(y.shape)
                np.testing.assert_allclose(values, y, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m4f", "cortex-m55"])
def test_qemus_boards_stream(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in ("make", *TOOLS[target]):
        require(tool)
    path = model("window", tmp_path)
    made = atc.compile(path, tmp_path / "net", target=target, state="s:s2", starter=True).folder
    with qemus_board(made) as device:
        words = ["verify", str(made), f"--model={path}", "--state=s:s2", "--runs=4"]
        for _ in range(2):
            assert main([*words, f"--runner=serial:{device}"]) == 0
            assert "4 of 4 outputs agree" in capsys.readouterr().out
