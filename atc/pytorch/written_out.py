"""Operators that PyTorch's exporter to ONNX would make something else of, written out in others.

Its translations leave out some arguments without a word. A node that has such arguments is replaced
by what PyTorch's own functions make of it; what can't be written out is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
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
from atc.pytorch.substitutes import (
    arange,
    attention,
    distances,
    exact,
    hypotenuse,
    is_rounded,
    linspace,
    log_of_sum,
    log_of_sums,
    logspace,
    mean_slope,
    pooled,
    product,
    products,
    scattered_mean,
    spread,
    strided,
    strided_scatter,
)

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
            if node.target is _ATEN.view.default:  # what is written out may lie in another order
                node.target = _ATEN.reshape.default
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
    return _other_size(a) or (double and any(is_rounded(s) for _, _, s in _axes(a)))


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
    _ATEN.avg_pool2d.default: _Fault(lambda a: a["divisor_override"], pooled),
    _ATEN.avg_pool3d.default: _Fault(lambda a: a["divisor_override"], pooled),
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
        attention,
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
        getattr(_ATEN, add).default: _Fault(lambda a: a["beta"] == 0, product(add))
        for add in ("addbmm", "addmm", "addmv", "addr", "baddbmm")
    },  # what is multiplied by 0 may be NaN
    _ATEN.scatter_reduce.two: _Fault(lambda a: a["reduce"] == "mean", scattered_mean),
    _ATEN.logaddexp.default: _Fault(lambda _: True, log_of_sum),
    _ATEN.logcumsumexp.default: _Fault(lambda _: True, log_of_sums),
    _ATEN.cumprod.default: _Fault(lambda a: _value(a["self"]).dim(), products),
    _ATEN.empty_permuted.default: _Fault(
        lambda _: True,
        lambda size, _, *, dtype=None, **__: torch.zeros(size, dtype=dtype),
    ),
    _ATEN.copy.default: _Fault(
        lambda a: _value(a["self"]).shape != _value(a["src"]).shape, spread
    ),
    _ATEN.as_strided.default: _Fault(lambda _: True, strided),
    _ATEN.as_strided_scatter.default: _Fault(lambda _: True, strided_scatter),
    _ATEN.rrelu.default: _Fault(lambda _: True, mean_slope),
    _ATEN.hypot.default: _Fault(lambda _: True, hypotenuse),
    _ATEN.cdist.default: _Fault(lambda _: True, distances),
    _ATEN._cdist_forward.default: _Fault(lambda _: True, distances),
    _ATEN.log_sigmoid.default: _Fault(lambda _: True, lambda x: -torch.nn.functional.softplus(-x)),
    **{op: _Fault(lambda _: True, function) for op, function in BACKWARD.items()},
}  # fmt: skip
"""The operators of which some arguments, or some numbers, become others."""

_OF_EXTENTS = frozenset((
    _ATEN.add.Tensor, _ATEN.div.Tensor, _ATEN.mul.Tensor, _ATEN.sub.Tensor,
))  # fmt: skip
"""Operators that may have an open extent as an operand, which the exporter makes a float32 of."""

_ROUNDED: Mapping[Any, Callable[..., Any]] = {
    _ATEN.arange.start_step: arange,
    _ATEN.copy.default: spread,  # what `fill` is made of
    _ATEN.linspace.default: linspace,
    _ATEN.logspace.default: logspace,
    _ATEN.log2.default: lambda x: x.log() / math.log(2),
    _ATEN.log10.default: lambda x: x.log() / math.log(10),
    _ATEN.pow.Scalar: lambda x, y: exact(x, y) ** y,
    _ATEN.pow.Tensor_Scalar: lambda x, y: x ** exact(y, x) if is_rounded(y) else NotImplemented,
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
