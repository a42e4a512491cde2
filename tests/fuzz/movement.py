"""Draws nodes that move data: views, joins, gathers and scatters."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from fuzz.draw import Draw, Made, Unsuitable
from fuzz.elementwise import Template, _letter

ANY = "ffffilh?Bd"


def transpose(d: Draw) -> Made:
    x = d.tensor(ANY, high=5)
    perm = [int(p) for p in d.rng.permutation(x.array.ndim)]
    return Made("Transpose", [x], {"perm": perm} if perm and d.chance(0.8) else {})


def reshape(d: Draw) -> Made:
    x = d.tensor(ANY)
    factors = _factors(d, x.array.size) if x.array.size else list(x.array.shape)
    if factors and x.array.size and d.chance(0.4):
        factors[d.int(0, len(factors) - 1)] = -1
    for k in range(min(len(factors), x.array.ndim)):
        if factors[k] == x.array.shape[k] and x.array.size and d.chance(0.3):
            factors[k] = 0
    return Made("Reshape", [x, d.const(factors)])


def _factors(d: Draw, size: int) -> list[int]:
    result = []
    while size > 1 and len(result) < 4:
        divisors = [k for k in range(1, size + 1) if size % k == 0]
        result.append(d.pick(divisors))
        size //= result[-1]
    return [*result, size]


def flatten(d: Draw) -> Made:
    x = d.tensor(ANY, low=1)
    return Made("Flatten", [x], d.some(axis=d.int(-x.array.ndim, x.array.ndim)))


def squeeze(d: Draw) -> Made:
    x = d.tensor(ANY, high=5)
    ones = [k for k, n in enumerate(x.array.shape) if n == 1]
    axes = [k - (x.array.ndim if d.chance(0.3) else 0) for k in ones if d.chance(0.7)]
    if d.opset < 13:
        return Made("Squeeze", [x], {"axes": axes} if axes else {})
    return Made("Squeeze", [x, d.const(axes)] if axes else [x])


def unsqueeze(d: Draw) -> Made:
    x = d.tensor(ANY, high=3)
    count = d.int(1, 2)
    rank = x.array.ndim + count
    axes = [int(a) - (rank if d.chance(0.3) else 0) for a in d.rng.permutation(rank)[:count]]
    if d.opset < 13:
        return Made("Unsqueeze", [x], {"axes": sorted(a % rank for a in axes)})
    return Made("Unsqueeze", [x, d.const(axes)])


def expand(d: Draw) -> Made:
    x = d.tensor(ANY, high=3)
    shape = [d.pick((1, 2, 3, 5)) if n == 1 else d.pick((n, 1)) for n in x.array.shape]
    return Made("Expand", [x, d.const([*d.ints(d.int(0, 1), 1, 3), *shape])])


def tile(d: Draw) -> Made:
    x = d.tensor(ANY, high=3)
    return Made("Tile", [x, d.const(d.ints(x.array.ndim, 0 if d.chance(0.1) else 1, 3))])


def concat(d: Draw) -> Made:
    x = d.tensor(ANY, low=1)
    axis, kind = d.axis(x.array.ndim), _letter(x.array.dtype)
    others = []
    for _ in range(d.int(0, 3)):
        shape = list(x.array.shape)
        shape[axis] = d.int(0 if d.chance(0.1) else 1, 5)
        others.append(x if d.chance(0.1) else d.like(shape, kind))
    operands = [x, *others]
    d.rng.shuffle(operands)
    return Made("Concat", operands, {"axis": axis})


def split(d: Draw) -> Made:
    x = d.tensor(ANY, low=1, fits=lambda a: bool(a.ndim and max(a.shape) > 1))
    axis = int(np.argmax(x.array.shape))
    n = x.array.shape[axis]
    axis -= x.array.ndim if d.chance(0.3) else 0
    parts = d.int(2, min(n, 4))
    cuts = sorted(d.ints(parts - 1, 0, n))
    sizes = [int(s) for s in np.diff([0, *cuts, n])]
    if d.opset < 13:
        return Made("Split", [x], {"axis": axis, "split": sizes}, parts)
    if d.opset >= 18 and d.chance(0.4) and (parts - 1) * -(-n // parts) < n:
        return Made("Split", [x], {"axis": axis, "num_outputs": parts}, parts)
    return Made("Split", [x, d.const(sizes)], {"axis": axis}, parts)


def slice_(d: Draw) -> Made:
    x = d.tensor(ANY, low=1)
    axes = d.axes(x.array.ndim, 1)
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.array.shape[axis]
        steps.append(d.pick((1, 1, 1, 2, 3, -1, -1, -2)))
        low, high = d.int(-n - 2, n + 2), d.pick((n, 2**62, d.int(-n, n + 2)))
        down = d.pick((-(2**62), -n - 1, d.int(-n, n)))
        starts.append(low if steps[-1] > 0 else d.pick((n, -1, max(low, -n))))
        ends.append(high if steps[-1] > 0 else down)
    inputs = [x, d.const(starts), d.const(ends), d.const(axes)]
    if any(s != 1 for s in steps) or d.chance(0.2):
        inputs.append(d.const(steps))
    return Made("Slice", inputs)


def pad(d: Draw) -> Made:
    x = d.tensor("filhd?" if d.opset >= 13 else "fd", low=1, zero=False)
    modes = ("constant", "constant", "reflect", "edge", *(("wrap",) if d.opset >= 19 else ()))
    mode = d.pick(modes)
    amounts = []
    for _ in range(2):
        for n in x.array.shape:
            most = n - 1 if mode == "reflect" else n if mode == "wrap" else 3
            least = -((n - 1) // 2) if mode == "constant" and d.chance(0.15) else 0
            amounts.append(d.int(least, max(min(most, 3), 0)))
    value = d.new(d.array((), _letter(x.array.dtype)), True) if d.chance() else None
    return Made("Pad", [x, d.const(amounts), value], {"mode": mode} if mode != "constant" else {})


def gather(d: Draw) -> Made:
    x = d.tensor(ANY, low=1, fits=lambda a: a.size > 0)
    axis = d.axis(x.array.ndim)
    n = x.array.shape[axis]
    shape = d.shape(0, 2)
    if prod(shape) * x.array.size > 1 << 15:
        raise Unsuitable
    picked = d.rng.integers(-n, n, shape)
    indices = d.new(np.asarray(picked).astype(d.pick((np.int32, np.int64))))
    return Made("Gather", [x, indices], d.some(axis=axis) if d.chance(0.2) else {"axis": axis})


def gather_elements(d: Draw) -> Made:
    x = d.tensor(ANY, low=1, fits=lambda a: a.size > 0)
    axis = d.axis(x.array.ndim)
    shape = [d.int(1, n) for n in x.array.shape]
    shape[axis] = d.int(0 if d.chance(0.05) else 1, 6)
    n = x.array.shape[axis]
    return Made("GatherElements", [x, d.new(d.rng.integers(-n, n, shape))], {"axis": axis})


def gather_nd(d: Draw) -> Made:
    x = d.tensor(ANY, low=1, fits=lambda a: a.size > 0)
    batch = d.int(0, x.array.ndim - 1)
    depth = d.int(1, x.array.ndim - batch)
    limits = x.array.shape[batch : batch + depth]
    shape = (*x.array.shape[:batch], *d.shape(0, 1, zero=False), depth)
    if prod(shape) * x.array.size > 1 << 16:
        raise Unsuitable
    indices = np.stack([d.rng.integers(-n, n, shape[:-1]) for n in limits], -1)
    return Made("GatherND", [x, d.new(indices)], {"batch_dims": batch} if batch else {})


def scatter_elements(d: Draw) -> Made:
    if d.opset < 18:
        raise Unsuitable
    x = d.tensor("fild", low=1, fits=lambda a: a.size > 0)
    axis = d.axis(x.array.ndim)
    shape = [d.int(1, n) for n in x.array.shape]
    how = d.pick(("none", "add", "mul", "max", "min"))
    n = x.array.shape[axis]
    if how == "none":  # of equal indices any may win
        order = np.argsort(d.rng.random([*shape[: axis % x.array.ndim], n]), -1)
        lead = [*shape[: axis % x.array.ndim], shape[axis]]
        some = order[..., : shape[axis]].reshape(*lead, *[1] * (x.array.ndim - len(lead)))
        indices = np.broadcast_to(some, shape).copy()
    else:
        indices = d.rng.integers(-n, n, shape)
    updates = d.new(d.array(shape, _letter(x.array.dtype)))
    attributes = {"axis": axis, **({} if how == "none" else {"reduction": how})}
    return Made("ScatterElements", [x, d.new(indices), updates], attributes)


def scatter_nd(d: Draw) -> Made:
    if d.opset < 18:
        raise Unsuitable
    x = d.tensor("fild", low=1, fits=lambda a: a.size > 0)
    depth = d.int(1, x.array.ndim)
    limits = x.array.shape[:depth]
    count = d.int(1, min(5, prod(limits)))
    how = d.pick(("none", "add", "mul", "max", "min"))
    flat = d.rng.permutation(prod(limits))[:count]
    if how != "none":
        flat = d.rng.integers(0, prod(limits), count)
    indices = np.stack(np.unravel_index(flat, limits), -1).astype(np.int64)
    updates = d.new(d.array((count, *x.array.shape[depth:]), _letter(x.array.dtype)))
    attributes = {} if how == "none" else {"reduction": how}
    return Made("ScatterND", [x, d.new(indices), updates], attributes)


def depth_space(op: str) -> Template:
    def draw(d: Draw) -> Made:
        b, (n, c, h, w) = d.int(1, 3), d.ints(4, 1, 4)
        attributes: dict[str, Any] = {"blocksize": b}
        shape = (n, c, h * b, w * b)
        if op == "DepthToSpace":
            shape = (n, c * b * b, h, w)
            attributes |= d.some(mode=d.pick(("DCR", "CRD")))
        return Made(op, [d.like(shape)], attributes)

    return draw


def trilu(d: Draw) -> Made:
    x = d.tensor("fil?d", low=2)
    k = d.new(np.asarray(d.int(-6, 6)), True) if d.chance(0.7) else None
    return Made("Trilu", [x, k], d.some(upper=d.int(0, 1)))


def reverse_sequence(d: Draw) -> Made:
    x = d.tensor("fil", low=2, zero=False)
    time, batch = d.pick(((0, 1), (1, 0)))
    steps = x.array.shape[time]
    lengths = d.new(d.rng.integers(1, steps, (x.array.shape[batch],), endpoint=True))
    return Made("ReverseSequence", [x, lengths], {"time_axis": time, "batch_axis": batch})


def top_k(d: Draw) -> Made:
    x = d.tensor("fdil", low=1, zero=False)
    axis = d.axis(x.array.ndim)
    n = x.array.shape[axis]
    order = np.argsort(d.rng.random(x.array.shape), axis=axis)  # all different
    x = d.new(order.astype(x.array.dtype))
    k = d.const([d.int(0 if d.chance(0.05) else 1, n)])
    attributes = {"axis": axis, **d.some(largest=d.int(0, 1))}
    return Made("TopK", [x, k], attributes, 2)


def one_hot(d: Draw) -> Made:
    depth = d.int(1, 6)
    indices = d.new(np.asarray(d.rng.integers(-depth - 1, depth + 2, d.shape(1, 3))))
    values = d.new(d.array((2,), d.pick("fil")))
    axis = d.int(-indices.array.ndim - 1, indices.array.ndim)
    return Made("OneHot", [indices, d.const(depth), values], d.some(axis=axis))


def shape_of(d: Draw) -> Made:
    x = d.tensor(ANY, high=4)
    r = x.array.ndim
    return Made("Shape", [x], d.some(start=d.int(-r - 1, r), end=d.int(-r, r + 1)))


def resize(d: Draw) -> Made:
    if d.opset < 18:
        raise Unsuitable
    x = d.tensor("f", low=3, zero=False, fits=lambda a: a.size < 600)
    mode = d.pick(("nearest", "linear", "cubic"))
    attributes = {"mode": mode, **d.some(
        coordinate_transformation_mode=d.pick(("half_pixel", "asymmetric", "align_corners",
                                               "pytorch_half_pixel", "half_pixel_symmetric")),
    )}  # fmt: skip
    if mode == "nearest":
        modes = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes |= d.some(nearest_mode=d.pick(modes))
    if mode == "cubic":
        attributes |= d.some(cubic_coeff_a=-0.5, exclude_outside=d.int(0, 1))
    lead = [1] * (x.array.ndim - 2) if x.array.ndim > 2 else []
    if d.chance():
        scales = [1.0] * len(lead) + [d.pick((0.5, 1.0, 1.5, 2.0, 2.5, 3.0)) for _ in range(2)]
        return Made("Resize", [x, None, d.const(scales, "f")], attributes)
    sizes = [*x.array.shape[: len(lead)], *d.ints(2, 1, 9)]
    return Made("Resize", [x, None, None, d.const(sizes)], attributes)


TEMPLATES: dict[str, Template] = {
    "Transpose": transpose, "Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Expand": expand, "Tile": tile, "Concat": concat, "Split": split,
    "Slice": slice_, "Pad": pad, "Gather": gather, "GatherElements": gather_elements,
    "GatherND": gather_nd, "ScatterElements": scatter_elements, "ScatterND": scatter_nd,
    "DepthToSpace": depth_space("DepthToSpace"), "SpaceToDepth": depth_space("SpaceToDepth"),
    "Trilu": trilu, "ReverseSequence": reverse_sequence, "TopK": top_k, "OneHot": one_hot,
    "Shape": shape_of, "Resize": resize,
}  # fmt: skip
