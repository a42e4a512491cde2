"""The cases of make_megengine_dumps.py: for each group, networks of one kind of operator."""

from __future__ import annotations

import numpy as np
from make_megengine_dumps import Case

UNARY = {
    # mode: range of the inputs
    **dict.fromkeys(
        ["RELU", "ABS", "COS", "EXP", "EXPM1", "NEGATE", "SIGMOID", "SIN", "TANH", "FAST_TANH"],
        (-3, 3),
    ),
    **dict.fromkeys(["CEIL", "FLOOR", "ROUND", "H_SWISH", "SILU", "GELU", "ERF", "ERFC"], (-4, 4)),
    **dict.fromkeys(["SINH", "COSH", "ASINH", "SOFTPLUS", "LOGSIGMOID", "SQUARE", "SIGN"], (-4, 4)),
    **dict.fromkeys(["RELU6", "HSIGMOID"], (-8, 8)),
    **dict.fromkeys(["ACOS", "ASIN", "ATANH", "ERFINV"], (-0.95, 0.95)),
    **dict.fromkeys(["LOG", "SQRT"], (0.01, 9)),
    **dict.fromkeys(["LOG1P"], (-0.9, 9)),
    **dict.fromkeys(["ACOSH"], (1.01, 9)),
    **dict.fromkeys(["ERFCINV"], (0.001, 1.9)),
    **dict.fromkeys(["TAN"], (-1.4, 1.4)),
}
BINARY = (
    "ABS_GRAD ADD FLOOR_DIV MAX MIN MOD MUL SIGMOID_GRAD SUB SWITCH_GT0 TANH_GRAD TRUE_DIV "
    "LOG_SUM_EXP LT LEQ EQ FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH FAST_TANH_GRAD ATAN2 "
    "H_SWISH_GRAD FUSE_ADD_H_SWISH SILU_GRAD GELU_GRAD ASINH_GRAD SOFTPLUS_GRAD RELU6_GRAD "
    "HSIGMOID_GRAD PRELU"
).split()
TERNARY = "COND_LEQ_MOV COND_LT_MOV FUSE_MUL_ADD3 CLIP PRELU_GRAD".split()
INTEGER = (
    "ABS NEGATE RELU ADD SUB MUL MAX MIN FLOOR_DIV MOD SHL SHR RMULH LT LEQ EQ SWITCH_GT0 "
    "FUSE_ADD_RELU FUSE_MUL_ADD3 COND_LEQ_MOV"
).split()
ARITY = {**dict.fromkeys(["ABS", "NEGATE", "RELU", "NOT"], 1)}
ARITY.update(dict.fromkeys(["FUSE_MUL_ADD3", "COND_LEQ_MOV"], 3))


def elemwise(g):
    """Modes of Elemwise on float32, as MegEngine rewrites them and as they are."""
    for raw in (False, True):
        suffix = "_raw" if raw else ""
        for mode, (low, high) in UNARY.items():
            x = g.uniform(low, high, 4, 33)
            yield Case(mode + suffix, g.op("Elemwise", mode), x, no_change_graph=raw)
        for mode in BINARY:
            x, y = g.uniform(-4, 4, 2, 3, 8), g.uniform(-4, 4, 3, 1)
            yield Case(mode + suffix, g.op("Elemwise", mode), x, y, no_change_graph=raw)
        for mode in TERNARY:
            xs = [g.uniform(-3, 3, 4, 5) for _ in range(3)]
            if mode == "CLIP":
                xs = [xs[0] * 2, -np.abs(xs[1]), np.abs(xs[2])]
            yield Case(mode + suffix, g.op("Elemwise", mode), *xs, no_change_graph=raw)
    yield Case("POW", g.op("Elemwise", "POW"), g.uniform(0.1, 3, 5), g.uniform(-2, 2, 4, 5))
    xs = [g.normal(3, 4) for _ in range(4)]
    yield Case("FUSE_MUL_ADD4", g.op("Elemwise", "FUSE_MUL_ADD4"), *xs)
    yield Case("ACOSH_GRAD", g.op("Elemwise", "ACOSH_GRAD"), g.uniform(1.1, 4, 9), g.normal(9))
    yield Case("ATANH_GRAD", g.op("Elemwise", "ATANH_GRAD"), g.uniform(-0.9, 0.9, 9), g.normal(9))
    ties = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -7.0], np.float32)
    yield Case("ROUND_ties", g.op("Elemwise", "ROUND"), ties)
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32)
    for mode in ("ISNAN", "ISINF"):
        yield Case(mode, g.op("Elemwise", mode), edges)
        yield Case(mode + "_raw", g.op("Elemwise", mode), edges, no_change_graph=True)


def elemwise_integer(g):
    """Modes of Elemwise on integers and booleans."""
    for dtype in (np.int32, np.int16, np.int8, np.uint8):
        low = 0 if dtype == np.uint8 else -100
        for mode in INTEGER:
            xs = [g.integers(low, 100, 6, 7, dtype=dtype) for _ in range(ARITY.get(mode, 2))]
            if mode in ("FLOOR_DIV", "MOD"):
                xs[1] = np.where(xs[1] == 0, 3, xs[1]).astype(dtype)
            if mode in ("SHL", "SHR"):
                xs[1] = g.integers(0, 4, 6, 7, dtype=dtype)
            name = "%s_%s" % (mode, np.dtype(dtype).name)
            yield Case(name, g.op("Elemwise", mode), *xs)
    for mode in ("NOT", "AND", "OR", "XOR", "LT", "LEQ", "EQ"):
        xs = [g.bools(4, 5) for _ in range(ARITY.get(mode, 2))]
        yield Case(mode + "_bool", g.op("Elemwise", mode), *xs)


