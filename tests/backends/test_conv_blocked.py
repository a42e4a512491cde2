"""Blocked convolution and pooling: every kernel and parameter set against numpy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest

from atc.backends.cpu.conv_blocked import ConvDirect
from atc.backends.cpu.conv_window import DepthwiseTiles, PoolTiles
from atc.backends.cpu.conv_window_loops import DepthwiseLoops, PoolLoops
from atc.backends.cpu.conv_winograd import ConvWinograd
from atc.backends.cpu.relayout import BlockChannels, UnblockChannels
from atc.backends.kernel import Candidate, workload_of
from atc.backends.target import get_target
from atc.expr import Expr, Input, call, const
from atc.ir import DType, Graph, Node, TensorType, type_of
from atc.ops import Block, ConvBlocked, Epilogue, Pool, Unblock, Window
from atc.ops.blocked import blocked_shape
from atc.view import View, dense
from support import Runner, compile_candidates, runnable

F = DType.FLOAT
Blocked = ConvDirect | ConvWinograd | DepthwiseTiles
TARGETS = ["x86-64-avx2", "x86-64-avx512"]
R, BIAS, OTHER = Input(F, 0), Input(F, 1), Input(F, 2)


@dataclass(frozen=True)
class Case:
    """A convolution of x [batch, channels, *size] to `filters` channels; pads at both ends."""

    channels: int
    filters: int
    size: tuple[int, ...]
    kernel: tuple[int, ...] = (3, 3)
    stride: int = 1
    pad: int = 1
    dilation: int = 1
    group: int = 1
    batch: int = 1
    plain: bool = False
    epilogue: str = "relu"

    @property
    def out(self) -> tuple[int, ...]:
        """The output's spatial extents."""
        return tuple((n + 2 * self.pad - (k - 1) * self.dilation - 1) // self.stride + 1
                     for n, k in zip(self.size, self.kernel, strict=True))  # fmt: skip


EPILOGUES: dict[str, Expr] = {
    "none": R,
    "relu": call("Max", call("Add", R, BIAS), const(0, F)),
    "residual": call("Max", call("Add", call("Add", R, BIAS), OTHER), const(0, F)),
    "swish": call("Mul", call("Add", BIAS, R), call("Sigmoid", call("Add", BIAS, R))),
    "gated": call("Mul", call("Sub", R, BIAS), OTHER),
    "libm": call("Tan", call("Mul", call("Add", R, BIAS), const(0.01, F))),
}
"""`OTHER` is a residual, or in `gated` one number per pixel for all channels."""

