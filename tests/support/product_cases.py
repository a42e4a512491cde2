"""Nodes whose products tensor cores may compute: each tile's results, imitated, and its code."""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.reference
import pytest
from cuda_cases import ORDERS, TARGET, cubin_of, texts_of
from joined_sources import compile_joined
from own_process import in_own_process

from atc.backends.cuda.conv.im2col import WindowProduct
from atc.backends.cuda.device import compute_capabilities
from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.products.boxes import ATOM
from atc.backends.cuda.products.warpgroup import SHARES, WarpgroupProduct
from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.kernel_source import KernelSource, render_kernel
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import Graph
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.select import Limits, Measurement, consider, select
from atc.templates import render
from support import node_model

LIMITS = Limits(precisions=frozenset({"float32", "bf16x3", "tf32", "bf16", "int8"}))
RNG = np.random.default_rng(7)
MOST_SECONDS = 180
"""For all tiles of a case on a GPU, compiled there."""


def numbers(dtype: Any, *shape: int) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return RNG.integers(low, high, shape, dtype, endpoint=True)
    return RNG.normal(size=shape).astype(dtype)


@dataclass(frozen=True, eq=False)
class Case:
    """A node whose product tensor cores may compute, and by which kernel; shapes are odd ones.

    Numbers are drawn once for each.
    """

    kernel: str
    op: str
    dtypes: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    constant: tuple[int, ...] = ()


F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16


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


def expected(case: Case) -> Any:
    """Return the result in double, or in integers."""
    given = lowered_case(case).arrays
    wide = [a.astype(np.int64 if a.dtype.kind in "iu" else np.float64) for a in given]
    if case.op.endswith("Integer"):  # which has zero points behind the operands
        wide = [a - _points(wide[k + 2 :][:1], a) for k, a in enumerate(wide[:2])]
        given = wide
    if case.op in ("Conv", "ConvInteger", "Attention"):
        narrow = [a.astype(F32) for a in given]
        kind = case.op.removesuffix("Integer")  # sums of bytes are exact in floats, too
        single = node_model(kind, narrow, opset=23, **dict(case.attributes))
        feeds = {f"x{k}": a.astype(F32) for k, a in enumerate(given)}
        return onnx.reference.ReferenceEvaluator(single).run(None, feeds)[0]
    if case.op == "Gemm":
        turned = dict(case.attributes)
        a, b = (wide[k].T if turned.get(f"trans{'AB'[k]}") else wide[k] for k in range(2))
        return a @ b + sum(wide[2:])
    return wide[0] @ wide[1]


def _points(given: Sequence[Any], of: Any) -> Any:
    """Return a zero point, or one of each filter, as it is taken off an operand."""
    return given[0].reshape(-1, *[1] * (of.ndim - 1)) if given and given[0].ndim else sum(given)


def compile_candidates(
    chosen: Sequence[tuple[Case, Candidate]], own_target: Target = TARGET
) -> list[Network]:
    """Return networks in each of which a candidate was chosen, all in one library."""
    asked = iter(chosen)

    def choose(graph: Graph, target: Target) -> Any:
        case, own = next(asked)
        workload = lowered_case(case).workload
        times = (
            Measurement(c.label, 1.0 if c == own else 1e9)
            for c in consider(workload, target, LIMITS).found
        )
        found = select(graph, target, {workload: tuple(times)}, limits=LIMITS)
        assert own.label in {c.candidate.label for c in found.values()}
        return found

    graphs = [lowered_case(case).graph for case, _ in chosen]
    # What is imitated takes longest.
    return compile_networks(graphs, own_target, "O1", choose=choose, compile_all=compile_joined)


def compile_by_label(
    cases: Mapping[str, Case], chosen: Sequence[tuple[str, Candidate]]
) -> dict[tuple[str, str], Network]:
    """Return networks by case and candidate, all in one library."""
    networks = compile_candidates([(cases[n], c) for n, c in chosen])
    return {(n, c.label): w for (n, c), w in zip(chosen, networks, strict=True)}


ROUNDING = {"float32": 3e-6, "bf16x3": 3e-5, "tf32": 1e-3, "bf16": 1e-2}


