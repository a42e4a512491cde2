"""Draws nodes that multiply and add: convolutions, pools, matrix products, recurrences."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from fuzz.draw import Draw, Made, Unsuitable, Value
from fuzz.elementwise import Template, _letter


def matmul(d: Draw) -> Made:
    a = d.tensor("fffd", low=1, fits=lambda a: a.size < 1500)
    kind, k = _letter(a.array.dtype), a.array.shape[-1]
    if d.chance(0.15):
        return Made("MatMul", [a, d.like((k,), kind)])
    batch = [1 if d.chance(0.3) else n for n in a.array.shape[:-2]]
    batch = batch[d.int(0, len(batch)) if d.chance(0.6) else 0 :]
    return Made("MatMul", [a, d.like((*batch, k, d.pick((1, 2, 3, 7, 8, 16, 17, 33))), kind)])


def gemm(d: Draw) -> Made:
    m, n, k = (d.pick((1, 2, 3, 5, 8, 16, 17, 31, 40)) for _ in range(3))
    a = d.tensor("f", low=2, high=2, zero=False, fits=lambda a: a.size < 1500)
    ta, tb = d.int(0, 1), d.int(0, 1)
    m, k = a.array.shape if not ta else a.array.shape[::-1]
    c = d.like(d.pick(((n,), (m, n), (1, n), (m, 1), (1,), ()))) if d.chance(0.7) else None
    attributes = {"transA": ta, "transB": tb, **d.some(alpha=0.5, beta=1.5)}
    return Made("Gemm", [a, d.like((n, k) if tb else (k, n)), c], attributes)


def _spatial(d: Draw, most: int = 3) -> tuple[Value, int]:
    x = d.tensor("f", low=3, high=2 + most, zero=False, fits=lambda a: a.size < 3000)
    return x, x.array.ndim - 2


def _window(d: Draw, x: Value, rank: int, kernel: list[int]) -> dict[str, Any]:
    attributes: dict[str, Any] = d.some(strides=d.ints(rank, 1, 3), dilations=d.ints(rank, 1, 2))
    match d.int(0, 3):
        case 0:
            attributes["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
            if attributes["auto_pad"] != "VALID":
                attributes.pop("dilations", None)
                strides = attributes.get("strides", kernel)
                if any(s > k for s, k in zip(strides, kernel, strict=True)):
                    raise Unsuitable  # negative pads
        case 1:
            attributes["pads"] = [k // 2 for k in kernel] * 2
        case 2:
            attributes["pads"] = [d.int(0, k - 1) for k in (*kernel, *kernel)]
    pads = attributes.get("pads", [0] * 2 * rank)
    for axis in range(rank):
        reach = (kernel[axis] - 1) * attributes.get("dilations", [1] * rank)[axis] + 1
        size = x.array.shape[2 + axis] + pads[axis] + pads[rank + axis]
        if size < reach and "SAME" not in attributes.get("auto_pad", ""):
            raise Unsuitable
    return attributes


def conv(d: Draw) -> Made:
    x, rank = _spatial(d)
    c = x.array.shape[1]
    groups = d.pick([g for g in (1, 1, 1, 2, 3, c) if c % g == 0])
    m = groups * d.pick((1, 2, 3, 4) if groups > 1 else (1, 2, 5, 8, 16, 17, 20))
    kernel = d.ints(rank, 1, 3) if d.chance(0.6) else [d.pick((1, 3))] * rank
    attributes = _window(d, x, rank, kernel)
    attributes |= {"group": groups} if groups > 1 else {}
    w = d.like((m, c // groups, *kernel), constant=d.chance(0.85))
    return Made("Conv", [x, w, d.like((m,), constant=True) if d.chance() else None], attributes)


def conv_transpose(d: Draw) -> Made:
    x, rank = _spatial(d, 2)
    c = x.array.shape[1]
    groups = d.pick([g for g in (1, 1, 2, c) if c % g == 0])
    kernel = d.ints(rank, 1, 3)
    w = d.like((c, d.pick((1, 2, 3, 8)), *kernel), constant=d.chance(0.85))
    attributes: dict[str, Any] = {"group": groups} if groups > 1 else {}
    strides = d.ints(rank, 1, 3)
    attributes |= {"strides": strides, **d.some(dilations=d.ints(rank, 1, 2))}
    if d.chance():
        attributes["pads"] = [d.int(0, (k - 1) // 2) for k in kernel] * 2
    if d.chance(0.3):
        attributes["output_padding"] = [d.int(0, s - 1) for s in strides]
    bias = d.like((w.array.shape[1] * groups,)) if d.chance() else None
    return Made("ConvTranspose", [x, w, bias], attributes)


def pool(op: str) -> Template:
    def draw(d: Draw) -> Made:
        x, rank = _spatial(d)
        kernel = d.ints(rank, 1, 3)
        attributes = _window(d, x, rank, kernel) | {"kernel_shape": kernel}
        if d.opset < 19 and op != "MaxPool":
            attributes.pop("dilations", None)
        if op == "AveragePool":
            attributes |= d.some(count_include_pad=d.int(0, 1))
        if d.chance(0.25) and "auto_pad" not in attributes:
            attributes["ceil_mode"] = 1
        if op == "LpPool":
            attributes |= d.some(p=d.int(1, 3))
            if d.opset < 18:
                attributes.pop("dilations", None)
                attributes.pop("ceil_mode", None)
        return Made(op, [x], attributes)

    return draw


def global_pool(op: str) -> Template:
    def draw(d: Draw) -> Made:
        return Made(op, [_spatial(d)[0]])

    return draw


def lrn(d: Draw) -> Made:
    x = d.tensor("f", low=3, zero=False)
    return Made("LRN", [x], {"size": d.pick((1, 3, 5)), **d.some(alpha=0.01, beta=0.5, bias=2.0)})


def einsum(d: Draw) -> Made:
    letters = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1}
    names = list(letters)
    terms = ["".join(d.rng.permutation(names)[: d.int(1, 3)]) for _ in range(d.int(1, 3))]
    used = sorted(set("".join(terms)))
    out = "".join(d.rng.permutation(used)[: d.int(0, len(used))])
    equation = f"{','.join(terms)}->{out}"
    if prod(letters[u] for u in used) > 5000:
        raise Unsuitable
    operands = [d.like([letters[c] for c in t]) for t in terms]
    return Made("Einsum", operands, {"equation": equation})


def recurrent(op: str) -> Template:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]

    def draw(d: Draw) -> Made:
        steps, batch, inner, hidden = d.int(1, 5), d.int(1, 4), d.int(1, 9), d.int(1, 9)
        direction = d.pick(("forward", "reverse", "bidirectional"))
        n = 2 if direction == "bidirectional" else 1
        x = d.like((steps, batch, inner))
        w, r = d.like((n, gates * hidden, inner)), d.like((n, gates * hidden, hidden))
        bias = d.like((n, 2 * gates * hidden)) if d.chance() else None
        start = d.like((n, batch, hidden)) if d.chance() else None
        inputs = [x, w, r, bias, None, start]
        attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        if op == "LSTM":
            inputs.append(d.like((n, batch, hidden)) if start is not None else None)
            inputs.append(d.like((n, 3 * hidden)) if d.chance(0.3) else None)
        if op == "GRU":
            attributes |= d.some(linear_before_reset=1)
        return Made(op, inputs, attributes, 3 if op == "LSTM" else 2)

    return draw


def quantize_linear(d: Draw) -> Made:
    x = d.tensor("f", low=1)
    kind = d.pick("bB")
    if d.chance():
        scale, zero = d.new(np.float32(d.rng.uniform(0.01, 0.3))), d.array((), kind)
        return Made("QuantizeLinear", [x, scale, d.new(zero) if d.chance() else None])
    axis = d.axis(x.array.ndim)
    n = x.array.shape[axis]
    scale = d.new(d.rng.uniform(0.01, 0.3, n).astype(np.float32))
    return Made("QuantizeLinear", [x, scale, d.like((n,), kind)], {"axis": axis})


def dequantize_linear(d: Draw) -> Made:
    x = d.tensor("bBi", low=1)
    kind = _letter(x.array.dtype)
    axis = d.axis(x.array.ndim)
    n = x.array.shape[axis]
    if d.chance():
        zero = d.new(d.array((), kind)) if kind != "i" and d.chance() else None
        return Made("DequantizeLinear", [x, d.new(np.float32(0.07)), zero])
    scale = d.new(d.rng.uniform(0.01, 0.3, n).astype(np.float32))
    zero = d.like((n,), kind) if kind != "i" else None
    return Made("DequantizeLinear", [x, scale, zero], {"axis": axis})


def matmul_integer(d: Draw) -> Made:
    a = d.tensor("bB", low=2, fits=lambda a: a.size < 1500)
    kind = d.pick("bB")
    b = d.like((a.array.shape[-1], d.int(1, 17)), kind)
    zeros = [d.new(d.array((), _letter(a.array.dtype))), d.new(d.array((), kind))]
    return Made("MatMulInteger", [a, b, *(zeros if d.chance() else [])])


TEMPLATES: dict[str, Template] = {
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "ConvTranspose": conv_transpose,
    **{op: pool(op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: global_pool(op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    **{op: recurrent(op) for op in ("RNN", "GRU", "LSTM")},
    "LRN": lrn, "Einsum": einsum, "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear, "MatMulInteger": matmul_integer,
}  # fmt: skip
