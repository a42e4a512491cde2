# ruff: noqa: B905, UP031  (it runs under Python 3.8)
"""Writes real MXNet exports with inputs and outputs, to test the importer against.

    MXNET_PYTHON make_mxnet_dumps.py DIRECTORY [NAME...]

Runs under CPython 3.8 with `pip install mxnet==1.9.1 'numpy<1.24'`; the detection, segmentation
and language networks also want `gluoncv==0.10.5 gluonnlp==0.10.0 yacs tqdm portalocker
matplotlib Pillow scipy requests opencv-python-headless pandas`. Without arguments after the
directory it writes all cases. Each case is a folder with model-symbol.json, model-0000.params
and case.npz (inputs `i:<name>`, outputs `o<k>`). Importing this module needs no MXNet.
"""

import os
import subprocess
import sys
import zlib

import numpy as np

CASES = {}
"""Every case by name: a function of the mxnet module that returns (symbol, inputs, params)."""


def random(name, shape, kind="normal"):
    """Return seeded numbers that depend on the name alone."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    if kind == "uniform":
        return rng.uniform(0.1, 1, shape).astype("float32")
    return rng.standard_normal(shape).astype("float32")


def op(name, build, **inputs):
    """Register a graph of few operators; what isn't an input is a parameter of inferred shape."""
    def make(mx):
        variables = {k: mx.sym.var(k, dtype=v.dtype) for k, v in inputs.items()
                     if not isinstance(v, tuple) and v.dtype != np.float32}
        symbol = build(mx.sym, lambda key: variables.setdefault(key, mx.sym.var(key)))
        symbol = mx.sym.Group(symbol) if isinstance(symbol, (list, tuple)) else symbol
        arrays = {k: random(name + k, v) if isinstance(v, tuple) else np.asarray(v)
                  for k, v in inputs.items()}
        shapes = {k: v.shape for k, v in arrays.items()}
        args, _, aux = symbol.infer_shape(**shapes)
        params = {}
        for key, shape in zip(symbol.list_arguments(), args):
            if key not in arrays and not key.endswith("_label"):
                params["arg:" + key] = mx.nd.array(random(name + key, shape))
        for key, shape in zip(symbol.list_auxiliary_states(), aux):
            params["aux:" + key] = mx.nd.array(random(name + key, shape, "uniform"))
        return symbol, arrays, params

    assert name not in CASES, name
    CASES[name] = make


def network(name, build, labels=(), **shapes):
    """Register a Gluon block, traced with variables and given random parameters."""
    def make(mx):
        mx.random.seed(7)
        np.random.seed(7)
        net = build(mx)
        net.initialize(mx.init.Normal(0.1))
        net.hybridize()
        arrays = {k: random(name + k, v) if isinstance(v, tuple) else np.asarray(v)
                  for k, v in shapes.items()}
        feed = [mx.nd.array(v, dtype=v.dtype) for v in arrays.values()]
        net(*feed)
        for key, value in net.collect_params().items():
            if key.endswith(("gamma", "var")):
                value.set_data(mx.nd.array(random(key, value.shape, "uniform")))
            elif key.endswith(("beta", "bias", "mean")):
                value.set_data(mx.nd.array(random(key, value.shape)) * 0.2)
            elif key.endswith("weight"):
                scale = np.sqrt(1.5 / np.prod(value.shape[1:]))
                if "rpn" in key or "rcnn" in key and "dense" in key:
                    scale *= 0.02  # else sigmoids saturate, and equal scores have no order
                value.set_data(mx.nd.array(random(key, value.shape) * scale))
        symbol = net(*[mx.sym.var(k) for k in arrays])
        symbol = _flatten(mx, symbol)
        params = {}
        for key, value in net.collect_params().items():
            if key in symbol.list_arguments():
                params["arg:" + key] = value.data()
            elif key in symbol.list_auxiliary_states():
                params["aux:" + key] = value.data()
        return symbol, arrays, params

    assert name not in CASES, name
    CASES[name] = make


def _flatten(mx, found):
    if isinstance(found, mx.sym.Symbol):
        return found
    flat = []

    def walk(item):
        if isinstance(item, (list, tuple)):
            for inner in item:
                walk(inner)
        else:
            flat.append(item)

    walk(found)
    return mx.sym.Group(flat)


# ---- operators ---------------------------------------------------------------------------------

op("conv", lambda s, v: s.Convolution(v("x"), kernel=(3, 2), num_filter=6, num_group=2,
   pad=(1, 0), stride=(2, 1), dilate=(1, 2), name="c"), x=(2, 4, 9, 8))
op("conv_no_bias", lambda s, v: s.Convolution(v("x"), kernel=(1, 1), num_filter=3, no_bias=True),
   x=(1, 4, 5, 5))
op("conv1d", lambda s, v: s.Convolution(v("x"), kernel=(3,), num_filter=3, pad=(1,)), x=(1, 2, 9))
op("conv3d", lambda s, v: s.Convolution(v("x"), kernel=(2, 3, 2), num_filter=3), x=(1, 2, 4, 5, 6))
op("deconv", lambda s, v: s.Deconvolution(v("x"), kernel=(4, 3), num_filter=4, num_group=2,
   pad=(1, 0), stride=(2, 3), adj=(1, 2), name="d"), x=(1, 6, 5, 4))
op("plain_deconv_target", lambda s, v: s.Deconvolution(v("x"), kernel=(4, 4), num_filter=3,
   stride=(2, 2), target_shape=(9, 10), no_bias=False), x=(1, 2, 5, 5))
op("deconv_dilate", lambda s, v: s.Deconvolution(v("x"), kernel=(3, 3), num_filter=3,
   dilate=(2, 2), stride=(2, 2)), x=(1, 2, 4, 4))
op("deconv1d", lambda s, v: s.Deconvolution(v("x"), kernel=(3,), num_filter=3, stride=(2,)),
   x=(1, 2, 4))
