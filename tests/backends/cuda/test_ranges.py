"""CUDA kernels whose first extent is known when they run: the numbers of those of one shape."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from cuda_cases import (
    CASES,
    QUICK,
    TARGET,
    Lowered,
    choose_exact,
    cubin_of,
    expected,
    lowered,
    program_of,
    rounding,
    texts_of,
)
from joined_sources import compile_joined

from atc.importers.onnx import pin_inputs
from atc.ir.graph import Graph
from atc.lower import lower_model
from atc.onnx_backend import compile_networks
from atc.options.shapes import shapes
from atc.program.steps import calls
from atc.runtime.network import Network

FIXED = {
    "map of one element", "map of pairs", "transposed operands", "reflected pad",
    "scatter that replaces", "grid sample", "nearest of a grid", "maxima of regions", "spectrum",
    "determinant", "attention of a word",
}  # fmt: skip
"""Cases with no such extent: they have none, or it is bound to others, or no kernel takes it."""

AXES = {
    "conv of groups": 2, "depthwise conv": 3, "conv of volumes": 4, "transposed conv": 2,
    "transposed conv of groups": 2, "max pool": 2, "resized": 1, "attention": 2,
    "causal attention of words": 2, "lstm": 1,
    "concat": 1, "regions": 2,
}  # fmt: skip
"""Which axis of the first input varies, where that isn't the first one."""


@dataclass(frozen=True)
class Ranged:
    """A case of whose first input an axis may be one shorter."""

    name: str
    own: Lowered
    model: onnx.ModelProto
    graph: Graph

    def feeds(self, less: int) -> dict[str, Any]:
        """Return the case's inputs, the first one cut."""
        first = self.model.graph.input[0].name
        whole = self.own.feeds[first]
        axis = AXES.get(self.name, 0)
        cut = whole.take(range(whole.shape[axis] - less), axis)
        return {**self.own.feeds, first: np.ascontiguousarray(cut)}


def ranged(name: str) -> Ranged:
    own = lowered(CASES[name])
    model = onnx.ModelProto()
    model.CopyFrom(own.model)
    first = model.graph.input[0]
    extents = first.type.tensor_type.shape.dim
    varies = extents[AXES.get(name, 0)]
    largest = varies.dim_value
    text = [f"{d.dim_value}" for d in extents]
    text[AXES.get(name, 0)] = f"{largest - 1}~{largest}"
    varies.dim_param = "rows"
    given = shapes(f"{first.name}:{','.join(text)}")
    pinned = pin_inputs(onnx_ir.from_proto(model), given, "case.onnx")
    return Ranged(name, own, model, lower_model(pinned, "case.onnx"))


WHOLE = {"scatter", "gru of lengths"}
"""Cases whose other inputs hold numbers that are wrong for less."""

NAMES = [name for name in CASES if name not in FIXED]


@cache
def compiled() -> dict[str, tuple[Ranged, Network]]:
    """Return cases in one library, which takes a fraction of the time of many."""
    found = {name: ranged(name) for name in NAMES}
    graphs = [each.graph for each in found.values()]
    networks = compile_networks(
        graphs, TARGET, "O0", choose=choose_exact, compile_all=compile_joined
    )
    return {n: (f, w) for (n, f), w in zip(found.items(), networks, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kernels_give_what_the_standard_defines(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, network = compiled()[name]
    cut = 0 if name in WHOLE else 1
    for less, order in ((0, "forward"), (cut, "reverse"), (cut, "forward")):
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        feeds = case.feeds(less)
        found = network.run(feeds)
        for one, right in zip(found.values(), expected(name, case.model, feeds), strict=True):
            assert one.shape == np.shape(right)
            np.testing.assert_allclose(one, right, **rounding(right))


@pytest.mark.few(25)
@pytest.mark.parametrize("name", NAMES)
def test_the_device_computes_it(name: str) -> None:
    graph = ranged(name).graph
    assert graph.dims
    chosen = [*calls(program_of(graph).steps)]
    assert CASES[name].kernel in {c.choice.candidate.kernel.name for c in chosen}
    assert all(c.source.launch for c in chosen)
    assert any(c.source.dims for c in chosen)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there")
def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    sources = {
        c.source.symbol: c.source
        for name in QUICK if name not in FIXED
        for c in calls(program_of(ranged(name).graph).steps)
    }  # fmt: skip
    cubin, _ = cubin_of([*sources.values()], "sm_80", tmp_path)
    assert texts_of(cubin).keys() == sources.keys()
