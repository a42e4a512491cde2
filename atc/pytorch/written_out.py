"""Operators that PyTorch's exporter to ONNX would make something else of, written out in others.

Its translations leave out some arguments without a word. A node that has such arguments is replaced
by what PyTorch's own functions make of it; what can't be written out is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._decomp import get_decompositions
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx

from atc.errors import UnsupportedError
from atc.pytorch.backward import BACKWARD

_ATEN = torch.ops.aten
Arguments = Mapping[str, Any]
"""A node's arguments by name; tensors are nodes."""


@dataclass(frozen=True)
class _Fault:
    """Something that the exporter makes something else of, and what computes it instead."""

    differs: Callable[[Arguments], Any]
    instead: Callable[..., Any]


def write_out(program: torch.export.ExportedProgram) -> bool:
    """Replace all nodes that the exporter would make something else of; return if there are any.

    Raises UnsupportedError for those that can't be replaced.
    """
    found = False
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in [*module.graph.nodes]:
            if node.target in _OF_EXTENTS and _is_double(node):
                found |= _widen_extents(module.graph, node)
            fault = _FAULTS.get(node.target) if node.op == "call_function" else None
            if fault and fault.differs(_arguments(node)):
                _replace(module, node, fault.instead)
                found = True
            elif node.target in _ROUNDED and _is_double(node):
                _replace(module, node, node.target, _ROUNDED)
                found = True
        module.recompile()
    return found


def _arguments(node: torch.fx.Node) -> Arguments:
    parameters = node.target._schema.arguments
    given = dict(zip((p.name for p in parameters), node.args, strict=False)) | node.kwargs
    return {p.name: given.get(p.name, p.default_value) for p in parameters}


