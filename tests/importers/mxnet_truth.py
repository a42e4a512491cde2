"""MXNet operators in plain float64 numpy, written from their definitions: the tests' truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def conv(
    x: Array, w: Array, bias: Array | float = 0, *, stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0), dilate: Sequence[int] = (1, 1), group: int = 1,
) -> Array:  # fmt: skip
    """Convolution of (N, C, ...) with (O, C/group, ...)."""
    x = np.pad(x.astype(float), [(0, 0), (0, 0), *((p, p) for p in pad)])
    kernel = w.shape[2:]
    out = [(n - d * (k - 1) - 1) // s + 1
           for n, k, s, d in zip(x.shape[2:], kernel, stride, dilate, strict=True)]  # fmt: skip
    y = np.zeros((x.shape[0], w.shape[0], *out))
    per, inner = w.shape[0] // group, w.shape[1]
    for o in range(w.shape[0]):
        channels = x[:, (o // per) * inner : (o // per + 1) * inner]
        for cell in product(*map(range, kernel)):
            cut = tuple(slice(c * d, c * d + s * (n - 1) + 1, s)
                        for c, d, s, n in zip(cell, dilate, stride, out, strict=True))  # fmt: skip
            y[:, o] += np.einsum("nc...,c->n...", channels[:, :, *cut], w[o, :, *cell])
    return y + np.reshape(bias, (-1, *[1] * len(kernel)))


def deconv(
    x: Array, w: Array, *, stride: Sequence[int], pad: Sequence[int], adj: Sequence[int],
    group: int = 1,
) -> Array:  # fmt: skip
    """Transposed convolution of (N, I, ...) with (I, O/group, ...): every cell is spread out."""
    kernel = w.shape[2:]
    full = [s * (n - 1) + k for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1] * group, *(f + a for f, a in zip(full, adj, strict=True))))
    per = x.shape[1] // group
    for i in range(x.shape[1]):
        outputs = slice((i // per) * w.shape[1], (i // per + 1) * w.shape[1])
        for cell in product(*map(range, kernel)):
            cut = tuple(slice(c, c + s * (n - 1) + 1, s)
                        for c, s, n in zip(cell, stride, x.shape[2:], strict=True))  # fmt: skip
            weights = w[i, :, *cell].reshape(1, -1, *[1] * len(kernel))
            y[:, outputs, *cut] += x[:, i : i + 1] * weights
    return y[:, :, *(slice(p, n - p) for p, n in zip(pad, y.shape[2:], strict=True))]


def pool(
    x: Array, reduce: Callable[[Array, int], float], kernel: Sequence[int], stride: Sequence[int],
    pad: Sequence[int], full: bool = False, include: bool = True,
) -> Array:  # fmt: skip
    """Pooling of (N, C, H, W); `reduce` gets a window's cells and how many it averages over."""
    rounding = ceil if full else floor
    out = [rounding((n + 2 * p - k) / s) + 1
           for n, k, s, p in zip(x.shape[2:], kernel, stride, pad, strict=True)]  # fmt: skip
    y = np.zeros((*x.shape[:2], *out))
    for place in product(*map(range, y.shape)):
        cut, area = [], 1
        for i, k, s, p, n in zip(place[2:], kernel, stride, pad, x.shape[2:], strict=True):
            begin = i * s - p
            end = min(begin + k, n + p)
            cut.append(slice(max(begin, 0), min(end, n)))
            area *= end - begin if include else cut[-1].stop - cut[-1].start
        y[place] = reduce(x[*place[:2], *cut], area)
    return y


def softmax(x: Array, axis: int = -1) -> Array:
    """Softmax in float64."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def erf(x: Array) -> Array:
    """The error function."""
    from math import erf as one

    return np.vectorize(one)(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def normalized(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps)."""
    mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + eps))


