"""Blocked convolutions of bytes under every instruction set, NEON under an emulator among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from default_run import level
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target
from numpy.typing import NDArray
from quantized_convs import CASES, Case, drawn, expected, model, parts

from atc.backends.cpu.amx.conv import ConvTilesBytes
from atc.backends.cpu.conv.depthwise import DepthwiseTiles, channelwise
from atc.backends.cpu.conv.depthwise_int8 import DepthwiseBytes
from atc.backends.cpu.conv.first_layer import ConvFirstBytes
from atc.backends.cpu.conv.first_layer_pairs import ConvFirstBytesPairs
from atc.backends.cpu.conv.int8 import ConvBytes
from atc.backends.cpu.conv.int8_pairs import ConvBytesPairs
from atc.backends.cpu.conv.int8_two_by_two import ConvBytesTwoByTwo
from atc.backends.cpu.conv.window_tiles import WindowParams, tiles_of
from atc.backends.cpu.conv.winograd_int8 import ConvWinogradBytes
from atc.backends.kernel import Kernel, Workload, workload_of
from atc.backends.render.vector_expr import lanes
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ConvBlocked
from atc.passes import run_passes
from atc.passes.layout.conv_forms import PLAIN_CHANNELS
from support import compile_graph

Array = NDArray[Any]
BLOCKED = {
    name: case
    for name, case in CASES.items()
    if not case.residual and name not in ("signed, padded", "first")  # those are padded in memory
}

FIRST = {
    "first": Case(3, 32, 7, 2, 3, zero=113, size=31),
    "one channel": Case(1, 16, 5, 1, 2, x=np.int8, y=np.int8, zero=-3, size=12),
    "four channels": Case(4, 24, 3, 3, zero=9, size=14, bias="float"),
    "more padding than window": Case(3, 16, 2, 1, 3, zero=2, size=3),
}
"""Convolutions of few channels, one after the other in memory, padded by any zero point."""


def blocks(x: Array, block: int) -> Array:
    """Return [N, C, *spatial] in blocks of channels, the lanes past the last at random."""
    batch, channels, *spatial = x.shape
    rest = np.random.default_rng(3).integers(0, 128, (batch, -channels % block, *spatial))
    padded = np.concatenate([x, rest.astype(x.dtype)], 1)
    return np.ascontiguousarray(np.moveaxis(padded.reshape(batch, -1, block, *spatial), 2, -1))


def in_planes(w: Workload, case: Case) -> Workload:
    """Return the workload that reads x as the model has it: channels in planes, not padded."""
    assert isinstance(w.op, ConvBlocked)
    x = parts(case)["x"]
    window = replace(w.op.window, pads=(case.pad, case.pad))
    read = TensorType(DType.from_numpy(x.dtype), x.shape)
    return replace(w, op=replace(w.op, window=window), inputs=(read, *w.inputs[1:]))


def inputs_read(w: Workload, params: WindowParams) -> int:
    """Return how many vectors of inputs the tiles of a depthwise convolution read."""
    _, _, tiles = tiles_of(channelwise(w), params.r, params.c)
    return sum(len(t.taps()) * t.down.count * t.across.count for t in tiles)


VNNI = ("x86-64-avx2-vnni", "x86-64-avx512-vnni")
ARM = ("aarch64-neon-dotprod", "aarch64-neon-i8mm")


KERNELS: tuple[Kernel, ...] = (
    *(ConvBytes(), ConvBytesPairs(), ConvWinogradBytes(), ConvFirstBytes(), DepthwiseTiles()),
    *(DepthwiseBytes(), ConvTilesBytes(), ConvBytesTwoByTwo(), ConvFirstBytesPairs()),
)


def check(
    cases: Mapping[str, Case], name: str, most: int, kernels: Sequence[Kernel] = KERNELS
) -> int:
    """Compare up to `most` parameter sets of each case's kernels; return how many cases had any."""
    target = vector_target(name)
    calls, wanted = [], []
    for label, case in cases.items():
        graph = run_passes(compile_graph(model(case)), width=lanes(target))
        node = next((n for n in graph.nodes if isinstance(n.op, ConvBlocked)), None)
        if node is None:  # the vectors are too wide for its channels, or it doesn't pay
            continue
        w, x = workload_of(graph, node, graph.constants), parts(case)["x"]
        few = case.channels <= PLAIN_CHANNELS
        w, x = (in_planes(w, case), x) if few else (w, blocks(x, lanes(target)))
        operands = [graph.constants[i] for i in node.inputs[1:]]
        for kernel in (k for k in kernels if k.accepts(w, target)):
            for params in kernel.parameters(w, target)[:most]:
                calls.append(Call(kernel, params, w, [x, *operands]))
                wanted.append((label, expected(case)))
    for call, (label, want), (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        plain = np.moveaxis(got, -1, 2).reshape(1, -1, *want.shape[2:])
        np.testing.assert_array_equal(plain[:, : want.shape[1]], want, err_msg=f"{label}: {call}")
    return len({label for label, _ in wanted})


MOST = {"x86-64-avx512-vnni", "aarch64-neon-i8mm"}
"""Targets whose instructions the others' are a part of."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in MOST else pytest.mark.slow)
        for n in (*VECTOR_TARGETS, *VNNI, *ARM)
    ],
)
def test_the_best_parameter_sets_give_the_exact_sums(name: str) -> None:
    most = 1 if level() == "-O0" else 2
    assert check(BLOCKED | FIRST, name, most) > len(BLOCKED) // 2 + len(FIRST) - 1


ROWS = {
    "signed": Case(20, 24, 3, 2, x=np.int8, y=np.int8, zero=-3, size=59),
    "unsigned, padded": Case(16, 16, 3, 2, 1, size=57),
}
"""Convolutions with a stride of two, whose tiles read several vectors of words side by side."""


@pytest.mark.parametrize("name", [ARM[0], pytest.param(ARM[1], marks=pytest.mark.slow)])
def test_words_of_a_long_row_give_the_exact_sums(name: str) -> None:
    assert check(ROWS, name, 3, (ConvBytes(),)) == len(ROWS)


def test_first_layers_read_padding_as_the_bytes_that_are_multiplied() -> None:
    target = vector_target(ARM[0])
    case = replace(FIRST["first"], x=np.int8, zero=-1)
    graph = run_passes(compile_graph(model(case)), width=lanes(target))
    node = next(n for n in graph.nodes if isinstance(n.op, ConvBlocked))
    w = in_planes(workload_of(graph, node, graph.constants), case)
    assert ConvFirstBytes().reading(w, target).signed  # unsigned ones take five instructions


WINDOWS = {
    "padded": Case(16, 16, 3, 1, 1, group=16, size=19, zero=5),
    "strided": Case(16, 16, 3, 2, 1, group=16, size=29, x=np.int8, y=np.int8, zero=-3),
    "five by five": Case(16, 16, 5, 1, 2, group=16, size=17, zero=9),
}
"""Depthwise convolutions of several tiles along both axes."""


def test_tiles_of_depthwise_bytes_read_few_inputs_and_give_the_exact_sums() -> None:
    """A byte takes as long to become a float as its products: larger tiles convert fewer."""
    target, kernel = vector_target("x86-64-avx2"), DepthwiseTiles()
    assert check(WINDOWS, target.name, 4, (kernel,)) == len(WINDOWS)
    for case in (WINDOWS["padded"], WINDOWS["strided"]):
        graph = run_passes(compile_graph(model(case)), width=lanes(target))
        node = next(n for n in graph.nodes if isinstance(n.op, ConvBlocked))
        w = workload_of(graph, node, graph.constants)
        best, *others = kernel.parameters(w, target)
        read = {p: inputs_read(w, p) for p in (best, *others)}
        assert read[best] == min(read.values()) < max(read.values())


EXTREME = {
    "padded": Case(19, 24, 3, 1, 1, size=9, scale=0.005, extreme=True),
    "pointwise": Case(40, 48, zero=5, size=7, scale=0.005, extreme=True),
    "strided": Case(16, 32, 3, 2, 2, size=11, scale=0.005, extreme=True),
    "signed": Case(32, 40, 2, x=np.int8, y=np.int8, zero=-3, scale=0.005, extreme=True),
    "grouped": Case(32, 64, 3, pad=1, group=2, per=False, scale=0.005, extreme=True),
}
"""Convolutions of bytes whose products, two by two, are more than 16 bits hold."""


@pytest.mark.parametrize("name", ["x86-64-avx2", "x86-64-avx512"])
def test_pairs_of_products_beyond_16_bits_give_the_exact_sums(name: str) -> None:
    assert check(EXTREME, name, 1) == len(EXTREME)


IN_PAIRS = {
    f"{label}, narrow": replace(case, narrow=True) for label, case in EXTREME.items()
} | {
    "two rows of padding": Case(12, 20, 5, 2, 2, size=11, narrow=True),
    "wide padding": Case(40, 16, 3, 1, 2, size=5, x=np.int8, zero=-128, narrow=True, dilation=2),
    "one block": Case(4, 16, 3, pad=1, size=6, group=1, narrow=True),
}  # fmt: skip
"""Convolutions without weights of -128, of which two products fit 16 bits by a bit."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["aarch64-neon", *(pytest.param(n, marks=pytest.mark.slow) for n in ("armv7-neon", ARM[0]))],
)
def test_signed_products_summed_two_by_two_give_the_exact_sums(name: str) -> None:
    most = 1 if level() == "-O0" else 2
    assert check(IN_PAIRS | EXTREME, name, most) >= len(IN_PAIRS | EXTREME) - 1


