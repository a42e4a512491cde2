"""Depthwise convolutions by tiles of a thread: imitated, all tiles; compiled, and counted."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cuda_cases import TARGET, cubin_of
from cuda_networks import compiled as compiled_network
from cuda_networks import depthwise_model
from joined_sources import compile_joined
from onnx import TensorProto, helper
from product_cases import (
    BF16,
    F16,
    F32,
    LIMITS,
    Case,
    check_code,
    check_on_gpu,
    check_results,
    compile_by_label,
    lowered_case,
    needs_nvcc,
    on_gpu,
    sources,
)
from projects import make_model, reference

from atc.backends.cuda.targets import ARCHITECTURES
from atc.backends.kernel import Candidate, workload_of
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import Graph
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from atc.runtime.load import load
from atc.runtime.network import Network
from atc.select.select import consider, select

KERNEL = "cuda_conv_depthwise"
U8, S8 = np.uint8, np.int8


def depthwise(
    dtype: Any, x: tuple[int, ...], kernel: tuple[int, ...], *, each: int = 1, bias: bool = False,
    **attributes: Any,
) -> Case:  # fmt: skip
    """Return a Conv of which each channel has `each` filters."""
    filters = (each * x[1], 1, *kernel)
    more = {"group": x[1], **attributes}
    shapes = (x, filters, (filters[0],)) if bias else (x, filters)
    return Case(KERNEL, "Conv", (dtype,) * len(shapes), shapes, tuple(more.items()),
                tuple(range(1, len(shapes))))  # fmt: skip


SAME = {"pads": [1, 1, 1, 1]}
CASES = {
    "3x3": depthwise(F32, (2, 3, 8, 12), (3, 3), bias=True, **SAME),
    "3x3 of odd rows": depthwise(F32, (1, 5, 7, 7), (3, 3), **SAME),
    "3x3, stride 2": depthwise(F32, (1, 3, 16, 16), (3, 3), strides=[2, 2], **SAME),
    "3x3, stride 2, behind": depthwise(F16, (2, 3, 12, 8), (3, 3), strides=[2, 2],
                                       pads=[0, 0, 1, 1]),
    "5x5 of float16": depthwise(F16, (1, 4, 14, 16), (5, 5), bias=True, pads=[2, 2, 2, 2]),
    "5x5, stride 2": depthwise(BF16, (1, 3, 15, 15), (5, 5), strides=[2, 2], pads=[2, 2, 2, 2]),
    "7x7": depthwise(F32, (1, 2, 9, 20), (7, 7), pads=[3, 3, 3, 3]),
    "dilated": depthwise(F32, (1, 3, 12, 13), (3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    "far apart": depthwise(F32, (1, 2, 11, 10), (2, 3), dilations=[4, 1], strides=[3, 1]),
    "two filters of a channel": depthwise(F16, (2, 3, 6, 8), (3, 3), each=2, bias=True, **SAME),
    "along one axis": depthwise(F32, (2, 4, 40), (5,), pads=[2, 2]),
    "causal, along one axis": depthwise(F16, (1, 4, 33), (4,), bias=True, pads=[3, 0]),
    "bytes": Case(KERNEL, "ConvInteger", (S8, S8), ((1, 5, 8, 16), (5, 1, 3, 3)),
                  (("group", 5), *SAME.items()), (1,)),
    "bytes and zero points": Case(KERNEL, "ConvInteger", (U8, U8, U8, U8),
                                  ((2, 3, 9, 12), (3, 1, 3, 3), (), (3,)),
                                  (("group", 3), ("strides", [2, 2]), *SAME.items()), (1, 2, 3)),
}  # fmt: skip
QUICK = ("3x3", "bytes and zero points")


def spread(name: str) -> list[Candidate]:
    """Return the candidates of a case; of a quick one, the fastest alone."""
    found = lowered_case(CASES[name]).candidates(KERNEL)
    return found[:1] if name in QUICK else found


@cache
def compiled(quick: bool) -> dict[tuple[str, str], Network]:
    chosen = [(n, c) for n in CASES if (n in QUICK) == quick for c in spread(n)]
    return compile_by_label(CASES, chosen)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_every_tile_gives_the_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {label: w for (n, label), w in compiled(name in QUICK).items() if n == name}
    check_results(CASES[name], own, monkeypatch)


@on_gpu
@pytest.mark.parametrize("name", CASES)
def test_every_tile_gives_the_convolution_on_a_gpu(name: str) -> None:
    check_on_gpu(CASES[name], get_target("cuda"))


LARGE = {
    "of floats": depthwise(F32, (32, 64, 112, 112), (3, 3), bias=True, **SAME),
    "of float16": depthwise(F16, (32, 64, 112, 112), (3, 3), bias=True, **SAME),
    "of float16, stride 2": depthwise(F16, (32, 96, 112, 112), (3, 3), strides=[2, 2], **SAME),
    "5x5": depthwise(F16, (8, 240, 28, 28), (5, 5), pads=[2, 2, 2, 2]),
    "7x7": depthwise(F32, (8, 96, 56, 56), (7, 7), pads=[3, 3, 3, 3]),
    "of one image": depthwise(F32, (1, 960, 7, 7), (3, 3), **SAME),
    "of bytes": Case(KERNEL, "ConvInteger", (S8, S8), ((8, 64, 56, 56), (64, 1, 3, 3)),
                     (("group", 64), *SAME.items()), (1,)),
}  # fmt: skip


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("device", ARCHITECTURES)
def test_tiles_fit_in_registers(device: str, tmp_path: Path) -> None:
    every = sources(device, *CASES.values())
    check_code(device, every if device in ("sm_75", "sm_90") else every[::7], tmp_path)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", LARGE)
def test_as_many_blocks_are_resident_as_is_estimated(name: str, tmp_path: Path) -> None:
    for workload, candidate, source in sources("sm_90", LARGE[name])[:3]:
        _, report = cubin_of([source], "sm_90", tmp_path, "-Xptxas", "-v")
        registers = int(re.search(r"Used (\d+) registers", report)[1])  # type: ignore[index]
        resident = candidate.kernel.resident(workload, candidate.params)
        assert -(-registers // 8) * 8 * 128 * resident <= 1 << 16, candidate.label


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_tiles_are_estimated_to_be_faster_than_single_results(name: str) -> None:
    own = lowered_case(LARGE[name]).workload
    for device in ("cuda-sm80", "cuda-sm90"):
        target = get_target(device)
        found = [c for c in consider(own, target, LIMITS).found if c.kernel.name == KERNEL]
        times = [c.kernel.cost(own, c.params, target) for c in found]
        (other,) = (c for c in consider(own, target, LIMITS).found if c.kernel.name == "cuda_conv")
        assert times == sorted(times)
        assert times[0] < other.kernel.cost(own, other.params, target)


def test_other_convolutions_have_other_kernels() -> None:
    for case in (
        Case(KERNEL, "Conv", (F32, F32), ((1, 8, 6, 6), (8, 2, 3, 3)), (("group", 4),), (1,)),
        Case(KERNEL, "Conv", (F32, F32), ((1, 4, 3, 4, 5), (4, 1, 2, 2, 2)), (("group", 4),), (1,)),
    ):
        assert not lowered_case(case).candidates(KERNEL, TARGET)


# ---- networks ------------------------------------------------------------------------------------


def quantized_model() -> onnx.ModelProto:
    """Return a depthwise convolution between DequantizeLinear and QuantizeLinear, with a Relu."""
    rng = np.random.default_rng(5)
    scales = rng.uniform(0.01, 0.03, 6).astype(F32)
    constants = {
        "w": rng.integers(-127, 127, (6, 1, 3, 3), S8), "ws": scales, "wz": np.zeros(6, S8),
        "s": F32(0.05), "z": U8(120), "t": F32(0.2), "u": U8(3),
        "b": rng.integers(-900, 900, 6, np.int32), "bs": F32(0.05) * scales,
        "bz": np.zeros(6, np.int32),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["c"], axis=0),
        helper.make_node("Conv", ["a", "v", "c"], ["d"], group=6, strides=[2, 2], pads=[1] * 4),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("QuantizeLinear", ["e", "t", "u"], ["y"]),
    ]
    ports = ("x", TensorProto.UINT8, (2, 6, 12, 16)), ("y", TensorProto.UINT8, (2, 6, 6, 8))
    return make_model(nodes, [ports[0]], [ports[1]], constants)


def test_quantized_networks_sum_integers_and_store_bytes() -> None:
    model = quantized_model()
    x = np.random.default_rng(6).integers(0, 256, (2, 6, 12, 16), U8)
    graph = AtcBackendRep(model, TARGET.name).lower({"x": x})
    done = run_passes(graph, width=1, device=True)
    (node,) = (n for n in done.nodes if n.op.kind == "Conv")
    assert {done.types[n].dtype.label for n in (node.inputs[0], *node.outputs)} == {"u8"}
    own = workload_of(done, node, done.constants)
    best = next(c for c in consider(own, TARGET, LIMITS).found if c.kernel.name == KERNEL)

    def choose(graph: Graph, target: Target) -> Any:
        found = select(graph, target, limits=LIMITS)
        return {k: replace(c, candidate=best) if c.workload == own else c
                for k, c in found.items()}  # fmt: skip

    (network,) = compile_networks([graph], TARGET, "O1", choose=choose, compile_all=compile_joined)
    found, right = network.run({"x": x})["y"].astype(int), reference(model, x)[0].astype(int)
    # Sums are exact here, the reference's are those of floats: the middle of two steps may differ.
    assert np.abs(found - right).max() <= 1
    assert (found != right).mean() < 0.01
    assert len(np.unique(right)) > 20


@pytest.mark.slow
def test_any_number_of_images_is_convolved(tmp_path: Path) -> None:
    model, rng = depthwise_model(), np.random.default_rng(3)
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "images"
    done = compiled_network(model, tmp_path, input_shape="x:1~4,32,28,28")
    assert any(n["kernel"].startswith(KERNEL) for n in done.report["nodes"])
    network = load(tmp_path / "net")
    for images in (4, 1, 3):
        x = rng.normal(size=(images, 32, 28, 28)).astype(F32)
        (right,) = reference(model, x)
        (found,) = network.run({"x": x}).values()
        np.testing.assert_allclose(found, right, atol=1e-4 * np.abs(right).max())