op("dense", lambda s, v: s.FullyConnected(v("x"), num_hidden=5), x=(2, 3, 4))
op("dense_keep", lambda s, v: s.FullyConnected(v("x"), num_hidden=5, flatten=False, no_bias=True),
   x=(2, 3, 4))
op("deformable", lambda s, v: s.contrib.DeformableConvolution(v("x"), v("o"), kernel=(3, 3),
   num_filter=4, pad=(1, 1), num_deformable_group=2, num_group=2, stride=(2, 2)),
   x=(1, 4, 7, 6), o=(1, 36, 4, 3))
op("deformable_mod", lambda s, v: s.contrib.ModulatedDeformableConvolution(v("x"), v("o"), v("m"),
   kernel=(3, 3), num_filter=4, pad=(1, 1), num_deformable_group=1),
   x=(1, 4, 7, 6), o=(1, 18, 7, 6), m=random("m", (1, 9, 7, 6), "uniform"))

for _kind in ("max", "avg", "sum"):
    for _convention in ("valid", "full"):
        op("pool_%s_%s" % (_kind, _convention), lambda s, v, k=_kind, c=_convention: s.Pooling(
            v("x"), kernel=(3, 2), stride=(2, 2), pad=(1, 0), pool_type=k, pooling_convention=c),
           x=(2, 3, 8, 7))
op("pool_full_exclude", lambda s, v: s.Pooling(v("x"), kernel=(3, 3), stride=(2, 2), pad=(1, 1),
   pool_type="avg", pooling_convention="full", count_include_pad=False), x=(1, 2, 8, 6))
op("pool_avg_pad", lambda s, v: s.Pooling(v("x"), kernel=(3, 3), stride=(1, 1), pad=(1, 1),
   pool_type="avg"), x=(1, 2, 6, 6))
op("pool_default_stride", lambda s, v: s.Pooling(v("x"), kernel=(2, 2)), x=(1, 2, 5, 5))
for _kind in ("max", "avg", "sum"):
    op("pool_global_" + _kind, lambda s, v, k=_kind: s.Pooling(v("x"), global_pool=True,
       pool_type=k, kernel=(2, 2)), x=(2, 3, 5, 4))
for _p in (1, 2, 3):
    op("pool_lp%d" % _p, lambda s, v, p=_p: s.Pooling(v("x"), kernel=(2, 2), stride=(2, 2),
       pool_type="lp", p_value=p), x=(1, 2, 6, 6))
    op("pool_global_lp%d" % _p, lambda s, v, p=_p: s.Pooling(v("x"), kernel=(2, 2),
       global_pool=True, pool_type="lp", p_value=p), x=(1, 2, 6, 6))
op("pool1d", lambda s, v: s.Pooling(v("x"), kernel=(3,), stride=(2,), pool_type="avg"),
   x=(1, 2, 9))
op("pool3d", lambda s, v: s.Pooling(v("x"), kernel=(2, 2, 2), stride=(2, 1, 2), pool_type="avg"),
   x=(1, 2, 4, 4, 5))
for _size in ((), (1,), (3,), (2, 3), (4, 4)):
    op("adaptive_%s" % "_".join(map(str, _size)), lambda s, v, z=_size:
       s.contrib.AdaptiveAvgPooling2D(v("x"), output_size=z), x=(1, 2, 8, 7))

for _kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
    op("act_" + _kind, lambda s, v, k=_kind: s.Activation(v("x"), act_type=k), x=(2, 3, 4))
for _kind in ("leaky", "elu", "selu", "gelu", "rrelu", "prelu"):
    op("leaky_" + _kind, lambda s, v, k=_kind: s.LeakyReLU(v("x"), act_type=k)[0], x=(2, 3, 4))
op("leaky_slope", lambda s, v: [s.LeakyReLU(v("x"), act_type=k, slope=0.1)
   for k in ("leaky", "elu")], x=(2, 3, 4))
op("prelu_one", lambda s, v: s.LeakyReLU(v("x"), v("g"), act_type="prelu"), x=(2, 3, 4),
   g=np.float32([0.3]))
op("hard_sigmoid", lambda s, v: s.hard_sigmoid(v("x"), alpha=0.3), x=(2, 3, 4))
op("softmax", lambda s, v: [s.softmax(v("x")), s.softmax(v("x"), axis=1, temperature=2.0),
   s.log_softmax(v("x"), axis=0), s.softmin(v("x"), axis=1)], x=(2, 3, 4))
op("softmax_length", lambda s, v: s.softmax(v("x"), v("n"), axis=1, use_length=True),
   x=(2, 3, 4), n=np.int32([[1, 2, 3, 3], [3, 1, 2, 3]]))
op("softmax_output", lambda s, v: s.SoftmaxOutput(v("x"), name="softmax"), x=(2, 3, 4))
op("softmax_output_multi", lambda s, v: s.SoftmaxOutput(v("x"), multi_output=True, name="softmax"),
   x=(2, 3, 4))
op("softmax_output_keep", lambda s, v: s.SoftmaxOutput(v("x"), preserve_shape=True,
   name="softmax"), x=(2, 3, 4))
op("softmax_activation", lambda s, v: [s.SoftmaxActivation(v("x")),
   s.SoftmaxActivation(v("x"), mode="channel")], x=(2, 3, 4, 2))
op("regression", lambda s, v: [s.LinearRegressionOutput(v("x"), name="a"),
   s.LogisticRegressionOutput(v("x"), name="b"), s.MAERegressionOutput(v("x"), name="c")],
   x=(2, 3))
op("losses", lambda s, v: [s.MakeLoss(s.abs(v("x"))), s.BlockGrad(v("x")),
   s.make_loss(s.square(v("x"))), s.Dropout(v("x"), p=0.3)], x=(2, 3))

