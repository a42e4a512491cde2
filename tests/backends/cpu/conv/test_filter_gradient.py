"""Gradients of filters: both kernels and all parameter sets against numpy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from blocked_convs import to_blocks
from default_run import level
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target

from atc.backends.cpu.conv.filter_gradient import FilterGradientTiles
from atc.backends.cpu.conv.filter_gradient_depthwise import FilterGradientDepthwise
from atc.backends.cpu.conv.portable import FilterGradientDots
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import TensorType, type_of
from atc.ir.ops import ConvFilterGradient, Window
from atc.ir.ops.blocked import blocked_shape


@dataclass(frozen=True)
class Case:
    """A convolution of a batch of images, whose filters' gradient is wanted."""

    channels: int
    filters: int
    size: tuple[int, ...]
    kernel: int = 3
    stride: int = 1
    pad: int = 1
    dilation: int = 1
    batch: int = 2
    group: int = 1

    @property
    def out(self) -> tuple[int, ...]:
        """Spatial sizes of the result."""
        reach = self.dilation * (self.kernel - 1) + 1
        return tuple((n + 2 * self.pad - reach) // self.stride + 1 for n in self.size)

    @property
    def op(self) -> ConvFilterGradient:
        """The op of both kernels."""
        rank = len(self.size)
        each = (self.kernel, self.stride, self.dilation, self.pad)
        return ConvFilterGradient(Window(*((n,) * rank for n in each)), self.group)


CASES = {
    "whole blocks": Case(32, 32, (6, 7)),
    "ragged": Case(20, 40, (9, 5)),
    "strided": Case(16, 48, (9, 7), stride=2),
    "pointwise": Case(24, 33, (5, 7), kernel=1, pad=0, batch=3),
    "pointwise, strided": Case(16, 16, (7, 8), kernel=1, pad=0, stride=2),
    "first layer": Case(3, 32, (13, 11), kernel=5, stride=2, pad=2),
    "dilated": Case(16, 16, (8, 9), dilation=2, pad=2),
    "more pad than kernel": Case(8, 16, (2, 3), pad=4, kernel=2),
    "one axis": Case(17, 32, (21,), kernel=4, stride=3),
    "parts": Case(16, 40, (150, 170), kernel=2, pad=0, batch=1),
    "parts of images": Case(16, 16, (40, 40), batch=9),
}
DEPTHWISE = {
    "depthwise": Case(32, 32, (15, 16), group=32),
    "depthwise, ragged": Case(20, 20, (9, 5), group=20, batch=3),
    "depthwise, strided": Case(24, 24, (15, 14), stride=2, group=24),
    "depthwise, large window": Case(17, 17, (12, 11), kernel=5, pad=2, stride=2, group=17),
    "depthwise, dilated": Case(16, 16, (8, 9), dilation=2, pad=2, group=16),
    "depthwise, one axis": Case(18, 18, (33,), kernel=4, pad=2, group=18),
    "depthwise, more pad than kernel": Case(16, 16, (2, 3), pad=4, kernel=2, group=16),
}
EMULATED = ("armv7-neon", "wasm32-simd128", "riscv64-rvv")
GROUPS = {
    "groups": Case(6, 9, (5, 6), group=3),
    "each channel": Case(5, 5, (7,), stride=2, group=5),
}


def gradient(x: np.ndarray, g: np.ndarray, case: Case) -> np.ndarray:
    """Return the sums, tap by tap."""
    rank, channels = len(case.size), case.channels // case.group
    framed = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *[(case.pad,) * 2] * rank])
    result = np.zeros((case.filters, channels, *(case.kernel,) * rank))
    for tap in product(range(case.kernel), repeat=rank):
        begins = [t * case.dilation for t in tap]
        met = framed[(..., *(slice(b, b + case.stride * (n - 1) + 1, case.stride)
                             for b, n in zip(begins, case.out, strict=True)))]  # fmt: skip
        for k in range(case.group):
            own = slice(k * channels, (k + 1) * channels)
            filters = case.filters // case.group
            mine = slice(k * filters, (k + 1) * filters)
            axes = [0, *range(2, rank + 2)]
            found = np.tensordot(g[:, mine].astype(np.float64), met[:, own], (axes, axes))
            result[(mine, slice(None), *tap)] = found
    return result


