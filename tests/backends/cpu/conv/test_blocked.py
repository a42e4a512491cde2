"""Blocked convolution and pooling: every kernel and parameter set against numpy in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
from blocked_convs import (
    DEPTHWISE,
    DIRECT,
    FEW,
    LARGE,
    NARROW,
    SAMPLED,
    WINOGRAD,
    Case,
    build,
    from_blocks,
    to_blocks,
)  # fmt: skip
from kernel_program import Call, run_calls, vector_target

from atc.backends.cpu.conv.blocked import ConvDirect
from atc.backends.cpu.conv.depthwise import DepthwiseTiles, PoolTiles
from atc.backends.cpu.conv.depthwise_looped import DepthwiseLoops, PoolLoops
from atc.backends.cpu.conv.depthwise_nhwc import DepthwiseLast, DepthwiseTilesLast
from atc.backends.cpu.conv.small_group import ConvSmallGroup
from atc.backends.cpu.conv.small_oc import ConvSmallOc
from atc.backends.cpu.conv.window_tiles import WindowParams
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.cpu.map.reorder import BlockChannels, UnblockChannels
from atc.backends.kernel import Candidate, workload_of
from atc.backends.render.vector_expr import lanes
from atc.backends.targets import get_target
from atc.ir.graph import DType, Graph, Node, TensorType, type_of
from atc.ir.ops import Block, Pool, Unblock, Window
from atc.ir.ops.blocked import blocked_shape
from support import Runner, compile_candidates, runnable

F = DType.FLOAT
Blocked = ConvDirect | ConvWinograd | DepthwiseTiles | DepthwiseLast
TARGETS = ["x86-64-avx2", "x86-64-avx512"]


# ---- the kernels ---------------------------------------------------------------------------------


def check(
    kernel: Blocked, cases: Mapping[int, Case], target: str, tolerance: float, share: int,
    computed: bool = False, last: bool = False,
) -> None:  # fmt: skip
    """Compile cases, known by their turns, with their parameter sets; run and compare them.

    With `last` channels lie last, all in one block.

    With a `share` of n, one of n sets beside that of the lowest cost, others from turn to turn.
    With `computed`, filters are known only at run time.
    """
    record = get_target(target)
    block = record.vector_bytes // 4
    jobs, wanted = [], []
    for turn, case in cases.items():
        graph, feeds, expected = build(case, case.filters if last else block, computed=computed)
        w = workload_of(graph, graph.nodes[0], graph.constants)
        assert kernel.accepts(w, record), case
        assert kernel.parameters(w, record)[0] in kernel.sets(w, record)
        known = sorted(kernel.sets(w, record), key=lambda p: kernel.cost(w, p, record))
        exact = [p for p in known if kernel.exact(p)]
        finer = [kernel.precise_params(w, p, record) for p in exact[turn % len(exact) :][:1]]
        tried = [*known[:1], *known[1:][turn % share :: share]]
        for params in [*tried, *(p for p in finer if p.exact)]:
            jobs.append((graph, Candidate(kernel, params)))
            wanted.append((case, feeds, expected))
    runners = compile_candidates(jobs, record)
    for (_, candidate), (case, feeds, expected), runner in zip(jobs, wanted, runners, strict=True):
        assert isinstance(runner, Runner), runner
        (got,) = runner(feeds)
        error = np.abs(from_blocks(got, case.filters) - expected).max()
        assert error <= tolerance * max(np.abs(expected).max(), 1), (candidate.label, case)


KERNELS: dict[str, tuple[Blocked, dict[str, Case], float]] = {
    "direct": (ConvDirect(), DIRECT, 2e-6),
    "few": (ConvSmallOc(), FEW, 2e-6),
    "narrow": (ConvSmallGroup(), NARROW, 2e-6),
    "winograd": (ConvWinograd(), WINOGRAD, 3e-5),
    "depthwise": (DepthwiseTiles(), DEPTHWISE, 2e-6),
    "depthwise loops": (DepthwiseLoops(), DEPTHWISE | LARGE, 2e-6),
}


LAST = {n: replace(c, channels=32, filters=32, group=32) for n, c in DEPTHWISE.items()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [DepthwiseTilesLast(), DepthwiseLast()], ids=lambda k: k.name)
def test_depthwise_convolutions_with_channels_last(
    kernel: DepthwiseTilesLast | DepthwiseLast, target: str
) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    check(kernel, dict(enumerate(LAST.values())), target, 2e-6, 3, last=True)


@pytest.mark.parametrize("target", TARGETS)
def test_some_convolutions_against_numpy(target: str) -> None:
    """The slow tests try all cases of all kernels with all parameter sets."""
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    subject, cases, tolerance = KERNELS["direct"]
    check(subject, dict([*enumerate(cases.values())][::12]), target, tolerance, 1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "name"), [(k, n) for k, (_, cases, _) in KERNELS.items() for n in cases]
)
def test_every_parameter_set_against_numpy(kernel: str, name: str, target: str) -> None:
    """One of three with each case, others from case to case, but for the widest vectors."""
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    subject, cases, tolerance = KERNELS[kernel]
    turn = [*cases].index(name)
    narrower = target != TARGETS[-1] and runnable(TARGETS[-1])
    check(subject, {turn: cases[name]}, target, tolerance, 3 if narrower else 1)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["direct", "few", "narrow", "winograd", "depthwise"])
def test_kernel_under_an_emulator_against_numpy(kernel: str) -> None:
    """Each case with the two best parameter sets (the best of each size of Winograd's tiles, with
    filters transformed and not), and one of three with sums made of parts."""
    target = vector_target("aarch64-neon")
    subject, cases, tolerance = KERNELS[kernel]
    calls, wanted = [], []
    for turn, case in enumerate(cases.values()):
        graph, feeds, expected = build(case, lanes(target))
        node = graph.nodes[0]
        w = workload_of(graph, node, graph.constants)
        known = graph.constants | dict(zip(graph.inputs, feeds, strict=True))
        operands = [known[i] for i in node.inputs if i]
        best = subject.parameters(w, target)
        best = best[::2] if kernel == "winograd" else best[:2]
        finer = [subject.precise_params(w, p, target) for p in best[: turn % 3 == 0]]
        for params in (*best, *(p for p in finer if p.exact)):
            calls.append(Call(subject, params, w, operands))
            wanted.append((case, expected))
    for call, (case, expected), (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        error = np.abs(from_blocks(got, case.filters) - expected).max()
        assert error <= tolerance * max(np.abs(expected).max(), 1), call


ALONE = {n: c for n, c in DIRECT.items() if c.group == 1}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ALONE)
def test_every_parameter_set_with_filters_of_the_run(name: str, target: str) -> None:
    """Filters that aren't constants are packed in the call; their sums are those of constant ones.

    One of three sets with each case, others from case to case.
    """
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    turn = [*ALONE].index(name)
    check(ConvDirect(), {turn: ALONE[name]}, target, 2e-6, 3, computed=True)


@pytest.mark.parametrize("target", TARGETS)
def test_copies_of_what_a_stride_meets_give_the_same_bits(target: str) -> None:
    """All tiles, in all rows at once and in blocks of them, beside tiles of x itself."""
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    record, kernel = get_target(target), ConvDirect()
    block = record.vector_bytes // 4
    jobs, wanted = [], []
    for turn, (name, case) in enumerate(SAMPLED.items()):
        graph, feeds, expected = build(case, block)
        w = workload_of(graph, graph.nodes[0], graph.constants)
        copied = [p for p in kernel.sets(w, record) if p.sampled]
        assert {(p.p, p.nv) for p in copied} == {(p.p, p.nv) for p in kernel.sets(w, record)}
        for params in copied[turn % 2 :: 2]:
            for own in (params, replace(params, rb=2), replace(params, sampled=False)):
                jobs.append((graph, Candidate(kernel, own)))
            wanted.append((name, feeds, expected))
    runners = iter(compile_candidates(jobs, record))
    for name, feeds, expected in wanted:
        results = []
        for runner in islice(runners, 3):
            assert isinstance(runner, Runner), runner
            results.append(from_blocks(*runner(feeds), SAMPLED[name].filters))
        assert np.abs(results[0] - expected).max() <= 2e-6 * np.abs(expected).max(), name
        np.testing.assert_array_equal(results[1], results[0], name)
        np.testing.assert_array_equal(results[2], results[0], name)


@pytest.mark.parametrize(
    "case",
    [
        DIRECT["pointwise"],
        DIRECT["pointwise, padded at the end"],
        replace(DIRECT["pointwise, strided"], pad=1),
        DIRECT["strided"],
        Case(3, 24, (16, 15), (1, 1), 2, 0, plain=True),
    ],
    ids=["dense", "padded at the end", "padded", "windows", "plain"],
)
def test_others_are_read_where_they_lie(case: Case) -> None:
    target = get_target("x86-64-avx2")
    graph, _, _ = build(case, 8)
    w = workload_of(graph, graph.nodes[0], graph.constants)
    assert not any(p.sampled for p in ConvDirect().sets(w, target))


def test_filters_of_the_run_and_stripes_leave_no_scratch_for_copies() -> None:
    target, case = get_target("x86-64-avx2"), DIRECT["pointwise, strided"]
    for computed in (True, False):
        graph, _, _ = build(case, 8, computed=computed)
        w = workload_of(graph, graph.nodes[0], graph.constants)
        sets = ConvDirect().sets(w, target)
        assert any(p.sampled for p in sets) != computed
        for params in sets:
            striped = ConvDirect().striped_params(w, params, target, 0, 0)
            assert (striped is None) == computed
            assert striped is None or not striped.sampled


@pytest.mark.parametrize("name", ["one dimension, in rows", "one dimension, in strided rows"])
def test_a_long_axis_is_cut_into_rows_for_all_channels(name: str) -> None:
    target = get_target("x86-64-avx512")
    graph, _, _ = build(DIRECT[name], 16)
    workload = workload_of(graph, graph.nodes[0], graph.constants)
    kernel = ConvDirect()
    blocks = {params.rb for params in kernel.sets(workload, target)}
    assert len(blocks) > 1
    for params in kernel.sets(workload, target):
        assert kernel.values(workload, params, target)["g"].plane == (
            DIRECT[name].size[0] if params.rb else 0
        )


# ---- pooling and relayouts -----------------------------------------------------------------------


@dataclass(frozen=True)
class PoolCase:
    """Pooling of [2, 20, *size] with the same window along all axes."""

    how: str
    size: tuple[int, ...]
    kernel: int
    stride: int
    pad: int
    dilation: int = 1
    end: int | None = None
    include: bool = False

    @property
    def out(self) -> tuple[int, ...]:
        """The output's spatial extents."""
        end = self.pad if self.end is None else self.end
        reach = (self.kernel - 1) * self.dilation + 1
        return tuple((n + self.pad + end - reach) // self.stride + 1 for n in self.size)


POOLS = [
    PoolCase("Max", (14, 15), 3, 2, 1),
    PoolCase("Max", (9, 9), 2, 2, 0),
    PoolCase("Max", (8, 7), 5, 1, 2),
    PoolCase("Max", (9, 8), 3, 1, 2, dilation=2),
    PoolCase("Max", (31,), 3, 2, 1),
    PoolCase("Max", (20, 20), 13, 1, 6),
    PoolCase("Average", (14, 13), 3, 2, 1),
    PoolCase("Average", (14, 13), 3, 2, 1, include=True),
    PoolCase("Average", (7, 7), 7, 1, 0),
    PoolCase("Average", (8, 8), 3, 2, 0, end=1),
]


def pooled(x: np.ndarray, case: PoolCase) -> np.ndarray:
    """Pool in float64, window by window."""
    rank = len(case.size)
    y = np.zeros((*x.shape[:2], *case.out))
    for at in np.ndindex(*case.out):
        inside = []
        for tap in np.ndindex(*[case.kernel] * rank):
            place = [a * case.stride + t * case.dilation - case.pad
                     for a, t in zip(at, tap, strict=True)]  # fmt: skip
            if all(0 <= p < n for p, n in zip(place, case.size, strict=True)):
                inside.append(x[(slice(None), slice(None), *place)].astype(np.float64))
        count = case.kernel**rank if case.include else len(inside)
        result = np.max(inside, 0) if case.how == "Max" else np.sum(inside, 0) / count
        y[(slice(None), slice(None), *at)] = result
    return y


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_pooling_against_numpy(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    record, rng = get_target(target), np.random.default_rng(0)
    block = record.vector_bytes // 4
    jobs, wanted = [], []
    for turn, case in enumerate(POOLS):
        x = rng.standard_normal((2, 20, *case.size)).astype(np.float32)
        rank = len(case.size)
        window = Window(
            (*[case.kernel] * rank, 1), (*[case.stride] * rank, 1),
            (*[case.dilation] * rank, 1), (*[case.pad] * rank, 0),
        )  # fmt: skip
        ends = (*[case.pad if case.end is None else case.end] * rank, 0)
        op = Pool(case.how, window, ends, case.include)
        feed = to_blocks(x, block)
        types = {"x": type_of(feed), "y": TensorType(F, blocked_shape((2, 20, *case.out), block))}
        graph = Graph("g", ("x",), ("y",), (Node(op, ("x",), ("y",)),), types)
        w = workload_of(graph, graph.nodes[0], {})
        assert PoolTiles().accepts(w, record), case
        expected = pooled(x, case)
        for kernel in (PoolTiles(), PoolLoops()):
            known = kernel.sets(w, record)
            if known:  # the largest windows are for the loops
                jobs.append((graph, Candidate(kernel, known[turn % len(known)])))
                wanted.append((case, feed, expected))
    for (case, feed, y), runner in zip(wanted, compile_candidates(jobs, record), strict=True):
        assert isinstance(runner, Runner), runner
        got = from_blocks(runner([feed])[0], 20)
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-6, err_msg=str(case))


def test_a_maximum_over_nan_is_nan() -> None:
    target = "x86-64-avx512" if runnable("x86-64-avx512") else "x86-64-avx2"
    if not runnable(target):
        pytest.skip("this CPU has no vectors")
    record = get_target(target)
    shape = (1, 1, 3, 3, record.vector_bytes // 4)
    x = np.zeros(shape, np.float32)
    x[0, 0, 1, 1, 3] = np.nan
    op = Pool("Max", Window((3, 3, 1), (3, 3, 1), (1, 1, 1), (0, 0, 0)), (0, 0, 0))
    types = {"x": type_of(x), "y": TensorType(F, (1, 1, 1, 1, shape[-1]))}
    graph = Graph("g", ("x",), ("y",), (Node(op, ("x",), ("y",)),), types)
    candidate = Candidate(PoolTiles(), WindowParams(r=1, c=1))
    (runner,) = compile_candidates([(graph, candidate)], record)
    assert isinstance(runner, Runner), runner
    (y,) = runner([x])
    assert np.isnan(y[..., 3]).all()
    assert np.isnan(y).sum() == 1


def test_ceil_windows_that_average_over_less_than_others_are_refused() -> None:
    record = get_target("x86-64-avx2")
    op = Pool("Average", Window((3, 1), (2, 1), (1, 1), (0, 0)), (0, 0), count_include_pad=True)
    types = {"x": TensorType(F, (1, 1, 6, 8)), "y": TensorType(F, (1, 1, 3, 8))}
    graph = Graph("g", ("x",), ("y",), (Node(op, ("x",), ("y",)),), types)
    assert not PoolTiles().accepts(workload_of(graph, graph.nodes[0], {}), record)


@pytest.mark.parametrize("target", TARGETS)
def test_relayouts_and_back(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    record, rng = get_target(target), np.random.default_rng(1)
    block = record.vector_bytes // 4
    shapes = [(1, 32, 8, 8), (2, 20, 5, 7), (1, 3, 16), (3, 16, 1, 1), (1, 50, 33), (2, 5)]
    plain = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    jobs = []
    for x in plain:
        types = {"x": type_of(x), "y": TensorType(F, blocked_shape(x.shape, block))}
        nodes = (Node(Block(block), ("x",), ("y",)),)
        jobs.append((Graph("g", ("x",), ("y",), nodes, types), Candidate(BlockChannels())))
    for x in plain:
        types = {"x": TensorType(F, blocked_shape(x.shape, block)), "y": type_of(x)}
        nodes = (Node(Unblock(), ("x",), ("y",)),)
        jobs.append((Graph("g", ("x",), ("y",), nodes, types), Candidate(UnblockChannels())))
    runners = compile_candidates(jobs, record)
    for x, there, back in zip(plain, runners, runners[len(plain) :], strict=False):
        assert isinstance(there, Runner), there
        assert isinstance(back, Runner), back
        (blocked,) = there([x])
        np.testing.assert_array_equal(blocked, to_blocks(x, block, 0.0))
        np.testing.assert_array_equal(back([to_blocks(x, block)])[0], x)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [ConvDirect(), ConvWinograd()], ids=lambda k: k.name)
def test_sums_of_parts_err_less(kernel: Blocked, target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this machine can't run {target}")
    record = get_target(target)
    case = Case(1024, 16, (8, 8), epilogue="none")
    graph, feeds, expected = build(case, record.vector_bytes // 4)
    w = workload_of(graph, graph.nodes[0], graph.constants)
    plain = next(p for p in kernel.sets(w, record) if kernel.exact(p))
    finer = kernel.precise_params(w, plain, record)
    jobs = [(graph, Candidate(kernel, p)) for p in (plain, finer)]
    errors = []
    for runner in compile_candidates(jobs, record):
        assert isinstance(runner, Runner), runner
        got = from_blocks(*runner(feeds), case.filters)
        errors.append(np.sqrt(np.mean((got - expected) ** 2)))
    assert errors[1] < errors[0] / 1.5
