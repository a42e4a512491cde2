"""Kernels of tensors with more than 2^31 elements compile: no index is computed in an int."""

from __future__ import annotations

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
from atc.passes import run_passes
from atc.select.select import Limits, candidates
from atc.templates import verbatim
from support import compile_graph

MANY = 2**31 + 48
SQUARE = (2**16 + 16, 2**16)
LONG = (3, 2**31 + 5)
SHAPES: Mapping[str, tuple[str, Sequence[Sequence[int]], Mapping[str, Any]]] = {
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
    "pool": ("MaxPool", [(1, 16, 2**14, 2**14)], {"kernel_shape": [3, 3]}),
}


def model(
    op: str, shapes: Sequence[Sequence[int]], attributes: Mapping[str, Any]
) -> onnx.ModelProto:
    """Return a model of one node."""
    given = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, s)
             for k, s in enumerate(shapes)]  # fmt: skip
    own, known = dict(attributes), []
    names = [v.name for v in given]
    if axes := own.pop("axes", None):
        known = [numpy_helper.from_array(np.array(axes, np.int64), "axes")]
        names.append("axes")
    node = helper.make_node(op, names, ["y"], **own)
    graph = helper.make_graph([node], "large", given, [onnx.ValueInfoProto(name="y")], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def kernels(name: str, target: Target) -> list[KernelSource]:
    """Return a case's kernels, with the first and the last parameters of each."""
    graph = run_passes(compile_graph(model(*SHAPES[name])), width=target.vector_bytes // 4)
    found = []
    for node in graph.nodes:
        w = workload_of(graph, node, graph.constants)
        able: dict[str, list[Any]] = {}
        for candidate in candidates(w, target, Limits(tier="all")):
            able.setdefault(candidate.kernel.name, []).append(candidate)
        ends = [c for each in able.values() for c in (each[0], each[-1])]
        found += [render_kernel(candidate, w, target) for candidate in ends]
    return found


@pytest.mark.parametrize("target", ["x86-64-avx512-vnni", "c99"])
def test_indices_are_no_ints(target: str, tmp_path: Path) -> None:
    """GCC finds products of constants that an int can't hold."""
    record = get_target(target)
    if record.arch not in ("", get_target("host").arch):
        pytest.skip(f"no compiler for {target}")
    sources = {s.symbol: s for name in SHAPES for s in kernels(name, record)}
    (tmp_path / "kernels").mkdir()
    for source in sources.values():
        (tmp_path / "kernels" / f"{source.symbol}.c").write_text(source.text)
        for header in source.headers:
            (tmp_path / f"simd_{header}.h").write_text(verbatim(f"simd/{header}.h"))
    (tmp_path / "kernel.h").write_text(verbatim("cpu/kernel.h"))
    (tmp_path / "simd.h").write_text(verbatim(f"simd/{record.simd}.h"))
    (tmp_path / "simd_math.h").write_text(verbatim("simd/math.h"))
    (tmp_path / "all.c").write_text(_unit(sources.values()))
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *record.cflags]
    done = subprocess.run([*command, "-I.", "all.c"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