def lrn(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    """Local response normalisation across channels."""
    y = np.empty_like(x, float)
    for c in range(x.shape[1]):
        window = x[:, max(c - size // 2, 0) : c + size // 2 + 1]
        y[:, c] = x[:, c] / (k + alpha / size * (window**2).sum(axis=1)) ** beta
    return y


def bilinear(image: Array, y: float, x: float) -> Array:
    """Sample (C, H, W) at a point; cells outside are zero."""
    top, left = floor(y), floor(x)
    total = np.zeros(image.shape[0])
    for row, column in product((top, top + 1), (left, left + 1)):
        if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
            total += image[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


def resize(x: Array, height: int, width: int, align: bool) -> Array:
    """Linear resizing of (N, C, H, W), with aligned corners or half pixels."""
    def places(source: int, target: int) -> Array:
        if align:
            return np.arange(target) * ((source - 1) / (target - 1) if target > 1 else 0)
        return np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)

    y = np.zeros((*x.shape[:2], height, width))
    rows, columns = places(x.shape[2], height), places(x.shape[3], width)
    for n, (i, r), (j, c) in product(range(len(x)), enumerate(rows), enumerate(columns)):
        y[n, :, i, j] = bilinear(x[n], r, c)
    return y


def sample(x: Array, grid: Array) -> Array:
    """BilinearSampler: (N, C, H, W) at a grid (N, 2, h, w) of x and y in -1 .. 1."""
    y = np.zeros((*x.shape[:2], *grid.shape[2:]))
    for n, i, j in product(range(len(x)), *map(range, grid.shape[2:])):
        row, column = (grid[n, a, i, j] + 1 for a in (1, 0))
        y[n, :, i, j] = bilinear(
            x[n], row * (x.shape[2] - 1) / 2, column * (x.shape[3] - 1) / 2
        )
    return y


def affine_grid(theta: Array, height: int, width: int) -> Array:
    """GridGenerator of affine matrices (N, 6)."""
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    points = np.stack([x, y, np.ones_like(x)]).reshape(3, -1)
    return np.asarray((theta.reshape(-1, 2, 3) @ points).reshape(-1, 2, height, width))


def deformable(x: Array, offset: Array, w: Array, *, pad: int, mask: Array | None = None) -> Array:
    """Deformable convolution of stride 1, one group; without a mask the first paper's borders."""
    kernel, extent = w.shape[2:], x.shape[2:]
    y = np.zeros((x.shape[0], w.shape[0], *offset.shape[2:]))
    for n, i, j in product(range(len(x)), *map(range, offset.shape[2:])):
        for k, (r, c) in enumerate(product(*map(range, kernel))):
            row = i - pad + r + offset[n, 2 * k, i, j]
            column = j - pad + c + offset[n, 2 * k + 1, i, j]
            if mask is not None:
                value = bilinear(x[n], row, column) * mask[n, k, i, j]
            elif 0 <= row < extent[0] and 0 <= column < extent[1]:
                value = bilinear(x[n], min(row, extent[0] - 1), min(column, extent[1] - 1))
            else:
                continue
            y[n, :, i, j] += w[:, :, r, c] @ value
    return y


def roi_pooling(x: Array, rois: Array, size: tuple[int, int], scale: float) -> Array:
    """ROIPooling: the maximum of each bin of a rounded region."""
    y = np.zeros((len(rois), x.shape[1], *size))
    for n, (batch, *box) in enumerate(rois):
        left, top, right, bottom = (floor(v * scale + 0.5) for v in box)
        extent = (max(bottom - top + 1, 1), max(right - left + 1, 1))
        for i, j in product(*map(range, size)):
            rows, columns = (
                [min(max(o + edge, 0), limit) for edge in (floor(p * n / s), ceil((p + 1) * n / s))]
                for p, n, s, o, limit in zip(
                    (i, j), extent, size, (top, left), x.shape[2:], strict=True
                )
            )
            cells = x[int(batch), :, rows[0] : rows[1], columns[0] : columns[1]]
            y[n, :, i, j] = cells.max(axis=(1, 2)) if cells.size else 0
    return y


def roi_align(x: Array, rois: Array, size: tuple[int, int], scale: float, samples: int) -> Array:
    """ROIAlign without half pixel shift; a negative batch index gives zeros."""
    y = np.zeros((len(rois), x.shape[1], *size))
    for n, (batch, left, top, right, bottom) in enumerate(rois * [1, scale, scale, scale, scale]):
        steps = (max(bottom - top, 1) / size[0], max(right - left, 1) / size[1])
        for i, j, a, b in product(*map(range, (*size, samples, samples))):
            row = top + (i + (a + 0.5) / samples) * steps[0]
            column = left + (j + (b + 0.5) / samples) * steps[1]
            inside = -1 <= row <= x.shape[2] and -1 <= column <= x.shape[3]
            if batch >= 0 and inside:
                row, column = min(max(row, 0), x.shape[2] - 1), min(max(column, 0), x.shape[3] - 1)
                y[n, :, i, j] += bilinear(x[int(batch)], row, column) / samples**2
    return y


# ---- boxes -------------------------------------------------------------------------------------


def iou(a: Array, b: Array) -> float:
    """Intersection over union of two corner boxes."""
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    inside = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return float(inside / (areas - inside)) if inside > 0 else 0.0


def box_nms(rows: Array, threshold: float, valid: float, limit: int, by_class: bool) -> Array:
    """box_nms of rows (class, score, box): what stays, by score; the rest is -1."""
    order = [r for r in rows[np.argsort(-rows[:, 1], kind="stable")] if r[1] > valid]
    kept: list[Array] = []
    for row in order[: limit if limit > 0 else None]:
        rivals = [k for k in kept if not by_class or k[0] == row[0]]
        if all(iou(k[2:6], row[2:6]) <= threshold for k in rivals):
            kept.append(row)
    filler = np.full((len(rows) - len(kept), rows.shape[1]), -1.0)
    return np.concatenate([np.reshape(kept, (-1, rows.shape[1])), filler])


def multibox_detection(p: Array, location: Array, anchors: Array) -> Array:
    """MultiBoxDetection with its default values, for one image."""
    rows: list[Array] = []
    for i, anchor in enumerate(anchors[0]):
        best = int(np.argmax(p[1:, i])) + 1
        if p[best, i] < 0.01:
            continue
        size, center = anchor[2:] - anchor[:2], (anchor[2:] + anchor[:2]) / 2
        delta = location[4 * i : 4 * i + 4]
        middle = delta[:2] * 0.1 * size + center
        half = np.exp(delta[2:] * 0.2) * size / 2
        box = np.clip([*(middle - half), *(middle + half)], 0, 1)
        rows.append(np.asarray([best - 1, p[best, i], *box]))
    rows.sort(key=lambda r: -r[1])
    for i, row in enumerate(rows):
        for other in rows[i + 1 :]:
            if row[0] >= 0 and other[0] == row[0] and iou(row[2:], other[2:]) >= 0.5:
                other[0] = -1
    filler = np.full((anchors.shape[1] - len(rows), 6), -1.0)
    return np.concatenate([np.reshape(rows, (-1, 6)), filler])


# ---- recurrent ---------------------------------------------------------------------------------


def rnn(
    x: Array, blob: Array, states: Sequence[Array], mode: str, hidden: int, layers: int, both: bool
) -> list[Array]:
    """The fused RNN with its flat parameters: output, last states."""
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    directions, position = 1 + both, 0

    def take(*shape: int) -> Array:
        nonlocal position
        position += int(np.prod(shape))
        return blob[position - int(np.prod(shape)) : position].reshape(shape).astype(float)

    weights = [
        (take(gates * hidden, x.shape[2] if layer == 0 else hidden * directions),
         take(gates * hidden, hidden)) for layer in range(layers) for _ in range(directions)
    ]  # fmt: skip
    biases = [(take(gates * hidden), take(gates * hidden)) for _ in weights]
    last: list[list[Array]] = [[], []]
    for layer in range(layers):
        outputs = []
        for d in range(directions):
            k = layer * directions + d
            state = [s[k].astype(float) for s in states]
            steps = []
            for frame in x[::-1] if d else x:
                (wi, wh), (bi, bh) = weights[k], biases[k]
                state = _step(mode, frame @ wi.T + bi, state[0] @ wh.T + bh, state)
                steps.append(state[0])
            outputs.append(np.stack(steps[::-1] if d else steps))
            for kept, value in zip(last, state, strict=False):
                kept.append(value)
        x = np.concatenate(outputs, axis=-1)
    return [x, *(np.stack(values) for values in last if values)]


def _step(mode: str, i: Array, h: Array, state: Sequence[Array]) -> list[Array]:
    if mode == "lstm":
        ingate, forget, cell, out = np.split(i + h, 4, axis=-1)
        memory = sigmoid(forget) * state[1] + sigmoid(ingate) * np.tanh(cell)
        return [sigmoid(out) * np.tanh(memory), memory]
    if mode == "gru":
        (ri, zi, ni), (rh, zh, nh) = np.split(i, 3, axis=-1), np.split(h, 3, axis=-1)
        z = sigmoid(zi + zh)
        return [(1 - z) * np.tanh(ni + sigmoid(ri + rh) * nh) + z * state[0]]
    total = i + h
    return [np.tanh(total) if mode == "rnn_tanh" else np.maximum(total, 0)]
