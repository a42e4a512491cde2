"""Pointwise convolutions before upsampling and behind pooling: the same results, fewer pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from written_models import check_written, drawn, written

import atc
from atc.ir.graph import Graph
from atc.ir.ops import Conv, Pool
from atc.passes import run_passes
from support import compile_graph

RESIZE = '<mode="{mode}", coordinate_transformation_mode="half_pixel">'
LINEAR, NEAREST = RESIZE.format(mode="linear"), RESIZE.format(mode="nearest")
MOVED = {
    "behind a resize": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  y = Conv(u, w64)
    """,
    "with bias and function": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  c = Conv(u, w64, bias)  y = HardSwish(c)
    """,
    "nearest": f"""
        u = Resize{NEAREST}(a, none, none, sizes)  y = Conv(u, w64, bias)
    """,
    "joined": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  j = Concat<axis=1>(b, u)  c = Conv(j, w72, bias)
        y = Relu(c)
    """,
    "joined, normalised, added": f"""
        u = Resize{NEAREST}(a, none, none, sizes)  j = Concat<axis=1>(u, b)  c = Conv(j, w72, bias)
        n = BatchNormalization(c, ones, bias, bias, ones)  s = Sigmoid(n)  y = Add(s, d)
    """,
    "of three sizes": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  e = GlobalAveragePool(a)
        v = Resize{NEAREST}(e, none, none, sizes)  j = Concat<axis=1>(u, b, v)  y = Conv(j, w136)
    """,
    "twice": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  j = Concat<axis=1>(b, u)
        l = Conv(j, w72, bias)  m = Conv(j, v72)  t = Tanh(l)  y = Mul(t, m)
    """,
}
STAYS = {
    "read elsewhere": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  c = Conv(u, w64)  r = Relu(u)  y = Mul(c, r)
    """,
    "read over neighbours, too": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  c = Conv(u, w64)
        e = Conv<pads=[1, 1, 1, 1]>(u, w3)  y = Mul(c, e)
    """,
    "over neighbours": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  y = Conv<pads=[1, 1, 1, 1]>(u, w3)
    """,
    "few channels": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  t = Slice(u, zero, eight, one)  y = Conv(t, w8)
    """,
    "a function between": f"""
        u = Resize{LINEAR}(a, none, none, sizes)  r = Relu(u)  y = Conv(r, w64)
    """,
}
POOLED = {
    "plain": "c = Conv(b, w8)  y = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(c)",
    "a bias": """
        c = Conv(b, w8, bias)  y = AveragePool<kernel_shape=[3, 3], strides=[2, 2],
        pads=[1, 1, 1, 1]>(c)
    """,
    "padding counts": """
        c = Conv(b, w8)  y = AveragePool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
        count_include_pad=1>(c)
    """,
}
UNPOOLED = {
    "a bias, padding counts": """
        c = Conv(b, w8, bias)  y = AveragePool<kernel_shape=[3, 3], strides=[2, 2],
        pads=[1, 1, 1, 1], count_include_pad=1>(c)
    """,
    "a function": """
        c = Conv(b, w8)  r = Relu(c)  y = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(r)
    """,
    "the largest": "c = Conv(b, w8)  y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(c)",
    "every pixel": "c = Conv(b, w8)  y = AveragePool<kernel_shape=[1, 1]>(c)",
}
WEIGHTS = {
    "w64": (64, 64, 1, 1), "w72": (64, 72, 1, 1), "v72": (64, 72, 1, 1), "w136": (64, 136, 1, 1),
    "w3": (64, 64, 3, 3), "w8": (64, 8, 1, 1), "bias": (64,),
}  # fmt: skip
SHAPES = {"a": (2, 64, 5, 7), "b": (2, 8, 10, 14), "d": (2, 64, 10, 14)}


def model(body: str) -> onnx.ModelProto:
    """Return a network of images a, of few pixels, b and d."""
    constants = {
        **drawn(WEIGHTS, 0.25), "ones": np.ones(64, np.float32), "none": np.zeros(0, np.float32),
        "sizes": np.array([2, 64, 10, 14]), "zero": np.array([0]), "one": np.array([1]),
        "eight": np.array([8]),
    }  # fmt: skip
    inputs = "float[2, 64, 5, 7] a, float[2, 8, 10, 14] b, float[2, 64, 10, 14] d"
    return written(f"({inputs}) => (y)", body, constants)


def optimised(body: str) -> Graph:
    return run_passes(compile_graph(model(body)))


