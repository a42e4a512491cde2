"""`training_step`: a model with its loss and optimizer as a library that owns no memory.

The step is traced as any function is. Beside the library there is a header with the step in C,
which keeps parameters and optimizer state in the caller's memory, and updates them in place where
nothing is proven to read them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper

from atc.api import diagnostics_of
from atc.build.output_folder import network_name
from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.errors import ModelError, OptionError, one_line
from atc.files.temporary import temporary_folder
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.options.table import OPTIONS
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Decisions
from atc.tracing import functional
from atc.tracing.errors import ArgumentError
from atc.tracing.gradient import GradManager, untrained
from atc.tracing.inline import Model, applied, constant, read_for_training
from atc.tracing.networks import options_of
from atc.tracing.optim import SGD, Adam, AdamW, Optimizer
from atc.tracing.parameter import Parameter
from atc.tracing.recording import Array
from atc.tracing.step import TrainingStep
from atc.tracing.step_files import Recorded, write_step
from atc.tracing.tape import current_tape
from atc.tracing.tensor import Tensor, node
from atc.tracing.traced import Traced

OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy, "square_loss": functional.square_loss,
    "l1_loss": functional.l1_loss, "binary_cross_entropy": functional.binary_cross_entropy,
}  # fmt: skip

_ALIEN = (
    "dynamic_batch_size", "dynamic_image_size", "dynamic_dims", "out_nodes", "input_format",
    "input_fp16_nodes", "output_type", "state", "insert_op_conf", "cal_conf", "verify", "selftest",
    "starter", "step", "singleop", "om", "json", "check_report",
)  # fmt: skip
"""Options of a compilation that don't apply to training steps."""


def training_step(
    model: str | PathLike[str], output: str | PathLike[str], *,
    loss: str | Callable[..., Tensor] = "cross_entropy",
    optimizer: str = "sgd", lr: float = 0.01, trainable: str | Sequence[str] = "*",
    labels: str | Mapping[str, tuple[Any, Sequence[int]]] = "", clip_norm: float = 0.0,
    accumulate: int = 1, optimizer_options: str | Mapping[str, Any] = "",
    inplace_update: bool = True, **options: Any,
) -> TrainingStep:  # fmt: skip
    """Compile one training step of a model into the folder `output`.

    `loss` is a name of `LOSSES`, which compares the first output with a label, or a function of
    the outputs and the labels; `labels` then has the type and shape of each label, if there are
    any: a model may compute its loss itself. `trainable`
    are patterns of weights' names: all others are constants, for which no gradient is computed.
    Gradients of `accumulate` steps are averaged before the parameters are updated; if their norm
    exceeds a `clip_norm` other than 0, they are scaled down to it. `optimizer_options` are
    momentum, betas and the like; `inplace_update` allows new values to overwrite the old ones.
    `options` are those of `atc.compile`, `memory_budget` and `recompute` among them. All may be
    strings, as on the command line. Raises AtcError.

    Returns the step: called with a batch and its labels it updates its state and returns the loss.
    """
    own = {
        "loss": loss, "optimizer": optimizer, "lr": lr, "trainable": trainable,
        "labels": labels or "", "clip_norm": clip_norm, "accumulate": accumulate,
        "optimizer_options": optimizer_options or "", "inplace_update": inplace_update,
    }  # fmt: skip
    changed = {name: value for name, value in own.items() if value != OPTIONS[name].default}
    given = {"model": model, "output": output, **changed, **dict(options_of(options))}
    resolved = resolve(given, "compile", program=True)
    done = train(resolved.values, resolved.environ, diagnostics_of(str(resolved.values["log"])))
    return TrainingStep(done.folder)


def train(
    values: Mapping[str, Any], environ: Mapping[str, str], diagnostics: Diagnostics
) -> Compilation:
    """Compile a training step from the checked values of all options. Raises AtcError."""
    for name in _ALIEN:
        if values[name] != OPTIONS[name].value(OPTIONS[name].default):
            raise OptionError(f"--{name} doesn't apply to training steps", where=f"--{name}",
                              code="E10057")  # fmt: skip
    options = make_options(values)
    read = read_for_training(options)
    recorded, model = _recorded(read, options, values)
    # Each of several targets has a program of its own.
    held = recorded.held(values["inplace_update"] and "," not in options.target)
    with temporary_folder("model") as place:
        file = Path(place, f"{network_name(options.output)}.onnx")
        file.write_bytes(model.SerializeToString(deterministic=True))
        own = replace(options, model=file, weight=None, framework="", input_shape={})
        done = compile_model(own, environ, diagnostics, Decisions(held=held))
    write_step(done, recorded, held)
    return done