op("batch_norm", lambda s, v: s.BatchNorm(v("x"), name="b"), x=(2, 3, 4, 5))
op("batch_norm_gamma", lambda s, v: s.BatchNorm(v("x"), fix_gamma=False, eps=1e-5, name="b"),
   x=(2, 3, 4, 5))
op("batch_norm_axis", lambda s, v: s.BatchNorm(v("x"), fix_gamma=False, axis=3, name="b"),
   x=(2, 3, 4, 5))
op("batch_norm_2d", lambda s, v: s.BatchNorm(v("x"), fix_gamma=False, name="b"), x=(2, 3))
op("batch_norm_relu", lambda s, v: s.contrib.BatchNormWithReLU(v("x"), fix_gamma=False, name="b"),
   x=(2, 3, 4, 5))
op("layer_norm", lambda s, v: s.LayerNorm(v("x"), name="n"), x=(2, 3, 4))
op("layer_norm_axis", lambda s, v: s.LayerNorm(v("x"), axis=1, eps=1e-3, name="n"), x=(2, 3, 4))
op("layer_norm_stats", lambda s, v: list(s.LayerNorm(v("x"), output_mean_var=True, name="n")),
   x=(2, 3, 4))
op("instance_norm", lambda s, v: s.InstanceNorm(v("x"), name="n"), x=(2, 3, 4, 5))
op("group_norm", lambda s, v: s.GroupNorm(v("x"), num_groups=2, name="n"), x=(2, 6, 4, 5))
op("l2_norm", lambda s, v: [s.L2Normalization(v("x"), mode=m)
   for m in ("instance", "channel", "spatial")], x=(2, 3, 4, 5))
op("lrn", lambda s, v: s.LRN(v("x"), nsize=3, alpha=0.1), x=(2, 6, 4, 5))

_UNARY = ("abs exp square sin cos tan arctan sinh cosh tanh arcsinh floor ceil rint fix "
          "trunc round sign erf negative sigmoid relu softsign degrees radians expm1 cbrt "
          "logical_not")
op("unary", lambda s, v: [getattr(s, n)(v("x")) for n in _UNARY.split()], x=(3, 4))
op("unary_positive", lambda s, v: [getattr(s, n)(v("x")) for n in (
    "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "rcbrt", "arcsin", "arccos",
    "arctanh")], x=random("positive", (3, 4), "uniform") * 0.9)
op("arccosh", lambda s, v: s.arccosh(v("x")), x=np.float32([1, 1.5, 3]))
op("rounding", lambda s, v: [s.round(v("x")), s.rint(v("x")), s.fix(v("x"))],
   x=np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4, -0.6]))
op("clip", lambda s, v: [s.clip(v("x"), -0.5, 0.5), s.clip(v("x"), 0, 6),
   s.smooth_l1(v("x"), scalar=2.0), s.contrib.quadratic(v("x"), a=2, b=-1, c=0.5),
   s.contrib.div_sqrt_dim(v("x"))], x=(3, 4))
_BINARY = "add sub mul div maximum minimum power equal not_equal greater greater_equal lesser " \
          "lesser_equal logical_and logical_or logical_xor hypot mod"
op("broadcast", lambda s, v: [getattr(s, "broadcast_" + n)(v("x"), v("y"))
   for n in _BINARY.split()], x=random("x", (2, 1, 4), "uniform"),
   y=random("y", (1, 3, 4), "uniform"))
op("elemwise", lambda s, v: [v("x") + v("y"), v("x") - v("y"), v("x") * v("y"), v("x") / v("y"),
   v("x") ** v("y"), v("x") % v("y"), v("x") > v("y"), v("x") == v("y"), s.maximum(v("x"), v("y")),
   s.hypot(v("x"), v("y")), s.add_n(v("x"), v("y"), v("x"))],
   x=random("x", (2, 3), "uniform"), y=random("y", (2, 3), "uniform"))
op("scalar", lambda s, v: [v("x") + 2, v("x") - 2, 2 - v("x"), v("x") * 2, v("x") / 2, 2 / v("x"),
   v("x") ** 2, 2 ** v("x"), v("x") % 2, 2.5 % v("x"), v("x") > 0, v("x") >= 0.5, v("x") < 0,
   v("x") <= 0, v("x") == 0, v("x") != 0, s.maximum(v("x"), 0.2), s.minimum(v("x"), 0.2),
   s.hypot(v("x"), 3)], x=np.float32([-3, -1.5, -0.25, 0.5, 1, 2, 7]))
op("modulo", lambda s, v: s.broadcast_mod(v("x"), v("y")),
   x=np.float32([5, -5, 5, -5, 3, -6, 6]), y=np.float32([3, 3, -3, -3, 0, 3, -3]))
op("integers", lambda s, v: [s.Cast(v("x"), dtype="int32") + 2, s.Cast(v("x"), dtype="int32") / 2,
    s.Cast(v("x"), dtype="int32") % 3, s.Cast(v("x"), dtype="int32") > 2,
    s.Cast(v("x"), dtype="int32") * 1.5,
    s.clip(s.Cast(v("x"), dtype="int32"), 0, 3), s.Cast(v("x"), dtype="uint8")],
   x=np.float32([5.7, 4.9, 3, 0.2]))
op("where", lambda s, v: [s.where(v("c"), v("x"), v("y")),
   s.where(v("r"), v("x"), v("y"))], c=np.float32([[1, 0, 2], [0, 0, 1]]), x=(2, 3), y=(2, 3),
   r=np.float32([0, 1]))
op("plain_amp", lambda s, v: list(s.amp_multicast(s.amp_cast(v("x"), dtype="float16"), v("y"),
   num_outputs=2)), x=(2, 3), y=(2, 3))