def functions(g):
    """Functions of megengine.functional that write several operators."""
    F, x, y = g.F, g.uniform(-3, 3, 3, 8), g.uniform(-3, 3, 3, 8)
    for name in (
        "relu relu6 hswish hsigmoid silu gelu softplus logsigmoid sigmoid tanh exp abs floor ceil "
        "round sin cos tan sinh cosh asinh square sign logsoftmax logsumexp softmax neg expm1 "
        "leaky_relu isnan isinf atan"
    ).split():
        function = getattr(F, name)
        axis = {"axis": 1} if name in ("logsoftmax", "logsumexp", "softmax") else {}
        yield Case(name, lambda x, f=function, a=axis: f(x, **a), x)
        yield Case(name + "_raw", lambda x, f=function, a=axis: f(x, **a), x, no_change_graph=True)
    for name in (
        "add sub mul div minimum maximum equal not_equal less less_equal greater greater_equal "
        "atan2 logaddexp mod floor_div"
    ).split():
        yield Case(name, getattr(F, name), x, y)
        yield Case(name + "_raw", getattr(F, name), x, y, no_change_graph=True)
    yield Case("clip", lambda x: F.clip(x, -1.0, 2.0), x)
    yield Case("clip_raw", lambda x: F.clip(x, -1.0, 2.0), x, no_change_graph=True)
    yield Case("clip_low", lambda x: F.clip(x, lower=0.5), x)
    yield Case("where", lambda m, x, y: F.where(m, x, y), g.bools(3, 8), x, y)
    yield Case("pow_scalar", lambda x: F.abs(x) ** 1.7, x)
    yield Case("pow_cube", lambda x: x**3, x)
    prelu = g.randomized(g.M.PReLU(8))
    yield Case("prelu_module", prelu, g.normal(2, 8, 3, 3))
    for name in ("std", "var", "mean", "sum", "max", "min", "prod", "norm"):
        function = getattr(F, name)
        yield Case(name + "_axis", lambda x, f=function: f(x, axis=1), x)
        yield Case(name + "_keep", lambda x, f=function: f(x, axis=-1, keepdims=True), x)
        if name != "norm":
            yield Case(name + "_all", lambda x, f=function: f(x), x)
    yield Case("normalize", lambda x: F.normalize(x, axis=1), x)
    yield Case("mean_axes", lambda x: F.mean(x, axis=(2, 3)), g.normal(2, 3, 4, 5))


def multi_type(g):
    """Quantised, comparing and mixed modes of ElemwiseMultiType."""
    from megengine.core.tensor.dtype import QuantDtypeMeta, qint8, quint8  # noqa: F401

    F, dtypes = g.F, g.mge.core.tensor.dtype
    unary = (
        "QRELU QABS QSIGMOID QEXP QTANH QFAST_TANH QNEGATE QACOS QASIN QCEIL QCOS QEXPM1 QFLOOR "
        "QLOG QLOG1P QSIN QROUND QERF QERFINV QERFC QERFCINV QH_SWISH"
    ).split()
    binary = (
        "QADD QFUSE_ADD_RELU QMUL QMIN QMAX QSUB QTRUE_DIV QFUSE_ADD_SIGMOID QFUSE_ADD_TANH "
        "QABS_GRAD QFLOOR_DIV QMOD QSIGMOID_GRAD QSWITCH_GT0 QTANH_GRAD QLT QLEQ QEQ QPOW "
        "QLOG_SUM_EXP QFAST_TANH_GRAD QATAN2 QFUSE_ADD_H_SWISH QH_SWISH_GRAD"
    ).split()
    ternary = ["QFUSE_MUL_ADD3", "QCOND_LEQ_MOV", "QCOND_LT_MOV"]
    near_zero = ("QACOS", "QASIN", "QERFINV")
    positive = ("QLOG", "QLOG1P", "QERFCINV", "QPOW", "QTRUE_DIV", "QFLOOR_DIV", "QMOD")
    makers = {"s8": (dtypes.qint8, 0.0), "u8": (lambda s: dtypes.quint8(s, 120), 0.0)}
    for kind, (make, _) in makers.items():
        for modes, count in ((unary, 1), (binary, 2), (ternary, 3)):
            for mode in modes:
                low, high = (-0.9, 0.9) if mode in near_zero else (-3, 3)
                low = 0.3 if mode in positive else low
                high = 1.9 if mode == "QERFCINV" else high
                xs = [g.uniform(low, high, 4, 25) for _ in range(count)]
                scales = [(high / 101.3) * (1 + 0.3717 * i) for i in range(count)]
                into, out = [make(s) for s in scales], make(high / 89.7)

                def function(*xs, mode=mode, into=into, out=out):
                    quantized = [x.astype(t) for x, t in zip(xs, into)]
                    y = g.op("ElemwiseMultiType", mode=mode, dtype=out)(*quantized)
                    return y.astype("float32")

                yield Case("%s_%s" % (mode, kind), function, *xs)
    x, y = g.integers(-5, 5, 40).astype(np.float32), g.integers(-5, 5, 40).astype(np.float32)
    for mode in ("EQ", "NEQ", "LT", "LEQ"):
        function = g.op("ElemwiseMultiType", mode=mode, dtype="bool")
        yield Case(mode, lambda x, y, f=function: f(x, y).astype("float32"), x, y)
    short, wide = g.integers(-90, 90, 3, 4, 5, dtype=np.int16), g.integers(-99, 99, 1, 4, 1)
    f = g.op("ElemwiseMultiType", mode="FUSE_MUL_ADD3_INT16x32x32x32", dtype="int32")
    yield Case("MUL_ADD_INT16", f, short, wide, wide * 3)
    for dtype in (np.int8, np.int32, np.uint8):
        name = "FUSE_MUL_ADD3_IXxF32xF32xI8"
        f = g.op("ElemwiseMultiType", mode=name, dtype="int8")
        xs = [g.uniform(-2, 2, 1, 9), g.uniform(-9, 9, 1, 9)]
        yield Case("MUL_ADD_I8_" + np.dtype(dtype).name, f, g.integers(0, 99, 5, 9, dtype=dtype), *xs)
    for name, dtype in (("I8", "int8"), ("I16", "int16")):
        f = g.op("ElemwiseMultiType", mode="ROUND_SHR_SATURATE_IXxI8x" + name, dtype=dtype)
        shift = np.array([3], np.int8)
        yield Case("ROUND_SHR_" + name, f, g.integers(-70000, 70000, 6, 30), shift)
    for bits, dtype in ((16, np.int16), (32, np.int32)):
        name = "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT%dx%dx%dx8" % (bits, bits, bits)
        f = g.op("ElemwiseMultiType", mode=name, dtype="int8")
        top = 2 ** (bits - 3)
        xs = [g.integers(-top, top, *s, dtype=dtype) for s in ((2, 4, 6), (1, 4, 1))]
        rest = [np.array([n], np.int8) for n in (bits - 11, -100, 90)]
        yield Case("RMULH_SHR_%d" % bits, f, *xs, np.array([int(top * 1.7)], dtype), *rest)
    for dtype in (np.int16, np.uint8):
        affine = [g.uniform(-2, 2, 1, 4, 1), g.uniform(-2, 2, 1, 4, 1)]
        word = "INT16" if dtype == np.int16 else "UINT8"
        f = g.op("ElemwiseMultiType", mode="FUSE_MUL_ADD3_%sxF32xF32xF32" % word, dtype="float32")
        yield Case("MUL_ADD_%s_F32" % word, f, g.integers(0, 200, 3, 4, 5, dtype=dtype), *affine)
    f = g.op("ElemwiseMultiType", mode="MUL_INT16xF32xF32", dtype="float32")
    yield Case("MUL_INT16_F32", f, short, g.uniform(-2, 2, 1, 4, 1))