def call(case: Case, target: Target, params: object, block: int = 0) -> tuple[Call, np.ndarray]:
    """Return a call of the portable kernel, or with a block of the tiles, and its result."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((case.batch, case.channels, *case.size)).astype(np.float32)
    g = rng.standard_normal((case.batch, case.filters, *case.out)).astype(np.float32)
    expected = gradient(x, g, case)
    few = case.channels <= 4
    fed = (x if few else to_blocks(x, block), to_blocks(g, block)) if block else (x, g)
    if block:
        assert fed[1].shape == blocked_shape(g.shape, block)
    type_ = TensorType(type_of(g).dtype, expected.shape)
    w = Workload(case.op, tuple(map(type_of, fed)), (type_,), (False, False))
    case.op.check(w.inputs, w.outputs)
    tiles = FilterGradientTiles() if case.group == 1 else FilterGradientDepthwise()
    kernel = tiles if block else FilterGradientDots()
    assert kernel.accepts(w, target), case
    return Call(kernel, params, w, fed), expected


def compare(calls: Sequence[tuple[Call, np.ndarray]], target: Target) -> None:
    """Run the calls and compare their results."""
    results = run_calls([c for c, _ in calls], target)
    for (made, expected), (got,) in zip(calls, results, strict=True):
        error = np.abs(got - expected).max() / np.abs(expected).max()
        assert error < 3e-6, (str(made), error)


def sets(case: Case, target: Target) -> list[object]:
    """Return the parameter sets of the tiles, those of threads among them."""
    made, _ = call(case, target, None, target.vector_bytes // 4)
    kernel = made.kernel
    found = kernel.sets(made.workload, target)
    return [*found, *(p for s in found for p in kernel.shared_params(made.workload, s, target, 3))]


def test_the_portable_kernel_against_numpy() -> None:
    target = get_target("c99")
    compare([call(case, target, {}) for case in (CASES | DEPTHWISE | GROUPS).values()], target)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", VECTOR_TARGETS)
def test_tiles_against_numpy(name: str) -> None:
    """Each case with a parameter set, another from case to case; by default each third case."""
    target = vector_target(name)
    block, calls = target.vector_bytes // 4, []
    taken = [*(CASES | DEPTHWISE).values()][:: 3 if level() == "-O0" else 1]
    for number, case in enumerate(taken):
        known = sets(case, target)
        calls.append(call(case, target, known[(number * 3) % len(known)], block))
    compare(calls, target)


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTOR_TARGETS)
def test_every_parameter_set_against_numpy(name: str) -> None:
    """One of three with each case, others from case to case, but for the widest vectors.

    One of nine where an emulator repeats NEON's.
    """
    target = vector_target(name)
    block = target.vector_bytes // 4
    share = 9 if name in EMULATED else 3 if block < 16 else 1
    compare(
        [call(case, target, params, block)
         for number, case in enumerate((CASES | DEPTHWISE).values())
         for params in sets(case, target)[number % share :: share]],
        target,
    )  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", VECTOR_TARGETS)
@pytest.mark.parametrize("case", [CASES["ragged"], DEPTHWISE["depthwise"]], ids=["all", "each"])
def test_any_number_of_threads_gives_the_same_bits(name: str, case: Case) -> None:
    target = vector_target(name)
    block, made = target.vector_bytes // 4, call(case, target, None, target.vector_bytes // 4)[0]
    kernel, w = made.kernel, made.workload
    params = kernel.sets(w, target)[0]
    alone, _ = call(case, target, params, block)
    cuts = [p for n in (2, 3, 9) for p in kernel.shared_params(w, params, target, n)]
    shared = [call(case, target, p, block)[0] for p in cuts]
    assert shared
    first, *others = run_calls([alone, *shared], target)
    assert all(first[0].tobytes() == other[0].tobytes() for other in others)
