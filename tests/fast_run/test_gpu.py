"""Kernels of a GPU are measured by launching them: on one that the host imitates, or with nvcc."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fast_run.test_measure import graph_of, op_cache
from quantized_convs import Case, model, parts
from whole.test_cuda import has_driver

import atc.select
from atc.backends.cuda.catalogue import KERNELS
from atc.backends.cuda.conv.blocked import BlockedElements, BlockedTiles
from atc.backends.cuda.map.elementwise import MapElements
from atc.backends.cuda.products.tiles import MatMulTiles
from atc.backends.cuda.products.warpgroup import MatMulWarpgroupSplit, WarpgroupParams
from atc.backends.kernel import AnyKernel, Kernel, Params, Workload
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.nvcc import find_nvcc
from atc.build.library import library_flags
from atc.build.objects import BuildContext
from atc.cache.algo import open_algo_cache
from atc.diagnostics import Diagnostics
from atc.fast_run.measure import Bench, fast_run, machine_name, runs_here
from atc.fast_run.task import workloads
from atc.fast_run.timings import measured
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ConvBlocked, Map, MatMul
from atc.ir.ops.elementwise import identity_epilogue
from atc.ir.view import View
from atc.onnx_backend import AtcBackendRep
from atc.options.options import make_options
from atc.options.table import read_values
from atc.passes import run_passes
from atc.select.layout_costs import LayoutCosts
from atc.select.select import ANY, Measurement, select

EMULATED = get_target("cuda-emulated")
F = DType.FLOAT
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there")


class Plain(MapElements):
    """A Map, one element after the other, also where others read several at a time."""

    name = "cuda_map_plain"

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        return True


class Wrong(Plain):
    """A Map that is off by one half."""

    name = "cuda_map_wrong"

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        values = super().values(w, params, target)
        return {**values, "value": f"{values['value']} + 0.5f"}


class Beyond(Plain):
    """A Map that writes far behind its result."""

    name = "cuda_map_beyond"

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        values = super().values(w, params, target)
        return {**values, "value": f"*((volatile float *)y0 + {1 << 20}) = {values['value']}"}


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [k for k in KERNELS if k.op is Map]
    kernels: Sequence[Kernel] = (*maps, Plain(), Wrong(), Beyond())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)


def sum_of_two() -> Workload:
    return [*workloads(graph_of(size=3000), {})][-1]


def bench(target: Target, folder: Path, every: bool = True) -> Bench:
    compiler = find_compiler(target, os.environ)
    flags = library_flags(compiler, target)
    context = BuildContext(target, compiler, flags, op_cache(None), 2, lambda command: None)
    nvcc = None if target == EMULATED else find_nvcc(target.device, os.environ)
    algo = open_algo_cache(folder, machine_name(target), pytest.fail)
    return Bench(context, algo, every, nvcc=nvcc)


@pytest.mark.usefixtures("catalogue")
def test_kernels_are_launched_compared_and_timed(tmp_path: Path) -> None:
    w = sum_of_two()
    row: dict[str, Measurement] = {
        m.label: m for m in fast_run([w], bench(EMULATED, tmp_path))[w]
    }
    for right in ("cuda_map_plain", "cuda_map_vectors"):
        assert (row[right].time_ns or 0) > 0
    assert "differs" in row["cuda_map_wrong"].reason
    assert "crashed" in row["cuda_map_beyond"].reason
    again = fast_run([w], replace(bench(EMULATED, tmp_path), measures=False))
    assert {m.label: m.time_ns for m in again[w]} == {m: row[m].time_ns for m in row}


def test_candidates_read_constants_as_they_pack_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Smallest(MatMulWarpgroupSplit):
        def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[WarpgroupParams]:
            return super().parameters(w, target)[:1]

    kernels: tuple[AnyKernel, ...] = (MatMulTiles(), Smallest())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    op = MatMul((), 20, 30, 50, View((56, 1)), View((30, 1)), identity_epilogue(F))
    sides = (TensorType(F, (20, 56)), TensorType(F, (50, 30)))
    w = Workload(op, sides, (TensorType(F, (20, 30)),), (False, True))
    row = fast_run([w], bench(EMULATED, tmp_path))[w]
    names = {m.label.partition("(")[0] for m in row}
    assert names == {"cuda_matmul", "cuda_matmul_wgmma_bf16x3"}
    assert all(m.time_ns and not m.reason for m in row)


@pytest.mark.slow
def test_filters_are_packed_as_each_kernel_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would differ, or read beyond their filters."""
    kernels = (BlockedElements(), BlockedTiles())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    case = Case(36, 16, 3, pad=1)
    graph = AtcBackendRep(model(case), EMULATED.name).lower({"x": parts(case)["x"]})
    layouts = LayoutCosts(EMULATED, ANY).layouts("nchw32c")
    graph = run_passes(graph, width=1, device=True, layouts=layouts)
    (w,) = (w for w in workloads(graph, {}) if isinstance(w.op, ConvBlocked))
    row = {m.label.partition("(")[0]: m for m in fast_run([w], bench(EMULATED, tmp_path))[w]}
    assert row.keys() == {"cuda_conv_blocked", "cuda_conv_blocked_tiles"}
    assert not [m for m in row.values() if not m.time_ns]


@pytest.mark.usefixtures("catalogue")
def test_the_measured_time_overrules_the_estimate() -> None:
    measured = (Measurement("cuda_map_plain", 5.0), Measurement("cuda_map_vectors", 9.0))
    times = {sum_of_two(): measured}
    chosen = [c.candidate.label for c in select(graph_of(size=3000), EMULATED, times).values()]
    assert chosen == ["cuda_map_vectors", "cuda_map_plain"]


def test_times_are_kept_by_the_devices_name() -> None:
    assert runs_here(EMULATED)
    assert machine_name(EMULATED) == f"{machine_name(get_target('c99'))} as a GPU"
    if not has_driver():
        assert machine_name(get_target("cuda-sm90")) == ""


def options(**given: object) -> object:
    return make_options(read_values({"model": "m.onnx", "output": "out", **given}, "compile"))


def test_without_the_device_estimates_choose(tmp_path: Path) -> None:
    target, reported = get_target("cuda-sm90"), list[str]()
    if runs_here(target):
        pytest.skip("this machine has such a GPU")
    own = options(fast_run=True, op_bank_path=tmp_path)
    context = replace(bench(EMULATED, tmp_path).context, target=target)
    diagnostics = Diagnostics(warn=reported.append)
    w = sum_of_two()
    assert measured([w], {}, own, ANY, context, {}, diagnostics) == {}  # type: ignore[arg-type]
    assert reported == ["no GPU of this machine runs cuda-sm90: costs are estimated, not measured"]


@pytest.mark.slow
@needs_nvcc
@pytest.mark.usefixtures("catalogue")
def test_a_program_for_a_gpu_is_built_with_nvcc(tmp_path: Path) -> None:
    """Without a device all of its candidates fail when they run."""
    if has_driver():
        pytest.skip("this machine has a driver")
    w = sum_of_two()
    found = fast_run([w], bench(get_target("cuda-sm80"), tmp_path))[w]
    assert {m.reason for m in found} == {"crashed"}