def pixels(graph: Graph) -> set[tuple[int, ...]]:
    """Return the extents of what convolutions of more than the 8 channels of b read."""
    read = [graph.types[n.inputs[0]].shape for n in graph.nodes if isinstance(n.op, Conv)]
    return {tuple(shape[2:]) for shape in read if shape[1] > 8}


def test_results_are_those_of_the_network() -> None:
    bodies = [*MOVED.values(), *STAYS.values(), *POOLED.values(), *UNPOOLED.values()]
    check_written([model(body) for body in bodies], drawn(SHAPES, 1.0, seed=1), atol=2e-5)


@pytest.mark.parametrize("case", MOVED)
def test_what_is_upsampled_is_convolved_before(case: str) -> None:
    assert pixels(optimised(MOVED[case])) <= {(5, 7), (1, 1)}


@pytest.mark.parametrize("case", STAYS)
def test_what_is_more_than_upsampled_is_not(case: str) -> None:
    wide = {"few channels": 8}.get(case, 64)
    graph = optimised(STAYS[case])
    read = {graph.types[n.inputs[0]].shape for n in graph.nodes if isinstance(n.op, Conv)}
    assert read == {(2, wide, 10, 14)}


def operand_of_pool(body: str) -> int:
    """Return how many channels are pooled."""
    graph = optimised(body)
    (pool,) = [n for n in graph.nodes if isinstance(n.op, Pool)]
    return graph.types[pool.inputs[0]].shape[1]


@pytest.mark.parametrize("case", POOLED)
def test_what_is_averaged_is_convolved_behind(case: str) -> None:
    assert operand_of_pool(POOLED[case]) == 8


@pytest.mark.parametrize("case", UNPOOLED)
def test_what_is_more_than_averaged_is_not(case: str) -> None:
    assert operand_of_pool(UNPOOLED[case]) == 64


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images_of_any_size_of_a_range(mode: str, tmp_path: Path) -> None:
    resize = RESIZE.format(mode=mode)
    constants = {
        **drawn({"w": (64, 72, 1, 1)}, 0.2), **drawn({"bias": (64,)}, 1.0),
        "none": np.zeros(0, np.float32), "twice": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    made = written(
        "(float[n, 64, h, w] a, float[n, 8, h2, w2] b) => (float[n, 64, h2, w2] y)",
        f"""
          u = Resize{resize}(a, none, twice)  j = Concat<axis=1>(u, b)  c = Conv(j, w, bias)
          y = Sigmoid(c)
        """,
        constants,
    )
    onnx.save(made, tmp_path / "m.onnx")
    shapes = "a:1~2,64,2~9,2~9;b:1~2,8,h*2,w*2"
    atc.compile(
        tmp_path / "m.onnx", tmp_path / "net", input_shape=shapes, target="c99",
        dump=tmp_path / "dump",
    )  # fmt: skip
    (text,) = (tmp_path / "dump").glob("*-move_pointwise.txt")
    assert ".small: f32[d[0],64,d[1],d[2]] = Conv" in text.read_text()
    net = atc.load(tmp_path / "net")
    for n, h, w in ((1, 2, 9), (2, 7, 5)):
        given = drawn({"a": (n, 64, h, w), "b": (n, 8, 2 * h, 2 * w)}, 1.0)
        (want,) = ReferenceEvaluator(made).run(None, given)
        np.testing.assert_allclose(net.run(given)["y"], want, atol=1e-5)


def test_coordinates_of_images_of_a_range(tmp_path: Path) -> None:
    """A channel that is computed of nothing (CoordConv)."""
    constants = {
        "two": np.array(2), "three": np.array(3), "zero": np.array(0), "one": np.array(1),
        "twos": np.array([2]), "fours": np.array([4]), "ones": np.array([1, 1]),
        **drawn({"w": (8, 33, 1, 1)}, 1.0),
    }  # fmt: skip
    made = written(
        "(float[1, 32, h, w] a) => (float[1, 8, h, w] y)",
        """
          s = Shape(a)  n = Gather<axis=0>(s, two)  m = Gather<axis=0>(s, three)  p = Mul(n, m)
          r = Range(zero, p, one)  f = Cast<to=1>(r)  image = Slice(s, twos, fours)
          t = Concat<axis=0>(ones, image)  e = Reshape(f, t)  c = Neg(e)
          j = Concat<axis=1>(a, c)  y = Conv(j, w)
        """,
        constants,
    )
    onnx.save(made, tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape="a:1,32,2~5,2~7", target="c99")
    given = drawn({"a": (1, 32, 3, 7)}, 1.0)
    (want,) = ReferenceEvaluator(made).run(None, given)
    np.testing.assert_allclose(atc.load(tmp_path / "net").run(given)["y"], want, atol=1e-5)