def conversions(g):
    """TypeCvt between all kinds of element types."""
    dtypes = g.mge.core.tensor.dtype
    x = g.uniform(-2.9, 2.9, 5, 40)
    for name in ("float16", "int32", "int16", "int8", "uint8", "bool"):
        source = np.abs(x) if name == "uint8" else x
        yield Case("to_" + name, lambda x, n=name: x.astype(n).astype("float32"), source)
    types = {
        "qint8": dtypes.qint8(0.025),
        "qint8_coarse": dtypes.qint8(0.25),
        "quint8": dtypes.quint8(0.03, 110),
        "qint32": dtypes.qint32(0.0001),
    }
    for name, dtype in types.items():
        yield Case(name, lambda x, t=dtype: x.astype(t).astype("float32"), x)
        yield Case(name + "_far", lambda x, t=dtype: x.astype(t).astype("float32"), x * 4)
        ties = (np.arange(-20, 20) * 0.5 * 0.25).astype(np.float32)
        yield Case(name + "_ties", lambda x, t=dtype: x.astype(t).astype("float32"), ties)
        for other, target in types.items():

            def both(x, first=dtype, second=target):
                return x.astype(first).astype(second).astype("float32")

            yield Case("%s_to_%s" % (name, other), both, x)
    yield Case("fake_quant", g.op("FakeQuant", qmin=-128, qmax=127), x, *_scalars(0.02, 3.0))
    yield Case("tqt", g.op("TQT", qmin=-128, qmax=127), x, *_scalars(-5.0))
    yield Case("lsq", g.op("LSQ", qmin=-128, qmax=127), x, *_scalars(0.02, 0.0, 1.0))


def _scalars(*numbers):
    return [np.array([n], np.float32) for n in numbers]


def convolutions(g):
    """Convolutions of every kind, in float32."""
    M, F = g.M, g.F
    image = g.normal(2, 4, 9, 11)

    def net(make, *args, **kwargs):
        return g.randomized(make(*args, **kwargs))

    yield Case("plain", net(M.Conv2d, 4, 6, 3), image)
    yield Case("pad_stride", net(M.Conv2d, 4, 6, (3, 5), stride=(2, 1), padding=(1, 2)), image)
    yield Case("dilated", net(M.Conv2d, 4, 6, 3, padding=2, dilation=2, bias=False), image)
    yield Case("grouped", net(M.Conv2d, 4, 6, 3, groups=2), image)
    yield Case("depthwise", net(M.Conv2d, 4, 4, 3, padding=1, groups=4), image)
    yield Case("pointwise", net(M.Conv2d, 4, 8, 1), image)
    yield Case("reflect", net(M.Conv2d, 4, 6, 3, padding=1, padding_mode="reflect"), image)
    yield Case("replicate", net(M.Conv2d, 4, 6, 3, padding=1, padding_mode="replicate"), image)
    yield Case("conv1d", net(M.Conv1d, 4, 6, 3, padding=1), g.normal(2, 4, 15))
    yield Case("conv1d_depthwise", net(M.Conv1d, 4, 4, 3, stride=2, groups=2), g.normal(2, 4, 15))
    yield Case("conv3d", net(M.Conv3d, 4, 6, 3, padding=1, stride=2), g.normal(1, 4, 5, 6, 7))
    yield Case("conv3d_grouped", net(M.Conv3d, 4, 6, 2, groups=2), g.normal(1, 4, 5, 6, 7))
    yield Case("flipped", g.op("Convolution", mode="CONVOLUTION"), image, g.normal(3, 4, 3, 3))
    yield Case("computed_weight", lambda x, w: F.conv2d(x, w * 2, padding=1), image, g.normal(3, 4, 3, 3))
    yield Case("transposed", net(M.ConvTranspose2d, 4, 6, 3), image)
    yield Case("transposed_stride", net(M.ConvTranspose2d, 4, 6, 4, stride=2, padding=1), image)
    args = dict(stride=2, padding=1, output_padding=1)
    yield Case("transposed_output_padding", net(M.ConvTranspose2d, 4, 6, 3, **args), image)
    yield Case("transposed_grouped", net(M.ConvTranspose2d, 4, 6, 3, stride=2, groups=2), image)
    yield Case("transposed_dilated", net(M.ConvTranspose2d, 4, 6, 3, dilation=2), image)
    yield Case("transposed_3d", net(M.ConvTranspose3d, 4, 2, 3, stride=2), g.normal(1, 4, 3, 4, 5))
    deform = net(M.DeformableConv2d, 4, 6, 3, padding=1)
    yield Case("deformable", deform, image, g.normal(2, 18, 9, 11), g.uniform(0, 1, 2, 9, 9, 11))
    for word in ("IDENTITY", "RELU", "SIGMOID", "H_SWISH"):
        f = g.op("ConvBias", nonlineMode=word, pad_h=1, pad_w=1, dtype=np.float32)
        weights = [g.normal(6, 4, 3, 3), g.normal(1, 6, 1, 1)]
        yield Case("conv_bias_" + word, f, image, *weights)
    fused = dict(enable_fuse_conv_bias_nonlinearity=True)

    class Block(M.Module):
        def __init__(self, act):
            super().__init__()
            self.conv, self.bn, self.act = M.Conv2d(4, 4, 3, padding=1), M.BatchNorm2d(4), act

        def forward(self, x):
            return self.act(self.bn(self.conv(x)))

    for name in ("relu", "sigmoid", "hswish", "relu6"):
        yield Case("fused_" + name, g.randomized(Block(getattr(F, name))), image, **fused)
    block = g.randomized(Block(F.relu))
    both = dict(fused, enable_fuse_conv_bias_with_z=True)
    yield Case("fused_residual", lambda x: F.relu(block.bn(block.conv(x)) + x), image, **both)
    deep = g.normal(1, 8, 8, 8)
    stack = [M.Conv2d(3, 8, 3, padding=1), M.ReLU(), M.Conv2d(8, 8, 3, padding=1, groups=8)]
    stack += [M.ReLU(), M.Conv2d(8, 16, 1), M.ReLU(), M.Conv2d(16, 8, 3, groups=2)]
    stack += [M.MaxPool2d(2), M.AvgPool2d(2)]
    options = {"enable_nchw44": True, "enable_fuse_conv_bias_nonlinearity": True}
    yield Case("layout_nchw44", net(M.Sequential, *stack), deep[:, :3], **options)
    half = net(M.Sequential, *stack[:-2])  # MegEngine's own float16 pooling is wrong on x86
    yield Case("f16_io", half, deep[:, :3], enable_io16xc32=True)
    yield Case("f16_compute", half, deep[:, :3], enable_ioc16=True)


