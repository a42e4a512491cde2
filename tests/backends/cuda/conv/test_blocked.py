"""Convolutions of bytes in blocks of channels, on a GPU that the host imitates: exact."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import quantized_convs
from cuda_cases import ORDERS, TARGET
from joined_sources import compile_joined
from quantized_convs import CASES, Case, drawn, expected, model, parts
from setting_rows import options

from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.target import Target
from atc.errors import OptionError
from atc.ir.graph import DType, Graph
from atc.ir.ops import ConvBlocked
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.layout_costs import GPU_BLOCKS, LayoutCosts
from atc.select.select import Limits, Measurement, consider, select

OWN = {
    "several groups": Case(64, 128, 3, pad=1, group=2, size=7),
    "more padding than window": Case(40, 33, 2, 1, 3, size=3),
    "dilated, signed": Case(36, 40, 3, 1, 2, dilation=2, zero=0, x=np.int8, y=np.int8),
    "three channels, plain": Case(3, 16, 3, 2, 1, size=13),
}
DRAWN = {f"drawn {seed}": drawn(seed) for seed in range(2)}
EVERY = CASES | OWN | DRAWN
QUICK = ("spatial", "depthwise, signed", "three channels, plain")


@cache
def blocked(name: str, layout: str) -> tuple[Graph, Workload, list[Candidate]]:
    """Return a case's graph in a layout, its convolution, and a candidate of each kernel."""
    graph = AtcBackendRep(model(EVERY[name]), TARGET.name).lower({"x": parts(EVERY[name])["x"]})
    layouts = LayoutCosts(TARGET, Limits()).layouts(layout)
    graph = run_passes(graph, width=1, device=True, layouts=layouts)
    (node,) = (n for n in graph.nodes if isinstance(n.op, ConvBlocked))
    w = workload_of(graph, node, graph.constants)
    found = {c.kernel.name: c for c in consider(w, TARGET, Limits()).found if c.kernel.launch(
        w, c.params, TARGET)}  # fmt: skip
    return graph, w, [*found.values()]


@cache
def compiled(quick: bool) -> dict[str, list[tuple[str, Network]]]:
    """Return networks in which a kernel was chosen, all in one library."""
    names = [n for n in EVERY if (n in QUICK) == quick]
    layouts = ["nchw32c"] if quick else ["nchw4c", "nchw32c"]
    chosen = [(n, x, c) for n in names for x in layouts for c in blocked(n, x)[2]]
    asked = iter(chosen)

    def choose(graph: Graph, target: Target) -> Any:
        name, layout, own = next(asked)
        w = blocked(name, layout)[1]
        able = consider(w, target, Limits()).found
        times = tuple(Measurement(c.label, 1.0 if c == own else 1e9) for c in able)
        found = select(graph, target, {w: times}, limits=Limits())
        assert own.label in {c.candidate.label for c in found.values()}
        return found

    graphs = [blocked(n, x)[0] for n, x, _ in chosen]
    networks = compile_networks(graphs, TARGET, "O0", choose=choose, compile_all=compile_joined)
    found: dict[str, list[tuple[str, Network]]] = {}
    for (name, layout, own), network in zip(chosen, networks, strict=True):
        found.setdefault(name, []).append((f"{layout} {own.label}", network))
    return found


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in EVERY]
)
def test_every_kernel_gives_the_exact_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled(name in QUICK)[name]
    for label, network in found:
        for order in ORDERS:
            monkeypatch.setenv("ATC_EMULATED_ORDER", order)
            (got,) = network.run({"x": parts(EVERY[name])["x"]}).values()
            np.testing.assert_array_equal(got, expected(EVERY[name]), err_msg=label)


def test_tensor_cores_multiply_blocks() -> None:
    kernels = {n: {c.kernel.name for c in blocked(n, "nchw32c")[2]} for n in EVERY}
    assert "cuda_conv_blocked_tensor" in kernels["spatial"] & kernels["several groups"]
    assert "cuda_conv_blocked_tensor" in kernels["odd"] & kernels["signed, padded"]
    assert kernels["depthwise"] == {"cuda_conv_blocked"}
    # 16 bytes of a tap are copied as they are: no loop gathers them
    for name in ("spatial", "signed, padded"):
        graph, w, found = blocked(name, "nchw32c")
        (tensor,) = (c for c in found if c.kernel.tensor_cores)
        sides: Any = tensor.kernel.values(w, tensor.params, TARGET)["sides"]
        assert all(side.copies for side in sides)


@pytest.mark.parametrize(("layout", "block"), GPU_BLOCKS.items())
def test_bytes_between_convolutions_stay_in_blocks(layout: str, block: int) -> None:
    """Those with a filter for each channel, pooling and a residual, too: one reorder at the end."""
    rep = AtcBackendRep(quantized_convs.network(2), TARGET.name)
    lowered = rep.lower({"x": np.zeros((2, 3, 16, 20), np.float32)})
    layouts = LayoutCosts(TARGET, Limits()).layouts(layout)
    graph = run_passes(lowered, width=1, device=True, layouts=layouts)
    kinds = Counter(n.op.kind for n in graph.nodes)
    assert (kinds["ConvBlocked"], kinds["Conv"], kinds["Block"]) == (4, 1, 0)
    assert kinds["Unblock"] == (layout != "chwn4")  # which a transpose reads
    laid = [graph.types[n.outputs[0]] for n in graph.nodes if n.op.kind in ("ConvBlocked", "Pool")]
    end = (2, 4) if layout == "chwn4" else (block,)
    assert all(t.dtype is DType.UINT8 and t.shape[-len(end) :] == end for t in laid)
    plain = run_passes(lowered, width=1, device=True)
    assert "ConvBlocked" not in {n.op.kind for n in plain.nodes}


def test_padding_with_a_zero_point_is_the_convolution_s_own() -> None:
    """As kernels have it: a pad would be another launch, and another tensor."""
    rep = AtcBackendRep(quantized_convs.network(2, zero=113), TARGET.name)
    lowered = rep.lower({"x": np.zeros((2, 3, 16, 20), np.float32)})
    for layout in ("nchw", "nchw32c"):
        layouts = LayoutCosts(TARGET, Limits()).layouts(layout)
        graph = run_passes(lowered, width=1, device=True, layouts=layouts)
        assert "Pad" not in {n.op.kind for n in graph.nodes}


@pytest.mark.parametrize("layout", GPU_BLOCKS)
def test_the_option_names_them(layout: str) -> None:
    assert options({}, layout_transform=layout).layout_transform == layout


def test_a_layout_that_no_gpu_has_is_named() -> None:
    with pytest.raises(OptionError, match="cuda-emulated has no layout nhwc") as error:
        LayoutCosts(TARGET, Limits()).layouts("nhwc")
    assert error.value.hint == "it has auto, nchw, nchw4c, nchw32c, chwn4"
