"""Cascades of calls, stripe by stripe: the same bits as one call after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from default_run import unoptimised
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import atc
from atc.backends.cpu.conv.depthwise import PoolTiles
from atc.backends.kernel import Candidate, Workload
from atc.backends.machine import Cache, machine_json
from atc.backends.machines import MACHINES
from atc.backends.targets import get_target
from atc.errors import InternalError
from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import Pool, Window
from atc.memory.arena import plan_memory
from atc.memory.audit import audit_memory
from atc.passes import run_passes
from atc.program import cascade
from atc.program.build import build_program
from atc.program.cascade import Cascade, CascadeStage, make_cascade
from atc.program.steps import CascadeLoop, Program
from atc.select.select import Choice, select
from atc.tools.explain import explain, read_report
from atc.tools.profile import profile_run
from atc.tools.report_page.data import read_page
from support import compile_graph

RNG = np.random.default_rng(3)

CHAINS: dict[str, tuple[tuple[int, ...], Sequence[dict[str, Any]]]] = {
    "inverted residual": ((1, 24, 19, 23), [
        {"filters": 72, "act": "Relu"}, {"kernel": 3, "each": True, "act": "Relu"},
        {"filters": 24, "add": True},
    ]),
    "5x5, stride 2, ragged": ((1, 17, 21, 18), [
        {"filters": 41, "act": "Sigmoid"}, {"kernel": 5, "each": True, "stride": 2, "act": "Relu"},
        {"filters": 19}, {"filters": 33, "act": "HardSigmoid"},
    ]),
    "first layers": ((1, 3, 37, 30), [
        {"kernel": 3, "filters": 20, "stride": 2, "act": "Relu"}, {"kernel": 3, "each": True},
        {"kernel": 3, "each": True, "stride": 2}, {"filters": 16},
    ]),
    "pooled": ((1, 3, 40, 33), [
        {"kernel": 7, "filters": 32, "stride": 2, "act": "Relu"}, {"kernel": 3, "pool": True},
        {"filters": 48, "act": "Relu"},
    ]),
    "images, no padding": ((2, 16, 15, 14), [
        {"filters": 32}, {"kernel": 3, "each": True, "pad": 0}, {"kernel": 3, "filters": 24,
         "stride": 2, "pad": 0},
    ]),
    "steps over rows": ((1, 16, 24, 20), [
        {"filters": 48}, {"kernel": 1, "filters": 16, "stride": 3}, {"filters": 32},
    ]),
    "dilated": ((1, 32, 17, 15), [
        {"filters": 48, "act": "Relu"}, {"kernel": 3, "each": True, "dilation": 3, "pad": 3},
        {"filters": 16},
    ]),
    "short rows": ((1, 64, 9, 7), [
        {"filters": 96, "act": "Relu"}, {"kernel": 3, "each": True}, {"filters": 64, "add": True},
    ]),
}  # fmt: skip


FEW = ("inverted residual",)
"""What the default run compiles."""


def model(names: Iterable[str] = CHAINS) -> onnx.ModelProto:
    """Return a model with chains; each ends in an output of its own."""
    nodes, weights, inputs, outputs = [], [], [], []
    for k, (shape, stages) in enumerate(CHAINS[name] for name in names):
        start = value = f"x{k}"
        inputs.append(helper.make_tensor_value_info(start, TensorProto.FLOAT, shape))
        channels = shape[1]
        for j, stage in enumerate(stages):
            made, known, channels = _layer(f"{k}_{j}", value, channels, stage, start)
            nodes += made
            weights += known
            value = made[-1].output[0]
        nodes.append(helper.make_node("GlobalMaxPool", [value], [f"most{k}"]))
        outputs += [helper.make_empty_tensor_value_info(n) for n in (value, f"most{k}")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def _layer(
    name: str, x: str, channels: int, stage: dict[str, Any], start: str
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], int]:
    kernel, stride = stage.get("kernel", 1), stage.get("stride", 1)
    dilation, pad = stage.get("dilation", 1), stage.get("pad", kernel // 2)
    filters = stage.get("filters", channels)
    group = channels if stage.get("each") else 1
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    if stage.get("pool"):
        window["strides"] = [2, 2]
        return [helper.make_node("MaxPool", [x], [f"y{name}"], **window)], [], channels
    shape = (filters, channels // group, kernel, kernel)
    w = RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    arrays = {f"w{name}": w, f"b{name}": RNG.standard_normal(filters)}
    known = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    made = [helper.make_node(
        "Conv", [x, *arrays], [f"y{name}"], group=group, dilations=[dilation] * 2, **window
    )]  # fmt: skip
    if "act" in stage:
        made.append(helper.make_node(stage["act"], [made[-1].output[0]], [f"a{name}"]))
    if stage.get("add"):
        made.append(helper.make_node("Add", [made[-1].output[0], start], [f"s{name}"]))
    return made, known, filters


def eager(patch: pytest.MonkeyPatch, heights: Sequence[int]) -> None:
    """Make every chain a cascade, with stripes of the first of the heights that it can have."""
    patch.setattr(cascade, "HEIGHTS", tuple(heights))
    patch.setattr(cascade, "_saved", lambda stages, target: 1e9 * len(stages))
    patch.setattr(cascade, "_spent", lambda cascade, target: 0.0)


def build(root: Path, names: Iterable[str], height: int, threads: int) -> tuple[Path, Path]:
    """Return the folders of chains compiled without and with cascades."""
    onnx.save(model(names), root / "model.onnx")
    calm = root / "calm.json"  # a cache that all results fit into
    large = replace(MACHINES["zen5"], l2=Cache(1 << 36, 32.0, 14.0), l3=Cache(0, 0.0, 0.0))
    calm.write_text(machine_json(large))
    folders = root / "whole" / "net", root / "cascades" / "net"
    common: dict[str, Any] = {
        "build_config": unoptimised(), "num_threads": threads,
        "machine": calm, "precision_mode": "force_fp32",  # kernels on AMX's tiles know no stripes
    }  # fmt: skip
    if (block := get_target("host").vector_bytes // 4) > 1:  # plain products know none, either
        common["layout_transform"] = f"nchw{block}c"
    with pytest.MonkeyPatch.context() as patch:
        atc.compile(root / "model.onnx", folders[0], **common)
        eager(patch, [height])
        atc.compile(root / "model.onnx", folders[1], profile=threads == 1, **common)
    return folders


def check(root: Path, names: Iterable[str], height: int, threads: int) -> None:
    """Compare networks without and with cascades, and with the standard's evaluator."""
    whole, stripes = build(root, names, height, threads)
    text = (stripes / "src" / "net.c").read_text()
    if get_target("host").vector_bytes > 4:
        assert text.count(" shift_rolling_buffer(") > len(tuple(names))
        assert "shift_rolling_buffer" not in (whole / "src" / "net.c").read_text()
    rng = np.random.default_rng(11)
    with atc.load(whole) as one, atc.load(stripes) as other:
        given = [rng.standard_normal(t.shape).astype(np.float32) for t in one.inputs]
        named = {t.name: a for t, a in zip(one.inputs, given, strict=True)}
        truth = ReferenceEvaluator(onnx.load(root / "model.onnx")).run(None, named)
        for port, a, b, true in zip(one.outputs, one(*given), other(*given), truth, strict=True):
            np.testing.assert_array_equal(b, a, err_msg=port.name)
            np.testing.assert_allclose(b, true, rtol=1e-4, atol=1e-4, err_msg=port.name)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_cascaded_calls_cost_and_compute_what_they_did_one_after_the_other(
    threads: int, tmp_path: Path
) -> None:
    """Threads compute some rows twice; the report's page shows it all, profiles have times."""
    if get_target("host").vector_bytes == 4:
        pytest.skip("portable kernels are in no cascades")
    whole, stripes = build(tmp_path, FEW[:1], height=3, threads=threads)
    sums: list[dict[str, tuple[float, int]]] = []
    for folder in (whole, stripes):
        found: dict[str, tuple[float, int]] = {}
        for step in read_page(folder, None).steps:
            cost, count = found.get(step.title, (0.0, 0))
            share, record = step.share or 0.0, step.record
            assert share > 0, record["kernel"]
            assert record["candidate"] in {e["kernel"] for e in record["estimates"]}
            found[step.title] = cost + record["cost"], count + record["operations"]
        sums.append(found)
    assert sums[0].keys() == sums[1].keys()
    assert sum(count > 0 for _, count in sums[0].values()) >= 3
    for title, (cost, count) in sums[0].items():
        assert cost * 0.999 <= sums[1][title][0] <= cost * (1.001 if threads == 1 else 1.5)
        assert count * 0.999 <= sums[1][title][1] <= count * (1 if threads == 1 else 1.5)
        if not title.startswith(("reorder", "copy", "padding")):  # of no node of the model
            text = explain(read_report(stripes), title.partition(" + ")[0])
            marks = re.findall(r"^  \* \S", text, re.MULTILINE)
            assert len(marks) >= 2  # a row of the table, and the reason
    if threads == 1:
        net = atc.load(stripes)
        profile = profile_run(net, {t.name: np.zeros(t.shape, t.dtype) for t in net.inputs}, 2, "")
        assert all(call.ns > 0 and call.calls == 1 for call in profile.calls)
        assert [c.operations for c in profile.calls] == [
            step.operations for step in read_page(stripes, profile).steps
        ]


