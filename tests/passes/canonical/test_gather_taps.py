"""Convolutions of one place that look back with gaps read their taps alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from graph_text import after
from networks import save
from onnx import helper, numpy_helper

import atc
from atc.dims import Range

GRAPH = """
graph g(x: f32[1,4,{n}], w: f32[2,4,2])
  y: f32[1,2,{out}] = Conv(window=Window(kernel=(2), strides=(1), dilations=(8), pads=(0)), group=1, epilogue=x0, accumulator=f32, zero_points=False) x, w  # y
  return y
"""  # noqa: E501


def convolution(folder: Path, rank: int, pads: list[int], group: int = 1) -> Path:
    """Write a network of a convolution with gaps along its first axis."""
    random = np.random.default_rng(rank)
    weights = random.standard_normal((8, 4 // group, 2, *[3] * (rank - 1))).astype(np.float32)
    dilations = [8, *[2] * (rank - 1)]
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], dilations=dilations, pads=pads, group=group
    )
    wide: list[int | str] = [11] * (rank - 1)
    return save([node], {"x": [1, 4, "n", *wide]}, {"y": [1, 8, "m", *wide]}, folder / "m.onnx",
                [numpy_helper.from_array(weights, "w")])  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["host", pytest.param("c99", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rank", "pads", "group", "extent"),
    [
        (1, [0, 0], 1, 9), (1, [0, 0], 1, 10), (1, [4, 4], 1, 1), (1, [0, 0], 2, 9),
        (1, [0, 0], 4, 9), (2, [0, 2, 0, 2], 1, 9), (2, [0, 0, 0, 0], 1, 9),
        (1, [0, 0], 1, Range(9, 12)),
    ],
)  # fmt: skip
def test_the_sums_are_those_of_windows_with_gaps(
    rank: int, pads: list[int], group: int, extent: int | Range, target: str, tmp_path: Path
) -> None:
    path = convolution(tmp_path, rank, pads, group)
    shape = (1, 4, extent, *[11] * (rank - 1))
    done = atc.compile(path, tmp_path / "net", target=target, input_shape={"x": shape})
    session = onnxruntime.InferenceSession(path)
    with atc.load(done.folder) as network:
        for n in (9, 12) if isinstance(extent, Range) else (extent,):
            x = np.random.default_rng(n).standard_normal((1, 4, n, *shape[3:])).astype(np.float32)
            (expected,) = session.run(None, {"x": x})
            np.testing.assert_allclose(network(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "out"), [(9, 1), (10, 2)])
def test_only_a_single_place_reads_its_taps_alone(n: int, out: int) -> None:
    text = after("gather_taps", GRAPH.format(n=n, out=out))
    assert ("dilations=(1)" in text) == (out == 1)
    assert ("f32[1,4,2] = Map(" in text) == (out == 1)
