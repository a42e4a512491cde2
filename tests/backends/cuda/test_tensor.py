"""Products on tensor cores: imitated, all tiles of all forms; compiled, what is in the code."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.reference
import pytest
from cuda_cases import TARGET
from joined_sources import compile_joined

from atc.backends.cuda.boxes import ATOM
from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.targets import ARCHITECTURES
from atc.backends.cuda.warpgroup import SHARES, WarpgroupProduct
from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.kernel_source import KernelSource, render_kernel
from atc.backends.nvcc import find_nvcc, nvcc_flags
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import Graph
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.select import Limits, Measurement, consider, select
from atc.templates import render, verbatim
from support import node_model

LIMITS = Limits(precisions=frozenset({"float32", "bf16x3", "tf32", "bf16", "int8"}))
RNG = np.random.default_rng(7)


def numbers(dtype: Any, *shape: int) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return RNG.integers(low, high, shape, dtype, endpoint=True)
    return RNG.normal(size=shape).astype(dtype)


@dataclass(frozen=True)
class Case:
    """A node whose product tensor cores may compute, and by which kernel; shapes are odd ones."""

    kernel: str
    op: str
    dtypes: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    constant: tuple[int, ...] = ()


F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
CONV = (("pads", [1, 2, 0, 1]), ("strides", [2, 1]))
CASES = {
    "float16": Case("cuda_matmul_tensor", "MatMul", (F16, F16), ((70, 104), (104, 40))),
    "float16, odd": Case("cuda_matmul_tensor", "MatMul", (F16, F16), ((2, 33, 41), (41, 40))),
    "float16, transposed": Case("cuda_matmul_tensor", "Gemm", (F16, F16, F16),
                                ((24, 72), (40, 24), (40,)), (("transA", 1), ("transB", 1))),
    "bfloat16": Case("cuda_matmul_tensor", "MatMul", (BF16, BF16), ((70, 104), (104, 40))),
    "int8": Case("cuda_matmul_tensor", "MatMulInteger", (np.int8, np.int8), ((70, 144), (144, 40))),
    "uint8 and int8": Case("cuda_matmul_tensor", "MatMulInteger", (np.uint8, np.int8),
                           ((33, 50), (50, 24))),
    "halves": Case("cuda_matmul_bf16x3", "MatMul", (F32, F32), ((70, 100), (100, 40))),
    "halves of batches": Case("cuda_matmul_bf16x3", "MatMul", (F32, F32),
                              ((2, 33, 40), (2, 40, 24))),
    "halves, transposed": Case("cuda_matmul_bf16x3", "Gemm", (F32, F32, F32),
                               ((33, 66), (70, 33), (70,)), (("transA", 1), ("transB", 1))),
    "rounded": Case("cuda_matmul_bf16", "MatMul", (F32, F32), ((70, 100), (100, 40))),
    "short": Case("cuda_matmul_tf32", "MatMul", (F32, F32), ((70, 100), (100, 40))),
    "short, transposed": Case("cuda_matmul_tf32", "Gemm", (F32, F32, F32),
                              ((33, 66), (70, 33), (70,)), (("transA", 1), ("transB", 1))),
    "conv, short": Case("cuda_conv_tf32", "Conv", (F32, F32), ((1, 8, 6, 7), (16, 8, 3, 3))),
    "conv": Case("cuda_conv_bf16x3", "Conv", (F32, F32, F32), ((2, 3, 9, 11), (12, 3, 3, 3), (12,)),
                 CONV),
    "conv of groups": Case("cuda_conv_bf16x3", "Conv", (F32, F32), ((1, 16, 12), (16, 8, 3)),
                           (("group", 2), ("dilations", [2]))),
    "conv, rounded": Case("cuda_conv_bf16", "Conv", (F32, F32), ((1, 8, 6, 7), (16, 8, 1, 1))),
    "conv of float16": Case("cuda_conv_tensor", "Conv", (F16, F16), ((1, 8, 9, 9), (16, 8, 3, 3)),
                            (("pads", [1, 1, 1, 1]),)),
    "attention": Case("cuda_attention_bf16x3", "Attention", (F32, F32, F32),
                      ((1, 2, 70, 40), (1, 2, 75, 40), (1, 2, 75, 24))),
    "attention of groups": Case("cuda_attention_bf16x3", "Attention", (F32, F32, F32),
                                ((2, 4, 33, 64), (2, 2, 40, 64), (2, 2, 40, 64))),
    "attention with a bias": Case("cuda_attention_bf16x3", "Attention", (F32, F32, F32, F32),
                                  ((1, 2, 9, 16), (1, 2, 50, 16), (1, 2, 50, 8), (9, 50)),
                                  (("softcap", 3.0),)),
    "attention, rounded": Case("cuda_attention_bf16", "Attention", (F32, F32, F32),
                               ((1, 1, 65, 100), (1, 1, 40, 100), (1, 1, 40, 128))),
    "causal attention": Case("cuda_attention_bf16x3", "Attention", (F32, F32, F32),
                             ((1, 2, 150, 32), (1, 2, 170, 32), (1, 2, 170, 32)),
                             (("is_causal", 1),)),
    "halves of long sums": Case("cuda_matmul_bf16x3", "Gemm", (F32, F32, F32),
                                ((600, 40), (72, 600), (72,)), (("transA", 1), ("transB", 1))),
    "bytes of long sums": Case("cuda_matmul_tensor", "MatMulInteger", (np.uint8, np.int8),
                               ((40, 1700), (1700, 72))),
    "conv in floats": Case("cuda_conv_tiles", "Conv", (F32, F32, F32),
                           ((2, 3, 9, 11), (12, 3, 3, 3), (12,)), CONV),
}  # fmt: skip
CASES |= {
    "wgmma of float16": Case("cuda_matmul_wgmma", "MatMul", (F16, F16), ((70, 104), (104, 40))),
    "wgmma of bfloat16, batches": Case("cuda_matmul_wgmma", "MatMul", (BF16, BF16),
                                       ((2, 3, 34, 40), (3, 40, 72))),
    "wgmma of float16, transposed": Case("cuda_matmul_wgmma", "Gemm", (F16, F16, F16),
                                         ((72, 200), (136, 72), (136,)),
                                         (("transA", 1), ("transB", 1))),
    "wgmma of packed float16": Case("cuda_matmul_wgmma", "MatMul", (F16, F16),
                                    ((3, 65, 72), (3, 72, 67)), constant=(1,)),
    "wgmma of bytes": Case("cuda_matmul_wgmma", "MatMulInteger", (np.uint8, np.int8),
                           ((70, 144), (144, 67)), constant=(1,)),
    "wgmma of halves": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                            ((70, 100), (100, 67)), constant=(1,)),
    "wgmma of halves, batches": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                                     ((2, 33, 40), (2, 40, 24)), constant=(1,)),
    "wgmma of rounded": Case("cuda_matmul_wgmma_bf16", "Gemm", (F32, F32, F32),
                             ((70, 100), (67, 100), (67,)), (("transB", 1),), constant=(1, 2)),
    "wgmma of short": Case("cuda_matmul_wgmma_tf32", "MatMul", (F32, F32), ((70, 100), (100, 67)),
                           constant=(1,)),
    "wgmma of single pixels": Case("cuda_conv_wgmma", "Conv", (F16, F16, F16),
                                   ((2, 72, 8, 9), (67, 72, 1, 1), (67,))),
    "wgmma of pixels in halves": Case("cuda_conv_wgmma_bf16x3", "Conv", (F32, F32, F32),
                                      ((2, 40, 10, 10), (67, 40, 1, 1), (67,)), constant=(1, 2)),
    "wgmma of rounded pixels": Case("cuda_conv_wgmma_bf16", "Conv", (F32, F32),
                                    ((1, 70, 36), (24, 70, 1)), constant=(1,)),
    "wgmma of halves, transposed": Case("cuda_matmul_wgmma_bf16x3", "Gemm", (F32, F32, F32),
                                        ((33, 68), (70, 33), (70,)),
                                        (("transA", 1), ("transB", 1)), constant=(1,)),
    "wgmma of long sums": Case("cuda_matmul_wgmma", "MatMul", (F16, F16),
                               ((70, 328), (328, 72))),
}  # fmt: skip
QUICK = (
    "float16", "uint8 and int8", "halves", "conv", "conv in floats", "attention", "short",
    "wgmma of float16", "wgmma of halves",
)  # fmt: skip


@dataclass(frozen=True)
class Lowered:
    arrays: list[Any]
    feeds: dict[str, Any]
    graph: Graph
    workload: Workload

    def candidates(self, kernel: str, target: Target = TARGET) -> list[Candidate]:
        found = consider(self.workload, target, LIMITS).found
        return [c for c in found if c.kernel.name == kernel]


@cache
def lowered(name: str) -> Lowered:
    return lowered_case(CASES[name])


def lowered_case(case: Case) -> Lowered:
    arrays = [numbers(d, *s) for d, s in zip(case.dtypes, case.shapes, strict=True)]
    model = node_model(
        case.op, arrays, opset=23, constant=case.constant, **dict(case.attributes)
    )
    feeds = {f"x{k}": a for k, a in enumerate(arrays) if k not in case.constant}
    graph = AtcBackendRep(model, TARGET.name).lower(feeds)
    done = run_passes(graph, width=1, device=True)
    (node,) = (n for n in done.nodes if n.op.kind in ("MatMul", "Conv", "Attention"))
    return Lowered(arrays, feeds, graph, workload_of(done, node, done.constants))


def expected(name: str) -> Any:
    """Return the result in double, or in integers."""
    case, given = CASES[name], lowered(name).arrays
    wide = [a.astype(np.int64 if a.dtype.kind in "iu" else np.float64) for a in given]
    if case.op in ("Conv", "Attention"):
        narrow = [a.astype(F32) for a in given]
        single = node_model(case.op, narrow, opset=23, **dict(case.attributes))
        feeds = {f"x{k}": a.astype(F32) for k, a in enumerate(given)}
        return onnx.reference.ReferenceEvaluator(single).run(None, feeds)[0]
    if case.op == "Gemm":
        turned = dict(case.attributes)
        a, b = (wide[k].T if turned.get(f"trans{'AB'[k]}") else wide[k] for k in range(2))
        return a @ b + sum(wide[2:])
    return wide[0] @ wide[1]


@cache
def compiled(quick: bool) -> dict[tuple[str, str], Network]:
    """Return networks in which a candidate was chosen, all in one library."""
    names = [n for n in CASES if (n in QUICK) == quick]
    chosen = [(n, c) for n in names for c in lowered(n).candidates(CASES[n].kernel)]
    chosen = [pair for k, pair in enumerate(chosen) if not quick or pair[0] not in
              [n for n, _ in chosen[:k]]]  # fmt: skip
    graphs = [lowered(n).graph for n, _ in chosen]
    asked = iter(chosen)

    def choose(graph: Graph, target: Target) -> Any:
        name, own = next(asked)
        workload = lowered(name).workload
        times = (
            Measurement(c.label, 1.0 if c == own else 1e9)
            for c in consider(workload, target, LIMITS).found
        )
        found = select(graph, target, {workload: tuple(times)}, limits=LIMITS)
        assert own.label in {c.candidate.label for c in found.values()}
        return found

    networks = compile_networks(graphs, TARGET, "O0", choose=choose, compile_all=compile_joined)
    return {(n, c.label): w for (n, c), w in zip(chosen, networks, strict=True)}


ROUNDING = {"float32": 3e-6, "bf16x3": 3e-5, "tf32": 1e-3, "bf16": 1e-2}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_every_tile_gives_the_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, tried = expected(name), 0
    for (own, label), network in compiled(name in QUICK).items():
        if own != name:
            continue
        results = []
        for order in ("forward", "reverse"):
            monkeypatch.setenv("ATC_EMULATED_ORDER", order)
            results.append(next(iter(network.run(lowered(name).feeds).values())))
        np.testing.assert_array_equal(*results, err_msg=label)
        tried += 1
        if results[0].dtype.kind in "iu":
            np.testing.assert_array_equal(results[0], right, err_msg=label)
            continue
        precision = lowered(name).candidates(CASES[name].kernel)[0].kernel.precision
        stored = 2 ** -8 if results[0].dtype.itemsize == 2 else 0
        error = np.abs(results[0].astype(np.float64) - right).max() / np.abs(right).max()
        assert error <= ROUNDING[precision] + stored, label
        # What tensor cores round shows: it isn't computed in floats elsewhere.
        assert precision == "float32" or error > 1e-7
    assert tried >= 1


def test_what_is_not_finite_is_as_in_floats() -> None:
    network = next(w for (n, _), w in compiled(True).items() if n == "halves")
    a, b = (array.copy() for array in lowered("halves").feeds.values())
    a[0, 3], a[1, 5], a[2, 7] = np.inf, np.nan, 3e38
    b[7] *= 100
    found = next(iter(network.run({"x0": a, "x1": b}).values()))
    with np.errstate(all="ignore"):
        right = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float32)
    for row in range(3):
        np.testing.assert_array_equal(np.isnan(found[row]), np.isnan(right[row]))
        np.testing.assert_array_equal(np.isinf(found[row]), np.isinf(right[row]))
    assert np.isfinite(found[3:]).all()


def test_what_is_not_finite_is_as_in_floats_of_packed_constants() -> None:
    network = next(w for (n, _), w in compiled(True).items() if n == "wgmma of halves")
    a, b = (array.copy() for array in lowered("wgmma of halves").arrays)
    a[0, 3], a[1, 5], a[2, 7], a[3, :] = np.inf, np.nan, 3.4e38, -3.4e38
    found = next(iter(network.run({"x0": a}).values()))
    with np.errstate(all="ignore"):
        right = (a @ b).astype(np.float32)
    assert not np.isfinite(right[0]).any()
    for row in range(2):
        np.testing.assert_array_equal(np.isnan(found[row]), np.isnan(right[row]))
        np.testing.assert_array_equal(np.isinf(found[row]), np.isinf(right[row]))
    some = np.isfinite(found[2]) & np.isfinite(right[2])
    assert some.any()  # in halves all of them would be infinite
    np.testing.assert_allclose(found[2][some], right[2][some], rtol=1e-4)
    assert np.isfinite(found[4:]).all()


@pytest.mark.parametrize("dtype", [F16, F32])
def test_warpgroups_multiply_what_is_large_enough(dtype: Any) -> None:
    target = get_target("cuda-sm90")
    chosen = []
    for rows in (8, 1024):
        shapes = ((rows, 1024), (1024, 1024))
        own = lowered_case(Case("", "MatMul", (dtype, dtype), shapes, constant=(1,)))
        graph = run_passes(own.graph, width=1, device=True)
        chosen += [c.candidate.kernel.name for c in select(graph, target).values()]
        others = consider(own.workload, get_target("cuda-sm100"), LIMITS).found
        assert not any("wgmma" in c.kernel.name for c in others)
    assert ["wgmma" in name for name in chosen] == [False, True]


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("cuda_matmul_bf16x3", F32), ("cuda_matmul_tensor", F16)]
)
def test_blocks_share_long_sums_of_few_tiles(kernel: str, dtype: Any) -> None:
    own = lowered_case(Case(kernel, "MatMul", (dtype, dtype), ((100, 20000), (20000, 90))))
    assert own.candidates(kernel)[0].params.blocks
    wide = lowered_case(Case(kernel, "MatMul", (dtype, dtype), ((4000, 64), (64, 4000))))
    assert not any(c.params.blocks for c in wide.candidates(kernel))


def test_blocks_share_tiles_evenly_or_begin_in_the_middle_of_one() -> None:
    """Both ways are among those whose products are compared."""
    found = lowered("halves of long sums").candidates("cuda_matmul_bf16x3")
    params = [c.params for c in found if c.params.blocks]
    rests = {p.blocks % (-(-40 // p.m) * -(-72 // p.n)) == 0 for p in params}
    assert rests == {True, False}


@pytest.mark.slow
def test_keys_that_no_query_sees_are_left_out() -> None:
    """Weights of 0 would make NaN of what isn't finite."""
    network = next(w for (n, _), w in compiled(False).items() if n == "causal attention")
    q, k, v = lowered("causal attention").feeds.values()
    right = next(iter(network.run({"x0": q, "x1": k, "x2": v}).values()))
    v = v.copy()
    v[:, :, 128:] = np.nan  # the first 128 queries' tiles end before
    found = next(iter(network.run({"x0": q, "x1": k, "x2": v}).values()))
    np.testing.assert_array_equal(found[:, :, :128], right[:, :, :128])
    assert np.isnan(found[:, :, 128:]).all()