TILED = {
    "few channels": Case(16, 32, 3, pad=1, size=9),
    "odd blocks": Case(40, 48, 3, pad=1, size=10, scale=0.005, extreme=True),
    "signed": Case(48, 32, 3, pad=1, x=np.int8, y=np.int8, zero=-128, size=13),
    "any zero": Case(32, 16, 3, size=11, zero=200, bias="float"),
    "groups of channels": Case(256, 16, 3, pad=1, size=7, scale=0.005, extreme=True),
}
"""Convolutions that Winograd's method takes; the last one's sums are more than 26 bits hold."""


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("x86-64-avx2", len(TILED)),
        ("x86-64-avx512-vnni", 3),
        pytest.param("x86-64-avx512", 3, marks=pytest.mark.slow),
        pytest.param("x86-64-avx2-vnni", len(TILED), marks=pytest.mark.slow),
    ],
)
def test_tiles_transformed_in_integers_give_the_exact_sums(name: str, taken: int) -> None:
    assert check(TILED, name, 4, (ConvWinogradBytes(),)) == taken


DRAWN = {f"drawn {seed}": drawn(seed) for seed in range(24)}


@pytest.mark.slow
def test_drawn_convolutions_give_the_exact_sums() -> None:
    assert check(dict(list(DRAWN.items())[:6]), "x86-64-amx", 1) > 3


DRAWN_ON = (*VECTOR_TARGETS, *VNNI, *ARM, "x86-64-amx")


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN_ON)
def test_many_drawn_convolutions_give_the_exact_sums(name: str) -> None:
    """All on targets that have the others' instructions, on each of these a third."""
    turn = DRAWN_ON.index(name)
    cases = DRAWN if name in MOST else dict([*DRAWN.items()][turn % 3 :: 3])
    assert check(cases, name, 2) > len(cases) // 2
