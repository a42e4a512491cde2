"""Kernels of tensors with more than 2^31 elements compile: no index is computed in an int."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_program import _unit
from onnx import TensorProto, helper, numpy_helper

from atc.backends.kernel import workload_of
from atc.backends.kernel_source import KernelSource, render_kernel
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import Graph
from atc.passes import run_passes
from atc.passes.layout import AUTO, Layouts, layout_names
from atc.select.select import Limits, candidates
from atc.templates import verbatim
from support import compile_graph

MANY = 2**31 + 48
SQUARE = (2**16 + 16, 2**16)
HALVES = (2**15 + 16, 2**16)
LONG = (3, 2**31 + 5)
IMAGE = (1, 16, 2**14, 2**13 + 8)
DEEP = (1, 64, 2**12, 2**13 + 8)
BYTES, HALF, ZERO = TensorProto.UINT8, np.float32(0.5), np.uint8(3)


def weights(*shape: int, kind: Any = np.float32) -> np.ndarray[Any, Any]:
    """Return random constants."""
    return np.random.default_rng(0).integers(-9, 9, shape).astype(kind)


SHAPES: Mapping[str, tuple[str, Sequence[Any], Mapping[str, Any]]] = {
    "map": ("Relu", [(MANY,)], {}),
    "map of rows": ("Exp", [LONG], {}),
    "broadcast": ("Add", [SQUARE, SQUARE[1:]], {}),
    "transpose": ("Transpose", [SQUARE], {}),
    "softmax": ("Softmax", [LONG], {}),
    "softmax of columns": ("Softmax", [SQUARE], {"axis": 0}),
    "normalization": ("LayerNormalization", [LONG, LONG[1:], LONG[1:]], {}),
    "largest": ("ArgMax", [LONG], {"axis": 1}),
    "mean": ("ReduceMean", [LONG], {"axes": [1]}),
    "mean of columns": ("ReduceMean", [SQUARE], {"axes": [0]}),
    "dot": ("MatMul", [(1, MANY), (MANY, 1)], {}),
    "deep product": ("MatMul", [(4, 2**30), (2**30, 4)], {}),
    "high product": ("MatMul", [(2**28 + 1, 16), (16, 16)], {}),
    "pool": ("MaxPool", [IMAGE], {"kernel_shape": [3, 3]}),
    "average pool": ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "mean of planes": ("GlobalAveragePool", [IMAGE], {}),
    "convolution": ("Conv", [IMAGE, weights(16, 16, 3, 3)], {"pads": [1] * 4}),
    "deep convolution": ("Conv", [DEEP, weights(64, 64, 3, 3)], {"pads": [1] * 4}),
    "deep depthwise": ("Conv", [DEEP, weights(64, 1, 3, 3)], {"group": 64}),
    "pointwise": ("Conv", [DEEP, weights(64, 64, 1, 1)], {}),
    "depthwise": ("Conv", [IMAGE, weights(16, 1, 3, 3)], {"group": 16, "pads": [1] * 4}),
    "first layer": ("Conv", [(1, 3, 2**15, 2**15), weights(16, 3, 3, 3)], {"strides": [2, 2]}),
    "transposed": ("ConvTranspose", [IMAGE, weights(16, 8, 2, 2)], {"strides": [2, 2]}),
    "quantized convolution": (
        "QLinearConv", [(BYTES, IMAGE), HALF, ZERO, weights(16, 16, 3, 3, kind=np.int8), HALF,
                        np.int8(0), HALF, ZERO], {},
    ),
    "quantized product": (
        "MatMulInteger", [(BYTES, (2**27 + 1, 16)), weights(16, 16, kind=np.int8)], {},
    ),
    "quantized product, scaled": (
        "QLinearMatMul", [(BYTES, (2**27 + 1, 16)), HALF, ZERO, weights(16, 16, kind=np.int8),
                          HALF, np.int8(0), HALF, ZERO], {},
    ),
    "recurrent": (
        "LSTM", [(2**20 + 1, 2, 2**10), weights(1, 32, 2**10), weights(1, 32, 8)],
        {"hidden_size": 8},
    ),
    "resize": ("Resize", [(1, 4, 2**14, 2**14), None, np.array([1, 1, 2, 2], np.float32)], {}),
    "linear resize": (
        "Resize", [(1, 4, 2**14, 2**14), None, np.array([1, 1, 2, 2], np.float32)],
        {"mode": "linear"},
    ),
    "concat": ("Concat", [HALVES, HALVES], {"axis": 0}),
    "concat of columns": ("Concat", [HALVES, HALVES], {"axis": 1}),
    "pad": ("Pad", [SQUARE, np.array([0, 1, 0, 1])], {}),
    "gather": ("Gather", [SQUARE, np.array([5, 3])], {"axis": 1}),
}  # fmt: skip
"""By their names: the operator, its inputs (shapes of floats, types with shapes, constants), its
attributes."""


def model(op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a model of one node."""
    own, known, given, names = dict(attributes), [], [], []
    if axes := own.pop("axes", None):
        inputs = [*inputs, np.array(axes, np.int64)]
    for k, each in enumerate(inputs):
        names.append("" if each is None else f"x{k}")
        if isinstance(each, np.ndarray | np.generic):
            known.append(numpy_helper.from_array(np.asarray(each), names[-1]))
        elif each is not None:
            kind, shape = each if isinstance(each[-1], tuple) else (TensorProto.FLOAT, each)
            given.append(helper.make_tensor_value_info(names[-1], kind, shape))
    node = helper.make_node(op, names, ["y"], **own)
    graph = helper.make_graph([node], "large", given, [onnx.ValueInfoProto(name="y")], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def kernels(name: str, target: Target) -> list[KernelSource]:
    """Return a case's kernels in every layout, with the first and the last parameters of each."""
    lowered, width = compile_graph(model(*SHAPES[name])), target.vector_bytes // 4
    graphs = [run_passes(lowered, width=width, layouts=Layouts(n)) for n in layouts(name, width)]
    return [source for graph in graphs for source in sources_of(graph, target)]


def layouts(name: str, width: int) -> Sequence[str]:
    """Return the names of the layouts that a case may have."""
    return (*layout_names(width).values(), AUTO) if "Conv" in SHAPES[name][0] else (AUTO,)


def sources_of(graph: Graph, target: Target) -> list[KernelSource]:
    """Return the kernels that may compute a graph's nodes."""
    found = []
    for node in graph.nodes:
        w = workload_of(graph, node, graph.constants)
        able: dict[str, list[Any]] = {}
        for candidate in candidates(w, target, Limits(tier="all")):
            able.setdefault(candidate.kernel.name, []).append(candidate)
        ends = [c for each in able.values() for c in (each[0], each[-1])]
        found += [render_kernel(candidate, w, target) for candidate in ends]
    return found


COMPILERS = {"x86_64": "cc", "aarch64": "aarch64-linux-gnu-gcc"}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-avx512-vnni", "x86-64-avx2", "aarch64-neon", "c99"])
@pytest.mark.parametrize("layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_indices_are_no_ints(layers: bool, target: str, tmp_path: Path) -> None:
    """GCC finds products of constants that an int can't hold."""
    record = get_target(target)
    own = record.arch in ("", get_target("host").arch)
    compiler = "cc" if own else COMPILERS.get(record.arch, "")
    if shutil.which(compiler) is None:
        pytest.skip(f"no compiler for {target}")
    names = [name for name, (op, *_) in SHAPES.items() if ("Conv" in op) == layers]
    sources = {s.symbol: s for name in names for s in kernels(name, record)}
    (tmp_path / "kernels").mkdir()
    for source in sources.values():
        (tmp_path / "kernels" / f"{source.symbol}.c").write_text(source.text)
        for header in source.headers:
            (tmp_path / f"simd_{header}.h").write_text(verbatim(f"simd/{header}.h"))
    (tmp_path / "kernel.h").write_text(verbatim("cpu/kernel.h"))
    (tmp_path / "simd.h").write_text(verbatim(f"simd/{record.simd}.h"))
    (tmp_path / "simd_math.h").write_text(verbatim("simd/math.h"))
    (tmp_path / "all.c").write_text(_unit(sources.values()))
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *record.cflags]
    done = subprocess.run([*command, "-I.", "all.c"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
