"""Matrix products in register tiles and by dot products: every parameter set, against float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target
from matmul_workloads import TRUTH, operands, workload

import atc
from atc.backends.cpu.matmul.cost import column_panels, row_tiles
from atc.backends.cpu.matmul.dot import MatMulDot
from atc.backends.cpu.matmul.portable import MatMulRows
from atc.backends.cpu.matmul.tile import MatMulTile, TiledParams, read_mode
from atc.backends.kernel import AnyKernel, Candidate, Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.machine import Cache, machine_json
from atc.backends.machines import MACHINES
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_expr import lanes
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import MatMul
from atc.ir.view import View, gather_view

KERNELS: tuple[AnyKernel, ...] = (MatMulTile(), MatMulDot())
SHAPES = [(1, 1, 1), (1, 5, 40), (1, 100, 7), (2, 33, 64), (3, 16, 5), (4, 3, 70), (5, 50, 33),
          (13, 64, 31), (15, 17, 16), (29, 40, 8), (70, 2, 48), (31, 100, 20)]  # fmt: skip
"""(m, n, k) below, at and above the tiles, few that they divide."""


def workloads(m: int, n: int, k: int) -> Iterator[tuple[str, Workload]]:
    """Yield ways to read operands of one size, each with an epilogue."""
    rows, columns = View((k, 1)), View((1, m))
    yield "bias, relu", workload((), m, n, k, rows, View((n, 1)), "bias, relu", True)
    yield "none", workload((), m, n, k, rows, View((1, k)), "none", True)
    padded = View((k + 3, 1), 2)
    yield "residual", workload((), m, n, k, padded, View((n + 5, 1), 1), "residual")
    yield "none", workload((), m, n, k, columns, View((1, k + 1)), "none")
    heads = (2, 3)  # of [rows, heads, numbers]: batches interleaved with the rows
    a = View((m * 3 * k, k, 3 * k, 1))
    b = View((n * 3 * k, k, 1, 3 * k))
    yield "row scale, silu", workload(heads, m, n, k, a, b, "row scale, silu")
    shared = View((0, n, 1))
    yield "gelu", workload((2,), m, n, k, View((m * k, k, 1)), shared, "gelu", True)
    yield "none", workload((2,), m, n, k, View((0, k, 1)), View((k * n, 1, 2 * k)), "none")
    yield "none", workload((), m, n, k, View((2 * k, 2)), View((2 * n, 2)), "none")


def expected(w: Workload, arrays: Sequence[Any], epilogue: str) -> Any:
    """Return the product in float64."""
    op = w.op
    assert isinstance(op, MatMul)
    a: Any = gather_view(arrays[0], (*op.batch, op.m, op.k), op.a_view).astype(np.float64)
    b: Any = gather_view(arrays[1], (*op.batch, op.k, op.n), op.b_view).astype(np.float64)
    views = zip(arrays[2:], op.epilogue.views, strict=True)
    extra = [gather_view(x, op.loops, v) for x, v in views]
    return TRUTH[epilogue](a @ b, extra[0] if extra else None)


def check(found: list[tuple[str, Call]], target: str) -> None:
    record = vector_target(target)
    results = run_calls([c for _, c in found], record)
    for (epilogue, each), (got,) in zip(found, results, strict=True):
        assert isinstance(each.workload.op, MatMul)
        want = expected(each.workload, each.inputs, epilogue)
        error = float(np.abs(want - got).max())
        assert error <= 1e-6 * (5 + each.workload.op.k), f"{each}: {error}"


def every_call(shapes: Sequence[tuple[int, int, int]], target: str) -> list[tuple[str, Call]]:
    """Return every kernel with every parameter set for every way to read these sizes."""
    record = vector_target(target)
    found = []
    for m, n, k in shapes:
        for seed, (epilogue, w) in enumerate(workloads(m, n, k)):
            arrays = operands(w, seed)
            for kernel in KERNELS:
                if kernel.accepts(w, record):
                    parameters = kernel.parameters(w, record)
                    found += [(epilogue, Call(kernel, p, w, arrays)) for p in parameters]
    return found


@pytest.mark.parametrize("name", ["x86-64-sse2", *VECTOR_TARGETS])
def test_tiles_cost_less_than_what_a_compiler_makes_of_loops(name: str) -> None:
    target = get_target(name)
    w = workload((), 125, 64, 64, View((64, 1)), View((1, 64)), "bias, relu", True)
    tiles = min(MatMulTile().cost(w, p, target) for p in MatMulTile().parameters(w, target))
    assert tiles < MatMulRows().cost(w, {}, target)


@pytest.mark.parametrize("n", [12, 100, 400])
def test_tiles_by_lane_leave_registers_for_two_pairs_of_vectors_of_b(n: int) -> None:
    target = get_target("aarch64-neon")
    w = workload((), 96, n, 64, View((64, 1)), View((n, 1)), "bias, relu")
    sets = MatMulTile().parameters(w, target)
    taken = [p.mr * p.nv * p.phases + p.mr + min(2 * p.nv, 4) for p in sets]
    assert max(taken) <= target.vector_registers
    assert max(taken) >= target.vector_registers - 1


@pytest.mark.few(2)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
def test_weights_in_16_bits_give_what_they_give_as_floats(dtype: DType, target: str) -> None:
    """With every parameter set, those that make floats of a panel for all its tiles among them."""
    record, calls = vector_target(target), []
    w = workload((), 120, 53, 36, View((36, 1)), View((53, 1)), "bias, relu", True)
    a, b, bias = operands(w, 0)
    b = b.astype(dtype.numpy)
    narrow = replace(w, inputs=(w.inputs[0], TensorType(dtype, w.inputs[1].shape), *w.inputs[2:]))
    sets = MatMulTile().parameters(narrow, record)
    assert any(p.copy for p in sets)
    blocked = replace(sets[0], kb=12)
    for each in (*sets, blocked, *(replace(p, mb=2 * p.mr) for p in sets if p.copy)):
        calls.append(Call(MatMulTile(), each, narrow, [a, b, bias]))
        floats = replace(each, copy=False)
        calls.append(Call(MatMulTile(), floats, w, [a, b.astype(np.float32), bias]))
    results = [got for (got,) in run_calls(calls, record)]
    for halves, floats in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(halves, floats)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_sizes_around_the_tiles_and_ways_to_read_them(target: str) -> None:
    found = every_call(SHAPES, target)
    chosen = found[::31]
    modes = {read_mode(c.workload, getattr(c.params, "copy", False)) for _, c in chosen}
    assert modes >= {"packed", "direct", "columns"}
    assert {c.kernel.name for _, c in chosen} == {k.name for k in KERNELS}
    check(chosen, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", VECTOR_TARGETS)
@pytest.mark.parametrize("part", range(4))
def test_every_parameter_set_of_every_shape_and_view(target: str, part: int) -> None:
    check(every_call(SHAPES[part::4], target), target)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_blocks_of_rows(target: str) -> None:
    """Blocks that the rows fill and don't, of tiles that fill them and don't, of many images."""
    kernel, found = MatMulTile(), []
    rows = View((50 * 70, 70, 1))
    for batch, epilogue in (((), "residual"), ((), "gelu"), ((2,), "bias, relu")):
        a = rows if batch else View((70, 1))
        b = View((0, 45, 1)) if batch else View((45, 1))
        w = workload(batch, 50, 45, 70, a, b, epilogue, True)
        arrays = operands(w, len(batch))
        sets = [TiledParams(mr=3, nv=2, phases=1, mb=mb) for mb in (12, 25, 50)]
        found += [(epilogue, Call(kernel, p, w, arrays)) for p in sets]
    check(found, target)


def test_many_rows_times_few_weights_are_multiplied_in_blocks_of_rows() -> None:
    target, kernel = get_target("x86-64-avx2"), MatMulTile()
    many = workload((), 3136, 96, 384, View((384, 1)), View((96, 1)), "bias, relu", True)
    best = min(kernel.parameters(many, target), key=lambda p: kernel.cost(many, p, target))
    assert best.mb
    assert best.mb * 384 * 4 <= target.machine.l2.size // 2
    few = workload((), 100, 96, 384, View((384, 1)), View((96, 1)), "bias, relu", True)
    assert not any(p.mb for p in kernel.parameters(few, target))


@pytest.mark.parametrize(("k", "n", "blocks"), [(384, 1536, True), (2048, 16384, False)])
def test_large_weights_are_read_again_by_blocks_of_rows_where_that_is_less(
    k: int, n: int, blocks: bool
) -> None:
    target, kernel = get_target("x86-64-avx2"), MatMulTile()
    w = workload((), 1500, n, k, View((k, 1)), View((n, 1)), "bias, relu", True)
    best = min(kernel.parameters(w, target), key=lambda p: kernel.cost(w, p, target))
    assert bool(best.mb) is blocks


@pytest.mark.parametrize(("m", "asked"), [(840, True), (84, False)])
def test_tiles_ask_for_the_next_rows_that_the_second_cache_does_not_hold(
    m: int, asked: bool
) -> None:
    target, kernel = get_target("x86-64-avx2"), MatMulTile()
    w = workload((), m, 20, 160, View((160, 1)), View((20, 1)), "bias, relu", True)
    params = TiledParams(mr=6, nv=2, phases=1)
    text = render_kernel(Candidate(kernel, params), w, target).text
    assert text.count("v_prefetch_l2(ahead)") == (2 if asked else 0)
    check([("bias, relu", Call(kernel, params, w, operands(w, m)))], target.name)


@pytest.mark.parametrize(("k", "n", "m"), [(512, 768, 128), (1024, 768, 512)])
def test_large_products_are_cut_into_blocks_of_rows_and_of_the_depth(
    k: int, n: int, m: int
) -> None:
    """Where the third cache is slow, a block of A and panels of B leave room for what comes."""
    target = get_target("x86-64-avx512", machine=MACHINES["sapphirerapids"])
    kernel = MatMulTile()
    w = workload((), m, n, k, View((k, 1)), View((n, 1)), "none", True)
    best = min(kernel.parameters(w, target), key=lambda p: kernel.cost(w, p, target))
    block = (best.mb or m) * (best.kb or k) * 4
    assert block + 2 * (best.kb or k) * best.nv * 16 * 4 <= target.machine.l2.size // 2


@pytest.mark.slow
@pytest.mark.parametrize("target", VECTOR_TARGETS)
@pytest.mark.parametrize("partial_rows", [0, 5])
def test_blocks_of_rows_and_of_the_depth_together(target: str, partial_rows: int) -> None:
    record = replace(vector_target(target), machine=MACHINES["sapphirerapids"])
    m, n, k = 600 + partial_rows, 70, 1024
    w = workload((), m, n, k, View((k, 1)), View((n, 1)), "bias, relu", True)
    kernel = MatMulTile()
    both = [p for p in kernel.parameters(w, record) if p.kb and p.mb][:2]
    assert both
    arrays = operands(w, m)
    check([("bias, relu", Call(kernel, p, w, arrays)) for p in both], target)


@pytest.mark.slow
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_weights_that_are_streamed_and_blocks_of_the_depth(target: str) -> None:
    record = replace(vector_target(target), machine=MACHINES["zen5"])
    found = []
    for m, n, k in ((1, 300, 600), (40, 140, 1000), (560, 20, 300)):
        w = workload((), m, n, k, View((k, 1)), View((n, 1)), "bias, relu", True)
        arrays = operands(w, m)
        kernel = MatMulTile()
        parameters = kernel.parameters(w, record)
        blocked = [p for p in parameters if p.kb][:1]
        found += [("bias, relu", Call(kernel, p, w, arrays)) for p in (*parameters[:2], *blocked)]
    assert any(c.params.kb for _, c in found)
    rows = View((20 * 300, 300, 1))
    for w in (
        workload((2,), 20, 45, 300, rows, View((0, 45, 1)), "residual", True),
        workload((2,), 20, 45, 300, rows, View((0, 50, 1)), "residual"),
        workload((2,), 20, 45, 300, View((20 * 300, 1, 20)), View((0, 1, 300)), "residual"),
    ):
        params = TiledParams(mr=7, nv=2, phases=2, kb=75)
        found.append(("residual", Call(MatMulTile(), params, w, operands(w, 1))))
    check(found, target)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_rows_of_a_are_interleaved_where_asked(target: str) -> None:
    """Tiles of two heights, blocks of the depth, B in place or copied: the same bits."""
    found, plain = [], []
    columns = View((22 * 60, 1, 22))
    for b, copy in ((View((0, 50, 1)), False), (View((0, 50, 1)), True), (View((0, 1, 60)), False)):
        w = workload((2,), 22, 43, 60, columns, b, "residual")
        inputs = operands(w, 3)
        for kb in (None, 20):
            params = TiledParams(mr=4, nv=2, phases=1, copy=copy, kb=kb)
            interleaved = replace(params, interleave=True)
            plain.append(Call(MatMulTile(), params, w, inputs))
            found.append(("residual", Call(MatMulTile(), interleaved, w, inputs)))
    check(found, target)
    record = vector_target(target)
    results = run_calls([c for _, c in found], record), run_calls(plain, record)
    for (got,), (want,) in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("a", "b", "interleaved", "copied"),
    [
        (View((1, 1024)), View((256, 1)), True, True),  # steps of A a page apart
        (View((1, 1040)), View((256, 1)), False, False),
        (View((1024, 1)), View((1024, 1)), False, True),  # steps of B
        (View((1024, 1)), View((1040, 1)), False, True),  # and pages
    ],
)
def test_lines_that_crowd_in_the_caches_are_moved(
    a: View, b: View, interleaved: bool, copied: bool
) -> None:
    """As many steps of the depth as a product with 1,024 rows has in a training step."""
    target = get_target("x86-64-avx512")
    w = workload((), 1024, 256, 1024, a, b, "none")
    kernel = MatMulTile()
    best = min(kernel.parameters(w, target), key=lambda p: kernel.cost(w, p, target))
    assert (best.interleave, best.copy) == (interleaved, copied)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_a_panel_of_b_is_copied_where_asked(target: str) -> None:
    params = TiledParams(mr=4, nv=2, phases=1, copy=True)
    w = workload((2,), 9, 43, 21, View((9 * 21, 21, 1)), View((0, 50, 1)), "none")
    assert read_mode(w, params.copy) == "rows"
    check([("none", Call(MatMulTile(), params, w, operands(w, 1)))], target)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_nan_and_infinity_reach_the_results_they_belong_to(target: str) -> None:
    record = vector_target(target)
    w = workload((), 6, 20, 19, View((19, 1)), View((1, 19)), "none")
    a, b = operands(w, 3)
    a.reshape(6, 19)[2, 18] = np.nan
    a.reshape(6, 19)[4, 3] = np.inf
    b.reshape(20, 19)[7, 0] = -np.inf
    calls = [Call(k, p, w, [a, b]) for k in KERNELS for p in k.parameters(w, record)]
    with np.errstate(invalid="ignore"):
        want = a.reshape(6, 19) @ b.reshape(20, 19).T
    for each, (got,) in zip(calls, run_calls(calls, record), strict=True):
        assert (np.isnan(got) == np.isnan(want)).all(), str(each)
        assert (np.isinf(got) == np.isinf(want)).all(), str(each)


def test_what_vectors_cannot_do_is_refused() -> None:
    target = get_target("x86-64-avx2")
    w = workload((), 4, 8, 8, View((8, 1)), View((8, 1)), "none")
    assert MatMulTile().accepts(w, target)
    assert not MatMulTile().accepts(w, get_target("c99"))
    strided = workload((), 4, 8, 8, View((8, 2)), View((8, 1)), "none")
    assert not MatMulDot().accepts(w, target), "columns of B aren't dense"
    assert not MatMulDot().accepts(strided, target)
    half = TensorType(DType.FLOAT16, (32,))
    for inputs in ((half, w.inputs[1]), (w.inputs[0], half)):
        other = Workload(w.op, inputs, w.outputs, w.constant)
        assert not any(k.accepts(other, target) for k in KERNELS)


@pytest.mark.parametrize("m", [1, 2, 13, 14, 15, 100])
@pytest.mark.parametrize("mr", [1, 4, 14])
def test_row_tiles_cover_every_row_once(m: int, mr: int) -> None:
    tiles = row_tiles(m, mr)
    rows = [t.first + i * t.rows + r for t in tiles for i in range(t.count) for r in range(t.rows)]
    assert rows == list(range(m))
    assert max(t.rows for t in tiles) <= mr
    assert max(t.rows for t in tiles) - min(t.rows for t in tiles) <= 1


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("nv", [1, 3])
def test_panels_cover_every_column_once(n: int, nv: int) -> None:
    panels = column_panels(n, nv, 16)
    assert sum(p.count * p.columns for p in panels) == n
    for p in panels:
        assert 0 <= p.vectors * 16 - p.columns < 16
        assert p.part == p.columns % 16


def test_the_largest_divisor_up_to_a_bound() -> None:
    assert [largest_divisor(12, b) for b in (0.5, 1, 5, 6.5, 100)] == [1, 1, 4, 6, 12]


@pytest.mark.parametrize("name", ["x86-64-avx2", "x86-64-avx512"])
def test_bigger_products_cost_more_and_less_than_the_portable_kernel(name: str) -> None:
    from atc.backends.cpu.matmul.portable import MatMulRows

    target = get_target(name)
    costs = []
    for m, n, k in ((8, 16, 16), (8, 64, 64), (64, 64, 64), (128, 768, 768)):
        w = workload((), m, n, k, View((k, 1)), View((n, 1)), "none", True)
        kernel = MatMulTile()
        costs.append(min(kernel.cost(w, p, target) for p in kernel.parameters(w, target)))
        assert costs[-1] < MatMulRows().cost(w, {}, target)
    assert costs == sorted(costs)
    assert prod(costs) > 0


@pytest.mark.slow
@pytest.mark.parametrize("k", [70, 128])
def test_few_rows_times_columns_that_the_run_counts(k: int, tmp_path: Path) -> None:
    helper = onnx.helper
    nodes = [
        helper.make_node("Transpose", ["b"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "turned"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    shapes = {"a": [2, "m", k], "b": [2, "n", k], "y": [2, "m", "n"]}
    a, b, y = (helper.make_tensor_value_info(name, 1, s) for name, s in shapes.items())
    graph = helper.make_graph(nodes, "g", [a, b], [y])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    ranges = f"a:2,m=1~12,{k};b:2,n=1~70,{k}"
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=ranges, target="host")
    random = np.random.default_rng(k)
    with atc.load(tmp_path / "net") as net:
        for m in (1, 2, 4, 5, 12):
            for n in (1, 15, 16, 33, 70):
                x, z = (random.standard_normal((2, rows, k)).astype(np.float32) for rows in (m, n))
                exact = x.astype(np.float64) @ z.astype(np.float64).swapaxes(1, 2)
                bound = 2.0**-22 * (np.abs(x) @ np.abs(z).swapaxes(1, 2))
                assert (np.abs(net(x, z) - np.maximum(exact, 0)) <= bound).all(), (m, n)


@pytest.mark.parametrize(("k", "cut"), [(512, False), (3072, True), (12544, True)])
def test_the_depth_is_cut_where_panels_of_b_crowd_the_second_cache(k: int, cut: bool) -> None:
    """Faster R-CNN's first dense layer has 12,544 inputs for each region."""
    target = get_target("x86-64-avx512", machine=MACHINES["sapphirerapids"])
    w = workload((), 64, 1024, k, View((k, 1)), View((1024, 1)), "none", True)
    kernel = MatMulTile()
    best = min(kernel.parameters(w, target), key=lambda p: kernel.cost(w, p, target))
    columns = best.nv * lanes(target)
    assert bool(best.kb) == cut
    assert (best.kb or k) * columns * 4 <= target.machine.l2.size // 2


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("k", "n", "rows", "rate", "blocks"), [
    (512, 50, 64, 40.0, ["kb="]), (96, 100, 200, 40.0, ["mb="]),
    (512, 100, 300, 4.0, ["kb=", "mb="]),
])  # fmt: skip
def test_blocks_of_the_depth_and_of_rows_that_the_run_counts(
    k: int, n: int, rows: int, rate: float, blocks: list[str], threads: int, tmp_path: Path
) -> None:
    helper = onnx.helper
    random = np.random.default_rng(3)
    b = random.standard_normal((k, n)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, ["m", c]) for name, c in (("x", k), ("y", n)))
    graph = helper.make_graph(nodes, "g", [x], [y], [onnx.numpy_helper.from_array(b, "b")])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    small = replace(MACHINES["zen3"], l2=Cache(32 << 10, 20.0, 12.0), l3=Cache(1 << 20, 1.0, rate))
    machine = tmp_path / "small.json"
    machine.write_text(machine_json(small), "utf-8")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=f"x:1~{rows},{k}", target="host",
                machine=machine, precision_mode="force_fp32", num_threads=threads)  # fmt: skip
    report = (tmp_path / "net/net.report.json").read_text("utf-8")
    assert all(block in report for block in blocks)
    with atc.load(tmp_path / "net") as net:
        for m in sorted({1, 2, 7, 63, 64, *range(rows // 3, rows, rows // 7), rows}):
            a = random.standard_normal((m, k)).astype(np.float32)
            exact = a.astype(np.float64) @ b.astype(np.float64)
            bound = 2.0**-20 * (np.abs(a) @ np.abs(b))
            assert (np.abs(net(a) - np.maximum(exact, 0)) <= bound).all(), m
