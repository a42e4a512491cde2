"""Handwritten-looking digits, drawn by code, and a small network that learns them, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Parameters = dict[str, Floats]

SIZE = 28
"""Pixels of a side."""

STROKES = {
    0: ["o 50 50 22 32 0 360"],
    1: ["l 36 30 52 16 52 84"],
    2: ["o 50 36 20 20 -170 40", "l 64 50 32 84 70 84"],
    3: ["o 48 34 19 17 -160 90", "o 48 67 21 17 -90 160"],
    4: ["l 60 16 28 60 74 60", "l 60 40 60 86"],
    5: ["l 68 17 38 17 34 48", "o 48 64 21 20 -130 150"],
    6: ["o 70 50 37 38 180 265", "o 50 66 18 18 0 360"],
    7: ["l 30 18 70 18 44 86"],
    8: ["o 50 33 16 16 0 360", "o 50 67 20 18 0 360"],
    9: ["o 50 35 18 18 0 360", "o 30 50 38 36 -20 70"],
}
"""Each digit's strokes in a square of 100, y downwards: `l` points of a line; `o` an arc's centre,
its radii, and its first and last angle (0 is right, 90 is down)."""

LEARNING_RATE = 2e-3


# ---- drawing ------------------------------------------------------------------------------------


def draw_digits(count: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return images [count, 1, 28, 28] of 0 to 1 and the digits that they show.

    Every image has its own slant, size, place, pen width and noise.
    """
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = np.stack([_draw(int(digit), random) for digit in labels])
    return images.astype(np.float32)[:, None], labels


def _draw(digit: int, random: np.random.Generator) -> NDArray[np.float64]:
    angle, shear = random.normal(0, 0.12), random.normal(0, 0.15)
    scale = random.uniform(0.75, 1.1, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, 1]]) @ np.diag(scale)
    shift = random.uniform(-7, 7, 2)
    axis = (np.arange(SIZE) + 0.5) * 100 / SIZE
    pixels = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    distance = np.full(len(pixels), np.inf)
    for stroke in STROKES[digit]:
        points = (_points(stroke) + random.normal(0, 0.8, 2) - 50) @ matrix.T + 50 + shift
        for a, b in zip(points[:-1], points[1:], strict=True):
            distance = np.minimum(distance, _distance(pixels, a, b))
    ink = np.clip((random.uniform(3.5, 6.5) - distance) / 3 + 0.5, 0, 1)
    noisy = ink * random.uniform(0.7, 1) + random.normal(0, 0.06, ink.shape)
    return np.clip(noisy, 0, 1).reshape(SIZE, SIZE)


def _points(stroke: str) -> NDArray[np.float64]:
    """Return the points of a stroke, [n, 2]."""
    kind, *numbers = stroke.split()
    values = np.array([float(n) for n in numbers])
    if kind == "l":
        return values.reshape(-1, 2)
    angles = np.radians(np.linspace(values[4], values[5], 14))
    return values[:2] + values[2:4] * np.stack([np.cos(angles), np.sin(angles)], 1)


