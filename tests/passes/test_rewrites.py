"""What single passes make of small graphs, text in and text out."""

from __future__ import annotations

import pytest
from graph_text import after, plain_lines

CONV = "Conv(window=Window(kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0)), group=1"
KERNEL = "kernel=(3, 3), strides=(1, 1), dilations=(1, 1)"
PRODUCT = "a_view=<2,1>, b_view=<2,1>"

REWRITES = {
    ("eliminate_common_subexpressions", "equal nodes are computed once"): (
        """
        graph g(x: f32[4])
          a: f32[4] = Map(shape=(4), expr=Max(x0, 0.0), views=(<1>)) x  # a
          b: f32[4] = Map(shape=(4), expr=Max(x0, 0.0), views=(<1>)) x  # b
          p: f32[4] = Map(shape=(4), expr=Exp(x0), views=(<1>)) a  # p
          y: f32[4] = Map(shape=(4), expr=Mul(x0, x1), views=(<1>, <1>)) p, b  # y
          return y
        """,
        """
        graph g(x: f32[4])
          a: f32[4] = Map(shape=(4), expr=Max(x0, 0.0), views=(<1>)) x  # a
          p: f32[4] = Map(shape=(4), expr=Exp(x0), views=(<1>)) a  # p
          y: f32[4] = Map(shape=(4), expr=Mul(x0, x1), views=(<1>, <1>)) p, a  # y
          return y
        """,
    ),
    ("fold_views", "a transpose and a slice backwards become a view"): (
        """
        graph g(x: f32[3,4])
          t: f32[4,3] = Map(shape=(4, 3), expr=x0, views=(<1,4>)) x  # t
          s: f32[2,3] = Map(shape=(2, 3), expr=x0, views=(<-6,1@9>)) t  # s
          y: f32[2,3] = Map(shape=(6), expr=Neg(x0), views=(<1>)) s  # y
          return y
        """,
        """
        graph g(x: f32[3,4])
          y: f32[2,3] = Map(shape=(2, 3), expr=Neg(x0), views=(<-2,4@3>)) x  # t; s; y
          return y
        """,
    ),
    ("sink_transposes", "a transpose stays before what has axes of its own"): (
        """
        graph g(x: f32[2,3,4])
          t: f32[4,2,3] = Map(shape=(4, 2, 3), expr=x0, views=(<1,12,4>)) x  # t
          s: f32[2,2,2,3] = Map(shape=(24), expr=Neg(x0), views=(<1>)) t  # s
          y: f32[3,2,2,2] = Map(shape=(3, 2, 2, 2), expr=x0, views=(<1,12,6,3>)) s  # y
          return y
        """,
        """
        graph g(x: f32[2,3,4])
          t: f32[4,2,3] = Map(shape=(4, 2, 3), expr=x0, views=(<1,12,4>)) x  # t
          s: f32[2,2,2,3] = Map(shape=(24), expr=Neg(x0), views=(<1>)) t  # s
          y: f32[3,2,2,2] = Map(shape=(3, 2, 2, 2), expr=x0, views=(<1,12,6,3>)) s  # y
          return y
        """,
    ),
    ("fold_views", "what is computed of transposed keys keeps their order for a product"): (
        """
        graph g(q: f32[2,4], k: f32[3,4], b: f32[4,1])
          t: f32[4,3] = Map(shape=(4, 3), expr=x0, views=(<1,4>)) k  # t
          s: f32[4,3] = Map(shape=(4, 3), expr=Mul(Tanh(x0), x1), views=(<3,1>, <1,0>)) t, b  # s
          y: f32[2,3] = MatMul(batch=(), m=2, n=3, k=4, a_view=<4,1>, b_view=<3,1>, \
epilogue=x0) q, s  # y
          return y
        """,
        """
        graph g(q: f32[2,4], k: f32[3,4], b: f32[4,1])
          s.in_order: f32[3,4] = Map(shape=(3, 4), expr=Mul(Tanh(x0), x1), \
views=(<4,1>, <0,1>)) k, b  # t; s
          y: f32[2,3] = MatMul(batch=(), m=2, n=3, k=4, a_view=<4,1>, b_view=<1,4>, \
epilogue=x0) q, s.in_order  # y
          return y
        """,
    ),
    ("fuse_epilogue", "bias and activation go into the product"): (
        f"""
        graph g(x: f32[3,2], b: f32[2])
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          p: f32[3,2] = MatMul(batch=(), m=3, n=2, k=2, {PRODUCT}, epilogue=x0) x, w  # p
          s: f32[3,2] = Map(shape=(3, 2), expr=Add(x0, x1), views=(<2,1>, <0,1>)) p, b  # s
          y: f32[3,2] = Map(shape=(6), expr=Max(x0, 0.0), views=(<1>)) s  # y
          return y
        """,
        f"""
        graph g(x: f32[3,2], b: f32[2])
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          y: f32[3,2] = MatMul(batch=(), m=3, n=2, k=2, {PRODUCT}, \
epilogue=Max(Add(x0, x1), 0.0)<0,1>) x, w, b  # p; s; y
          return y
        """,
    ),
    ("fuse_epilogue", "a residual joins the later convolution"): (
        f"""
        graph g(x: f32[1,1,2,2])
          const w: f32[2,1,1,1] = (1.0, 2.0)
          const v: f32[2,1,1,1] = (3.0, 4.0)
          a: f32[1,2,2,2] = {CONV}, epilogue=x0) x, w  # a
          b: f32[1,2,2,2] = {CONV}, epilogue=x0) x, v  # b
          s: f32[1,2,2,2] = Map(shape=(8), expr=Add(x0, x1), views=(<1>, <1>)) a, b  # s
          y: f32[1,2,2,2] = Map(shape=(8), expr=Max(x0, 0.0), views=(<1>)) s  # y
          return y
        """,
        f"""
        graph g(x: f32[1,1,2,2])
          const w: f32[2,1,1,1] = (1.0, 2.0)
          const v: f32[2,1,1,1] = (3.0, 4.0)
          a: f32[1,2,2,2] = {CONV}, epilogue=x0) x, w  # a
          y: f32[1,2,2,2] = {CONV}, \
epilogue=Max(Add(x1, x0), 0.0)<0,4,2,1>) x, v, a  # b; s; y
          return y
        """,
    ),
    ("fuse_epilogue", "a value that others read stays"): (
        f"""
        graph g(x: f32[3,2])
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          p: f32[3,2] = MatMul(batch=(), m=3, n=2, k=2, {PRODUCT}, epilogue=x0) x, w  # p
          y: f32[3,2] = Map(shape=(6), expr=Max(x0, 0.0), views=(<1>)) p  # y
          return y, p
        """,
        None,
    ),
    ("fold_affine", "scales go into the filters, shifts into one bias"): (
        f"""
        graph g(x: f32[1,1,2,2])
          const w: f32[2,1,1,1] = (1.0, 2.0)
          const s: f32[2,1,1] = (2.0, 4.0)
          const t: f32[2,1,1] = (1.0, -1.0)
          y: f32[1,2,2,2] = {CONV}, \
epilogue=Add(Mul(x0, x1), x2)<0,1,0,0><0,1,0,0>) x, w, s, t  # a; b; y
          return y
        """,
        f"""
        graph g(x: f32[1,1,2,2])
          const y.shift: f32[2] = (1.0, -1.0)
          const w.scaled: f32[2,1,1,1] = (2.0, 8.0)
          y: f32[1,2,2,2] = {CONV}, \
epilogue=Add(x0, x1)<0,1,0,0>) x, w.scaled, y.shift  # a; b; y
          return y
        """,
    ),
    ("fuse_elementwise", "an activation that reads its operand twice is one loop"): (
        """
        graph g(x: f32[4])
          a: f32[4] = Map(shape=(4), expr=Sigmoid(x0), views=(<1>)) x  # a
          y: f32[4] = Map(shape=(4), expr=Mul(x0, x1), views=(<1>, <1>)) x, a  # y
          return y
        """,
        """
        graph g(x: f32[4])
          y: f32[4] = Map(shape=(4), expr=Mul(x0, Sigmoid(x0)), views=(<1>)) x  # a; y
          return y
        """,
    ),
    ("fuse_elementwise_again", "a square goes into the sum that reads it"): (
        """
        graph g(x: f32[3,4])
          q: f32[3,4] = Map(shape=(12), expr=Mul(x0, x0), views=(<1>)) x  # q
          y: f32[3] = Reduce(how=Sum, shape=(3), reduced=(4), expr=x0, views=(<4,1>), \
epilogue=x0) q  # y
          return y
        """,
        """
        graph g(x: f32[3,4])
          y: f32[3] = Reduce(how=Sum, shape=(3), reduced=(4), expr=Mul(x0, x0), views=(<4,1>), \
epilogue=x0) x  # q; y
          return y
        """,
    ),
    (
        "merge_parallel_convolutions",
        "the sum of two convolutions is the convolution with the sum of filters",
    ): (
        f"""
        graph g(x: f32[1,1,2,2])
          const w: f32[2,1,1,1] = (1.0, 2.0)
          const v: f32[2,1,1,1] = (3.0, 4.0)
          a: f32[1,2,2,2] = {CONV}, epilogue=x0) x, w  # a
          y: f32[1,2,2,2] = {CONV}, epilogue=Add(x1, x0)<0,4,2,1>) x, v, a  # b; y
          return y
        """,
        f"""
        graph g(x: f32[1,1,2,2])
          const v.sum: f32[2,1,1,1] = (4.0, 6.0)
          y: f32[1,2,2,2] = {CONV}, epilogue=x0) x, v.sum  # a; b; y
          return y
        """,
    ),
    ("simplify_matmul", "a batch that shares its weights becomes rows"): (
        """
        graph g(x: f32[2,3,2])
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          y: f32[2,3,2] = MatMul(batch=(2), m=3, n=2, k=2, a_view=<6,2,1>, b_view=<0,2,1>, \
epilogue=x0) x, w  # y
          return y
        """,
        f"""
        graph g(x: f32[2,3,2])
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          y: f32[2,3,2] = MatMul(batch=(), m=6, n=2, k=2, {PRODUCT}, epilogue=x0) x, w  # y
          return y
        """,
    ),
    ("simplify_matmul", "a batch of run-time extent, too"): (
        """
        graph g(x: f32[d[0],3,2])
          dim Symbol(index=0, label=batch, low=1, high=8)
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          y: f32[d[0],3,2] = MatMul(batch=(d[0]), m=3, n=2, k=2, a_view=<6,2,1>, \
b_view=<0,2,1>, epilogue=x0) x, w  # y
          return y
        """,
        f"""
        graph g(x: f32[d[0],3,2])
          dim Symbol(index=0, label=batch, low=1, high=8)
          const w: f32[2,2] = (1.0, 2.0, 3.0, 4.0)
          y: f32[d[0],3,2] = MatMul(batch=(), m=3 * d[0], n=2, k=2, {PRODUCT}, \
epilogue=x0) x, w  # y
          return y
        """,
    ),
    ("conv_transpose_as_conv", "of stride 1: the filter turned around, more padding"): (
        f"""
        graph g(x: f32[1,1,3,3])
          const w: f32[1,1,3,3] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
          y: f32[1,1,5,5] = ConvTranspose(window=Window({KERNEL}, pads=(0, 0)), group=1, \
epilogue=x0) x, w  # y
          return y
        """,
        f"""
        graph g(x: f32[1,1,3,3])
          const w.phases: f32[1,1,3,3] = (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
          y.phases: f32[1,1,5,5] = Conv(window=Window({KERNEL}, pads=(2, 2)), group=1, \
epilogue=x0) x, w.phases  # y
          y: f32[1,1,5,5] = Map(shape=(1, 1, 5, 1, 5, 1), expr=x0, \
views=(<25,25,5,25,1,25>)) y.phases  # y
          return y
        """,
    ),
}
"""Pass and what is seen of it: the graph, and what the pass makes of it (None: the same)."""


@pytest.mark.parametrize(("name", "what"), REWRITES, ids=lambda text: text.replace(" ", "-"))
def test_rewrites(name: str, what: str) -> None:
    before, expected = REWRITES[name, what]
    assert after(name, before) == plain_lines(before if expected is None else expected)