def check_results(
    case: Case, networks: Mapping[str, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check networks, by the label of what computes them, with threads in several orders."""
    right = expected(case)
    for label, network in networks.items():
        results = []
        for order in ORDERS:
            monkeypatch.setenv("ATC_EMULATED_ORDER", order)
            results.append(next(iter(network.run(lowered_case(case).feeds).values())))
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other, err_msg=label)
        if results[0].dtype.kind in "iu":
            np.testing.assert_array_equal(results[0], right, err_msg=label)
            continue
        precision = lowered_case(case).candidates(case.kernel)[0].kernel.precision
        stored = 2 ** -8 if results[0].dtype.itemsize == 2 else 0
        error = np.abs(results[0].astype(np.float64) - right).max() / np.abs(right).max()
        assert error <= ROUNDING[precision] + stored, label
        # What tensor cores round shows: it isn't computed in floats elsewhere.
        assert precision == "float32" or error > 1e-7
    assert networks


def survives(
    case: Case, candidate: Candidate, was: str, is_now: str, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Return whether a kernel's results are right, in all orders, after a change of its text."""
    own, right = lowered_case(case), expected(case)

    def spoiled(template: str, values: Any) -> str:
        text = render(template, values)
        assert was in text
        return text.replace(was, is_now)

    def choose(graph: Graph, target: Target) -> Any:
        found = select(graph, target, limits=LIMITS)
        return {k: replace(c, candidate=candidate) if c.workload == own.workload else c
                for k, c in found.items()}  # fmt: skip

    monkeypatch.setattr("atc.backends.kernel_source.render", spoiled)
    (network,) = compile_networks(
        [own.graph], TARGET, "O0", choose=choose, compile_all=compile_joined
    )
    good = []
    for order in ORDERS:
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        try:
            found = next(iter(network.run(own.feeds).values())).astype(np.float64)
        except RuntimeError:
            good.append(False)
            continue
        good.append(bool(np.abs(found - right).max() <= 4e-3 * np.abs(right).max()))
    return all(good)


OPCODES = {
    0x23C: "HMMA", 0x237: "IMMA", 0x83B: "LDSM", 0xFAE: "LDGSTS", 0x9F0: "HGMMA", 0xDF0: "HGMMA",
    0x9F1: "IGMMA", 0x5B4: "UTMALDG", 0x3B4: "UTMALDG.IM2COL",
    0x9C8: "USETMAXREG",
}  # fmt: skip
"""Lowest 12 bits of instructions of 128 bits, from sm_75 on."""


def instructions(text: bytes) -> Counter[str]:
    """Count the instructions of OPCODES in machine code."""
    words = struct.unpack(f"<{len(text) // 8}Q", text)[::2]
    return Counter(OPCODES[w & 0xFFF] for w in words if w & 0xFFF in OPCODES)


Source = tuple[Workload, Candidate, KernelSource]


def sources(device: str, *cases: Case) -> list[Source]:
    target = get_target(f"cuda-{device.replace('_', '')}")
    return [
        (own.workload, c, render_kernel(c, own.workload, target))
        for case in cases for own in [lowered_case(case)]
        for c in own.candidates(case.kernel, target)
    ]  # fmt: skip


def largest(found: Iterable[Source]) -> list[Source]:
    """Return each workload's largest tile of a kernel, which has the most registers."""

    def size(each: Source) -> int:
        return int(np.prod([int(n) for n in re.findall(r"\b[mn]=(\d+)", each[1].label)]))

    by_size = sorted(found, key=size)
    return [*{(w, c.kernel.name): (w, c, source) for w, c, source in by_size}.values()]


def check_code(device: str, kernels: Iterable[Source], folder: Path) -> None:
    """Compile kernels; check registers, shared memory and instructions of each."""
    every = [*kernels]
    cubin, report = cubin_of([*{s.symbol: s for _, _, s in every}.values()], device, folder,
                             "-Xptxas", "-v")  # fmt: skip
    assert "serialized" not in report, report  # products that could overlap
    texts = texts_of(cubin)
    words = dict(re.findall(r"entry function '(\w+)'(.*?)(?=entry function|\Z)", report, re.DOTALL))
    for workload, candidate, source in every:
        said = words[source.symbol]
        assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said), candidate.label
        registers = int(re.search(r"Used (\d+) registers", said)[1])  # type: ignore[index]
        threads = source.launch.threads if source.launch else 0
        bounds = re.search(r"__launch_bounds__\(\d+, (\d+)\)", source.text)
        resident = int(bounds[1]) if bounds else 1
        if isinstance(candidate.kernel, WarpgroupProduct):
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
        found = instructions(texts[source.symbol])
        form = candidate.kernel.values(  # what is multiplied
            workload, candidate.params, get_target("cuda-sm80")
        ).get("form")
        by_groups = isinstance(candidate.kernel, WarpgroupProduct)
        if form is not None:
            of_bytes = form.bytes == 1  # type: ignore[attr-defined]
            own = f"{'I' if of_bytes else 'H'}{'G' if by_groups else ''}MMA"
            assert found[own] > 0, (candidate.label, found)
            assert found["UTMALDG" if by_groups else "LDSM"] > 0, (candidate.label, found)
            assert not by_groups or not found["HMMA"] + found["IMMA"], (candidate.label, found)
        if by_groups:  # given and taken, not left out as nvcc does where it sees no limit
            handed = 2 * (candidate.params.m // ATOM in SHARES)
            assert found["USETMAXREG"] == handed, (candidate.label, found)
        windows = isinstance(candidate.kernel, WindowProduct)
        assert (found["UTMALDG.IM2COL"] > 0) == windows, (candidate.label, found)


def check_on_gpu(case: Case, target: Target) -> None:
    """Check all of a case's candidates on a GPU; skips where a kernel isn't for it."""
    if not lowered_case(case).candidates(case.kernel, target):
        pytest.skip(f"{case.kernel} is not for {target.device}")
    in_own_process(MOST_SECONDS, check_there, case, target)


def check_there(case: Case, target: Target) -> None:
    """Check all of a case's candidates by a target's code; fails with all that are wrong."""
    found = lowered_case(case).candidates(case.kernel, target)
    networks = compile_candidates([(case, each) for each in found], target)
    wrong = []
    for each, network in zip(found, networks, strict=True):
        with pytest.MonkeyPatch.context() as monkeypatch:
            try:
                check_results(case, {each.label: network}, monkeypatch)
            except (AssertionError, RuntimeError) as error:
                wrong.append(f"{each.label}: {error}")
    assert not wrong, "\n".join(wrong)


def on_gpu(test: Any) -> Any:
    """Mark a test that needs a GPU."""
    able = bool(compute_capabilities()) and shutil.which("nvcc") is not None
    reason = "there is no GPU that CUDA's driver knows of, or no nvcc"
    return pytest.mark.gpu(pytest.mark.slow(pytest.mark.skipif(not able, reason=reason)(test)))


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there")