def quantized(g):
    """Quantised convolutions, products and networks."""
    F, M, dtypes = g.F, g.M, g.mge.core.tensor.dtype
    x = g.uniform(-2, 2, 2, 4, 9, 9)
    for kind in ("qint8", "quint8"):
        into, weight, out = dtypes.qint8(0.0217), dtypes.qint8(0.0113), dtypes.qint8(0.0731)
        wide = dtypes.qint32(0.0217 * 0.0113)
        if kind == "quint8":
            into, weight = dtypes.quint8(0.0217, 128), dtypes.quint8(0.0113, 120)
            out = dtypes.quint8(0.0731, 100)
        for mode in ("IDENTITY", "RELU", "H_SWISH"):
            for extra in ("", "_grouped", "_stride"):

                def function(x, w, b, mode=mode, extra=extra, t=(into, weight, wide, out)):
                    groups = {"sparse": "GROUP"} if extra == "_grouped" else {}
                    stride = 2 if extra == "_stride" else 1
                    f = g.op(
                        "ConvBias", nonlineMode=mode, pad_h=1, pad_w=1, stride_h=stride,
                        stride_w=stride, dtype=t[3], **groups
                    )
                    return f(x.astype(t[0]), w.astype(t[1]), b.astype(t[2])).astype("float32")

                w = g.uniform(-1, 1, 2, 3, 2, 3, 3) if extra == "_grouped" else g.uniform(-1, 1, 6, 4, 3, 3)
                name = "conv_%s_%s%s" % (kind, mode, extra)
                yield Case(name, function, x, w, g.uniform(-1, 1, 1, 6, 1, 1))
    q8, w8 = dtypes.qint8(0.02), dtypes.qint8(0.01)

    def conv(x, w):
        wide = dtypes.qint32(0.02 * 0.01)
        f = g.op("ConvBias", dtype=wide)
        return f(x.astype(q8), w.astype(w8)).astype("float32")

    yield Case("conv_to_qint32", conv, x, g.uniform(-1, 1, 6, 4, 3, 3))
    yield Case(
        "deconv", lambda x, w: F.quantized.conv_transpose2d(
            x.astype(q8), w.astype(w8), dtype=dtypes.qint8(0.1), stride=2
        ).astype("float32"), x, g.uniform(-1, 1, 4, 4, 3, 3)
    )
    yield Case("max_pool", lambda x: F.max_pool2d(x.astype(q8), 2).astype("float32"), x)
    for size in (2, 3):
        f = lambda x, s=size: F.avg_pool2d(x.astype(q8), s).astype("float32")  # noqa: E731
        yield Case("avg_pool_%d" % size, f, x)
    f = lambda x: F.concat([x.astype(q8), (x * 0.5).astype(q8)], axis=1).astype("float32")  # noqa: E731
    yield Case("concat", f, x)
    yield Case("reshape", lambda x: x.astype(q8).reshape(2, -1)[:, 3:9].astype("float32"), x)
    f = lambda x, w: g.op("MatrixMul", transposeB=True, dimA=2, dimB=2)(x.astype(q8), w.astype(w8)).astype("float32")  # noqa: E731
    yield Case("matmul", f, g.uniform(-1, 1, 5, 7), g.uniform(-1, 1, 6, 7))
    for mode in ("MAX", "MIN", "SUM", "MEAN"):
        f = lambda x, m=mode: g.op("Reduce", mode=m, axis=2)(x.astype(q8)).astype("float32")  # noqa: E731
        yield Case("reduce_" + mode, f, x)
    yield from _quantized_networks(g)


def _quantized_networks(g):
    """Networks quantised with MegEngine's own tools."""
    import megengine.quantization as Q

    M, F = g.M, g.F

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.dequant = M.QuantStub(), M.DequantStub()
            self.first = M.ConvBnRelu2d(3, 8, 3, padding=1)
            self.second = M.ConvBn2d(8, 8, 3, padding=1, groups=2)
            self.add = M.Elemwise("FUSE_ADD_RELU")
            self.linear = M.Linear(8 * 4 * 4, 10)

        def forward(self, x):
            x = self.first(self.quant(x))
            x = self.add(x, self.second(x))
            x = F.flatten(F.max_pool2d(x, 2), 1)
            return self.dequant(self.linear(x))

    for name, config in (("min_max", Q.min_max_fakequant_qconfig), ("ema", Q.ema_fakequant_qconfig)):
        net = g.randomized(Net())
        image = g.uniform(-1, 1, 2, 3, 8, 8)
        net = Q.quantize_qat(net, config)
        net.train()
        Q.enable_observer(net)
        net(g.mge.tensor(image))
        net.eval()
        Q.disable_observer(net)
        net = Q.quantize(net)
        net.eval()
        yield Case("network_" + name, net, image)


