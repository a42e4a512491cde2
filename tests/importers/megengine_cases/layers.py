"""Layers with weights, and pooling."""

from __future__ import annotations

import numpy as np
from make_megengine_dumps import Case


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
    yield Case("conv3d", net(M.Conv3d, 4, 6, 3, padding=1, stride=2), g.normal(1, 4, 5, 6, 7))
    yield Case("conv3d_grouped", net(M.Conv3d, 4, 6, 2, groups=2), g.normal(1, 4, 5, 6, 7))
    yield Case("flipped", g.op("Convolution", mode="CONVOLUTION"), image, g.normal(3, 4, 3, 3))
    yield Case(
        "computed_weight", lambda x, w: F.conv2d(x, w * 2, padding=1), image, g.normal(3, 4, 3, 3)
    )
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
    F, dtypes = g.F, g.mge.core.tensor.dtype
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
                        "ConvBias",
                        nonlineMode=mode,
                        pad_h=1,
                        pad_w=1,
                        stride_h=stride,
                        stride_w=stride,
                        dtype=t[3],
                        **groups,
                    )
                    return f(x.astype(t[0]), w.astype(t[1]), b.astype(t[2])).astype("float32")

                w = (
                    g.uniform(-1, 1, 2, 3, 2, 3, 3)
                    if extra == "_grouped"
                    else g.uniform(-1, 1, 6, 4, 3, 3)
                )
                name = f"conv_{kind}_{mode}{extra}"
                yield Case(name, function, x, w, g.uniform(-1, 1, 1, 6, 1, 1))
    q8, w8 = dtypes.qint8(0.02), dtypes.qint8(0.01)

    def conv(x, w):
        wide = dtypes.qint32(0.02 * 0.01)
        f = g.op("ConvBias", dtype=wide)
        return f(x.astype(q8), w.astype(w8)).astype("float32")

    yield Case("conv_to_qint32", conv, x, g.uniform(-1, 1, 6, 4, 3, 3))
    yield Case(
        "deconv",
        lambda x, w: F.quantized.conv_transpose2d(
            x.astype(q8), w.astype(w8), dtype=dtypes.qint8(0.1), stride=2
        ).astype("float32"),
        x,
        g.uniform(-1, 1, 4, 4, 3, 3),
    )
    yield Case("max_pool", lambda x: F.max_pool2d(x.astype(q8), 2).astype("float32"), x)
    for size in (2, 3):
        yield Case(
            f"avg_pool_{size}", lambda x, s=size: F.avg_pool2d(x.astype(q8), s).astype("float32"), x
        )
    yield Case(
        "concat",
        lambda x: F.concat([x.astype(q8), (x * 0.5).astype(q8)], axis=1).astype("float32"),
        x,
    )
    yield Case("reshape", lambda x: x.astype(q8).reshape(2, -1)[:, 3:9].astype("float32"), x)
    product = g.op("MatrixMul", transposeB=True, dimA=2, dimB=2)
    yield Case(
        "matmul",
        lambda x, w: product(x.astype(q8), w.astype(w8)).astype("float32"),
        g.uniform(-1, 1, 5, 7),
        g.uniform(-1, 1, 6, 7),
    )
    for mode in ("MAX", "MIN", "SUM", "MEAN"):
        yield Case(
            "reduce_" + mode,
            lambda x, m=mode: g.op("Reduce", mode=m, axis=2)(x.astype(q8)).astype("float32"),
            x,
        )
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

    for name, config in (
        ("min_max", Q.min_max_fakequant_qconfig),
        ("ema", Q.ema_fakequant_qconfig),
    ):
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
    yield Case("avg_include_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, mode="average"), image)
    for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
        for size in (1, 4, (3, 5), (10, 12)):
            label = "{}_{}".format(name, str(size).strip("()").replace(", ", "x"))
            yield Case(label, lambda x, n=name, s=size: getattr(F, n)(x, s), image)
    rois = np.array([[0, 1, 1, 6, 8], [1, 0, 2, 9, 9], [0, 3.3, 0.7, 7.9, 6.2]], np.float32)
    far = rois * np.array([1, 2, 2, 2, 2], np.float32)
    for offset in (0.5, 0.0):
        yield Case(
            f"roi_align_{offset}",
            lambda x, r, a=offset > 0: F.vision.roi_align(x, r, (3, 2), "average", 0.5, 2, a),
            image,
            far,
        )
    yield Case(
        "roi_pooling", lambda x, r: F.vision.roi_pooling(x, r, (3, 2), "max", 0.5), image, far
    )


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
        if raw:  # by default MegEngine fails to dump these two
            yield Case("group_norm", g.randomized(M.GroupNorm(3, 6)), image, **option)
            yield Case("instance_norm", g.randomized(M.InstanceNorm(6)), image, **option)
        yield Case("group_norm_plain" + s, M.GroupNorm(2, 6, affine=False), image, **option)
        yield Case("general_norm" + s, g.randomized(M.GeneralNorm((6, 5), (1, 2))), image, **option)
        yield Case(
            "general_norm_end" + s, g.randomized(M.GeneralNorm((5, 7), (2, 3))), image, **option
        )
    yield Case("lrn", lambda x: F.local_response_norm(x, 3, 1.5, 0.2, 0.6), image)
    for axis in (-1, 1, 0):
        yield Case(f"softmax_{axis}", lambda x, a=axis: F.softmax(x, a), image)


def products(g):
    """Matrix products."""
    F, M = g.F, g.M
    a, b = g.normal(5, 7), g.normal(7, 4)
    yield Case("matmul", F.matmul, a, b)
    yield Case("matmul_ta", lambda x, y: F.matmul(x, y, transpose_a=True), a.T.copy(), b)
    yield Case("matmul_tb", lambda x, y: F.matmul(x, y, transpose_b=True), a, b.T.copy())
    yield Case("matmul_vector", F.matmul, a, g.normal(7))
    yield Case("batched", F.matmul, g.normal(3, 5, 7), g.normal(3, 7, 4))
    yield Case(
        "batched_tt",
        lambda x, y: F.matmul(x, y, transpose_a=True, transpose_b=True),
        g.normal(3, 7, 5),
        g.normal(3, 4, 7),
    )
    yield Case("broadcast", F.matmul, g.normal(2, 3, 5, 7), g.normal(7, 4))
    yield Case("rank4", F.matmul, g.normal(2, 3, 5, 7), g.normal(2, 3, 7, 4))
    yield Case("dot", F.dot, g.normal(9), g.normal(9))
    yield Case("linear", g.randomized(M.Linear(7, 3)), a)
    yield Case("linear_rank3", g.randomized(M.Linear(7, 3)), g.normal(2, 5, 7))
    yield Case(
        "int8",
        g.op("MatrixMul", dimA=2, dimB=2),
        g.integers(-99, 99, 4, 6, dtype=np.int8),
        g.integers(-99, 99, 6, 5, dtype=np.int8),
    )
    attention = g.randomized(M.MultiHeadAttention(16, 4))
    q = g.normal(2, 5, 16)
    yield Case("attention", lambda q: attention(q, q, q)[0], q)
    k = g.normal(2, 7, 16)
    yield Case("attention_cross", lambda q, k: attention(q, k, k * 2)[0], q, k)
    yield Case(
        "attention_weights",
        lambda q: attention(q, q, q, need_weights=True),
        q,
        output_names=["y", "weights"],
    )
    yield Case("attention_mask", lambda q, m: attention(q, q, q, attn_mask=m)[0], q, g.normal(5, 5))
    masks = g.normal(8, 5, 5)
    yield Case("attention_masks", lambda q, m: attention(q, q, q, attn_mask=m)[0], q, masks)
    plain = g.randomized(M.MultiHeadAttention(16, 4, bias=False, kdim=6, vdim=10))
    xs = [q, g.normal(2, 7, 6), g.normal(2, 7, 10)]
    yield Case("attention_sizes", lambda q, k, v: plain(q, k, v)[0], *xs)


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
    lstm = g.randomized(M.LSTM(3, 4))
    yield Case("lstm_output", lambda x, n=lstm: n(x)[0], x)
    cell = g.randomized(M.LSTMCell(3, 4))
    yield Case(
        "lstm_cell", lambda x, h, c: cell(x, (h, c)), g.normal(2, 3), g.normal(2, 4), g.normal(2, 4)
    )
    for word in ("tanh", "relu"):
        cell = g.randomized(M.RNNCell(3, 4, nonlinearity=word))
        yield Case("rnn_cell_" + word, lambda x, h, n=cell: n(x, h), g.normal(2, 3), g.normal(2, 4))


def _flat(results):
    output, states = results
    return (output,) + tuple(states) if isinstance(states, (tuple, list)) else (output, states)
