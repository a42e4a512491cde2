"""Recurrent layers that threads share: the same bits for any number, however they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from default_run import level
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.backends.machine import Cache, machine_json
from atc.backends.machines import MACHINES
from atc.program import partition

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LAYERS: dict[str, dict[str, Any]] = {
    "units": {"op": "LSTM", "hidden": 72, "batch": 1, "initial": True},
    "rest": {"op": "LSTM", "hidden": 53, "lengths": True},
    "reset": {"op": "GRU", "hidden": 50, "batch": 1, "lengths": True, "initial": True},
    "resets": {"op": "GRU", "hidden": 40, "batch": 3, "initial": True},
    "after": {"op": "GRU", "hidden": 64, "linear_before_reset": 1},
    "sides": {"op": "GRU", "hidden": 40, "directions": 2},
    "rows": {"op": "RNN", "hidden": 20, "batch": 5, "lengths": True},
    "both": {"op": "LSTM", "hidden": 33, "directions": 2, "batch": 2, "lengths": True},
    "given": {"op": "LSTM", "hidden": 48, "batch": 3, "constant": False},
    "bytes": {"op": "DynamicQuantizeLSTM", "hidden": 40},
    "step": {"op": "LSTM", "hidden": 72, "batch": 1, "initial": True, "steps": 1},
    "step_of_rows": {"op": "LSTM", "hidden": 128, "batch": 8, "initial": True, "steps": 1},
}
"""What layers are cut into: units (the last ones fewer), units in two phases, directions, rows."""
FEW = ("rest", "sides", "rows", "bytes", "step", "step_of_rows")
"""Layers with every way of cutting."""
STEPS, WIDTH = 6, 4


def model(layers: Sequence[str]) -> onnx.ModelProto:
    """Return a model of layers side by side."""
    rng = np.random.default_rng(3)
    nodes, inputs, outputs, constants = [], [], [], []
    for name in layers:
        given = LAYERS[name]
        kind, hidden = given["op"].removeprefix("DynamicQuantize"), given["hidden"]
        batch, directions = given.get("batch", 2), given.get("directions", 1)
        steps = given.get("steps", STEPS)
        rows, state = GATES[kind] * hidden, (directions, batch, hidden)
        arrays: list[NDArray[Any] | None] = [
            rng.standard_normal((directions, rows, WIDTH)) * 0.5,
            rng.standard_normal((directions, rows, hidden)) / hidden**0.5,
            rng.standard_normal((directions, 2 * rows)),
            rng.integers(1, steps + 1, batch).astype(np.int32) if given.get("lengths") else None,
            rng.standard_normal(state) if given.get("initial") else None,
        ]
        domain, quantized = "", given["op"] != kind
        if quantized:
            domain = "com.microsoft"
            arrays = [*(np.rint(40 * np.moveaxis(a, 1, 2)).astype(np.int8) for a in arrays[:2]
                        if a is not None), *arrays[2:], None, None]  # fmt: skip
            for _ in range(2):
                arrays += [np.full(directions, 0.02), np.zeros(directions, np.int8)]
        names = [""] * len(arrays)
        for k, array in enumerate(arrays):
            if array is None:
                continue
            names[k] = f"{name}_{k}"
            value = array.astype(np.float32) if array.dtype == np.float64 else array
            if k == 1 and not given.get("constant", True):
                inputs.append((names[k], value.shape))
            else:
                constants.append(numpy_helper.from_array(value, names[k]))
        inputs.append((f"{name}_x", (steps, batch, WIDTH)))
        results = [f"{name}_y{k}" for k in range(3 if kind == "LSTM" else 2)]
        attributes = {k: v for k, v in given.items() if k == "linear_before_reset"}
        nodes.append(helper.make_node(
            given["op"], [f"{name}_x", *names], results, domain=domain, hidden_size=hidden,
            direction="bidirectional" if directions == 2 else "forward", **attributes,
        ))  # fmt: skip
        shapes = [(steps, directions, batch, hidden), state, state]
        outputs += list(zip(results, shapes, strict=False))
    floats = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in values]
        for values in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "layers", *floats, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compiled(folder: Path, layers: Sequence[str], target: str, threads: int) -> Path:
    """Compile the layers, however short they are, for threads."""
    onnx.save(model(layers), folder / "layers.onnx")
    small = replace(MACHINES["zen5"], l2=Cache(20_000, 32.0, 14.0))  # weights don't stay there
    (folder / "small.json").write_text(machine_json(small))
    with pytest.MonkeyPatch.context() as patch:
        for bound in ("WORTH", "WORTH_PHASE"):
            patch.setattr(partition, bound, 0)
        atc.compile(
            folder / "layers.onnx", folder / str(threads) / "net", target=target,
            num_threads=threads, parallel_branches=1, build_config=f"cc {level()}",
            machine=folder / "small.json",
        )  # fmt: skip
    return folder / str(threads) / "net"


def results(net: Any) -> Sequence[NDArray[Any]]:
    rng = np.random.default_rng(7)
    given = (rng.standard_normal(t.shape).astype(np.float32) / 4 for t in net.inputs)
    return [a.copy() for a in net(*given)]


@pytest.mark.parametrize("target", ["c99", "host"])
def test_threads_share_the_units_of_a_single_step(target: str, tmp_path: Path) -> None:
    """A call without phases: a step is all of it."""
    names = ("step", "step_of_rows")
    with (
        atc.load(compiled(tmp_path, names, target, 1)) as one,
        atc.load(compiled(tmp_path, names, target, 2)) as many,
    ):
        for a, b in zip(results(one), results(many), strict=True):
            np.testing.assert_array_equal(b, a)
    labels = (tmp_path / "2/net/src/net_kernels.h").read_text()
    assert "units=" in labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "target", "threads"),
    [
        (FEW, "host", 2),
        *(pytest.param(tuple(LAYERS), *b, marks=pytest.mark.slow)
          for b in (("host", 2), ("host", 3), ("c99", 2))),
    ],
)  # fmt: skip
def test_results_are_the_same_bits(
    layers: Sequence[str], target: str, threads: int, tmp_path: Path
) -> None:
    folders = [compiled(tmp_path, layers, target, n) for n in (1, threads)]
    with atc.load(folders[0]) as one, atc.load(folders[1]) as many:
        want = results(one)
        for _ in range(10):
            for t, a, b in zip(one.outputs, want, results(many), strict=True):
                np.testing.assert_array_equal(b, a, err_msg=t.name)
    text = (folders[1] / "src" / "net.c").read_text()
    assert "partition);" in text
    assert "partition, *(const int *)at" in text
    labels = " ".join((folders[1] / "src").joinpath("net_kernels.h").read_text().split())
    for cut in ("rows", "units", *["sides"] * (threads == 2)):
        assert f"{cut}={2 if cut == 'sides' else ''}" in labels