def pooling(g):
    """Pooling over windows and regions."""
    F, image = g.F, g.normal(2, 3, 10, 12)
    for name in ("max_pool2d", "avg_pool2d"):
        f = getattr(F, name)
        yield Case(name, lambda x, f=f: f(x, 2), image)
        yield Case(name + "_pad", lambda x, f=f: f(x, 3, 2, 1), image)
        yield Case(name + "_odd", lambda x, f=f: f(x, (3, 2), (1, 3), (1, 0)), image)
        yield Case(name + "_floor", lambda x, f=f: f(x, 3, 2), image)
    f = lambda x: F.avg_pool2d(x, 3, 2, 1, mode="average")  # noqa: E731
    yield Case("avg_include_pad", f, image)
    for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
        for size in (1, 4, (3, 5), (10, 12)):
            f = lambda x, n=name, s=size: getattr(F, n)(x, s)  # noqa: E731
            yield Case("%s_%s" % (name, str(size).strip("()").replace(", ", "x")), f, image)
    rois = np.array([[0, 1, 1, 6, 8], [1, 0, 2, 9, 9], [0, 3.3, 0.7, 7.9, 6.2]], np.float32)
    far = rois * np.array([1, 2, 2, 2, 2], np.float32)
    for offset in (0.5, 0.0):
        f = lambda x, r, a=offset > 0: F.vision.roi_align(x, r, (3, 2), "average", 0.5, 2, a)  # noqa: E731
        yield Case("roi_align_%s" % offset, f, image, far)
    f = lambda x, r: F.vision.roi_pooling(x, r, (3, 2), "max", 0.5)  # noqa: E731
    yield Case("roi_pooling", f, image, far)


def normalizations(g):
    """Normalisations."""
    M, F, image = g.M, g.F, g.normal(2, 6, 5, 7)
    yield Case("batch_norm", g.randomized(M.BatchNorm2d(6)), image)
    yield Case("batch_norm_raw", g.randomized(M.BatchNorm2d(6)), image, no_change_graph=True)
    yield Case("batch_norm_1d", g.randomized(M.BatchNorm1d(6)), g.normal(4, 6))
    yield Case("batch_norm_1d_3", g.randomized(M.BatchNorm1d(6)), g.normal(4, 6, 5))
    for word, shape in (("DIM_111C", (1, 1, 1, 7)), ("DIM_1CHW", (1, 6, 5, 7))):
        params = [g.normal(*shape), g.normal(*shape), g.normal(*shape), g.uniform(0.5, 1, *shape)]
        op = g.op("BatchNorm", param_dim=word, fwd_mode="INFERENCE", epsilon=1e-3)
        yield Case(word, lambda *xs, f=op: f(*xs)[-1], image, *params)
    for raw in (False, True):
        s = "_raw" if raw else ""
        option = dict(no_change_graph=raw)
        yield Case("layer_norm" + s, g.randomized(M.LayerNorm(7)), image, **option)
        yield Case("layer_norm_two" + s, g.randomized(M.LayerNorm((5, 7))), image, **option)
        yield Case("layer_norm_plain" + s, M.LayerNorm(7, affine=False), image, **option)
        yield Case("group_norm" + s, g.randomized(M.GroupNorm(3, 6)), image, **option)
        yield Case("group_norm_plain" + s, M.GroupNorm(2, 6, affine=False), image, **option)
        yield Case("instance_norm" + s, g.randomized(M.InstanceNorm(6)), image, **option)
        yield Case("general_norm" + s, g.randomized(M.GeneralNorm((6, 5), (1, 2))), image, **option)
        yield Case("general_norm_end" + s, g.randomized(M.GeneralNorm((5, 7), (2, 3))), image, **option)
    yield Case("lrn", lambda x: F.local_response_norm(x, 3, 1.5, 0.2, 0.6), image)
    for axis in (-1, 1, 0):
        yield Case("softmax_%d" % axis, lambda x, a=axis: F.softmax(x, a), image)


def products(g):
    """Matrix products."""
    F, M = g.F, g.M
    a, b = g.normal(5, 7), g.normal(7, 4)
    yield Case("matmul", F.matmul, a, b)
    yield Case("matmul_ta", lambda x, y: F.matmul(x, y, transpose_a=True), a.T.copy(), b)
    yield Case("matmul_tb", lambda x, y: F.matmul(x, y, transpose_b=True), a, b.T.copy())
    yield Case("matmul_vector", F.matmul, a, g.normal(7))
    yield Case("batched", F.matmul, g.normal(3, 5, 7), g.normal(3, 7, 4))
    f = lambda x, y: F.matmul(x, y, transpose_a=True, transpose_b=True)  # noqa: E731
    yield Case("batched_tt", f, g.normal(3, 7, 5), g.normal(3, 4, 7))
    yield Case("broadcast", F.matmul, g.normal(2, 3, 5, 7), g.normal(7, 4))
    yield Case("rank4", F.matmul, g.normal(2, 3, 5, 7), g.normal(2, 3, 7, 4))
    yield Case("dot", F.dot, g.normal(9), g.normal(9))
    yield Case("linear", g.randomized(M.Linear(7, 3)), a)
    yield Case("linear_rank3", g.randomized(M.Linear(7, 3)), g.normal(2, 5, 7))
    yield Case("int8", g.op("MatrixMul", dimA=2, dimB=2), g.integers(-99, 99, 4, 6, dtype=np.int8),
               g.integers(-99, 99, 6, 5, dtype=np.int8))
    attention = g.randomized(M.MultiHeadAttention(16, 4))
    q = g.normal(2, 5, 16)
    yield Case("attention", lambda q: attention(q, q, q)[0], q)
    k = g.normal(2, 7, 16)
    yield Case("attention_cross", lambda q, k: attention(q, k, k * 2)[0], q, k)
    f = lambda q: attention(q, q, q, need_weights=True)  # noqa: E731
    yield Case("attention_weights", f, q)
    yield Case("attention_causal", lambda q: attention(q, q, q, is_causal=True)[0], q)
    f = lambda q, m: attention(q, q, q, attn_mask=m)[0]  # noqa: E731
    yield Case("attention_mask", f, q, g.normal(5, 5))
    yield Case("attention_masks", f, q, g.normal(8, 5, 5))
    plain = g.randomized(M.MultiHeadAttention(16, 4, bias=False, kdim=6, vdim=10))
    xs = [q, g.normal(2, 7, 6), g.normal(2, 7, 10)]
    yield Case("attention_sizes", lambda q, k, v: plain(q, k, v)[0], *xs)


