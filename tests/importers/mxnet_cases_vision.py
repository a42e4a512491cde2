"""Cases for the operators of detection, sampling, recurrence and quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from importers import mxnet_truth as truth
from importers.mxnet_cases import Case, f4, normal, uniform
from importers.mxnet_truth import Array


def boxes(count: int, seed: int = 0) -> Array:
    """Return random corner boxes in 0 .. 1."""
    rng = np.random.default_rng(seed)
    center, half = rng.uniform(0.2, 0.8, (count, 2)), rng.uniform(0.05, 0.2, (count, 2))
    return np.concatenate([center - half, center + half], 1).astype("f4")


def scored(count: int, seed: int = 0) -> Array:
    """Return two images' rows of class (of three), score and box."""
    rng = np.random.default_rng(seed)
    rows = [np.concatenate([rng.integers(0, 3, (count, 1)), rng.permutation(count)[:, None] / count,
                            boxes(count, seed + i)], 1) for i in range(2)]  # fmt: skip
    return np.stack(rows).astype("f4")


def nms(threshold: float, valid: float, limit: int, by_class: bool) -> Any:
    return lambda x: np.stack([truth.box_nms(r, threshold, valid, limit, by_class) for r in x])


def centered(x: Array) -> Array:
    """Return corner boxes (columns 2 to 5) as center and size."""
    low, high = x[..., 2:4], x[..., 4:6]
    return np.concatenate([x[..., :2], (low + high) / 2, high - low], -1)


def decoded(x: Array, a: Array) -> Array:
    center, size = a[..., :2], a[..., 2:]
    middle = x[..., :2] * 0.1 * size + center
    half = np.exp(x[..., 2:] * 0.2) * size / 2
    return np.concatenate([middle - half, middle + half], -1)


def priors() -> Array:
    """Return the anchors of a 2 x 3 map for sizes .3, .5 and ratios 1, 4."""
    rows = []
    for i in range(2):
        for j in range(3):
            for size, ratio in ((0.3, 1), (0.5, 1), (0.3, 4)):
                w, h = size * 2 / 3 * np.sqrt(ratio) / 2, size / np.sqrt(ratio) / 2
                x, y = (j + 0.5) / 3, (i + 0.5) / 2
                rows.append([x - w, y - h, x + w, y + h])
    return np.asarray([rows])


def warp(flow: Array) -> Array:
    y, x = np.meshgrid(np.arange(3), np.arange(4), indexing="ij")
    return np.stack([(flow[:, 0] + x) / 1.5 - 1, (flow[:, 1] + y) / 1 - 1], 1)


SCORES = np.random.default_rng(5).dirichlet(np.ones(4) * 0.4, (2, 12)).transpose(0, 2, 1)
ROIS = f4(0, 0, 0, 6, 5, 1, 1.5, 2.2, 8, 9.7, 0, 3, 3, 3.4, 3.2, 1, 2, 0, 13, 12).reshape(4, 5)
MAP = normal(2, 3, 7, 8)