@pytest.mark.slow
def test_cascades_give_the_same_bits(tmp_path: Path) -> None:
    check(tmp_path, FEW, height=3, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize(("height", "threads"), [(1, 1), (2, 3), (4, 1), (5, 2), (8, 1)])
def test_so_do_stripes_of_any_height(tmp_path: Path, height: int, threads: int) -> None:
    check(tmp_path, CHAINS, height, threads)


def stages() -> Iterator[list[CascadeStage]]:
    """Yield chains of windows over rows, with kernels that compute some rows at a time."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows, made = int(rng.integers(6, 40)), []
        for _ in range(int(rng.integers(2, 6))):
            kernel, stride = int(rng.integers(1, 8)), int(rng.integers(1, 5))
            pad, step = int(rng.integers(0, kernel + 1)), int(rng.integers(1, 5))
            out = (rows + 2 * pad - kernel) // stride + 1
            if out < 1:
                break
            made.append(_some_link(rows, out, kernel, stride, pad, step))
            rows = out
        if len(made) > 1:
            yield made


def _some_link(rows: int, out: int, kernel: int, stride: int, pad: int, step: int) -> CascadeStage:
    op = Pool("Max", Window((kernel, 1), (stride, 1), (1, 1), (pad, 0)), (0, 0))
    y = TensorType(DType.FLOAT, (1, 1, out, 1, 8))
    w = Workload(op, (None,), (y,), (False,))
    choice = Choice(w, Candidate(PoolTiles(), {}), ())
    ends = (*range(step, out, step), out)
    return CascadeStage(Node(op, ("x",), ("y",)), choice, {}, ends, rows, kernel, stride, pad)


def rows_read(stage: CascadeStage, begin: int, end: int) -> set[int]:
    """Return the rows of its operand that a link reads for a range of rows."""
    taps = {
        r * stage.stride + k - stage.pad for r in range(begin, end) for k in range(stage.kernel)
    }
    return {r for r in taps if 0 <= r < stage.rows}


@pytest.mark.parametrize("threads", [1, 3])
def test_cascades_read_only_rows_that_are_there(threads: int) -> None:
    for chain_links in stages():
        cascade = make_cascade(chain_links, int(RNG.integers(1, 6)), threads)
        done: list[int] = []
        for part in cascade.parts:
            run_part(cascade, part)
            done += [r for stripe in part for r in range(stripe[-1].begin, stripe[-1].end)]
        assert done == list(range(chain_links[-1].ends[-1]))


def run_part(cascade: Cascade, part: Sequence[Sequence[cascade.Stripe]]) -> None:
    """Run cascades on memory that holds the numbers of rows."""
    memory: list[dict[int, int]] = [{} for _ in cascade.buffer_rows]
    for before, stripe in pairwise([None, *part]):
        for k, buffer in enumerate(memory):
            if before is not None:  # move the rows that are kept
                kept = range(stripe[k].y_first, stripe[k].begin)
                values = [buffer[r - before[k].y_first] for r in kept]
                buffer.update(enumerate(values))
        for k, (stage, own) in enumerate(zip(cascade.stages, stripe, strict=True)):
            if k:
                for r in rows_read(stage, own.begin, own.end):
                    assert memory[k - 1][r - own.x_first] == r
            assert {own.begin, own.end} <= {0, *stage.ends}
            if k < len(memory):
                assert own.end - own.y_first <= cascade.buffer_rows[k]
                memory[k].update((r - own.y_first, r) for r in range(own.begin, own.end))


def program_in_cascades(threads: int) -> Program:
    target = get_target("x86-64-avx2")
    graph = run_passes(compile_graph(model()), width=target.vector_bytes // 4)
    selection = select(graph, target)
    with pytest.MonkeyPatch.context() as patch:
        eager(patch, [2])
        return build_program(graph, selection, target, threads=threads, cascades=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_audit_catches_cascades_that_read_or_write_other_rows(threads: int) -> None:
    program = program_in_cascades(threads)
    arena = plan_memory(program)
    partitions = [p for s in program.steps for p in getattr(s, "partitions", (s,))]
    cascades = [p for p in partitions if isinstance(p, CascadeLoop)]
    assert len(cascades) >= threads * len(CHAINS) // 2
    for name, by in {"begin": 1, "end": 3, "y_first": 1, "x_first": 2}.items():
        for k in range(name == "x_first", 2):  # the first call reads what is whole
            wrong = _changed(cascades[0], (1, k), {name: by})
            steps = tuple(_with(step, cascades[0], wrong) for step in program.steps)
            with pytest.raises(InternalError, match="memory plan: the chain"):
                audit_memory(
                    replace(program, steps=steps), arena.offsets, arena.scratch, arena.plan.size
                )


def _changed(cascade: CascadeLoop, place: tuple[int, int], change: dict[str, int]) -> CascadeLoop:
    at, k = place
    stripes = [list(stripe) for stripe in cascade.stripes]
    moved = {name: getattr(stripes[at][k], name) + by for name, by in change.items()}
    stripes[at][k] = replace(stripes[at][k], **moved)
    return replace(cascade, stripes=tuple(map(tuple, stripes)))


def _with(step: Any, old: CascadeLoop, new: CascadeLoop) -> Any:
    if step is old:
        return new
    partitions = getattr(step, "partitions", None)
    if not partitions:
        return step
    return replace(step, partitions=tuple(new if p is old else p for p in partitions))


def test_memory_holds_a_few_rows_of_what_lies_between() -> None:
    program = program_in_cascades(1)
    buffer_rows = {v: t for v, t in program.types.items() if v.endswith("#rows0")}
    assert buffer_rows
    for value, type_ in buffer_rows.items():
        whole = program.types[value.removesuffix("#rows0")]
        assert type_.shape[2] < whole.shape[2]
        assert value.removesuffix("#rows0") not in plan_memory(program).offsets


@pytest.mark.parametrize(("price", "rows"), [(0.0, 32), (1e9, 1)])
def test_the_price_of_rows_decides_how_high_stripes_are(
    price: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one there are the fewest stripes, of as many rows as there have to be then."""
    monkeypatch.setattr(cascade, "PRICE", price)
    chain = [_some_link(64, 64, 1, 1, 0, 1), _some_link(64, 64, 1, 1, 0, 1)]
    lowered = cascade._lowered(make_cascade(chain, 4, 1), get_target("x86-64-avx2"), 1)
    assert lowered.buffer_rows == (rows,)