def reductions(g):
    """Reductions, searches, sorting."""
    F, x = g.F, g.normal(3, 4, 5)
    for mode in ("SUM", "SUM_SQR", "PRODUCT", "MIN", "MAX", "MEAN"):
        for axis in (0, 1, -1):
            yield Case("%s_%d" % (mode, axis), g.op("Reduce", mode=mode, axis=axis), x)
        shape = g.mge.tensor(np.array([3, 1, 1], np.int32))
        yield Case(mode + "_to", lambda x, f=g.op("Reduce", mode=mode), s=shape: f(x, s), x)
    for dtype in (np.int32, np.int8, np.uint8, np.int16):
        for mode in ("SUM", "MAX", "MEAN"):
            n = g.integers(0, 20, 3, 5, dtype=dtype)
            name = "%s_%s" % (mode, np.dtype(dtype).name)
            yield Case(name, g.op("Reduce", mode=mode, axis=1), n)
    for name in ("argmax", "argmin"):
        yield Case(name, lambda x, n=name: getattr(F, n)(x, axis=1), x)
        yield Case(name + "_keep", lambda x, n=name: getattr(F, n)(x, axis=-1, keepdims=True), x)
        yield Case(name + "_all", lambda x, n=name: getattr(F, n)(x), x)
    m = g.normal(6, 9)
    yield Case("argsort", lambda x: F.argsort(x), m)
    yield Case("argsort_descending", lambda x: F.argsort(x, descending=True), m)
    yield Case("sort", lambda x: F.sort(x), m)
    yield Case("topk", lambda x: F.topk(x, 3), m)
    yield Case("topk_descending", lambda x: F.topk(x, 4, descending=True), m)
    yield Case("topk_kth", lambda x: F.topk(x, 3, kth_only=True)[0], m)
    yield Case("topk_unsorted", lambda x: F.sum(F.topk(x, 3, no_sort=True)[0], axis=1), m)
    yield Case("cumsum", lambda x: F.cumsum(x, 1), x)
    for exclusive in (False, True):
        for reverse in (False, True):
            f = g.op("Cumsum", axis=1, exclusive=exclusive, reverse=reverse)
            yield Case("cumsum_%d%d" % (exclusive, reverse), f, x)
    yield Case("cumsum_int", g.op("Cumsum", axis=0, exclusive=False), g.integers(-9, 9, 4, 3))


def shapes(g):
    """Operators that only move data."""
    F, x = g.F, g.normal(2, 3, 4, 5)
    yield Case("reshape", lambda x: F.reshape(x, (6, -1)), x)
    yield Case("reshape_plain", lambda x: F.reshape(x, (4, 30)), x)
    yield Case("flatten", lambda x: F.flatten(x, 1, 2), x)
    yield Case("transpose", lambda x: F.transpose(x, (0, 3, 1, 2)), x)
    yield Case("dimshuffle_new", lambda x: F.transpose(x, ("x", 1, 0, "x", 2, 3)), x)
    drop = g.op("Dimshuffle", [2, 0])
    yield Case("dimshuffle_drop", drop, g.normal(3, 1, 4))
    yield Case("expand_dims", lambda x: F.expand_dims(x, (0, 3)), x)
    yield Case("squeeze", lambda x: F.squeeze(x, 1), g.normal(3, 1, 4))
    yield Case("squeeze_scalar", lambda x: F.squeeze(x, 0), g.normal(1))
    yield Case("broadcast_to", lambda x: F.broadcast_to(x, (4, 3, 5)), g.normal(3, 1))
    yield Case("concat", lambda x, y: F.concat([x, y, x], axis=-2), x, g.normal(2, 3, 2, 5))
    yield Case("stack", lambda x, y: F.stack([x, y], axis=1), x, x + 1)
    yield Case("split", lambda x: F.split(x, 2, axis=2), x)
    yield Case("split_at", lambda x: F.split(x, [1, 3], axis=3), x)
    yield Case("repeat", lambda x: F.repeat(x, 3, axis=1), x)
    yield Case("tile", lambda x: F.tile(x, (2, 1, 3, 1)), x)
    yield Case("roll", lambda x: F.roll(x, 2, axis=3), x)
    yield Case("swapaxes", lambda x: F.swapaxes(x, 1, 3), x)
    yield Case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), g.normal(2, 8, 3, 4))
    yield Case("pixel_shuffle_raw", lambda x: F.pixel_shuffle(x, 2), g.normal(2, 8, 3, 4),
               no_change_graph=True)
    for mode in ("constant", "reflect", "replicate"):
        pads = ((0, 0), (0, 0), (1, 2), (3, 0))
        f = lambda x, m=mode, p=pads: F.nn.pad(x, p, m, constant_value=1.5)  # noqa: E731
        yield Case("pad_" + mode, f, x)
    yield Case("identity", g.randomized(g.M.Identity()), x)
    yield Case("shape", lambda x: x.shape, x)
    yield Case("shape_axis", lambda x: x.shape[2] * x, x)
    yield Case("sliding_window", lambda x: F.sliding_window(x, (2, 3), 1, 2, 1), x)
    yield Case("meshgrid", lambda x, y: F.meshgrid(x, y), g.normal(3), g.normal(4))
    yield Case("copy", lambda x: F.copy(x) + 1, x)