VISION: list[Case] = [
    Case("_contrib_MultiBoxPrior", [normal(1, 2, 2, 3)], lambda x: priors(),
         {"sizes": (0.3, 0.5), "ratios": (1, 4)}),
    Case("_contrib_MultiBoxDetection",
         [SCORES.astype("f4"), normal(2, 48), boxes(12)[None]],
         lambda p, d, a: np.stack([truth.multibox_detection(p[i], d[i], a) for i in range(2)])),
    Case("_contrib_box_nms", [scored(20)], nms(0.5, 0, -1, False)),
    Case("_contrib_box_nms", [scored(20)], nms(0.3, 0.2, 8, True),
         {"overlap_thresh": 0.3, "valid_thresh": 0.2, "topk": 8, "id_index": 0}),
    Case("_contrib_box_nms", [centered(scored(20)).astype("f4")],
         lambda x: nms(0.5, 0, -1, False)(scored(20).astype(float)),
         {"in_format": "center", "out_format": "corner"}),
    Case("_contrib_box_nms", [scored(9)], nms(0.5, 2, -1, False), {"valid_thresh": 2}),
    Case("_contrib_box_iou", [boxes(5), boxes(4, 1)],
         lambda x, y: np.asarray([[truth.iou(a, b) for b in y] for a in x])),
    Case("_contrib_box_decode", [normal(2, 5, 4), uniform(1, 5, 4)], decoded,
         {"std0": 0.1, "std1": 0.1, "std2": 0.2, "std3": 0.2}),
    Case("ROIPooling", [MAP, ROIS], lambda x, r: truth.roi_pooling(x, r, (3, 2), 0.5),
         {"pooled_size": (3, 2), "spatial_scale": 0.5}),
    Case("_contrib_ROIAlign", [MAP, ROIS], lambda x, r: truth.roi_align(x, r, (3, 2), 0.5, 2),
         {"pooled_size": (3, 2), "spatial_scale": 0.5, "sample_ratio": 2}),
    Case("_contrib_ROIAlign", [normal(2, 8, 7, 8), np.concatenate([ROIS, -ROIS[1:2]])],
         lambda x, r: np.stack(
             [[truth.roi_align(x, r, (2, 2), 0.5, 2)[:, c * 4 + i * 2 + j, i, j]
               for i in range(2) for j in range(2)] for c in range(2)]
         ).transpose(2, 0, 1).reshape(5, 2, 2, 2),
         {"pooled_size": (2, 2), "spatial_scale": 0.5, "sample_ratio": 2,
          "position_sensitive": "True"}),
    Case("UpSampling", [MAP], lambda x: x.repeat(2, 2).repeat(2, 3),
         {"scale": 2, "sample_type": "nearest", "num_args": 1}),
    Case("UpSampling", [normal(1, 2, 4, 4), normal(1, 1, 2, 2)],
         lambda x, y: np.concatenate([x.repeat(2, 2).repeat(2, 3), y.repeat(4, 2).repeat(4, 3)], 1),
         {"scale": 2, "sample_type": "nearest", "num_args": 2}),
    Case("UpSampling", [normal(1, 2, 3, 4), normal(2, 1, 4, 4)],
         lambda x, w: truth.deconv(x, w, stride=(2, 2), pad=(1, 1), adj=(0, 0), group=2),
         {"scale": 2, "sample_type": "bilinear", "num_filter": 2, "num_args": 2}, weights=[1]),
    *(Case("_contrib_BilinearResize2D", [normal(1, 2, 5, 6)],
           lambda x, s=size, a=align: truth.resize(x, *s, a), attrs)
      for attrs, size, align in [
          ({"height": 7, "width": 5}, (7, 5), True),
          ({"height": 3, "width": 9, "align_corners": "False"}, (3, 9), False),
          ({"scale_height": 1.5, "scale_width": 2}, (7, 12), True),
          ({"scale_height": 1.5, "scale_width": 2, "mode": "odd_scale"}, (7, 12), True),
          ({"mode": "to_even_up"}, (6, 6), True), ({"mode": "to_odd_down"}, (5, 5), True),
          ({"mode": "to_even_down"}, (4, 6), True), ({"mode": "to_odd_up"}, (5, 7), True),
      ]),
    Case("_contrib_BilinearResize2D", [normal(1, 2, 5, 6), normal(1, 1, 3, 8)],
         lambda x, y: truth.resize(x, 3, 8, True), {"mode": "like"}),
    Case("BilinearSampler", [normal(2, 3, 5, 6), normal(2, 2, 4, 3)], truth.sample),
    Case("GridGenerator", [normal(2, 6)], lambda t: truth.affine_grid(t, 4, 5),
         {"transform_type": "affine", "target_shape": (4, 5)}),
    Case("GridGenerator", [normal(2, 2, 3, 4)], warp, {"transform_type": "warp"}),
    Case("SpatialTransformer", [normal(2, 3, 5, 6), normal(2, 6)],
         lambda x, t: truth.sample(x, truth.affine_grid(t, 4, 5)),
         {"transform_type": "affine", "sampler_type": "bilinear", "target_shape": (4, 5)}),
]  # fmt: skip