for _i, _shape in enumerate([(-1,), (0, -1), (-2,), (-3, 0), (-3, -2), (-4, 1, 2, -2),
                             (-4, -1, 2, 0, 0), (4, 0, 2), (0, 0, -1, 2), (-2, 1, 1),
                             (0, -4, 3, -1, 0)]):
    op("reshape_%d" % _i, lambda s, v, z=_shape: s.Reshape(v("x"), shape=z), x=(2, 3, 4))
op("reshape_reverse", lambda s, v: [s.Reshape(v("x"), shape=(-1, 0), reverse=True),
   s.Reshape(v("x"), shape=(0, -3), reverse=True)], x=(10, 5, 4))
op("reshape_legacy", lambda s, v: [s.Reshape(v("x"), target_shape=(0, 12)),
   s.Reshape(v("x"), target_shape=(9, 12), keep_highest=True)], x=(2, 3, 4))
op("reshape_like", lambda s, v: [s.reshape_like(v("x"), v("y")), s.reshape_like(v("x"), v("z"),
   lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)], x=(6, 4), y=(3, 2, 4), z=(2, 3, 5))
op("shapes", lambda s, v: [s.transpose(v("x")), s.transpose(v("x"), axes=(1, 0, 2, 3)),
   s.SwapAxis(v("x"), dim1=1, dim2=3), s.expand_dims(v("x"), axis=-1), s.squeeze(v("x")),
   s.squeeze(v("x"), axis=1), s.Flatten(v("x")), s.tile(v("x"), reps=(2, 1, 3)),
   s.repeat(v("x"), repeats=2, axis=2), s.repeat(v("x"), repeats=3), s.reverse(v("x"), axis=(0, 3)),
   s.shape_array(v("x")), s.size_array(v("x"))], x=(2, 1, 3, 4))
op("squeeze_all", lambda s, v: s.squeeze(v("x")), x=(1, 1))
op("broadcasting", lambda s, v: [s.broadcast_to(v("x"), shape=(2, 0, 4)),
   s.broadcast_axis(v("x"), axis=(0, 2), size=(3, 2)), s.broadcast_like(v("x"), v("y")),
   s.broadcast_like(v("x"), v("y"), lhs_axes=(0,), rhs_axes=(2,))], x=(1, 3, 1), y=(2, 3, 4))
op("joining", lambda s, v: [s.Concat(v("x"), v("y"), v("x")), s.concat(v("x"), v("y"), dim=-2),
   s.stack(v("x"), v("x"), axis=-1)], x=(2, 3, 4), y=(2, 3, 4))
op("splitting", lambda s, v: list(s.SliceChannel(v("x"), num_outputs=2))
   + list(s.SliceChannel(v("x"), num_outputs=3, axis=2, squeeze_axis=True))
   + list(s.split_v2(v("x"), (1, 3), axis=1)) + list(s.split_v2(v("x"), 2, axis=0)),
   x=(2, 4, 3))
op("slicing", lambda s, v: [s.slice(v("x"), begin=(None, 1), end=(1, None)),
   s.slice(v("x"), begin=(0, -1, None), end=(2, 0, None), step=(1, -2, -1)),
   s.slice_axis(v("x"), axis=1, begin=1, end=None), s.slice_axis(v("x"), axis=-1, begin=-2, end=-1),
   s.slice_like(v("x"), v("y")), s.slice_like(v("x"), v("y"), axes=(-1,))],
   x=(3, 5, 4), y=(2, 3, 2))
op("padding", lambda s, v: [s.Pad(v("x"), mode=m, pad_width=(0, 0, 0, 0, 1, 2, 2, 1),
   constant_value=3) for m in ("constant", "edge", "reflect")], x=(1, 2, 3, 4))
op("crop", lambda s, v: [s.Crop(v("x"), h_w=(2, 3), offset=(1, 2)),
   s.Crop(v("x"), h_w=(3, 2), center_crop=True), s.Crop(v("x"), v("y"), num_args=2)],
   x=(1, 2, 6, 7), y=(1, 1, 4, 5))
op("blocks", lambda s, v: [s.depth_to_space(v("x"), block_size=2),
   s.space_to_depth(v("x"), block_size=2)], x=(1, 8, 4, 6))
op("diag", lambda s, v: [s.diag(v("x"), k=1), s.diag(v("x"), k=-1), s.diag(v("y"), k=1),
   s.diag(v("y"), k=-2), s.diag(v("z"), axis1=0, axis2=2)], x=(3, 4), y=(3,), z=(2, 3, 4))

op("reductions", lambda s, v: [getattr(s, n)(v("x"), **k) for n in ("sum", "mean", "max", "min",
   "prod", "norm") for k in ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True})]
   + [s.sum(v("x"), axis=1, exclude=True), s.norm(v("x"), ord=1, axis=1)]
   + list(s.moments(v("x"), axes=(0, 2))), x=(2, 3, 4))
op("nan_reductions", lambda s, v: [s.nansum(v("x"), axis=0), s.nanprod(v("x"))],
   x=np.float32([[1, np.nan], [3, 4]]))
op("arg", lambda s, v: [s.argmax(v("x"), axis=1), s.argmin(v("x")),
   s.argmax(v("x"), axis=0, keepdims=True), s.argmax_channel(v("y"))], x=(2, 3, 4), y=(3, 4))
op("order", lambda s, v: [s.topk(v("x"), k=2), s.topk(v("x"), k=2, axis=0, ret_typ="value"),
   s.topk(v("x"), axis=None, k=3), s.topk(v("x"), k=2, ret_typ="mask"),
   s.topk(v("x"), k=1, is_ascend=True, dtype="int32")] + list(s.topk(v("x"), k=3, ret_typ="both"))
   + [s.sort(v("x")), s.sort(v("x"), axis=0, is_ascend=False), s.argsort(v("x")),
      s.argsort(v("x"), axis=None, is_ascend=False, dtype="int32")], x=(3, 5))