FAULTS = {
    "as it should be": ("", ""),
    "tiles aren't waited for": ("      w_await(filled", "      if (step < 0) w_await(filled"),
    "sums aren't waited for": ("    w_finish<0>();", ""),
    "a stage is given back early": ("w_arrive(read + (iteration - 1)", "w_arrive(read + iteration"),
    "stages aren't waited for": ("if (iteration >= 4) w_await", "if (iteration >= 400) w_await"),
    "a stage is never given back": ("if (lane == 0) w_arrive", "if (lane == 32) w_arrive"),
    "bytes are missing": ("w_expect(filled + stage, 16384)", "w_expect(filled + stage, 16400)"),
    "another order of chunks": ("b + k * 128", "b + k * 64"),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_shows_faults_of_warpgroups(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks take four tiles, more steps than stages."""
    name = "wgmma of long sums"
    own = lowered(name)
    least = min(own.candidates("cuda_matmul_wgmma"), key=lambda c: c.params.m * c.params.n)
    chosen = replace(least, params=replace(least.params, blocks=2))
    was, is_now = FAULTS[fault]

    def spoiled(template: str, values: Any) -> str:
        text = render(template, values)
        assert was in text
        return text.replace(was, is_now)

    def choose(graph: Graph, target: Target) -> Any:
        found = select(graph, target, limits=LIMITS)
        return {k: replace(c, candidate=chosen) if c.workload == own.workload else c
                for k, c in found.items()}  # fmt: skip

    monkeypatch.setattr("atc.backends.kernel_source.render", spoiled)
    (network,) = compile_networks([own.graph], TARGET, "O0", choose=choose)
    right, good = expected(name), []
    for order in ("forward", "reverse"):
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        try:
            found = next(iter(network.run(own.feeds).values())).astype(np.float64)
        except RuntimeError:
            good.append(False)
            continue
        good.append(bool(np.abs(found - right).max() <= 4e-3 * np.abs(right).max()))
    assert all(good) == (not was)


def test_tiles_are_chosen_by_what_they_cost() -> None:
    for name in ("float16", "halves"):
        costs = [c.kernel.cost(lowered(name).workload, c.params, TARGET)
                 for c in lowered(name).candidates(CASES[name].kernel)]  # fmt: skip
        assert costs == sorted(costs)
        assert 0 < costs[0] < 1  # seconds: less than any cycles of the host


def test_devices_without_such_cores_do_without() -> None:
    own = get_target("cuda-sm75")
    assert not lowered("float16").candidates("cuda_matmul_tensor", own)
    assert lowered("float16").candidates("cuda_matmul", own)


OPCODES = {
    0x23C: "HMMA", 0x237: "IMMA", 0x83B: "LDSM", 0xFAE: "LDGSTS", 0x9F0: "HGMMA", 0xDF0: "HGMMA",
    0x9F1: "IGMMA", 0x5B4: "UTMALDG",
}  # fmt: skip
"""Lowest 12 bits of instructions of 128 bits, from sm_75 on."""


def instructions(cubin: bytes) -> Counter[str]:
    """Count the instructions of OPCODES in the code of a cubin, a 64-bit ELF file."""
    offset, = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + k * size) for k in range(count)]
    text = headers[names][4]
    found: Counter[str] = Counter()
    for name, _, _, _, begin, length in headers:
        if cubin[text + name:].startswith(b".text."):
            words = struct.unpack_from(f"<{length // 8}Q", cubin, begin)[::2]
            found.update(OPCODES[w & 0xFFF] for w in words if w & 0xFFF in OPCODES)
    return found


def sources(device: str, *names: str) -> list[tuple[str, Candidate, KernelSource]]:
    target = get_target(f"cuda-{device.replace('_', '')}")
    return [
        (n, c, render_kernel(c, lowered(n).workload, target))
        for n in names for c in lowered(n).candidates(CASES[n].kernel, target)
    ]  # fmt: skip


def largest(found: list[tuple[str, Candidate, KernelSource]]) -> list[
    tuple[str, Candidate, KernelSource]
]:
    """Return each case's largest tile, which has the most registers."""

    def size(each: tuple[str, Candidate, KernelSource]) -> int:
        return int(np.prod([int(n) for n in re.findall(r"\b[mn]=(\d+)", each[1].label)]))

    by_size = sorted(found, key=size)
    return [*{name: (name, c, source) for name, c, source in by_size}.values()]


def check_code(
    device: str, kernels: list[tuple[str, Candidate, KernelSource]], folder: Path
) -> None:
    nvcc = find_nvcc(device, os.environ)
    (folder / "src" / "kernels").mkdir(parents=True)
    for file in ("cuda/device.h", "cuda/tensor.h", "cuda/warpgroup.h", "cpu/kernel.h"):
        (folder / "src" / Path(file).name).write_text(verbatim(file))
    for name, candidate, source in kernels:
        (folder / source.path).write_text(source.text)
        cubin = folder / "kernel.cubin"
        flags = (*nvcc_flags(device), "-Xptxas", "-v")
        done = subprocess.run(
            [*nvcc.argv, *flags, source.path, "-o", cubin], cwd=folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said), candidate.label
        assert "serialized" not in said, candidate.label  # products that could overlap
        registers = int(re.search(r"Used (\d+) registers", said)[1])  # type: ignore[index]
        threads = source.launch.threads if source.launch else 0
        resident = 1  # blocks, where the cost model says so
        if isinstance(candidate.kernel, WarpgroupProduct):
            target = get_target(f"cuda-{device.replace('_', '')}")
            resident = candidate.kernel.resident(
                lowered(name).workload, candidate.params, target
            )
            asked = source.launch.shared if source.launch else 0
            assert asked <= 227 << 10, candidate.label
            assert resident * (asked + 1024) <= gpu_of(device).shared, candidate.label
            groups = candidate.params.m // ATOM
            if groups in SHARES:  # as many as are handed over, else who takes them waits forever
                few, many = SHARES[groups]
                assert 128 * (few + groups * many) <= registers * threads, candidate.label
        allotted = -(-threads * resident // 128) * 128  # a quarter of the warps has a quarter
        assert registers * allotted <= 1 << 16, candidate.label
        shared = int((re.search(r"(\d+) bytes smem", said) or ["", "0"])[1])
        assert shared <= 48 << 10, candidate.label
        found = instructions(cubin.read_bytes())
        form = candidate.kernel.values(  # what is multiplied
            lowered(name).workload, candidate.params, get_target("cuda-sm80")
        ).get("form")
        if form is not None:
            by_groups = isinstance(candidate.kernel, WarpgroupProduct)
            of_bytes = form.bytes == 1  # type: ignore[attr-defined]
            own = f"{'I' if of_bytes else 'H'}{'G' if by_groups else ''}MMA"
            assert found[own] > 0, (candidate.label, found)
            assert found["UTMALDG" if by_groups else "LDSM"] > 0, (candidate.label, found)
            assert not by_groups or not found["HMMA"] + found["IMMA"], (candidate.label, found)


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there")


@pytest.mark.slow
@needs_nvcc
def test_compiled_products_use_tensor_cores(tmp_path: Path) -> None:
    check_code("sm_80", sources("sm_80", "halves")[:1], tmp_path)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("device", ARCHITECTURES)
def test_the_largest_tiles_compile_without_spills(device: str, tmp_path: Path) -> None:
    check_code(device, largest(sources(device, *CASES)), tmp_path)


@pytest.mark.fuzz
@needs_nvcc
@pytest.mark.parametrize("device", ARCHITECTURES)
def test_all_tiles_compile_without_spills(device: str, tmp_path: Path) -> None:
    check_code(device, sources(device, *CASES), tmp_path)