DIRECT = {
    "tile widths": Case(16, 32, (5, 28)),
    "below": Case(3, 5, (4, 5)),
    "above": Case(17, 33, (5, 29)),
    "ragged": Case(40, 24, (9, 17), epilogue="residual"),
    "short rows": Case(33, 70, (7, 7), epilogue="residual"),
    "strided": Case(20, 20, (15, 13), stride=2),
    "dilated": Case(8, 16, (11, 12), pad=2, dilation=2),
    "wide kernel": Case(16, 8, (9, 9), (5, 7), pad=3),
    "no pad": Case(16, 16, (6, 8), pad=0),
    "more pad than kernel": Case(8, 8, (2, 2), pad=4, epilogue="none"),
    "pointwise": Case(24, 40, (14, 12), (1, 1), pad=0, epilogue="residual"),
    "pointwise, prime": Case(7, 17, (1, 37), (1, 1), pad=0, epilogue="swish"),
    "pointwise, one pixel": Case(50, 100, (1, 1), (1, 1), pad=0, epilogue="swish"),
    "pointwise, strided": Case(24, 17, (9, 11), (1, 1), stride=2, pad=0, epilogue="gated"),
    "pointwise, gated": Case(24, 17, (8, 8), (1, 1), pad=0, epilogue="gated"),
    "batch": Case(16, 24, (6, 6), batch=3, epilogue="residual"),
    "groups": Case(64, 32, (6, 7), group=2),
    "narrow groups": Case(64, 64, (6, 7), group=16),
    "ragged groups": Case(24, 48, (6, 7), group=3),
    "one dimension": Case(20, 24, (31,), (5,), stride=2, pad=2, epilogue="residual"),
    "first layer": Case(3, 24, (16, 15), stride=2, plain=True),
    "first layer, 7x7": Case(3, 20, (20, 33), (7, 7), stride=2, pad=3, plain=True),
    "first layer, grey": Case(1, 16, (12, 11), (4, 10), pad=4, plain=True, epilogue="swish"),
    "libm": Case(16, 16, (5, 6), epilogue="libm"),
}
WINOGRAD = {
    "whole tiles": Case(16, 16, (8, 8)),
    "ragged tiles": Case(16, 32, (13, 15), epilogue="residual"),
    "ragged channels": Case(20, 40, (14, 14), epilogue="residual"),
    "few channels": Case(5, 7, (9, 9)),
    "small": Case(16, 16, (3, 3)),
    "no pad": Case(16, 16, (10, 11), pad=0),
    "wide pad": Case(16, 16, (6, 5), pad=2, epilogue="swish"),
    "batch": Case(16, 48, (11, 9), batch=2, epilogue="gated"),
    "libm": Case(16, 16, (6, 6), epilogue="libm"),
}
DEPTHWISE = {
    "whole": Case(32, 32, (8, 14), group=32),
    "ragged": Case(20, 20, (9, 15), group=20, epilogue="residual"),
    "strided": Case(40, 40, (15, 16), stride=2, group=40),
    "5x5": Case(16, 16, (10, 11), (5, 5), pad=2, group=16, epilogue="swish"),
    "5x5, strided": Case(24, 24, (13, 12), (5, 5), stride=2, pad=2, group=24),
    "dilated": Case(16, 16, (12, 13), pad=2, dilation=2, group=16),
    "small": Case(16, 16, (2, 1), group=16),
    "no pad": Case(16, 16, (9, 9), pad=0, group=16, batch=2),
    "one dimension": Case(48, 48, (33,), (5,), pad=2, group=48),
    "libm": Case(16, 16, (5, 6), group=16, epilogue="libm"),
}
LARGE = {
    "7x7": Case(20, 20, (14, 19), (7, 7), pad=3, group=20, epilogue="residual"),
    "13x13": Case(16, 16, (9, 40), (13, 13), stride=2, pad=6, group=16),
}


# ---- the truth -----------------------------------------------------------------------------------


def convolve(x: np.ndarray, w: np.ndarray, case: Case) -> np.ndarray:
    """Cross-correlate in float64, tap by tap."""
    pads = [(0, 0), (0, 0), *[(case.pad, case.pad)] * len(case.size)]
    padded = np.pad(x.astype(np.float64), pads)
    y = np.zeros((case.batch, case.filters, *case.out))
    ic, oc = case.channels // case.group, case.filters // case.group
    for tap in np.ndindex(*case.kernel):
        window = tuple(
            slice(t * case.dilation, t * case.dilation + (n - 1) * case.stride + 1, case.stride)
            for t, n in zip(tap, case.out, strict=True)
        )
        part = padded[(slice(None), slice(None), *window)]
        for g in range(case.group):
            source = part[:, g * ic : (g + 1) * ic]
            weights = w[(slice(g * oc, (g + 1) * oc), slice(None), *tap)].astype(np.float64)
            y[:, g * oc : (g + 1) * oc] += np.einsum("oc,nc...->no...", weights, source)
    return y


def finished(y: np.ndarray, bias: np.ndarray, other: np.ndarray, epilogue: str) -> np.ndarray:
    """Apply an epilogue in float64."""
    b = bias.astype(np.float64).reshape(-1, *[1] * (y.ndim - 2))
    match epilogue:
        case "none":
            return y
        case "relu":
            return np.maximum(y + b, 0)
        case "residual":
            return np.maximum(y + b + other, 0)
        case "swish":
            return (y + b) / (1 + np.exp(-y - b))
        case "gated":
            return (y - b) * other
        case _:
            return np.tan((y + b) * 0.01)


def to_blocks(x: np.ndarray, block: int, rest: float = np.nan) -> np.ndarray:
    """Block channels; lanes past the last hold `rest`, which must never matter."""
    missing = -x.shape[1] % block
    padded = np.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)], constant_values=rest)
    return np.ascontiguousarray(
        np.moveaxis(padded.reshape(x.shape[0], -1, block, *x.shape[2:]), 2, -1)
    )


