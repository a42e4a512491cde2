"""Nodes for each CUDA kernel, with what is to compute them."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from joined_sources import joined_text
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.nvcc import find_nvcc, nvcc_flags
from atc.codegen.sources import kernel_tree
from atc.ir.graph import Graph
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.steps import Program, calls
from atc.select.select import Limits, Selection, select
from support import node_model

TARGET = get_target("cuda-emulated")

ORDERS = ("forward", "reverse", "7")
"""Of threads, as ATC_EMULATED_ORDER says them; the last one is drawn."""


@dataclass(frozen=True)
class Case:
    """A node, the kernel that is to compute it, and its inputs' shapes; arrays are constants.

    Sums of `exact` inputs are: these are multiples of 1/64.
    """

    kernel: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()
    outputs: int = 1
    domain: str = ""
    opset: int = 23
    exact: bool = False

    @property
    def inputs(self) -> list[np.ndarray]:
        rng = np.random.default_rng(len(self.op) + sum(map(sum, self.shapes)))
        drawn = [rng.normal(size=s).astype(np.float32) for s in self.shapes]
        drawn = [np.round(a * 64) / 64 for a in drawn] if self.exact else drawn
        return [*drawn, *self.constants]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


RNG = np.random.default_rng(3)


def some(count: int, *shape: int) -> np.ndarray:
    """Return indices below a count, many of them several times."""
    return RNG.integers(0, count, shape)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def packed(bits: int, n: int, blocks: int, block: int) -> np.ndarray:
    """Return weights of few bits in blocks."""
    return RNG.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)


REGIONS = np.array([[0, 0, 5, 6], [1, 2, 7, 7], [3, 1, 4, 6]], np.float32)


CASES = {
    "map": Case("cuda_map", "Mul", ((7, 1, 33), (5, 1))),
    "map of one element": Case("cuda_map", "Tanh", ((),)),
    "map of many": Case("cuda_map_vectors", "Exp", ((3, 1001),)),
    "map of pairs": Case("cuda_map_vectors", "Add", ((5, 400), (5, 400))),
    "map with a number": Case("cuda_map_vectors", "Mul", ((40, 33), (1,))),
    "transpose": Case("cuda_map_transpose", "Transpose", ((3, 40, 5, 37),), {"perm": (3, 0, 2, 1)}),
    "small transpose": Case("cuda_map_transpose", "Transpose", ((9, 70),)),
    "short sums": Case("cuda_reduce", "ReduceSum", ((9, 5, 7),), {"keepdims": 0}, (ints(1),)),
    "long sums": Case("cuda_reduce_rows", "ReduceSum", ((3, 515),), {}, (ints(1),)),
    "largest": Case("cuda_reduce_rows", "ReduceMax", ((4, 9, 129),), {}, (ints(1, 2),)),
    "product": Case("cuda_reduce_rows", "ReduceProd", ((2, 70),), {}, (ints(1),)),
    "mean with an epilogue": Case("cuda_reduce_rows", "ReduceMean", ((2, 3, 100),), {},
                                  (ints(2),)),
    "argmax": Case("cuda_arg_reduce", "ArgMax", ((5, 17, 3),), {"axis": 1}),
    "argmin, last": Case("cuda_arg_reduce", "ArgMin", ((5, 17),),
                         {"axis": 1, "select_last_index": 1}),
    "matmul": Case("cuda_matmul", "MatMul", ((65, 33), (33, 70))),
    "matmul of batches": Case("cuda_matmul", "MatMul", ((2, 1, 9, 20), (3, 20, 8))),
    "matmul of long sums": Case("cuda_matmul", "MatMul", ((20, 400), (400, 70)), exact=True),
    "transposed operands": Case("cuda_matmul", "Gemm", ((33, 66), (70, 33), (70,)),
                                {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    "matrix times vector": Case("cuda_matmul_slim", "MatMul", ((5, 300, 40), (40,))),
    "vector times matrix": Case("cuda_matmul_shared", "MatMul", ((3, 1, 130), (130, 70))),
    "row times columns": Case("cuda_matmul_shared", "Gemm", ((2, 99), (45, 99), (45,)),
                              {"transB": 1}),
    "conv": Case("cuda_conv", "Conv", ((2, 3, 9, 11), (4, 3, 3, 3), (4,)),
                 {"pads": [1, 2, 0, 1], "strides": [2, 1]}),
    "conv of groups": Case("cuda_conv", "Conv", ((1, 6, 12), (4, 3, 3)),
                           {"group": 2, "dilations": [2]}),
    "depthwise conv": Case("cuda_conv", "Conv", ((1, 5, 8, 8), (5, 1, 3, 3)), {"group": 5}),
    "conv of volumes": Case("cuda_conv", "Conv", ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2))),
    "transposed conv": Case("cuda_conv_transpose", "ConvTranspose", ((1, 4, 5, 6), (4, 3, 3, 3)),
                            {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    "transposed conv of groups": Case("cuda_conv_transpose", "ConvTranspose",
                                      ((1, 4, 9), (4, 1, 4)), {"group": 2, "dilations": [2]}),
    "max pool": Case("cuda_pool", "MaxPool", ((1, 3, 9, 10),),
                     {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "average pool": Case("cuda_pool", "AveragePool", ((2, 3, 7, 9),),
                         {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    "softmax": Case("cuda_softmax", "Softmax", ((3, 301),)),
    "softmax of columns": Case("cuda_softmax", "Softmax", ((2, 5, 9),), {"axis": 1}),
    "logsoftmax": Case("cuda_softmax", "LogSoftmax", ((4, 33),)),
    "layer normalization": Case("cuda_normalize", "LayerNormalization", ((3, 200), (200,), (200,))),
    "norms of columns": Case("cuda_normalize", "LpNormalization", ((5, 17, 3),), {"axis": 1}),
    "concat": Case("cuda_concat", "Concat", ((3, 4, 5), (3, 1, 5), (3, 2, 5)), {"axis": 1}),
    "pad": Case("cuda_pad", "Pad", ((4, 5),), {}, (ints(1, 0, 2, 3),)),
    "reflected pad": Case("cuda_pad", "Pad", ((4, 5),), {"mode": "reflect"}, (ints(1, 2, 3, 0),)),
    "gather": Case("cuda_gather", "Gather", ((6, 7),), {"axis": 1}, (ints(0, -1, 3),)),
    "resized": Case("cuda_resample", "Resize", ((1, 2, 5, 6),), {"mode": "linear"},
                    (np.array([], np.float32), np.array([1, 1, 2, 1.5], np.float32))),
    "scatter": Case("cuda_scatter", "ScatterElements", ((70, 30),), {"axis": 0, "reduction": "add"},
                    (some(70, 90, 30), floats(90, 30))),
    "scatter that replaces": Case("cuda_scatter", "ScatterElements", ((5, 400),), {"axis": 1},
                                  (some(400, 3, 300), floats(3, 300))),
    "scatter of runs": Case("cuda_scatter", "ScatterND", ((9, 6, 50),), {"reduction": "max"},
                            (some(6, 40, 2), floats(40, 50))),
    "running sum": Case("cuda_cumulate", "CumSum", ((4, 9, 5),), {"reverse": 1}, (np.array(1),)),
    "running sum of rows": Case("cuda_cumulate_rows", "CumSum", ((3, 301, 2),), {"exclusive": 1},
                                (np.array(1),), exact=True),
    "running sum from the end": Case("cuda_cumulate_rows", "CumSum", ((130,),), {"reverse": 1},
                                     (np.array(0),), exact=True),
    "top 3": Case("cuda_top_k", "TopK", ((5, 300, 2),), {"axis": 1}, (ints(3),), 2),
    "top 40": Case("cuda_top_k_sort", "TopK", ((3, 301),), {"largest": 0}, (ints(40),), 2),
    "grid sample": Case("cuda_grid_sample", "GridSample", ((2, 3, 5, 6), (2, 4, 7, 2)),
                        {"mode": "cubic", "padding_mode": "border"}),
    "nearest of a grid": Case("cuda_grid_sample", "GridSample", ((1, 3, 5, 6), (1, 4, 50, 2)),
                              {"mode": "nearest"}),
    "regions": Case("cuda_roi_align", "RoiAlign", ((2, 3, 8, 9),),
                    {"output_height": 3, "output_width": 2}, (REGIONS, ints(0, 1, 1))),
    "maxima of regions": Case("cuda_roi_pool", "MaxRoiPool", ((1, 3, 8, 9),),
                              {"pooled_shape": (2, 3)},
                              (np.concatenate([np.zeros((3, 1), np.float32), REGIONS], 1),),
                              opset=21),
    "spectrum": Case("cuda_dft", "DFT", ((3, 60, 2),)),
    "determinant": Case("cuda_determinant", "Det", ((40, 4, 4),)),
    "lstm": Case("cuda_recurrent", "LSTM", ((5, 3, 4), (2, 24, 4), (2, 24, 6), (2, 48)),
                 {"hidden_size": 6, "direction": "bidirectional"}, (), 3),
    "gru of lengths": Case("cuda_recurrent", "GRU", ((5, 3, 4), (1, 18, 4), (1, 18, 6), (1, 36)),
                           {"hidden_size": 6}, (np.array([5, 1, 3], np.int32),), 2),
    "lstm in bytes": Case(
        "cuda_recurrent", "DynamicQuantizeLSTM", ((4, 2, 8),), {"hidden_size": 8},
        (RNG.integers(-63, 64, (1, 8, 32), np.int8), RNG.integers(-63, 64, (1, 8, 32), np.int8),
         None, None, None, None, None, np.full(1, 0.01, np.float32), np.zeros(1, np.int8),
         np.full(1, 0.02, np.float32), np.zeros(1, np.int8)), 3, "com.microsoft"),
    "packed weights": Case(
        "cuda_matmul_packed_tiles", "MatMulNBits", ((20, 70),),
        {"K": 70, "N": 24, "bits": 4, "block_size": 32}, (packed(4, 24, 3, 32), floats(24, 3)), 1,
        "com.microsoft"),
    "a row of packed weights": Case(
        "cuda_matmul_packed", "MatMulNBits", ((3, 70),),
        {"K": 70, "N": 24, "bits": 4, "block_size": 32}, (packed(4, 24, 3, 32), floats(24, 3)), 1,
        "com.microsoft"),
    "attention": Case("cuda_attention", "Attention", ((1, 2, 33, 8), (1, 2, 70, 8), (1, 2, 70, 4))),
    "attention of a word": Case("cuda_attention_parts", "Attention",
                                ((1, 4, 1, 16), (1, 2, 700, 16), (1, 2, 700, 24))),
    "causal attention of words": Case("cuda_attention_parts", "Attention",
                                      ((1, 1, 3, 20), (1, 1, 900, 20), (1, 1, 900, 130)),
                                      {"is_causal": 1}),
}  # fmt: skip


QUICK = (
    "vector times matrix",
    "map", "map of many", "transpose", "long sums", "argmax", "matmul", "matrix times vector",
    "conv", "transposed conv", "max pool", "softmax", "layer normalization", "concat", "resized",
    "attention", "scatter", "running sum of rows", "top 3", "top 40", "grid sample", "lstm",
    "packed weights", "a row of packed weights",
)  # fmt: skip
"""Cases of most kernels, one of each."""

DEFAULT = (
    "map", "long sums", "matmul", "conv", "max pool", "softmax", "attention", "scatter", "lstm",
)  # fmt: skip
"""Those of them that are compiled by default."""


@dataclass(frozen=True)
class Lowered:
    """A case as the reference and the compiler take it."""

    case: Case
    model: onnx.ModelProto
    feeds: dict[str, Any]
    graph: Graph


UNKNOWN = (
    "transposed conv of groups", "maxima of regions", "scatter of runs", "gru of lengths",
    "grid sample",
)  # fmt: skip
"""What the standard's reference can't compute: onnxruntime does, as it does others' nodes."""


