"""Small models for tests of the command line and `atc.compile`, and a compiler that counts."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from waiting import happens

import atc
from atc.backends.targets import host_target
from atc.backends.toolchain.find_compiler import find_compiler


def conv_net(path: Path, seed: int = 0, batch: int | str = 1) -> Path:
    """Write a model with two convolutions: x [batch,3,8,8] -> y [batch,4], all nodes named."""
    random = np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2"),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Softmax", ["f"], ["y"], "softmax"),
    ]
    constants = [weights("w1", 4, 3, 3, 3), weights("b1", 4), weights("w2", 4, 4, 3, 3)]
    return save(nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 4]}, path, constants)


def pooled_net(path: Path, seed: int = 0) -> Path:
    """Write a model of two kernels: a convolution with Relu, and the mean of its channels."""
    weights = np.random.default_rng(seed).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu1"),
        helper.make_node("GlobalAveragePool", ["r"], ["y"], "pool"),
    ]
    constants = [numpy_helper.from_array(weights, "w")]
    return save(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 1, 1]}, path, constants)


def training_net(
    path: Path, widths: Sequence[int] = (16, 16, 16, 16), batch: int = 64
) -> Path:
    """Write a model of a training step: the gradients of the weights of three layers, or more."""
    nodes, value = [helper.make_node("Sin", ["x"], ["s"], "sine")], "s"
    layers = range(len(widths) - 1)
    for k in layers:
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], [f"m{k}"], f"product{k}"))
        nodes.append(helper.make_node("Tanh", [f"m{k}"], [f"h{k}"], f"tanh{k}"))
        value = f"h{k}"
    nodes.append(helper.make_node("ReduceSumSquare", [value], ["loss"], "loss", keepdims=0))
    weights: dict[str, list[int | str]] = {f"w{k}": [widths[k], widths[k + 1]] for k in layers}
    nodes.append(
        helper.make_node(
            "Gradient", [*weights, "x"], [f"d{w}" for w in weights], "gradient",
            domain="ai.onnx.preview.training", xs=[*weights], zs=["x"], y="loss",
        )
    )  # fmt: skip
    shapes: dict[str, list[int | str]] = {"x": [batch, widths[0]], **weights}
    results: dict[str, list[int | str]] = {f"d{w}": shape for w, shape in weights.items()}
    return save(nodes, shapes, results, path, domains=("ai.onnx.preview.training",))


def save(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    path: Path,
    constants: list[onnx.TensorProto] | None = None,
    domains: tuple[str, ...] = (),
) -> Path:
    """Write a model of float tensors."""

    def info(shapes: dict[str, list[int | str]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(nodes, "test", info(inputs), info(outputs), constants or [])
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@dataclass(frozen=True)
class CountingCompiler:
    """A `$CC` that writes down every source it is asked to compile."""

    command: str
    log: Path

    def compiled(self) -> list[str]:
        """Return the sources compiled since the last call."""
        sources = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return sorted(sources)


def counting_compiler(folder: Path) -> CountingCompiler:
    """Put a counting wrapper around the machine's compiler into `folder`."""
    real = shlex.join(find_compiler(host_target(), os.environ).argv)
    script, log = folder / "counting-cc", folder / "compiled"
    script.write_text(
        f"""#!/bin/sh
previous=
for word in "$@"; do
  case "$previous $word" in "-c "*.c) echo "$word" >> {shlex.quote(str(log))};; esac
  previous=$word
done
exec {real} "$@"
"""
    )
    script.chmod(0o755)
    return CountingCompiler(str(script), log)


def content(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _settles(count: Callable[[], int], at: int) -> bool:
    """Return whether a count gets to `at`: joined threads are listed for a moment."""
    return happens(lambda: count() == at)


def check_forks_with_threads(path: Path, threads: int) -> None:
    """Check that a fork of a process whose context has threads may run, stop and start its own."""
    program = """
import ctypes, os, signal, sys, time
library = ctypes.CDLL(sys.argv[1])
library.net_arena_size.restype = library.net_context_size.restype = ctypes.c_size_t
size = library.net_arena_size()
memory = (ctypes.c_char * (size + 64))()
arena = ctypes.c_void_p(ctypes.addressof(memory) + -ctypes.addressof(memory) % 64)
context = (ctypes.c_uint64 * (library.net_context_size() // 8 + 1))()
assert library.net_init(context, arena, ctypes.c_size_t(size)) == 0
assert library.net_start_threads(context) == 0
time.sleep(0.2)  # until they sleep
child = os.fork()
if child:
    ended = os.waitpid(child, 0)[1]
    library.net_stop_threads(context)
    sys.exit(ended != 0)
signal.alarm(120)
if len(sys.argv) > 3:
    library.net_stop_threads(context)
assert library.net_start_threads(context) == 0
assert len(os.listdir("/proc/self/task")) == int(sys.argv[2])
library.net_stop_threads(context)
library.net_stop_threads(context)
os._exit(0)
"""
    for stopped in ([], ["stopped before"]):
        command = [sys.executable, "-c", program, str(path), str(threads), *stopped]
        assert subprocess.run(command, timeout=300, check=False).returncode == 0


def check_contexts_with_threads(path: Path, threads: int) -> None:
    """Check that a library called net refuses to prepare a context again while its threads run.

    Its memory may hold anything before; a copy has no threads; the context stays as it was.
    """
    library = ctypes.CDLL(str(path))
    library.net_status_string.restype = ctypes.c_char_p
    library.net_context_size.restype = library.net_arena_size.restype = ctypes.c_size_t
    words = library.net_context_size() // 8 + 1
    arena = np.zeros(library.net_arena_size() + 64, np.uint8)
    place = ctypes.c_void_p(arena.ctypes.data + -arena.ctypes.data % 64)
    with atc.load(path) as net:
        rng = np.random.default_rng(2)
        given = [rng.standard_normal(t.shape).astype(t.dtype) for t in net.inputs]
        outputs = [np.zeros(t.shape, t.dtype) for t in net.outputs]
    pointers = [(ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in (given, outputs)]

    def prepare(context: Any) -> int:
        return int(library.net_init(context, place, ctypes.c_size_t(arena.size - 64)))

    def run(context: Any) -> list[bytes]:
        assert library.net_run_tensors(context, *pointers) == 0
        return [y.tobytes() for y in outputs]

    def running() -> int:
        return len(os.listdir("/proc/self/task"))

    garbage = np.random.default_rng(3).integers(0, 2**64, words, np.uint64)
    for start in (0 * garbage, garbage, garbage | np.uint64(1), ~(0 * garbage)):
        context = (ctypes.c_uint64 * words)(*start.tolist())
        assert prepare(context) == prepare(context) == 0
        alone, before = run(context), running()
        assert library.net_start_threads(context) == library.net_start_threads(context) == 0
        assert running() == before + threads - 1
        assert prepare(context) == prepare(context) == -9
        assert library.net_status_string(-9).endswith(b"the context's threads run")
        assert run(context) == alone
        assert prepare((ctypes.c_uint64 * words)(*context)) == 0
        library.net_stop_threads(context)
        assert _settles(running, before)
        assert prepare(context) == library.net_start_threads(context) == 0
        library.net_stop_threads(context)
