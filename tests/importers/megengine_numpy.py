"""Layers in plain numpy and double precision, to compare translated dumps with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def windows(
    x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> np.ndarray:
    """Return every window of the last axes: (N, C, out..., kernel...)."""
    spatial = x.shape[2:]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(2, x.ndim)))
    steps = [slice(None, None, s) for s in strides]
    taps = [slice(None, None, d) for d in dilations]
    assert len(spatial) == len(kernel)
    return view[(slice(None), slice(None), *steps, *taps)]


def padded(x: np.ndarray, pads: Sequence[int], value: float = 0.0) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pads)], constant_values=value)


def conv(
    x: np.ndarray,
    w: np.ndarray,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
) -> np.ndarray:
    """Convolve with ONNX-shaped weights (O, I / groups, kernel...)."""
    axes = x.ndim - 2
    ones = [1] * axes
    data = padded(x.astype(np.float64), pads or [0] * axes)
    found = windows(data, w.shape[2:], strides or ones, dilations or ones)
    parts = []
    for xs, ws in zip(
        np.split(found, groups, 1), np.split(w.astype(np.float64), groups), strict=True
    ):
        taps = list(range(2 + axes, 2 + 2 * axes))
        parts.append(np.tensordot(xs, ws, ([1, *taps], [1, *range(2, 2 + axes)])))
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)


def transposed_conv(
    x: np.ndarray,
    w: np.ndarray,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    extra: Sequence[int] | None = None,
) -> np.ndarray:
    """Scatter x with weights (I, O / groups, kernel...); `extra` enlarges the end."""
    axes = x.ndim - 2
    ones, zeros = [1] * axes, [0] * axes
    pads, strides, dilations = pads or zeros, strides or ones, dilations or ones
    extra = extra or zeros
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(x.shape[2:], strides, dilations, w.shape[2:], extra, strict=True)
    ]
    per_group, inner = w.shape[1], x.shape[1] // groups
    y = np.zeros((x.shape[0], per_group * groups, *full))
    for tap in itertools.product(*(range(k) for k in w.shape[2:])):
        place = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
        )
        for g in range(groups):
            ins, outs = slice(g * inner, (g + 1) * inner), slice(g * per_group, (g + 1) * per_group)
            weights = w[(ins, slice(None), *tap)].astype(np.float64)
            part = np.einsum("nc...,co->no...", x[:, ins], weights)
            y[(slice(None), outs, *place)] += part
    cut = tuple(slice(p, f - p) for p, f in zip(pads, full, strict=True))
    return y[(slice(None), slice(None), *cut)]


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    x = x.astype(np.float64)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def sample(
    x: np.ndarray, px: np.ndarray, py: np.ndarray, border: str, value: float = 0.0
) -> np.ndarray:
    """Interpolate (N, C, H, W) at pixels (N, OH, OW), bilinear, border as OpenCV names it."""
    n, _, h, w = x.shape
    out = np.zeros((n, x.shape[1], *px.shape[1:]))
    left, top = np.floor(px).astype(int), np.floor(py).astype(int)
    for dy, dx in itertools.product((0, 1), (0, 1)):
        ix, iy = left + dx, top + dy
        weight = (1 - np.abs(px - ix)) * (1 - np.abs(py - iy))
        inside = (ix >= 0) & (ix < w) & (iy >= 0) & (iy < h)
        jx, jy = fold(ix, w, border), fold(iy, h, border)
        for b in range(n):
            taps = x[b][:, jy[b], jx[b]].astype(np.float64)
            if border == "CONSTANT":
                taps = np.where(inside[b], taps, value)
            out[b] += weight[b] * taps
    return out


def fold(i: np.ndarray, extent: int, border: str) -> np.ndarray:
    """Bring pixel numbers outside an image inside it."""
    if border == "REFLECT":
        i = np.mod(i, 2 * extent)
        return np.where(i < extent, i, 2 * extent - 1 - i)
    if border == "REFLECT_101":
        i = np.mod(i, 2 * extent - 2)
        return np.where(i < extent, i, 2 * extent - 2 - i)
    return np.clip(i, 0, extent - 1)


def cubic(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    """Return the weight of Keys' cubic kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def resized_cubic(x: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize the last two axes by half-pixel cubic interpolation with clamped edges."""
    y = x.astype(np.float64)
    for axis, wanted in zip((2, 3), size, strict=True):
        extent = x.shape[axis]
        centres = (np.arange(wanted) + 0.5) * extent / wanted - 0.5
        matrix = np.zeros((wanted, extent))
        for tap in range(-1, 3):
            place = np.floor(centres).astype(int) + tap
            np.add.at(
                matrix, (np.arange(wanted), np.clip(place, 0, extent - 1)), cubic(centres - place)
            )
        y = np.moveaxis(np.tensordot(matrix, y, ([1], [axis])), 0, axis)
    return y


def rnn_step(x, h, w_ih, w_hh, b, activation):  # type: ignore[no-untyped-def]
    return activation(x @ w_ih.T + h @ w_hh.T + b)


def lstm_step(x, state, w_ih, w_hh, b):  # type: ignore[no-untyped-def]
    """Gates input, forget, cell, output."""
    h, c = state
    i, f, g, o = np.split(x @ w_ih.T + h @ w_hh.T + b, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c
