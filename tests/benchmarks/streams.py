"""The time of a run of streaming networks, which carry states, beside onnxruntime.

usage: python tests/benchmarks/streams.py [--only=NAME,NAME] [--rounds=N]
           [atc's options as --name=value]

Small networks are drawn: a WaveNet that takes 1 frame or 16 of them, a Conformer with windows of
keys and values, layers of LSTM. Their states lie in the library (`--state=auto`); onnxruntime is
given them anew in each run, as its users do. Both run in turns, in one thread, whose time on the
processor counts; the ratio is onnxruntime's time over the library's, each the median of all rounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from drawn_options import parse
from onnx import TensorProto, helper, numpy_helper

import atc

TURN = 0.05
"""Seconds that one runs before it is the other one's turn."""


class Sketch:
    """A network of one step on x, built up node by node; its states have exporters' names."""

    def __init__(self, *x: int) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs, self.outputs = [self._typed("x", x)], list[onnx.ValueInfoProto]()

    def _typed(self, name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op.lower()}{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"k{len(self.constants)}"))
        return self.constants[-1].name

    def weights(self, *shape: int) -> str:
        scale = np.sqrt(np.prod(shape[1:]))
        return self.constant((self.random.standard_normal(shape) / scale).astype(np.float32))

    def state(self, shape: tuple[int, ...], make: Callable[[str], tuple[str, str]]) -> str:
        """Add a state; `make` returns a result of it, and what it is in the next run."""
        name = f"cache_{len(self.outputs)}"
        self.inputs.append(self._typed(name, shape))
        result, following = make(name)
        self.nodes.append(helper.make_node("Identity", [following], [f"new_{name}"]))
        self.outputs.append(self._typed(f"new_{name}", shape))
        return result

    def window(self, x: str, axis: int, *shape: int) -> str:
        """Return the last frames and x behind them; the window has that shape."""

        def joined(past: str) -> tuple[str, str]:
            whole = self.node("Concat", past, x, axis=axis)
            begin, end = self.constant([-shape[axis]]), self.constant([1 << 40])
            return whole, self.node("Slice", whole, begin, end, self.constant([axis]))

        return self.state(shape, joined)

    def dense(self, x: str, width: int, to: int) -> str:
        return self.node("MatMul", x, self.weights(width, to))

    def model(self, y: str, *shape: int) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        graph = helper.make_graph(
            self.nodes, "g", self.inputs, [self._typed("y", shape), *self.outputs], self.constants
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def wavenet(frames: int, channels: int = 64) -> onnx.ModelProto:
    """Return ten gated layers of dilations 1 to 512."""
    s = Sketch(1, channels, frames)
    x = "x"
    for layer in range(10):
        whole = s.window(x, 2, 1, channels, 1 << layer)
        sums = s.node("Conv", whole, s.weights(2 * channels, channels, 2), dilations=[1 << layer])
        a, b = s.node("Split", sums, outputs=2, axis=1, num_outputs=2)
        gated = s.node("Mul", s.node("Tanh", a), s.node("Sigmoid", b))
        x = s.node("Add", s.node("Conv", gated, s.weights(channels, channels, 1)), x)
    return s.model(x, 1, channels, frames)


def conformer(frames: int = 8, width: int = 192, left: int = 64) -> onnx.ModelProto:
    """Return four layers: attention to the frames before, a depthwise filter, two products."""
    s, heads = Sketch(frames, width), 4
    x = "x"
    split = s.constant([-1, heads, width // heads])
    one, flat = s.constant(np.ones(width, np.float32)), s.constant([-1, width])
    for _ in range(4):
        y = s.node("LayerNormalization", x, one)
        keys, values = (s.window(s.dense(y, width, width), 0, left, width) for _ in range(2))
        q, k, v = (
            s.node("Transpose", s.node("Reshape", each, split), perm=perm) for each, perm in (
                (s.dense(y, width, width), [1, 0, 2]), (keys, [1, 2, 0]), (values, [1, 0, 2]))
        )  # fmt: skip
        mixed = s.node("MatMul", s.node("Softmax", s.node("MatMul", q, k), axis=-1), v)
        joined = s.node("Reshape", s.node("Transpose", mixed, perm=[1, 0, 2]), flat)
        x = s.node("Add", x, s.dense(joined, width, width))
        columns = s.node("Unsqueeze", s.node("Transpose", x, perm=[1, 0]), s.constant([0]))
        whole = s.window(columns, 2, 1, width, 14)
        filtered = s.node("Conv", whole, s.weights(width, 1, 15), group=width)
        rows = s.node("Transpose", s.node("Squeeze", filtered, s.constant([0])), perm=[1, 0])
        x = s.node("Add", x, rows)
        hidden = s.node("Relu", s.dense(s.node("LayerNormalization", x, one), width, 4 * width))
        x = s.node("Add", x, s.dense(hidden, 4 * width, width))
    return s.model(x, frames, width)


def lstm(width: int = 128) -> onnx.ModelProto:
    """Return two layers of LSTM, one step of them."""
    s = Sketch(1, 1, width)
    x = "x"
    for _ in range(2):
        w, r = s.weights(1, 4 * width, width), s.weights(1, 4 * width, width)
        h, c = f"cache_{len(s.outputs)}", f"cache_{len(s.outputs) + 1}"
        y, *following = s.node("LSTM", x, w, r, "", "", h, c, outputs=3, hidden_size=width)
        nodes, s.nodes = s.nodes, []
        for state in following:
            s.state((1, 1, width), lambda _, state=state: ("", state))  # type: ignore[misc]
        s.nodes = [*nodes, *s.nodes]
        x = s.node("Squeeze", y, s.constant([1]))
    return s.model(x, 1, 1, width)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "wavenet_1": lambda: wavenet(1), "wavenet_16": lambda: wavenet(16), "conformer": conformer,
    "lstm": lstm,
}  # fmt: skip


class Onnxruntime:
    """A session in one thread, whose states are handed on."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options)
        given = self.session.get_inputs()[1:]
        self.states = {i.name: np.zeros(i.shape, np.float32) for i in given}

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        y, *following = self.session.run(None, {"x": x, **self.states})
        self.states = dict(zip(self.states, following, strict=True))
        return np.asarray(y)


def measure(name: str, folder: Path, rounds: int, options: dict[str, str]) -> None:
    """Print the times of a network; ends the program where the two differ."""
    model = NETWORKS[name]()
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    done = atc.compile(path, folder / name, state="auto", **options)  # type: ignore[arg-type]
    random, shape = np.random.default_rng(1), [d.dim_value for d in model.graph.input[0].type
                                               .tensor_type.shape.dim]  # fmt: skip
    sides: dict[str, Any] = {"atc": atc.load(done.folder), "onnxruntime": Onnxruntime(path)}
    for _ in range(20):
        x = random.standard_normal(shape).astype(np.float32)
        got, wanted = (side(x) for side in sides.values())
        if not np.allclose(got, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max()):
            sys.exit(f"{name}: the results differ by {np.abs(got - wanted).max():.2g}")
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            count, begin, end = 0, time.thread_time(), time.perf_counter() + TURN
            while time.perf_counter() < end:
                run(x)
                count += 1
            times[side].append((time.thread_time() - begin) / count)
    own, other = (1e6 * median(found) for found in times.values())
    print(f"{name:12}{own:10.1f}{other:16.1f}{other / own:8.2f}", flush=True)


def main() -> None:
    given = parse(__doc__, NETWORKS, 20)
    print(f"{'network':12}{'atc us':>10}{'onnxruntime us':>16}{'ratio':>8}")
    with tempfile.TemporaryDirectory(prefix="atc-streams-") as folder:
        for name in given.names:
            measure(name, Path(folder), given.rounds, given.options)


if __name__ == "__main__":
    main()