def from_blocks(y: np.ndarray, channels: int) -> np.ndarray:
    moved = np.moveaxis(y, -1, 2)
    return moved.reshape(y.shape[0], -1, *y.shape[2:-1])[:, :channels]


# ---- the kernels ---------------------------------------------------------------------------------


def build(case: Case, block: int) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """Return a graph of one ConvBlocked, its feeds and the expected plain result."""
    rng = np.random.default_rng(prod((*case.size, case.channels, case.filters)))
    x = rng.standard_normal((case.batch, case.channels, *case.size)).astype(np.float32)
    shape = (case.filters, case.channels // case.group, *case.kernel)
    w = (rng.standard_normal(shape) / np.sqrt(prod(shape[1:]))).astype(np.float32)
    bias = rng.standard_normal(case.filters).astype(np.float32)
    other = rng.standard_normal((case.batch, case.filters, *case.out)).astype(np.float32)
    spatial = [0] * len(case.out)
    y = blocked_shape((case.batch, case.filters, *case.out), block)
    feed = other_feed = to_blocks(other, block)
    residual = dense(y)
    if case.epilogue == "gated":
        other = feed = other_feed = np.ascontiguousarray(other[:, :1])
        residual = View((prod(case.out), 0, *dense(case.out).strides, 0))
    expr = EPILOGUES[case.epilogue]
    used = {"none": 0, "residual": 2, "gated": 2}.get(case.epilogue, 1)
    views = (View((0, block, *spatial, 1)), residual)[:used]
    first = x if case.plain else to_blocks(x, block)
    names = ("x", "w", "bias", "other")[: 2 + used]
    constants = {"w": w, "bias": to_blocks(bias[None], block)[0].reshape(-1)}
    constants = {k: v for k, v in constants.items() if k in names}
    types = {"x": type_of(first), "other": type_of(other_feed), "y": TensorType(F, y)}
    types |= {k: type_of(v) for k, v in constants.items()}
    rank = len(case.size)
    window = Window(case.kernel, (case.stride,) * rank, (case.dilation,) * rank, (case.pad,) * rank)
    op = ConvBlocked(window, case.group, Epilogue(expr, views))
    op.check([types[n] for n in names], [types["y"]])
    inputs = ("x", "other") if used == 2 else ("x",)
    graph = Graph("g", inputs, ("y",), (Node(op, names, ("y",)),), types, constants)
    feeds = [first, feed] if used == 2 else [first]
    return (
        graph,
        feeds,
        finished(convolve(x, w, case), bias, other.astype(np.float64), case.epilogue),
    )


def check(kernel: Blocked, cases: Sequence[Case], target: str, tolerance: float, most: int) -> None:
    """Compile all cases at once, each with up to `most` parameter sets, run and compare them."""
    record = get_target(target)
    block = record.vector_bytes // 4
    jobs, wanted = [], []
    for turn, case in enumerate(cases):
        graph, feeds, expected = build(case, block)
        w = workload_of(graph, graph.nodes[0], graph.constants)
        assert kernel.accepts(w, record), case
        assert kernel.parameters(w, record)[0] in kernel.sets(w, record)
        known = sorted(kernel.sets(w, record), key=lambda p: kernel.cost(w, p, record))
        for params in [*known[:1], *(known * 2)[turn + 1 :]][: min(most, len(known))]:
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
    "winograd": (ConvWinograd(), WINOGRAD, 3e-5),
    "depthwise": (DepthwiseTiles(), DEPTHWISE, 2e-6),
    "depthwise loops": (DepthwiseLoops(), DEPTHWISE | LARGE, 2e-6),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_kernel_against_numpy(kernel: str, target: str) -> None:
    """Each case with the parameters of the lowest cost, and with others in turns."""
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    subject, cases, tolerance = KERNELS[kernel]
    check(subject, list(cases.values()), target, tolerance, 2)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "name"), [(k, n) for k, (_, cases, _) in KERNELS.items() for n in cases]
)
def test_every_parameter_set_against_numpy(kernel: str, name: str, target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    subject, cases, tolerance = KERNELS[kernel]
    check(subject, [cases[name]], target, tolerance, 1 << 30)


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
    (runner,) = compile_candidates([(graph, Candidate(PoolTiles(), {"r": 1, "c": 1}))], record)
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
