"""PyTorch's functions, and views of memory, written in functions that its exporter keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from atc.errors import UnsupportedError

_ATEN = torch.ops.aten


def pooled(
    x: torch.Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Return sums over windows, divided by a given number."""
    rank = len(kernel_size)
    strides = [*(stride or kernel_size)]
    pads = [*padding] * (rank // len(padding))
    extra = []
    for size, k, s, p in zip(x.shape[-rank:], kernel_size, strides, pads, strict=True):
        whole = size + 2 * p - k
        count = whole // s + 1
        if ceil_mode and whole % s and count * s < size + p:  # a window begins within x
            count += 1
        extra.append(max(0, (count - 1) * s + k - size - 2 * p))
    sides = [n for p, e in zip(reversed(pads), reversed(extra), strict=True) for n in (p, p + e)]
    pool = torch.nn.functional.avg_pool2d if rank == 2 else torch.nn.functional.avg_pool3d
    mean = pool(torch.nn.functional.pad(x, sides), [*kernel_size], strides)
    return mean * (math.prod(kernel_size) / divisor_override)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return attention in which words that see no other get zeros, as PyTorch has it."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.unsqueeze(-3).expand(*x.shape[:-2], groups, *x.shape[-2:]).flatten(-4, -3)
                      for x in (key, value))  # fmt: skip
    if is_causal:
        ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        attn_mask = ones.tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
            attn_mask.logical_not(), -math.inf
        )
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    seen = None  # 0 for words that see none, else 1: numbers, so that vectors take them
    if attn_mask is not None:
        blind = attn_mask.amax(-1, keepdim=True) == -math.inf
        least, seen = (torch.where(blind, 0.0, other).to(query.dtype) for other in (-math.inf, 1.0))
        scores = scores + torch.maximum(attn_mask, least)
    weights = scores.softmax(-1)
    if dropout_p:
        weights = _ATEN.native_dropout.default(weights, dropout_p, True)[0]
    result = weights @ value
    return result if seen is None else result * seen


def log_of_sums(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return logarithms of running sums of exponentials, each beside the largest that it has."""
    x = x.movedim(dim, -1)
    before = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    rows = torch.where(before, x.unsqueeze(-2), -math.inf)
    return rows.logsumexp(-1).movedim(-1, dim)


def log_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return log(exp(x) + exp(y))."""
    equal = x == y  # infinities, too: their difference is none
    distance = torch.where(equal, 0.0, (x - y).abs())
    return torch.maximum(x, y) + (-distance).exp().log1p()


def hypotenuse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the root of the sum of two squares, none of which overflows or vanishes."""
    x, y = torch.broadcast_tensors(x.abs(), y.abs())
    long, short = torch.maximum(x, y), torch.minimum(x, y)
    ratio = short / torch.where(long == 0, 1.0, long).to(x.dtype)
    whole = long * (ratio * ratio + 1).sqrt()
    endless = (x == math.inf) | (y == math.inf)
    return torch.where(endless, math.inf, whole).to(x.dtype)


def products(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return running products."""
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64)).movedim(dim, -1)
    before = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    rows = torch.where(before, x.unsqueeze(-2), torch.ones((), dtype=x.dtype))
    return rows.prod(-1).movedim(-1, dim)


def exact(number: float, like: torch.Tensor) -> torch.Tensor:
    """Return a number as a tensor of another's type."""
    return torch.full((), number, dtype=like.dtype, device=like.device)


def is_rounded(number: Any) -> bool:
    """Return whether float32 has not got a number."""
    return isinstance(number, float) and float(np.float32(number)) != number


def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype, **_: Any) -> torch.Tensor:
    """Return numbers from `start` on; NotImplemented where float32 has them all."""
    if not any(is_rounded(n) for n in (start, end, step)):
        return NotImplemented
    places = torch.arange(math.ceil((end - start) / step))
    return places.to(dtype) * step + start


def linspace(
    start: float, end: float, steps: int, *, dtype: torch.dtype, **_: Any
) -> torch.Tensor:
    """Return numbers that begin and end with the given ones, each half counted from its end."""
    places, step = torch.arange(steps).to(dtype), (end - start) / max(steps - 1, 1)
    first = places < max(steps // 2, 1)
    return torch.where(first, places * step + start, end - (steps - 1 - places) * step)


def logspace(
    start: float, end: float, steps: int, base: float = 10.0, **more: Any
) -> torch.Tensor:
    """Return powers of a base, of exponents that are evenly spaced."""
    exponents = linspace(start, end, steps, **more)
    return exact(base, exponents) ** exponents


def distances(a: torch.Tensor, b: torch.Tensor, p: float = 2, *_: Any) -> torch.Tensor:
    """Return the distances of all rows of one matrix from all of another."""
    norm: torch.Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)
    return norm


def scattered_mean(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *,
    include_self: bool = True,
) -> torch.Tensor:  # fmt: skip
    """Return the means of what is scattered to each place."""
    begin = torch.ones_like(x) if include_self else torch.zeros_like(x)
    total = (x * begin).scatter_add(dim, index, src)
    count = begin.scatter_add(dim, index, torch.ones_like(src))
    whole = None if x.dtype.is_floating_point else "floor"
    return torch.where(count > 0, torch.div(total, count.clamp(min=1), rounding_mode=whole), x)


def spread(x: torch.Tensor, src: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return a copy of a tensor in another's type and shape."""
    return src.to(x.dtype).expand_as(x)


def product(add: str) -> Callable[..., torch.Tensor]:
    """Return what a function that adds to a product computes if it takes nothing of the sum."""

    def alone(
        x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> torch.Tensor:
        made = torch.outer(a, b) if add == "addr" else a @ b
        return alpha * (made.sum(0) if add == "addbmm" else made)

    return alone


def strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """Return a view of a tensor's memory, which the exporter takes for that of one in order."""
    if _is_whole(x, size, stride, offset):
        return x.clone()
    return _memory(x).as_strided(size, stride, _offset(x, offset))


def strided_scatter(
    x: torch.Tensor, src: torch.Tensor, size: Sequence[int], stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return a tensor with another in a view of its memory."""
    if _is_whole(x, size, stride, offset):
        return src.clone()
    memory, order = _memory(x), _order(x)
    places = torch.arange(x.numel()).as_strided(size, stride, _offset(x, offset))
    made = memory.flatten().scatter(0, places.flatten(), src.flatten()).reshape(memory.shape)
    return made.permute([order.index(axis) for axis in range(x.dim())])


def _is_whole(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> bool:
    """Return whether a view of a tensor's memory is the tensor."""
    return tuple(size) == tuple(x.shape) and _offset(x, offset) == 0 and all(
        n == 1 or s == t for n, s, t in zip(size, stride, x.stride(), strict=True)
    )  # fmt: skip


def _offset(x: torch.Tensor, offset: int | None) -> int:
    return 0 if offset is None else offset - x.storage_offset()


def _order(x: torch.Tensor) -> list[int]:
    """Return a tensor's axes as they lie in memory."""
    return sorted(range(x.dim()), key=x.stride, reverse=True)


def _memory(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its axes as they lie in memory."""
    laid = x.permute(_order(x))
    if not laid.is_contiguous():
        raise UnsupportedError("as_strided of a tensor that is a part of another")
    return laid


def mean_slope(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> torch.Tensor:
    """Return what a leaky ReLU of random slopes is at inference."""
    if training:
        raise UnsupportedError("a leaky ReLU of random slopes in training",
                               hint="call eval() before")  # fmt: skip
    return torch.where(x > 0, x, x * ((lower + upper) / 2))