def _recorded(
    read: Model, options: Options, values: Mapping[str, Any]
) -> tuple[Recorded, onnx.ModelProto]:
    """Trace a step; returns what it reads and writes, and its model."""
    loss, where = values["loss"], str(options.model)
    parameters = _trainable(read, values["trainable"], where)
    wanted = _label_arrays(values["labels"], where) or _label(read, loss, where)
    if isinstance(loss, str) and len(wanted) != 1:
        raise ArgumentError(f"{loss} compares one label, not {len(wanted)}", where="labels")
    update = _Update(
        GradManager().attach(parameters.values()),
        _optimizer(values, [*parameters.values()]), values["clip_norm"], values["accumulate"],
    )  # fmt: skip
    seed = Parameter(np.int64(0), name="seed")

    def step(*tensors: Tensor) -> dict[str, Tensor]:
        given, labels = tensors[: len(read.inputs)], tensors[len(read.inputs) :]
        with update.manager:
            outputs = applied(read, given, parameters, seed)
            value = LOSSES[loss](outputs[0], *labels) if isinstance(loss, str) else loss(
                *outputs, *labels
            )  # fmt: skip
            update.run(value)
        return {"loss": value}

    named = {v.name: _zeros(v) for v in read.inputs}
    doubled = named.keys() & wanted.keys()
    if doubled:
        raise ArgumentError(f"the label '{min(doubled)}' is an input, too", where="labels")
    named |= wanted
    traced = Traced(step, symbolic=True, capture_as_const=False, record_only=False,
                    options=options_of({}))  # fmt: skip
    _, entry = traced.record(named, {})
    if update.unreached:
        helper.set_model_props(entry.model, {"atc.warnings": untrained(update.unreached)})
    state = [(entry.named(t), out, t) for t, out in entry.updates]
    state.sort(key=lambda each: each[0] not in parameters)
    names = {id(t): n for n, t in entry.sources}
    return Recorded(
        options.model.name, tuple(named), tuple(state), names.get(id(update.optimizer.rate), ""),
        values["lr"], names.get(id(seed), ""),
    ), entry.model  # fmt: skip


def _optimizer(values: Mapping[str, Any], parameters: Sequence[Parameter]) -> Optimizer:
    """Return the optimizer. Raises ArgumentError for options that it doesn't have."""
    own = dict(values["optimizer_options"])
    make = OPTIMIZERS[values["optimizer"]]
    try:
        return make(parameters, values["lr"], **own)
    except TypeError:
        given = ", ".join(f"{n}={v}" for n, v in own.items())
        raise ArgumentError(f"{values['optimizer']} doesn't take {one_line(given, 100)}",
                            where="optimizer_options") from None  # fmt: skip


def _zeros(info: onnx.ValueInfoProto) -> Array:
    tensor = info.type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _trainable(read: Model, patterns: Sequence[str], where: str) -> dict[str, Parameter]:
    """Return the parameters that match patterns.

    Raises ArgumentError for a pattern without a match, or for one of weights in 16 bits.
    """
    found: set[str] = set()
    for pattern in patterns:
        halves = [n for n in read.halves if _names(pattern, n, read)]
        if halves:
            raise ArgumentError(
                f"weights of {read.weights[halves[0]].dtype} aren't trained: "
                f"{one_line(', '.join(halves), 100)}", where=where,
                hint="keep them in float32 and cast them in the model, or name others in trainable",
            )  # fmt: skip
        named = {n for n in read.trainable if _names(pattern, n, read)}
        if not named:
            there = one_line(", ".join(read.trainable), 200)
            raise ArgumentError(f"trainable '{one_line(pattern, 60)}' names no weights",
                                where=where, hint=f"the model has {there}")  # fmt: skip
        found |= named
    if not found:
        raise ArgumentError("no weights are trainable", where=where)
    return {n: Parameter(read.weights[n], name=n) for n in read.trainable if n in found}


def _names(pattern: str, name: str, read: Model) -> bool:
    """Return whether a pattern matches a weight: its name alone where it may be a setting."""
    is_weight = read.weights[name].ndim > 0 or name in read.parameters
    return pattern == name or (is_weight and fnmatchcase(name, pattern))