op("cumsum", lambda s, v: [s.cumsum(v("x")), s.cumsum(v("x"), axis=1)], x=(2, 3))
op("dot", lambda s, v: [s.dot(v("x"), v("y")), s.dot(v("x"), v("z"), transpose_b=True),
   s.dot(v("y"), v("y"), transpose_a=True), s.dot(v("w"), v("w"))], x=(2, 3, 4), y=(4, 5),
   z=(5, 4), w=(3,))
op("dot_nd", lambda s, v: [s.dot(v("x"), v("x"), transpose_b=True),
   s.dot(v("x"), v("x"), transpose_a=True)], x=(2, 3, 4))
op("batch_dot", lambda s, v: [s.batch_dot(v("x"), v("y")),
   s.batch_dot(v("x"), v("x"), transpose_b=True), s.batch_dot(v("x"), v("x"), transpose_a=True)],
   x=(2, 3, 4), y=(2, 4, 5))
op("attention", lambda s, v: [s.contrib.interleaved_matmul_selfatt_qk(v("x"), heads=2),
   s.contrib.interleaved_matmul_selfatt_valatt(v("x"), v("a"), heads=2),
   s.contrib.interleaved_matmul_encdec_qk(v("q"), v("kv"), heads=2),
   s.contrib.interleaved_matmul_encdec_valatt(v("kv"), v("e"), heads=2)],
   x=(5, 3, 24), a=(6, 5, 5), q=(4, 3, 8), kv=(5, 3, 16), e=(6, 4, 5))
op("khatri_rao", lambda s, v: s.khatri_rao(v("x"), v("y")), x=(2, 3), y=(4, 3))

op("gathering", lambda s, v: [s.Embedding(v("i"), v("x"), input_dim=4, output_dim=3),
   s.take(v("x"), v("i")), s.take(v("x"), v("i"), axis=1, mode="wrap"),
   s.pick(v("x"), v("p")), s.pick(v("x"), v("p"), mode="wrap", keepdims=True),
   s.batch_take(v("x"), s.Cast(s.clip(v("p"), 0, 2), dtype="int32")),
   s.gather_nd(v("x"), v("n")), s.one_hot(v("i"), 4, on_value=2, off_value=-1),
   s.scatter_nd(v("d"), v("n"), shape=(4, 3))], x=(4, 3), i=np.float32([[0, 3, -1], [2, 7, 1.6]]),
   p=np.float32([0, 5, -1, 1]), n=np.float32([[0, 3], [1, 2]]), d=(2,))
op("indexing", lambda s, v: [s.unravel_index(v("f"), shape=(2, 3)),
   s.ravel_multi_index(v("r"), shape=(2, 3)), s.contrib.index_array(v("r"), axes=(1, 0)),
   s.contrib.index_copy(v("x"), s.Cast(v("k"), dtype="int32"), v("t"))],
   f=np.float32([5, 3, 0]), r=np.float32([[1, 0], [2, 2]]), x=(3, 2), k=np.float32([2, 0]),
   t=(2, 2))
op("slice_assign", lambda s, v: [s._internal._slice_assign(v("x"), v("y"), begin=(0, 1),
   end=(2, 3)), s._internal._slice_assign_scalar(v("x"), scalar=5, begin=(1, None),
   end=(3, None), step=(1, 2))], x=(3, 4), y=(2, 2))
op("constants", lambda s, v: [s.zeros((2, 3)) + v("x"), s.ones((2, 3)) * v("x"),
   s.full((3,), 2.5) if hasattr(s, "full") else s.ones((3,)), s.arange(0, 5, 2, repeat=2),
   s.arange(4), s.eye(2, 3, k=1), s.zeros_like(v("x")), s.ones_like(v("x")),
   s.linspace(0, 1, 5), s.contrib.arange_like(v("x"), axis=1),
   s.contrib.arange_like(v("x"), start=1, step=2)], x=(2, 3))
op("sequences", lambda s, v: [s.SequenceMask(v("x"), v("n"), use_sequence_length=True, value=-1),
   s.SequenceLast(v("x"), v("n"), use_sequence_length=True), s.SequenceLast(v("x")),
   s.SequenceReverse(v("x"), v("n"), use_sequence_length=True), s.SequenceReverse(v("x")),
   s.SequenceMask(v("x"), v("m"), use_sequence_length=True, axis=1)],
   x=(4, 3, 2), n=np.float32([1, 4, 2]), m=np.float32([1, 2, 3, 0]))

op("upsampling", lambda s, v: s.UpSampling(v("x"), scale=2, sample_type="nearest", num_args=1),
   x=(1, 2, 3, 4))
op("upsampling_multi", lambda s, v: [s.UpSampling(v("x"), v("y"), scale=2, sample_type="nearest",
   num_args=2), s.UpSampling(v("x"), v("y"), scale=2, sample_type="nearest", num_args=2,
   multi_input_mode="sum")], x=(1, 2, 4, 4), y=(1, 2, 2, 2))
op("upsampling_bilinear", lambda s, v: s.UpSampling(v("x"), v("w"), scale=3, num_filter=2,
   sample_type="bilinear", num_args=2), x=(1, 2, 3, 4), w=(2, 1, 5, 5))
op("upsampling_bilinear2", lambda s, v: s.UpSampling(v("x"), v("w"), scale=2, num_filter=2,
   sample_type="bilinear", num_args=2), x=(1, 2, 3, 4), w=(2, 1, 4, 4))
op("bilinear_resize", lambda s, v: [s.contrib.BilinearResize2D(v("x"), height=7, width=5),
   s.contrib.BilinearResize2D(v("x"), height=3, width=9, align_corners=False),
   s.contrib.BilinearResize2D(v("x"), scale_height=1.5, scale_width=2.0),
   s.contrib.BilinearResize2D(v("x"), scale_height=1.5, scale_width=2.0, mode="odd_scale"),
   s.contrib.BilinearResize2D(v("x"), mode="to_even_up"),
   s.contrib.BilinearResize2D(v("x"), mode="to_odd_down"),
   s.contrib.BilinearResize2D(v("x"), v("y"), mode="like"),
   s.contrib.BilinearResize2D(v("x"), height=1, width=1)], x=(1, 2, 5, 6), y=(1, 1, 3, 8))