def indexing(g):
    """Slices, gathers and writes."""
    F, x = g.F, g.normal(5, 6, 7)
    yield Case("range", lambda x: x[1:4, :, 2:], x)
    yield Case("steps", lambda x: x[::2, ::-1, 5:1:-2], x)
    yield Case("negative", lambda x: x[-2:, :-1, -3], x)
    yield Case("index", lambda x: x[2, -1], x)
    yield Case("element", lambda x: x[1, 2, 3], x)
    yield Case("vector_element", lambda x: x[3], g.normal(6))
    yield Case("ellipsis", lambda x: x[..., 1], x)
    yield Case("clamped", lambda x: x[-99:99, 4:99], x)
    rows = g.integers(0, 5, 4)
    columns = g.integers(0, 6, 4)
    yield Case("vector", lambda x, i: x[i], x, rows)
    yield Case("vector_axis1", lambda x, i: x[:, i], x, columns)
    yield Case("vectors", lambda x, i, j: x[i, j], x, rows, columns)
    yield Case("vectors_12", lambda x, i, j: x[:, i, j], x, rows, columns)
    yield Case("vectors_apart", lambda x, i, j: x[i, :, j], x, rows, columns)
    yield Case("vector_matrix", lambda x, i: x[i.reshape(2, 2)], x, rows)
    yield Case("vector_range", lambda x, i: x[i, 1:5, ::2], x, rows)
    yield Case("vector_const", lambda x: x[[0, 2, 2]], x)
    yield Case("mask", lambda x, m: x[m], g.normal(20), g.bools(20))
    yield Case("cond_take", lambda x, m: F.cond_take(m, x), g.normal(20), g.bools(20))

    def assign(x, v):
        y = x + 0
        y[1:3, ::2] = v
        return y

    yield Case("assign", assign, x, g.normal(2, 3, 7))
    yield Case("assign_broadcast", assign, x, g.normal(7))

    def assign_index(x, v):
        y = x + 0
        y[2] = v
        y[:, -1] = 3.0
        return y

    yield Case("assign_index", assign_index, x, g.normal(6, 7))

    def assign_vector(x, i, v):
        y = x + 0
        y[i] = v
        return y

    yield Case("assign_vector", assign_vector, x, np.array([3, 0], np.int32), g.normal(2, 6, 7))

    def assign_vectors(x, i, j, v):
        y = x + 0
        y[:, i, j] = v
        return y

    pairs = [np.array([3, 0], np.int32), np.array([1, 5], np.int32)]
    yield Case("assign_vectors", assign_vectors, x, *pairs, g.normal(5, 2))
    add = g.op("IncrSubtensor", items=[(0, True, True, False, False)])
    bounds = [g.mge.tensor(np.array([n], np.int32)) for n in (1, 3)]
    yield Case("increase", lambda x, v: add(x, v, *bounds), x, g.normal(2, 6, 7))
    add = g.op("IndexingIncrMultiAxisVec", items=[(0, False, False, False, True)])
    yield Case("increase_vector", add, x, g.normal(3, 6, 7), np.array([1, 4, 1], np.int32))
    yield Case("mesh", g.op("MeshIndexing", items=[(0, False, False, False, True),
                                                   (1, False, False, False, True)]), x, rows, columns)
    yield Case("one_hot", lambda i: F.one_hot(i, 6).astype("float32"), columns)
    picked = g.integers(0, 6, 5, 7)
    yield Case("indexing_one_hot", lambda x, i: F.indexing_one_hot(x, i, 1), x, picked)
    yield Case("gather", lambda x, i: F.gather(x, 1, i), x, g.integers(0, 6, 5, 2, 7))
    f = lambda x, i, v: F.scatter(x + 0, 0, i, v)  # noqa: E731
    yield Case("scatter", f, g.normal(5, 6), np.array([[2, 1, 0, 3, 4, 0]], np.int32), g.normal(1, 6))
    embedding = g.randomized(g.M.Embedding(11, 5))
    yield Case("embedding", embedding, g.integers(0, 11, 3, 4))


def creation(g):
    """Tensors made from numbers."""
    F, x = g.F, g.normal(3, 4)
    yield Case("linspace", lambda x: x + F.linspace(0, 1, 4), x)
    yield Case("arange", lambda x: x * F.arange(4), x)
    yield Case("arange_shape", lambda x: x * F.arange(x.shape[1]), x)
    yield Case("arange_step", lambda x: x * F.arange(2, 10, 2), x)
    half_open = g.op("Linspace", endpoint=False, comp_node="xpux")
    ends = [np.array([n], t) for n, t in ((0.5, np.float32), (2.5, np.float32), (4, np.int32))]
    yield Case("linspace_open", lambda x: x + half_open(*(g.mge.tensor(e) for e in ends)), x)
    yield Case("eye", lambda x: x + F.eye(3, 4), x)
    shifted = g.op("Eye", k=1, dtype=np.float32, comp_node="xpux")
    shape = np.array([3, 4], np.int32)
    yield Case("eye_k", lambda x: x + shifted(g.mge.tensor(shape)), x)
    yield Case("zeros", lambda x: x + F.zeros((3, 4)) + F.ones((4,)), x)
    yield Case("full", lambda x: x + F.full((3, 1), 2.5), x)
    yield Case("full_like", lambda x: x + F.full_like(x, 2.5), x)
    yield Case("full_like_raw", lambda x: x + F.full_like(x, 2.5), x, no_change_graph=True)
    fill = g.op("Fill", value=1.25, dtype=np.float32, comp_node="xpux")
    yield Case("fill_raw", lambda x: x + fill(x.shape), x, no_change_graph=True)
    for k in (-1, 0, 2):
        yield Case("diag_vector_%d" % k, lambda x, k=k: F.diag(x, k), g.normal(4))
        yield Case("diag_matrix_%d" % k, lambda x, k=k: F.diag(x, k), x)


