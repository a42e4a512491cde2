"""Elementwise functions and conversions."""

from __future__ import annotations

import numpy as np
from make_megengine_dumps import Case, words

UNARY = {
    # mode: range of the inputs
    **dict.fromkeys(
        words("RELU ABS COS EXP EXPM1 NEGATE SIGMOID SIN TANH FAST_TANH"),
        (-3, 3),
    ),
    **dict.fromkeys(words("CEIL FLOOR ROUND H_SWISH SILU GELU ERF ERFC"), (-4, 4)),
    **dict.fromkeys(["SINH", "COSH", "ASINH", "SOFTPLUS", "LOGSIGMOID", "SQUARE", "SIGN"], (-4, 4)),
    **dict.fromkeys(["RELU6", "HSIGMOID"], (-8, 8)),
    **dict.fromkeys(["ACOS", "ASIN", "ATANH", "ERFINV"], (-0.95, 0.95)),
    **dict.fromkeys(["LOG", "SQRT"], (0.01, 9)),
    **dict.fromkeys(["LOG1P"], (-0.9, 9)),
    **dict.fromkeys(["ACOSH"], (1.01, 9)),
    **dict.fromkeys(["ERFCINV"], (0.001, 1.9)),
    **dict.fromkeys(["TAN"], (-1.4, 1.4)),
}
BINARY = words(
    "ABS_GRAD ADD FLOOR_DIV MAX MIN MOD MUL SIGMOID_GRAD SUB SWITCH_GT0 TANH_GRAD "
    "TRUE_DIV LOG_SUM_EXP LT LEQ EQ FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH "
    "FAST_TANH_GRAD ATAN2 H_SWISH_GRAD FUSE_ADD_H_SWISH SILU_GRAD GELU_GRAD "
    "ASINH_GRAD SOFTPLUS_GRAD RELU6_GRAD HSIGMOID_GRAD PRELU "
)
TERNARY = ["COND_LEQ_MOV", "COND_LT_MOV", "FUSE_MUL_ADD3", "CLIP", "PRELU_GRAD"]
INTEGER = words(
    "ABS NEGATE RELU ADD SUB MUL MAX MIN FLOOR_DIV MOD SHL SHR RMULH LT LEQ EQ "
    "SWITCH_GT0 FUSE_ADD_RELU FUSE_MUL_ADD3 COND_LEQ_MOV "
)
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
            name = f"{mode}_{np.dtype(dtype).name}"
            yield Case(name, g.op("Elemwise", mode), *xs)
    for mode in ("NOT", "AND", "OR", "XOR", "LT", "LEQ", "EQ"):
        xs = [g.bools(4, 5) for _ in range(ARITY.get(mode, 2))]
        yield Case(mode + "_bool", g.op("Elemwise", mode), *xs)


def functions(g):
    """Functions of megengine.functional that write several operators."""
    F, x, y = g.F, g.uniform(-3, 3, 3, 8), g.uniform(-3, 3, 3, 8)
    for name in words(
        "relu relu6 hswish hsigmoid silu gelu softplus logsigmoid sigmoid tanh exp abs "
        "floor ceil round sin cos tan sinh cosh asinh square sign logsoftmax logsumexp "
        "softmax neg expm1 leaky_relu isnan isinf atan "
    ):
        function = getattr(F, name)
        axis = {"axis": 1} if name in ("logsoftmax", "logsumexp", "softmax") else {}
        yield Case(name, lambda x, f=function, a=axis: f(x, **a), x)
        yield Case(name + "_raw", lambda x, f=function, a=axis: f(x, **a), x, no_change_graph=True)
    for name in words(
        "add sub mul div minimum maximum equal not_equal less less_equal greater "
        "greater_equal atan2 logaddexp mod floor_div "
    ):
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
    dtypes = g.mge.core.tensor.dtype
    unary = words(
        "QRELU QABS QSIGMOID QEXP QTANH QFAST_TANH QNEGATE QACOS QASIN QCEIL QCOS QEXPM1 "
        "QFLOOR QLOG QLOG1P QSIN QROUND QERF QERFINV QERFC QERFCINV QH_SWISH "
    )
    binary = words(
        "QADD QFUSE_ADD_RELU QMUL QMIN QMAX QSUB QTRUE_DIV QFUSE_ADD_SIGMOID "
        "QFUSE_ADD_TANH QABS_GRAD QFLOOR_DIV QMOD QSIGMOID_GRAD QSWITCH_GT0 QTANH_GRAD "
        "QLT QLEQ QEQ QPOW QLOG_SUM_EXP QFAST_TANH_GRAD QATAN2 QFUSE_ADD_H_SWISH "
        "QH_SWISH_GRAD "
    )
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
                    quantized = [x.astype(t) for x, t in zip(xs, into)]  # noqa: B905
                    y = g.op("ElemwiseMultiType", mode=mode, dtype=out)(*quantized)
                    return y.astype("float32")

                yield Case(f"{mode}_{kind}", function, *xs)
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
        yield Case(
            "MUL_ADD_I8_" + np.dtype(dtype).name, f, g.integers(0, 99, 5, 9, dtype=dtype), *xs
        )
    for name, dtype in (("I8", "int8"), ("I16", "int16")):
        f = g.op("ElemwiseMultiType", mode="ROUND_SHR_SATURATE_IXxI8x" + name, dtype=dtype)
        shift = np.array([3], np.int8)
        yield Case("ROUND_SHR_" + name, f, g.integers(-70000, 70000, 6, 30), shift)
    for bits, dtype in ((16, np.int16), (32, np.int32)):
        name = f"FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT{bits}x{bits}x{bits}x8"
        f = g.op("ElemwiseMultiType", mode=name, dtype="int8")
        top = 2 ** (bits - 3)
        xs = [g.integers(-top, top, *s, dtype=dtype) for s in ((2, 4, 6), (1, 4, 1))]
        rest = [np.array([n], np.int8) for n in (bits - 11, -100, 90)]
        yield Case(f"RMULH_SHR_{bits}", f, *xs, np.array([int(top * 1.7)], dtype), *rest)
    for dtype in (np.int16, np.uint8):
        affine = [g.uniform(-2, 2, 1, 4, 1), g.uniform(-2, 2, 1, 4, 1)]
        word = "INT16" if dtype == np.int16 else "UINT8"
        f = g.op("ElemwiseMultiType", mode=f"FUSE_MUL_ADD3_{word}xF32xF32xF32", dtype="float32")
        yield Case(f"MUL_ADD_{word}_F32", f, g.integers(0, 200, 3, 4, 5, dtype=dtype), *affine)
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

            yield Case(f"{name}_to_{other}", both, x)
    yield Case("fake_quant", g.op("FakeQuant", qmin=-128, qmax=127), x, *_scalars(0.02, 3.0))
    yield Case("tqt", g.op("TQT", qmin=-128, qmax=127), x, *_scalars(-5.0))
    yield Case("lsq", g.op("LSQ", qmin=-128, qmax=127), x, *_scalars(0.02, 0.0, 1.0))


def _scalars(*numbers):
    return [np.array([n], np.float32) for n in numbers]