op("bilinear_sampler", lambda s, v: s.BilinearSampler(v("x"), v("g")), x=(2, 3, 5, 6),
   g=(2, 2, 4, 3))
op("grids", lambda s, v: [s.GridGenerator(v("a"), transform_type="affine", target_shape=(4, 5)),
   s.GridGenerator(v("f"), transform_type="warp"), s.SpatialTransformer(v("x"), v("a"),
   transform_type="affine", sampler_type="bilinear", target_shape=(4, 5))], a=(2, 6),
   f=(2, 2, 3, 4), x=(2, 3, 5, 6))
_ROIS = np.float32([[0, 0, 0, 6, 5], [1, 1.5, 2.2, 8, 9.7], [0, 3, 3, 3.4, 3.2], [1, 2, 0, 13, 12]])
op("roi_pooling", lambda s, v: s.ROIPooling(v("x"), v("r"), pooled_size=(3, 2),
   spatial_scale=0.5), x=(2, 3, 7, 8), r=_ROIS)
op("roi_align", lambda s, v: [s.contrib.ROIAlign(v("x"), v("r"), pooled_size=(3, 2),
   spatial_scale=0.5, sample_ratio=2), s.contrib.ROIAlign(v("x"), v("r"), pooled_size=(3, 2),
   spatial_scale=0.5), s.contrib.ROIAlign(v("x"), v("r"), pooled_size=(2, 2), spatial_scale=0.5,
   sample_ratio=2, aligned=True), s.contrib.ROIAlign(v("y"), v("r"), pooled_size=(2, 2),
   spatial_scale=0.5, sample_ratio=2, position_sensitive=True)],
   x=(2, 3, 7, 8), y=(2, 8, 7, 8), r=_ROIS)

op("multibox_prior", lambda s, v: [s.contrib.MultiBoxPrior(v("x"), sizes=(0.3, 0.5),
   ratios=(1, 2, 0.5), clip=True), s.contrib.MultiBoxPrior(v("x"), sizes=(0.4,), ratios=(2, 3),
   steps=(0.2, 0.3), offsets=(0.4, 0.6))], x=(1, 2, 3, 5))


def boxes(seed, *shape):
    """Return random boxes as corners in 0..1."""
    rng = np.random.RandomState(seed)
    center, half = rng.uniform(0, 1, shape + (2,)), rng.uniform(0.05, 0.25, shape + (2,))
    return np.concatenate([center - half, center + half], -1).astype("float32")


def scored(seed, batch, count, classes):
    """Return random rows of class, score and box."""
    rng = np.random.RandomState(seed)
    numbers = rng.randint(0, classes, (batch, count, 1))
    scores = rng.permutation(batch * count).reshape(batch, count, 1) / (batch * count)
    return np.concatenate([numbers, scores, boxes(seed, batch, count)], -1).astype("float32")


def probabilities(seed, batch, classes, anchors):
    """Return class scores of which some lie below any threshold."""
    rng = np.random.RandomState(seed)
    p = rng.dirichlet(np.ones(classes) * 0.4, (batch, anchors)).transpose(0, 2, 1)
    return np.ascontiguousarray(p).astype("float32")


for _name, _options in {
    "plain": {}, "classes": {"id_index": 0}, "force": {"id_index": 0, "force_suppress": True},
    "topk": {"topk": 7, "id_index": 0}, "valid": {"valid_thresh": 0.4, "overlap_thresh": 0.2},
    "background": {"id_index": 0, "background_id": 1}, "center_out": {"out_format": "center"},
    "center_in": {"in_format": "center"}, "none": {"valid_thresh": 2}, "top0": {"topk": 0},
    "center_both": {"in_format": "center", "out_format": "center", "overlap_thresh": 0.1},
}.items():
    op("box_nms_" + _name, lambda s, v, o=_options: s.contrib.box_nms(v("x"), **o),
       x=scored(3, 2, 20, 3))
op("box_nms_2d", lambda s, v: s.contrib.box_nms(v("x"), coord_start=0, score_index=4,
   overlap_thresh=0.3), x=np.roll(scored(4, 1, 15, 2)[0, :, 1:], -1, axis=1))
op("box_iou", lambda s, v: [s.contrib.box_iou(v("x"), v("y")),
   s.contrib.box_iou(v("x"), v("y"), format="center")], x=boxes(1, 2, 5), y=boxes(2, 4))
op("box_decode", lambda s, v: [s.contrib.box_decode(v("x"), v("a"), 0.1, 0.1, 0.2, 0.2),
   s.contrib.box_decode(v("x"), v("a"), 0.1, 0.1, 0.2, 0.2, format="corner", clip=0.1)],
   x=(2, 5, 4), a=boxes(1, 1, 5))
for _name, _options in {"plain": {}, "force": {"force_suppress": True, "clip": False},
                        "threshold": {"threshold": 0.5, "nms_threshold": 0.2}}.items():
    op("multibox_detection_" + _name, lambda s, v, o=_options: s.contrib.MultiBoxDetection(
        v("p"), v("l"), v("a"), **o), p=probabilities(5, 2, 4, 12), l=(2, 48), a=boxes(6, 1, 12))

for _mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    for _layers, _both in ((1, False), (2, True)):
        op("%s_%d_%s" % (_mode, _layers, _both), lambda s, v, m=_mode, n=_layers, b=_both: list(
            s.RNN(v("x"), v("p"), v("h"), *([v("c")] if m == "lstm" else []), mode=m,
                  state_size=4, num_layers=n, bidirectional=b, state_outputs=True)),
           x=(5, 2, 3), h=(_layers * (1 + _both), 2, 4),
           **({"c": (_layers * (1 + _both), 2, 4)} if _mode == "lstm" else {}))