def expected(name: str, model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """Return what a case's model gives."""
    if not CASES[name].domain and name not in UNKNOWN:
        return ReferenceEvaluator(model).run(None, feeds)
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = 10  # that onnxruntime knows
    session = InferenceSession(older.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def rounding(right: Any) -> dict[str, float]:
    """Return how far results may be off: those that cancel out by what the largest round."""
    largest = float(np.abs(np.asarray(right, np.float64)).max(initial=0, where=np.isfinite(right)))
    return {"rtol": 2e-5, "atol": 2e-6 + 2e-7 * largest}


def lowered(case: Case) -> Lowered:
    names = {k: f"x{k}" for k, a in enumerate(case.inputs) if a is not None}
    given = [k for k in names if k < len(case.shapes)]
    fixed = [k for k in names if k not in given]
    model = node_model(
        case.op, case.inputs, case.outputs, constant=fixed, opset=case.opset, domain=case.domain,
        **case.attributes,
    )  # fmt: skip
    feeds = {names[k]: case.inputs[k] for k in given}
    return Lowered(case, model, feeds, AtcBackendRep(model, TARGET.name).lower(feeds))


def program_of(graph: Graph) -> Program:
    """Return the calls that compute a graph."""
    graph = run_passes(graph, width=1, device=True)
    return build_program(graph, choose_exact(graph, TARGET), TARGET)


def choose_exact(graph: Graph, target: Target) -> Selection:
    """Return the kernels that round nothing but results: the portable tier."""
    return select(graph, target, limits=Limits(exact=True))


def kernels_of(*names: str) -> list[KernelSource]:
    """Return the CUDA kernels of cases that any GPU runs."""
    found: dict[str, KernelSource] = {}
    for name in names:
        program = program_of(lowered(CASES[name]).graph)
        found |= {
            c.source.symbol: c.source
            for c in calls(program.steps)
            if c.source.launch and not c.choice.candidate.kernel.tensor_cores
        }
    return [*found.values()]


def write_kernels(sources: Sequence[KernelSource], folder: Path) -> None:
    """Write the sources of kernels, with the headers that they include."""
    for path, text in kernel_tree(sources, TARGET).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def cubin_of(
    sources: Sequence[KernelSource], device: str, folder: Path, *flags: str
) -> tuple[bytes, str]:
    """Return the cubin that nvcc makes of kernels for a device, and what it says.

    They are one file: reading the headers takes longer than most kernels.
    """
    nvcc = find_nvcc(device, os.environ)
    write_kernels(sources, folder)
    source = folder / "src/kernels/joined.cu"
    source.write_text(joined_text({k.path: k.text for k in sources}))
    done = subprocess.run(
        [*nvcc.argv, *nvcc_flags(device), *flags, source.name, "-o", "joined.cubin"],
        cwd=source.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return source.with_suffix(".cubin").read_bytes(), done.stdout + done.stderr


def texts_of(cubin: bytes) -> dict[str, bytes]:
    """Return the machine code of each kernel in a cubin, a 64-bit ELF file."""
    offset, = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + k * size) for k in range(count)]
    found = {}
    for name, _, _, _, begin, length in headers:
        at = headers[names][4] + name
        label = cubin[at : cubin.index(b"\0", at)].decode()
        if label.startswith(".text."):
            found[label.removeprefix(".text.")] = cubin[begin : begin + length]
    return found


def check_cases(names: Sequence[str], target: str) -> None:
    """Compare kernels by a target's code with the reference; fails with all that differ."""
    networks = compile_networks([lowered(CASES[n]).graph for n in names], get_target(target))
    wrong = []
    for name, network in zip(names, networks, strict=True):
        own = lowered(CASES[name])
        right_ones = expected(name, own.model, own.feeds)
        try:
            for found, right in zip(network.run(own.feeds).values(), right_ones, strict=True):
                scale = max(float(np.abs(right).max()), 1e-6)
                np.testing.assert_allclose(found, right, atol=1e-4 * scale, rtol=1e-4)
        except (AssertionError, RuntimeError) as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