def _replace(
    module: torch.fx.GraphModule, node: torch.fx.Node, instead: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> None:  # fmt: skip
    """Put the operations of a function, those that have one decomposed, in the place of a node."""
    operands = [n for n in node.all_input_nodes if isinstance(_value(n), torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        known = dict(zip(operands, tensors, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)),
                                        lambda n: known.get(n, _value(n)))  # fmt: skip
        return instead(*args, **kwargs)

    values = [_value(n) for n in operands]
    plain = torch.backends.mkldnn.flags(enabled=False)  # its recurrent layers aren't exported
    with plain, detect_fake_mode([*values, _value(node)]) or nullcontext():
        traced = make_fx(run, decompositions)(*values)
    places = [n for n in traced.graph.nodes if n.op == "placeholder"]
    for name, tensor in [*traced.named_buffers(), *traced.named_parameters()]:
        module.register_buffer(name, tensor)
    with module.graph.inserting_before(node):
        made = module.graph.graph_copy(traced.graph, dict(zip(places, operands, strict=True)))
    pairs = [(node, made)] if isinstance(made, torch.fx.Node) else [
        (user, made[user.args[1]]) for user in [*node.users] if user.target is operator.getitem
    ]  # fmt: skip
    for old, new in pairs:
        name = old.name
        if new is not None:  # else nobody reads it
            old.replace_all_uses_with(new)
        module.graph.erase_node(old)
        if new is not None:
            new._rename(name)
    if not isinstance(made, torch.fx.Node):
        module.graph.erase_node(node)


def _value(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def _is_double(node: torch.fx.Node) -> bool:
    """Return whether a result is of float64."""
    value = _value(node)
    results = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(r, torch.Tensor) and r.dtype is torch.float64 for r in results)


def _widen_extents(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Make tensors of float64 of the extents beside one; returns whether there are any."""
    symbolic = (torch.SymInt, torch.SymFloat)
    extents = [n for n in node.all_input_nodes if isinstance(_value(n), symbolic)]
    for extent in extents:
        with graph.inserting_before(node):
            made = graph.call_function(_ATEN.scalar_tensor.default, (extent,),
                                       {"dtype": torch.float64})  # fmt: skip
        with detect_fake_mode([_value(node)]) or nullcontext():
            made.meta["val"] = torch.empty((), dtype=torch.float64)
        node.replace_input_with(extent, made)
    return bool(extents)


# ---- what is computed instead --------------------------------------------------------------------


def _pooled(
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


def _attention(
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


def _log_of_sums(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return logarithms of running sums of exponentials, each beside the largest that it has."""
    x = x.movedim(dim, -1)
    before = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    rows = torch.where(before, x.unsqueeze(-2), -math.inf)
    return rows.logsumexp(-1).movedim(-1, dim)


def _log_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    equal = x == y  # infinities, too: their difference is none
    distance = torch.where(equal, 0.0, (x - y).abs())
    return torch.maximum(x, y) + (-distance).exp().log1p()


def _products(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return running products."""
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64)).movedim(dim, -1)
    before = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    rows = torch.where(before, x.unsqueeze(-2), torch.ones((), dtype=x.dtype))
    return rows.prod(-1).movedim(-1, dim)


def _exact(number: float, like: torch.Tensor) -> torch.Tensor:
    """Return a number as a tensor of another's type."""
    return torch.full((), number, dtype=like.dtype, device=like.device)


def _is_rounded(number: Any) -> bool:
    return isinstance(number, float) and float(np.float32(number)) != number


def _arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype, **_: Any) -> torch.Tensor:
    if not any(_is_rounded(n) for n in (start, end, step)):
        return NotImplemented
    places = torch.arange(math.ceil((end - start) / step))
    return places.to(dtype) * step + start


def _linspace(
    start: float, end: float, steps: int, *, dtype: torch.dtype, **_: Any
) -> torch.Tensor:
    """Return numbers that begin and end with the given ones, each half counted from its end."""
    places, step = torch.arange(steps).to(dtype), (end - start) / max(steps - 1, 1)
    first = places < max(steps // 2, 1)
    return torch.where(first, places * step + start, end - (steps - 1 - places) * step)


def _logspace(
    start: float, end: float, steps: int, base: float = 10.0, **more: Any
) -> torch.Tensor:
    exponents = _linspace(start, end, steps, **more)
    return _exact(base, exponents) ** exponents


def _distances(a: torch.Tensor, b: torch.Tensor, p: float = 2, *_: Any) -> torch.Tensor:
    """Return the distances of all rows of one matrix from all of another."""
    norm: torch.Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)
    return norm


def _scattered_mean(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *,
    include_self: bool = True,
) -> torch.Tensor:  # fmt: skip
    begin = torch.ones_like(x) if include_self else torch.zeros_like(x)
    total = (x * begin).scatter_add(dim, index, src)
    count = begin.scatter_add(dim, index, torch.ones_like(src))
    whole = None if x.dtype.is_floating_point else "floor"
    return torch.where(count > 0, torch.div(total, count.clamp(min=1), rounding_mode=whole), x)


def _product(add: str) -> Callable[..., torch.Tensor]:
    """Return what a function that adds to a product computes if it takes nothing of the sum."""

    def alone(
        x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> torch.Tensor:
        made = torch.outer(a, b) if add == "addr" else a @ b
        return alpha * (made.sum(0) if add == "addbmm" else made)

    return alone


def _axes(a: Arguments) -> list[tuple[Any, Any, float | None]]:
    """Return the extents of a resized image's axes before and after, and the scales given."""
    shape = _image(a).shape[2:]
    scales = a.get("scale_factors") or [s for name, s in a.items() if name.startswith("scales")]
    scales = scales or [None] * len(shape)
    made = a["output_size"] or [math.floor(n * s) for n, s in zip(shape, scales, strict=True)]
    return [*zip(shape, made, scales, strict=True)]


def _image(a: Arguments) -> torch.Tensor:
    image: torch.Tensor = _value(a.get("input") or a["self"])
    return image


def _other_ratio(a: Arguments) -> bool:
    """Return whether a resized image's sizes have another ratio than the scale that was given."""
    return not a["align_corners"] and any(s and abs(n * s - m) > 1e-6 * m for n, m, s in _axes(a))


def _other_size(a: Arguments) -> bool:
    """Return whether an axis has another extent when a scale is rounded to float32."""
    single = np.float32
    return any(s and isinstance(n, int) and int(single(s) * single(n)) != m for n, m, s in _axes(a))


def _other_pixels(a: Arguments) -> bool:
    """Return whether the nearest pixels are others where places are divided by a scale.

    PyTorch multiplies them by its reciprocal, and either one is rounded.
    """
    single = np.float32
    for n, m, s in _axes(a):
        if isinstance(n, int) and isinstance(m, int):
            places = np.arange(m, dtype=single)
            factor, divisor = single(1 / s if s else n / m), single(s or m / n)
            if (np.floor(places * factor) != np.floor(places / divisor)).any():
                return True
    return _other_size(a)


def _rounded_places(a: Arguments) -> bool:
    """Return whether places between pixels, or the size, depend on a scale that is rounded."""
    double = _image(a).dtype is torch.float64
    return _other_size(a) or (double and any(_is_rounded(s) for _, _, s in _axes(a)))


def _strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """Return a view of a tensor's memory, which the exporter takes for that of one in order."""
    if _is_whole(x, size, stride, offset):
        return x.clone()
    return _memory(x).as_strided(size, stride, _offset(x, offset))


def _strided_scatter(
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


def _mean_slope(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> torch.Tensor:
    """Return what a leaky ReLU of random slopes is at inference."""
    if training:
        raise UnsupportedError("a leaky ReLU of random slopes in training",
                               hint="call eval() before")  # fmt: skip
    return torch.where(x > 0, x, x * ((lower + upper) / 2))


def _drops(a: Arguments) -> bool:
    """Return whether a recurrent layer has a dropout between its layers."""
    return bool(a["dropout"] and a["train"] and a["num_layers"] > 1)


def _refused(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"torch.onnx would change it: {what}")

    return refuse


def _is_float(node: Any) -> bool:
    return bool(_value(node).is_floating_point())


_FAULTS: Mapping[Any, _Fault] = {
    _ATEN.cross_entropy_loss.default: _Fault(
        lambda a: a["label_smoothing"] or _is_float(a["target"]),
        _ATEN.cross_entropy_loss.default,
    ),
    _ATEN.avg_pool2d.default: _Fault(lambda a: a["divisor_override"], _pooled),
    _ATEN.avg_pool3d.default: _Fault(lambda a: a["divisor_override"], _pooled),
    _ATEN.lstm.input: _Fault(
        lambda a: _value(a["hx"][0]).shape[-1] != _value(a["hx"][1]).shape[-1] or _drops(a),
        _ATEN.lstm.input,
    ),
    **{
        op: _Fault(lambda a: _drops(a), op)
        for op in (_ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input)
    },
    _ATEN.scaled_dot_product_attention.default: _Fault(
        lambda a: a["dropout_p"] or (a["scale"] or 0) < 0 or a["attn_mask"] is not None
        or _value(a["query"]).dim() != 4 or _value(a["query"]).dtype is torch.float64,
        _attention,
    ),
    **{
        op: _Fault(_other_ratio, _refused("an image resized with antialias=True by a scale_factor "
                                          "that isn't its sizes' ratio; give its size"))
        for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
        for op in (getattr(_ATEN, name).default, getattr(_ATEN, name).vec)
    },
    **{
        op: _Fault(differs, instead)
        for differs, names in (
            (_other_pixels, ("nearest1d", "nearest2d", "nearest3d")),
            (_rounded_places, ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")),
        )
        for op, instead in get_decompositions(
            [getattr(_ATEN, f"upsample_{name}") for name in names]
        ).items()
    },
    **{
        getattr(_ATEN, add).default: _Fault(lambda a: a["beta"] == 0, _product(add))
        for add in ("addbmm", "addmm", "addmv", "addr", "baddbmm")
    },  # what is multiplied by 0 may be NaN
    _ATEN.scatter_reduce.two: _Fault(lambda a: a["reduce"] == "mean", _scattered_mean),
    _ATEN.logaddexp.default: _Fault(lambda _: True, _log_of_sum),
    _ATEN.logcumsumexp.default: _Fault(lambda _: True, _log_of_sums),
    _ATEN.cumprod.default: _Fault(lambda a: _value(a["self"]).dim(), _products),
    _ATEN.empty_permuted.default: _Fault(
        lambda _: True,
        lambda size, _, *, dtype=None, **__: torch.zeros(size, dtype=dtype),
    ),
    _ATEN.copy.default: _Fault(
        lambda a: _value(a["self"]).shape != _value(a["src"]).shape,
        lambda x, src, *_: src.to(x.dtype).expand_as(x),
    ),
    _ATEN.as_strided.default: _Fault(lambda _: True, _strided),
    _ATEN.as_strided_scatter.default: _Fault(lambda _: True, _strided_scatter),
    _ATEN.rrelu.default: _Fault(lambda _: True, _mean_slope),
    _ATEN.cdist.default: _Fault(lambda _: True, _distances),
    _ATEN._cdist_forward.default: _Fault(lambda _: True, _distances),
    _ATEN.log_sigmoid.default: _Fault(lambda _: True, lambda x: -torch.nn.functional.softplus(-x)),
    **{op: _Fault(lambda _: True, function) for op, function in BACKWARD.items()},
}  # fmt: skip
"""The operators of which some arguments, or some numbers, become others."""

_OF_EXTENTS = frozenset((
    _ATEN.add.Tensor, _ATEN.div.Tensor, _ATEN.mul.Tensor, _ATEN.sub.Tensor,
))  # fmt: skip
"""Operators that may have an open extent as an operand, which the exporter makes a float32 of."""

_ROUNDED: Mapping[Any, Callable[..., Any]] = {
    _ATEN.arange.start_step: _arange,
    _ATEN.linspace.default: _linspace,
    _ATEN.logspace.default: _logspace,
    _ATEN.log2.default: lambda x: x.log() / math.log(2),
    _ATEN.log10.default: lambda x: x.log() / math.log(10),
    _ATEN.pow.Scalar: lambda x, y: _exact(x, y) ** y,
    _ATEN.pow.Tensor_Scalar: lambda x, y: x ** _exact(y, x) if _is_rounded(y) else NotImplemented,
    _ATEN.sinc.default: lambda x: torch.where(x == 0, 1.0, (x * math.pi).sin() / (x * math.pi)),
    **{
        op: op.decompose for op in (
            _ATEN.batch_norm.default, _ATEN.group_norm.default, _ATEN.instance_norm.default,
            _ATEN.layer_norm.default, _ATEN.rms_norm.default,
        )
    },
    **get_decompositions([
        getattr(_ATEN, name) for name in (
            "add", "addcdiv", "addcmul", "addmm", "addmv", "addr", "baddbmm", "celu", "clamp",
            "deg2rad", "elu", "fill", "gelu", "hardshrink", "hardsigmoid", "hardswish",
            "hardtanh", "leaky_relu", "lerp", "linalg_vector_norm", "logit", "masked_fill",
            "native_batch_norm", "_native_batch_norm_legit_no_training",
            "native_group_norm", "native_layer_norm", "new_full", "rad2deg", "rsub", "selu",
            "softplus", "softshrink", "sub", "threshold",
        )
    ]),
}  # fmt: skip
"""What decomposes operators whose numbers the exporter rounds to float32, of float64 as well."""