# ---- networks ----------------------------------------------------------------------------------


def zoo(kind, **options):
    """Return a builder of a network of Gluon's model zoo."""
    return lambda mx: getattr(mx.gluon.model_zoo.vision, kind)(classes=10, **options)


for _kind, _size in {
    "resnet18_v1": 64, "resnet18_v2": 64, "mobilenet0_25": 64, "mobilenet_v2_0_25": 64,
    "squeezenet1_0": 224, "densenet121": 224, "inception_v3": 299, "vgg11_bn": 32,
}.items():
    network("zoo_" + _kind, zoo(_kind), data=(1, 3, _size, _size))


def lstm_model(mx):
    """A language model as in Gluon's examples: embedding, fused LSTM, dense."""
    class Model(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.embed = mx.gluon.nn.Embedding(20, 8)
                self.lstm = mx.gluon.rnn.LSTM(12, num_layers=2, layout="NTC")
                self.out = mx.gluon.nn.Dense(20, flatten=False)

        def hybrid_forward(self, F, x):
            return self.out(self.lstm(self.embed(x)))

    return Model()


_TOKENS = np.float32([[1, 4, 2, 19, 0, 7], [3, 3, 5, 1, 11, 2]])
network("lm_lstm", lstm_model, data=_TOKENS)
network("gru_bidirectional", lambda mx: mx.gluon.rnn.GRU(6, num_layers=2, bidirectional=True),
        data=(5, 2, 4))
network("rnn_relu_net", lambda mx: mx.gluon.rnn.RNN(6), data=(5, 2, 4))


def unrolled(cell):
    """Return a builder of a cell unrolled over four steps."""
    def build(mx):
        class Model(mx.gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                with self.name_scope():
                    self.cell = getattr(mx.gluon.rnn, cell)(6)

            def hybrid_forward(self, F, x):
                return self.cell.unroll(4, x, layout="NTC", merge_outputs=True)[0]

        return Model()
    return build


for _cell in ("LSTMCell", "GRUCell", "RNNCell"):
    network("unrolled_" + _cell, unrolled(_cell), data=(2, 4, 3))


def cv(kind, **options):
    """Return a builder of a GluonCV network without downloaded weights."""
    def build(mx):
        from gluoncv import model_zoo

        return model_zoo.get_model(kind, pretrained=False, **options)
    return build


network("ssd", cv("ssd_512_mobilenet1.0_voc", pretrained_base=False), data=(1, 3, 512, 512))
network("yolo3", cv("yolo3_mobilenet0.25_voc", pretrained_base=False), data=(1, 3, 96, 96))
network("fcn", cv("fcn_resnet50_voc", pretrained_base=False, base_size=64, crop_size=64),
        data=(1, 3, 64, 64))
network("deeplab", cv("deeplab_resnet50_ade", pretrained_base=False, base_size=64, crop_size=64),
        data=(1, 3, 64, 64))
network("pspnet", cv("psp_resnet50_ade", pretrained_base=False, base_size=96, crop_size=96),
        data=(1, 3, 96, 96))
network("simple_pose", cv("simple_pose_resnet18_v1b", pretrained_base=False), data=(1, 3, 64, 64))
network("center_net", cv("center_net_resnet18_v1b_voc", pretrained_base=False),
        data=(1, 3, 128, 128))
network("resnet_v1b", cv("resnet18_v1b"), data=(1, 3, 64, 64))
network("mobilenet_v3", cv("mobilenetv3_small"), data=(1, 3, 64, 64))
network("resnext", cv("resnext50_32x4d"), data=(1, 3, 64, 64))
network("faster_rcnn", cv("faster_rcnn_resnet50_v1b_voc", pretrained_base=False),
        data=(1, 3, 160, 160))
network("center_net_dcn", cv("center_net_resnet18_v1b_dcnv2_voc", pretrained_base=False),
        data=(1, 3, 128, 128))
network("danet", cv("danet_resnet50_citys", pretrained_base=False, base_size=64, crop_size=64),
        data=(1, 3, 64, 64))
network("alpha_pose", cv("alpha_pose_resnet101_v1b_coco", pretrained_base=False),
        data=(1, 3, 64, 64))
network("hrnet", cv("hrnet_w18_small_v1_c"), data=(1, 3, 64, 64))
network("nasnet", cv("nasnet_4_1056"), data=(1, 3, 224, 224))


def bert(mx):
    """A small BERT encoder of GluonNLP."""
    from gluonnlp.model import BERTEncoder, BERTModel

    encoder = BERTEncoder(units=16, hidden_size=32, max_length=12, num_layers=2, num_heads=2)
    return BERTModel(encoder=encoder, vocab_size=30, token_type_vocab_size=2, units=16,
                     embed_size=16, use_decoder=False, use_classifier=False)


network("bert", bert, data0=_TOKENS, data1=np.float32([[0] * 6, [0, 0, 0, 1, 1, 1]]),
        data2=np.float32([6, 4]))


def language_model(**options):
    """Return a builder of GluonNLP's AWD language model that makes its own start state."""
    def build(mx):
        from gluonnlp.model.language_model import AWDRNN

        class Model(mx.gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                with self.name_scope():
                    self.model = AWDRNN(vocab_size=20, embed_size=8, num_layers=2,
                                        hidden_size=12, **options)

            def hybrid_forward(self, F, x):
                state = [F.zeros((1, 2, n)) for n in (12, 8)]
                return self.model(x, [[s, s] for s in state])[0]

        return Model()
    return build


network("lm_awd", language_model(mode="lstm", tie_weights=True, dropout=0.4,
        weight_drop=0, drop_h=0.2, drop_i=0.6, drop_e=0.1), data=_TOKENS.T.copy())


def transformer(mx):
    """A small encoder of GluonNLP's transformer."""
    from gluonnlp.model.transformer import TransformerEncoder

    return TransformerEncoder(units=16, hidden_size=32, max_length=12, num_layers=2, num_heads=2,
                              dropout=0.0)


network("transformer", transformer, data=(2, 6, 16))


# ---- quantised ---------------------------------------------------------------------------------


def quantized(name, fused, calibrate, dtype, excluded=()):
    """Register a network that MXNet's own tool quantised, fused for oneDNN or by operator."""
    def make(mx):
        from mxnet.contrib import quantization

        mx.random.seed(0)
        symbol = small_network(mx.sym)
        data = random("quantized", (8, 3, 12, 12), "uniform" if dtype == "uint8" else "normal")
        shapes, _, more = symbol.infer_shape(data=(2, 3, 12, 12))
        args = {k: mx.nd.array(random(k, z)) * 0.3
                for k, z in zip(symbol.list_arguments(), shapes) if k != "data"}
        aux = {k: mx.nd.array(random(k, z, "uniform"))
               for k, z in zip(symbol.list_auxiliary_states(), more)}
        tool = quantization.quantize_model_mkldnn if fused else quantization.quantize_model
        feed = mx.io.NDArrayIter(data, batch_size=2, label_name=None)
        symbol, args, aux = tool(
            symbol, args, aux, ctx=mx.cpu(), calib_mode="naive" if calibrate else "none",
            calib_data=feed, num_calib_examples=8, quantized_dtype=dtype, label_names=None,
            excluded_sym_names=list(excluded))
        params = {"arg:" + k: v for k, v in args.items()}
        params.update({"aux:" + k: v for k, v in aux.items()})
        return symbol, {"data": data[:2]}, params

    CASES[name] = make


def small_network(s):
    """A network with the layers that have quantised forms."""
    x = s.Convolution(s.var("data"), kernel=(3, 3), num_filter=8, pad=(1, 1), no_bias=True,
                      name="c1")
    x = s.Activation(s.BatchNorm(x, fix_gamma=False, name="b1"), act_type="relu", name="r1")
    p = s.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="p1")
    x = s.Convolution(p, kernel=(3, 3), num_filter=8, pad=(1, 1), name="c2")
    x = s.Activation(s.elemwise_add(x, p, name="add"), act_type="relu", name="r2")
    x = s.Concat(x, s.Convolution(x, kernel=(1, 1), num_filter=6, name="c3"), name="cat")
    x = s.Pooling(x, global_pool=True, pool_type="avg", kernel=(2, 2), name="p2")
    return s.FullyConnected(s.Flatten(x, name="flat"), num_hidden=10, name="fc")


quantized("quantized_fused", True, True, "auto")
quantized("quantized_fused_int8", True, True, "int8")
quantized("quantized_fused_runtime", True, False, "int8")
# MXNet's own quantised convolution on x86 is off by 255/127 for uint8 data, and takes no int8
_FLOAT = ["c1", "b1", "c2", "add", "c3"]
quantized("quantized_plain", False, False, "int8", _FLOAT)
quantized("quantized_plain_calibrated", False, True, "int8", _FLOAT)
quantized("quantized_plain_auto", False, True, "auto", _FLOAT)


# ---- writing -----------------------------------------------------------------------------------


def evaluate(mx, symbol, arrays, params):
    """Return a symbol's outputs at inference, as numpy."""
    args = {k[4:]: v for k, v in params.items() if k.startswith("arg:")}
    args.update({k: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items()})
    shapes, _, _ = symbol.infer_shape_partial(**{k: v.shape for k, v in args.items()})
    for key, shape in zip(symbol.list_arguments(), shapes):
        if key not in args:
            args[key] = mx.nd.zeros(shape)
    aux = {k[4:]: v for k, v in params.items() if k.startswith("aux:")}
    executor = symbol.bind(mx.cpu(), args, aux_states=aux, grad_req="null")
    return [o.asnumpy() for o in executor.forward(is_train=False)]


def write(mx, directory, name):
    """Write one case."""
    symbol, arrays, params = CASES[name](mx)
    folder = os.path.join(directory, name)
    os.makedirs(folder, exist_ok=True)
    outputs = evaluate(mx, symbol, arrays, params)
    symbol.save(os.path.join(folder, "model-symbol.json"))
    mx.nd.save(os.path.join(folder, "model-0000.params"), params or {"arg:none": mx.nd.zeros(1)})
    data = {"i:" + k: v for k, v in arrays.items()}
    data.update({"o%d" % i: v for i, v in enumerate(outputs)})
    np.savez(os.path.join(folder, "case.npz"), **data)


def write_all(directory, names):
    """Write cases in this process; one that fails is reported and left out."""
    import mxnet as mx

    failed = 0
    for name in names:
        try:
            write(mx, directory, name)
        except Exception as error:  # noqa: BLE001  (a network may need a package that isn't there)
            failed += 1
            print("%s: %s" % (name, str(error).strip().split("\n")[-1][:200]), file=sys.stderr)
    return failed


def main(directory, names):
    """Write the named cases, or all: those called plain_* without oneDNN, which can't do them."""
    names = names or sorted(CASES)
    failed = 0
    for enabled in ("0", "1"):
        mine = [n for n in names if n.startswith("plain_") == (enabled == "0")]
        if mine:
            environment = dict(os.environ, MXNET_MKLDNN_ENABLED=enabled,
                               MXNET_STORAGE_FALLBACK_LOG_VERBOSE="0", PYTHONWARNINGS="ignore")
            command = [sys.executable, os.path.abspath(__file__), "--here", directory] + mine
            failed += subprocess.call(command, env=environment)
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "--here":
        sys.exit(write_all(sys.argv[2], sys.argv[3:]))
    sys.exit(1 if main(sys.argv[1], sys.argv[2:]) else 0)