IMAGES = 66
MANY_BOXES: list[Case] = [
    Case("_contrib_MultiBoxDetection",
         [np.tile(SCORES, (IMAGES // 2, 1, 1)).astype("f4"), normal(IMAGES, 48), boxes(12)[None]],
         lambda p, d, a: np.stack(
             [truth.multibox_detection(p[i], d[i], a) for i in range(IMAGES)])),
    Case("_contrib_box_nms", [scored(600)], nms(0.5, 0, -1, False)),
    Case("_contrib_box_nms", [np.concatenate([scored(9, seed) for seed in range(IMAGES // 2)])],
         nms(0.3, 0.2, 8, True),
         {"overlap_thresh": 0.3, "valid_thresh": 0.2, "topk": 8, "id_index": 0}),
]  # fmt: skip
"""More boxes, or more images, than get the matrix of their overlaps."""


def parameters(mode: str, layers: int, directions: int) -> int:
    """Return the number of parameters of an RNN with inputs of 3 and a state of 4."""
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    inputs = [3] + [4 * directions] * (layers - 1)
    return sum(gates * 4 * (n + 4 + 2) for n in inputs) * directions


RECURRENT = [
    Case(
        "RNN",
        [normal(5, 2, 3), normal(parameters(mode, layers, 1 + both)),
         *[normal(layers * (1 + both), 2, 4, seed=i) for i in range(1 + (mode == "lstm"))]],
        lambda x, p, *s, m=mode, n=layers, b=both: truth.rnn(x, p, s, m, 4, n, b),
        {"mode": mode, "state_size": 4, "num_layers": layers, "bidirectional": both,
         "state_outputs": "True", "p": 0.5},
        weights=[1], outputs=range(3 if mode == "lstm" else 2),
    )
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for layers, both in ((1, False), (2, True))
]  # fmt: skip


# ---- quantised: the true values are within a step of the int8 result ---------------------------

INT8 = np.random.default_rng(1).integers(-127, 128, (2, 4, 3, 3)).astype("i1")
UINT8 = np.random.default_rng(2).integers(0, 256, (2, 4, 3, 3)).astype("u1")
LOW, HIGH = f4(-2), f4(1)


def numbers(x: Array, limit: float, largest: float, low: int = -128) -> Array:
    """Return the integers of real values."""
    return np.clip(np.rint(x * largest / limit), low, 255 if low == 0 else 127)


QUANTIZED: list[Case] = [
    Case("_contrib_quantize", [normal(3, 4), LOW, HIGH], lambda x, *_: numbers(x, 2, 127),
         {"out_type": "int8"}),
    Case("_contrib_quantize", [uniform(3, 4), f4(0), HIGH], lambda x, *_: numbers(x, 1, 255, 0)),
    Case("_contrib_quantize_v2", [normal(3, 4)], lambda x: numbers(x, abs(x).max(), 127.5)),
    Case("_contrib_quantize_v2", [normal(3, 4)],
         lambda x: (numbers(x, 2, 127.5), f4(-2), f4(2)),
         {"min_calib_range": -2, "max_calib_range": 1.5, "out_type": "auto"}, outputs=(0, 1, 2)),
    Case("_contrib_quantize_v2", [uniform(3, 4)], lambda x: numbers(x, 0.9, 255.5, 0),
         {"min_calib_range": "-0.000", "max_calib_range": 0.9, "out_type": "auto"}),
    Case("_contrib_requantize", [np.int32([-(1 << 30), 1 << 28, 0]), f4(-3), f4(5)],
         lambda x, *_: numbers(x * 5 / (2**31 - 1), 2, 127),
         {"min_calib_range": -1, "max_calib_range": 2}),
    Case("_contrib_dequantize", [INT8, LOW, HIGH], lambda x, *_: x * 2 / 127.5),
    Case("_contrib_dequantize", [UINT8, f4(0), HIGH], lambda x, *_: x / 255.5),
    Case("_contrib_quantized_act", [INT8, LOW, HIGH],
         lambda x, *_: (np.maximum(x, 0), LOW, HIGH), {"act_type": "relu"}, outputs=(0, 1, 2)),
    Case("_contrib_quantized_flatten", [UINT8, f4(0), HIGH], lambda x, *_: x.reshape(2, -1)),
    Case("_contrib_quantized_pooling", [UINT8, f4(0), HIGH],
         lambda x, *_: truth.pool(x, lambda c, _: c.max(), (2, 2), (1, 1), (0, 0)),
         {"kernel": (2, 2), "pool_type": "max"}),
    Case("_contrib_quantized_pooling", [INT8, LOW, HIGH],
         lambda x, *_: np.rint(x.mean((2, 3), keepdims=True)),
         {"kernel": (2, 2), "pool_type": "avg", "global_pool": "True"}),
    Case("_contrib_quantized_concat", [INT8, UINT8, LOW, HIGH, f4(0), f4(4)],
         lambda x, y, *_: np.concatenate([numbers(x * 2 / 127.5, 4, 127.5),
                                          numbers(y * 4 / 255.5, 4, 127.5)], 1), {"num_args": 2}),
    Case("_contrib_quantized_elemwise_add", [INT8, INT8[::-1].copy(), LOW, HIGH, f4(-1), f4(4)],
         lambda x, y, *_: numbers(x * 2 / 127.5 + y * 4 / 127.5, 5, 127.5),
         {"min_calib_range": -5, "max_calib_range": 3}),
    Case("_contrib_quantized_elemwise_mul", [INT8, INT8[::-1].copy(), LOW, HIGH, f4(-1), f4(4)],
         lambda x, y, *_: x * y * 8 / 127**2, {"enable_float_output": "True"}),
    Case("_contrib_quantized_elemwise_mul", [INT8, INT8[::-1].copy(), LOW, HIGH, f4(-1), f4(4)],
         lambda x, y, *_: x * y),
    Case("_contrib_quantized_embedding", [f4(0, 3), INT8[0, :, :, 0], LOW, HIGH],
         lambda i, w, *_: w[[0, 3]], {"input_dim": 4, "output_dim": 3}, weights=[1, 2, 3]),
    Case("_contrib_quantized_conv",
         [UINT8, INT8[:, :, :2, :2].copy(), f4(0), HIGH, LOW, HIGH],
         lambda x, w, *_: truth.conv(x, w),
         {"kernel": (2, 2), "num_filter": 2, "no_bias": "True"}, weights=[1, 4, 5]),
    Case("_contrib_quantized_fully_connected",
         [UINT8.reshape(2, 36), INT8.reshape(2, 36), np.int8([100, -50]), f4(0), HIGH, LOW, HIGH,
          f4(-30), f4(30)],
         lambda x, w, b, *_: x @ w.T + np.rint(b * 30 / 127 / (1 / 255 * 2 / 127)),
         {"num_hidden": 2}, weights=[1, 2, 5, 6, 7, 8]),
    Case("_contrib_quantized_batch_norm",
         [INT8, uniform(4), normal(4), normal(4, seed=1), uniform(4, seed=2), LOW, HIGH],
         lambda x, g, b, m, v, *_: numbers(
             (x * 2 / 127.5 - m.reshape(-1, 1, 1)) / np.sqrt(v.reshape(-1, 1, 1) + 1e-3)
             * g.reshape(-1, 1, 1) + b.reshape(-1, 1, 1), 3, 127.5),
         {"fix_gamma": "False", "min_calib_range": -3, "max_calib_range": 2},
         weights=[1, 2, 3, 4]),
]  # fmt: skip