def _label_arrays(labels: Mapping[str, tuple[Any, Sequence[int]]], where: str) -> dict[str, Array]:
    """Return zeros of the labels' types and shapes."""
    try:
        return {name: np.zeros(tuple(shape), kind) for name, (kind, shape) in labels.items()}
    except (TypeError, ValueError) as error:
        raise ArgumentError(one_line(f"labels: {error}", 120), where=where) from None


def _label(read: Model, loss: str | Callable[..., Tensor], where: str) -> dict[str, Array]:
    """Return the label that a named loss compares the first output with.

    A function of the outputs alone has none.
    """
    if not isinstance(loss, str):
        try:
            signature(loss).bind(*read.proto.graph.output)
        except (TypeError, ValueError):
            raise ArgumentError("a function as loss needs the labels' types and shapes",
                                where=where, hint='labels={"label": ("int64", (8,))}') from None
        return {}
    out = _zeros(read.proto.graph.output[0])
    if loss != "cross_entropy":
        return {"label": out}
    if out.ndim < 2:
        raise ModelError(f"cross_entropy of an output of {out.ndim} axes", where=where)
    return {"label": np.zeros((out.shape[0], *out.shape[2:]), np.int64)}


@dataclass
class _Update:
    """The gradients of the loss, and the optimizer's update by them.

    `unreached` are the parameters that the loss doesn't depend on, which stay as they are.
    """

    manager: GradManager
    optimizer: Optimizer
    clip_norm: float
    accumulate: int
    unreached: Sequence[Parameter] = ()

    def run(self, loss: Tensor) -> None:
        """Record the backward pass and the update."""
        if not isinstance(loss, Tensor):
            raise ArgumentError(f"the loss is {type(loss).__name__}, not a tensor")
        if loss.ndim:
            raise ArgumentError(f"the loss has the shape {[*loss.shape]}", hint="return its mean")
        self.unreached = self.manager.propagate(loss)
        parameters = [p for p in self.manager.attached_tensors() if p.grad is not None]
        if not parameters:
            raise ArgumentError("the loss depends on no weights that are trainable")
        last: Tensor | None = None
        if self.accumulate > 1:
            last = self._accumulated(parameters)
        if self.clip_norm:
            self._clip(parameters)
        self.optimizer.step()
        if last is not None:
            self._only_if(last)
        for parameter in self.unreached:
            parameter.assign(parameter)  # a part of the state nonetheless
        self.manager.clear_grad()

    def _accumulated(self, parameters: Iterable[Parameter]) -> Tensor:
        """Replace the gradients by means over steps; returns whether this is the last of them."""
        count = Parameter(np.int64(0), name="accumulated")
        last = count + 1 == self.accumulate
        for parameter in parameters:
            total = Parameter(np.zeros(parameter.shape, parameter.dtype),
                              name=f"{parameter.name}.sum")  # fmt: skip
            assert parameter.grad is not None
            grown = total + parameter.grad
            parameter.grad = grown / float(self.accumulate)
            total.assign(node("Where", last, constant(np.zeros((), parameter.dtype)), grown))
        count.assign(node("Where", last, count * 0, count + 1))
        return last

    def _clip(self, parameters: Iterable[Parameter]) -> None:
        """Scale the gradients down to the greatest norm."""
        listed = [*parameters]
        squares = [
            node("Cast", node("ReduceSumSquare", p.grad, keepdims=0), to=onnx.TensorProto.DOUBLE)
            for p in listed
        ]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        factor = node("Min", self.clip_norm / (node("Sqrt", total) + 1e-6), constant(np.ones(())))
        for parameter in listed:
            kind = helper.np_dtype_to_tensor_dtype(parameter.dtype)
            parameter.grad = cast("Tensor", parameter.grad) * node("Cast", factor, to=kind)

    def _only_if(self, condition: Tensor) -> None:
        """Apply the optimizer's update only if a condition holds."""
        tape = current_tape()
        changed = {id(p) for p in (*self.optimizer.params, *self.optimizer.state())}
        for key in [k for k in tape.updates if k in changed]:  # ids have no order of their own
            parameter, new = tape.updates.pop(key)
            kept = node("Where", condition, new, parameter)
            tape.updates[key] = (parameter, kept)