def _distance(
    pixels: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return each pixel's distance to the line from a to b."""
    along = b - a
    where = np.clip((pixels - a) @ along / max(float(along @ along), 1e-9), 0, 1)
    distances: NDArray[np.float64] = np.linalg.norm(pixels - a - where[:, None] * along, axis=1)
    return distances


# ---- the network --------------------------------------------------------------------------------


def new_parameters(seed: int) -> Parameters:
    """Return random weights: two convolutions of 3x3 with max pooling, one dense layer."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Floats:
        fan_in = int(np.prod(shape[1:]))
        return (random.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

    return {
        "conv1.weight": weights(8, 1, 3, 3), "conv1.bias": np.zeros(8, np.float32),
        "conv2.weight": weights(16, 8, 3, 3), "conv2.bias": np.zeros(16, np.float32),
        "dense.weight": weights(10, 16 * 7 * 7), "dense.bias": np.zeros(10, np.float32),
    }  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Values of the forward step that the backward one needs: convolution, ReLU and pooling."""

    columns: Floats
    active: NDArray[np.bool_]
    share: Floats
    """Of each pixel in the gradient of its 2x2 tile: 1 for the largest, split between equals."""


def forward(p: Parameters, images: Floats) -> tuple[Floats, tuple[Layer, Layer, Floats]]:
    """Return the scores [n, 10] and what `gradients` needs."""
    x, first = _block(images, p["conv1.weight"], p["conv1.bias"])
    x, second = _block(x, p["conv2.weight"], p["conv2.bias"])
    flat = x.reshape(len(x), -1)
    return flat @ p["dense.weight"].T + p["dense.bias"], (first, second, flat)


def _block(x: Floats, weight: Floats, bias: Floats) -> tuple[Floats, Layer]:
    """Convolve 3x3 with padding 1, ReLU, take the largest of each 2x2."""
    n, channels, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, channels * 9)
    y = (columns @ weight.reshape(len(weight), -1).T + bias).reshape(n, height, width, -1)
    y = y.transpose(0, 3, 1, 2)
    active = y > 0
    tiles = np.where(active, y, 0).reshape(n, -1, height // 2, 2, width // 2, 2)
    pooled = tiles.max((3, 5))
    largest = (tiles == pooled[:, :, :, None, :, None]).astype(np.float32)
    return pooled, Layer(columns, active, largest / largest.sum((3, 5), keepdims=True))


def gradients(
    p: Parameters, labels: NDArray[np.int64], scores: Floats, kept: tuple[Layer, Layer, Floats]
) -> tuple[float, Parameters]:
    """Return the mean cross entropy and its gradient by each parameter."""
    first, second, flat = kept
    n = len(labels)
    exponents = np.exp(scores - scores.max(1, keepdims=True))
    share = exponents / exponents.sum(1, keepdims=True)
    loss = -float(np.log(share[np.arange(n), labels] + 1e-12).mean())
    error = (share - np.eye(10, dtype=np.float32)[labels]) / n
    back = (error @ p["dense.weight"]).reshape(n, 16, 7, 7)
    back, weight2, bias2 = _block_back(back, second, p["conv2.weight"])
    _, weight1, bias1 = _block_back(back, first, p["conv1.weight"])
    return loss, {
        "conv1.weight": weight1, "conv1.bias": bias1, "conv2.weight": weight2, "conv2.bias": bias2,
        "dense.weight": error.T @ flat, "dense.bias": error.sum(0),
    }  # fmt: skip


def _block_back(error: Floats, kept: Layer, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the gradients by a block's input, weight and bias."""
    n, outputs, height, width = kept.active.shape
    spread = (error[:, :, :, None, :, None] * kept.share).reshape(kept.active.shape)
    spread = np.where(kept.active, spread, 0)
    rows = spread.transpose(0, 2, 3, 1).reshape(-1, outputs)
    columns = (rows @ weight.reshape(outputs, -1)).reshape(n, height, width, -1, 3, 3)
    padded = np.zeros((n, weight.shape[1], height + 2, width + 2), np.float32)
    for i in range(3):
        for j in range(3):
            part = columns[..., i, j].transpose(0, 3, 1, 2)
            padded[:, :, i : i + height, j : j + width] += part
    return padded[:, :, 1:-1, 1:-1], (rows.T @ kept.columns).reshape(weight.shape), rows.sum(0)


def train(count: int = 4000, epochs: int = 4, batch: int = 50, seed: int = 0) -> Parameters:
    """Learn from `count` drawn images with Adam (Kingma and Ba 2015)."""
    images, labels = draw_digits(count, seed)
    p = new_parameters(seed)
    mean = {k: np.zeros_like(v) for k, v in p.items()}
    square = {k: np.zeros_like(v) for k, v in p.items()}
    random = np.random.default_rng(seed)
    batches = [b for _ in range(epochs) for b in random.permutation(count).reshape(-1, batch)]
    for step, chosen in enumerate(batches, 1):
        scores, kept = forward(p, images[chosen])
        _, slope = gradients(p, labels[chosen], scores, kept)
        rate = LEARNING_RATE * (1 - step / (len(batches) + 1))
        for k, g in slope.items():
            mean[k] = 0.9 * mean[k] + 0.1 * g
            square[k] = 0.999 * square[k] + 0.001 * g * g
            unbiased = np.sqrt(square[k] / (1 - 0.999**step)) + 1e-8
            p[k] = p[k] - rate * mean[k] / (1 - 0.9**step) / unbiased
    return {k: v.astype(np.float32) for k, v in p.items()}


def accuracy(p: Parameters, count: int = 1000, seed: int = 1) -> float:
    """Return the part of freshly drawn digits that are recognised."""
    images, labels = draw_digits(count, seed)
    return float((forward(p, images)[0].argmax(1) == labels).mean())