def images(g):
    """Resampling of images and suppression of boxes."""
    F, image = g.F, g.normal(2, 3, 6, 8)
    for mode in ("bilinear", "nearest", "bicubic"):
        for size in ((12, 16), (9, 5), (3, 4), (6, 8), (14, 20)):
            args = {"align_corners": False} if mode == "bilinear" else {}
            f = lambda x, m=mode, s=size, a=args: F.vision.interpolate(x, s, mode=m, **a)  # noqa: E731
            yield Case("%s_%dx%d" % ((mode,) + size), f, image)
    f = lambda x: F.vision.interpolate(x, (11, 13), mode="bilinear", align_corners=True)  # noqa: E731
    yield Case("aligned", f, image)
    f = lambda x: F.vision.interpolate(x, scale_factor=2, mode="bilinear")  # noqa: E731
    yield Case("scaled", f, image)
    f = lambda x: F.vision.interpolate(x, scale_factor=1.5, mode="nearest")  # noqa: E731
    yield Case("scaled_nearest", f, image)
    f = lambda x: F.vision.interpolate(x, 12, mode="linear", align_corners=False)  # noqa: E731
    yield Case("linear_1d", f, g.normal(2, 3, 7))
    size = g.mge.tensor(np.array([9, 11], np.int32))
    last = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    yield Case("nhwc", lambda x: g.op("Resize", format="NHWC")(x, size), last)
    matrix = np.array([[[0.9, 0.1, 0.3], [-0.1, 1.1, -0.6], [0.01, 0.02, 1]]], np.float32)
    matrix = np.concatenate([matrix, matrix * [[[1.2, 1, 1]]]]).astype(np.float32)
    for border in ("replicate", "constant", "reflect", "reflect_101"):
        f = lambda x, m, b=border: F.vision.warp_perspective(  # noqa: E731
            x, m, (5, 7), border_mode=b, border_val=1.5)
        yield Case("perspective_" + border, f, image, matrix)
        f = lambda x, m, b=border: F.vision.warp_affine(  # noqa: E731
            x, m, (5, 7), border_mode=b, border_val=1.5, format="NCHW")
        yield Case("affine_" + border, f, image, np.ascontiguousarray(matrix[:, :2]))
    f = lambda x, m: F.vision.warp_perspective(x, m, (5, 7), mat_idx=[1, 0, 1])  # noqa: E731
    yield Case("perspective_index", f, image, np.concatenate([matrix, matrix[:1]]))
    places = g.uniform(-1, 7, 2, 4, 5, 2)
    for border in ("replicate", "constant", "reflect", "reflect_101"):
        f = lambda x, m, b=border: F.vision.remap(x, m, border_mode=b, scalar=1.5)  # noqa: E731
        yield Case("remap_" + border, f, image, places)
    f = lambda x, m: F.vision.remap(x, m, interp_mode="nearest")  # noqa: E731
    yield Case("remap_nearest", f, image, places)
    yield Case("gray", lambda x: F.vision.cvt_color(x, mode="RGB2GRAY"), g.uniform(0, 1, 1, 4, 5, 3))
    boxes = np.abs(g.normal(12, 2)) * 5
    boxes = np.concatenate([boxes, boxes + np.abs(g.normal(12, 2)) * 6 + 1], 1).astype(np.float32)
    f = lambda b, s: F.vision.nms(b, s, 0.3, 8)  # noqa: E731
    yield Case("nms", f, boxes, g.uniform(0, 1, 12))
    keep = g.op("NMSKeep", iou_thresh=0.3, max_output=12)
    yield Case("nms_count", lambda b: keep(b)[1], boxes[None])
    size3d, op = g.mge.tensor(np.array([6, 7, 4], np.int32)), g.op("Resize3D", format="NCDHW")
    yield Case("resize3d", lambda x: op(x, size3d), g.normal(1, 2, 3, 4, 5))


def recurrent(g):
    """Recurrent networks and cells."""
    M, x = g.M, g.normal(5, 2, 3)
    for name, kwargs in {
        "plain": {},
        "two_layers": dict(num_layers=2),
        "bidirectional": dict(bidirectional=True),
        "both": dict(num_layers=2, bidirectional=True),
        "no_bias": dict(bias=False),
    }.items():
        lstm = g.randomized(M.LSTM(3, 4, **kwargs))
        yield Case("lstm_" + name, lambda x, n=lstm: _flat(n(x)), x)
        rnn = g.randomized(M.RNN(3, 4, **kwargs))
        yield Case("rnn_" + name, lambda x, n=rnn: _flat(n(x)), x)
    rnn = g.randomized(M.RNN(3, 4, nonlinearity="relu"))
    yield Case("rnn_relu", lambda x, n=rnn: _flat(n(x)), x)
    f = lambda x, n=g.randomized(M.LSTM(3, 4)): n(x)[0]  # noqa: E731
    yield Case("lstm_output", f, x)
    cell = g.randomized(M.LSTMCell(3, 4))
    yield Case("lstm_cell", lambda x, h, c: cell(x, (h, c)), g.normal(2, 3), g.normal(2, 4), g.normal(2, 4))
    for word in ("tanh", "relu"):
        cell = g.randomized(M.RNNCell(3, 4, nonlinearity=word))
        yield Case("rnn_cell_" + word, lambda x, h, n=cell: n(x, h), g.normal(2, 3), g.normal(2, 4))


def _flat(results):
    output, states = results
    return (output,) + tuple(states) if isinstance(states, (tuple, list)) else (output, states)


def networks(g):
    """Whole networks of common kinds."""
    M, F = g.M, g.F

    class Residual(M.Module):
        def __init__(self, width):
            super().__init__()
            self.first, self.second = M.ConvBn2d(width, width, 3, padding=1), M.ConvBn2d(width, width, 1)

        def forward(self, x):
            return F.relu(self.second(F.relu(self.first(x))) + x)

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.stem = M.ConvBnRelu2d(3, 8, 3, stride=2, padding=1)
            self.body = M.Sequential(Residual(8), Residual(8))
            self.head = M.Linear(8, 5)

        def forward(self, x):
            x = self.body(self.stem(x))
            return self.head(F.avg_pool2d(x, 8).reshape(x.shape[0], -1))

    net = g.randomized(Net())
    image = g.normal(1, 3, 16, 16)
    yield Case("residual", net, image)
    fused = dict(enable_fuse_conv_bias_nonlinearity=True, enable_fuse_conv_bias_with_z=True)
    yield Case("residual_fused", net, image, **fused)
    yield Case("residual_plain", net, image, optimize_for_inference=False, no_change_graph=True)
    yield Case("no_names", net, image, keep_var_name=0)
    yield Case("op_names", net, image, keep_opr_name=True, keep_param_name=True)
    yield Case("two_outputs", lambda x: (net(x), F.softmax(net(x)), x), image,
               output_names=["logits", "probabilities", "same"])

    class Unet(M.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = M.Conv2d(3, 8, 3, stride=2, padding=1), M.ConvTranspose2d(8, 3, 2, 2)
            self.last = M.Conv2d(6, 4, 1)

        def forward(self, x):
            y = self.up(F.leaky_relu(self.down(x), 0.1))
            y = F.vision.interpolate(y, scale_factor=2, mode="bilinear")
            x = F.vision.interpolate(x, scale_factor=2, mode="nearest")
            return F.argmax(self.last(F.concat([x, y], 1)), axis=1), F.sigmoid(y)

    yield Case("segmentation", g.randomized(Unet()), image)


GROUPS = {
    function.__name__: function
    for function in (
        elemwise, elemwise_integer, functions, multi_type, conversions, convolutions, quantized,
        pooling, normalizations, products, reductions, shapes, indexing, creation, images,
        recurrent, networks,
    )
}
