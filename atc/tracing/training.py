"""`training_step`: a model with its loss and optimizer as a library that owns nothing.

The step is traced as any function is. Beside the library there is a header with the step in C,
which keeps parameters and optimizer state in memory of the caller, and updates them where they lie
as far as the program proves that nothing reads them later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper

from atc.api import compile as compile_file
from atc.build.output_folder import network_name, write_files
from atc.codegen.interface import Port
from atc.errors import ModelError, OptionError, one_line
from atc.files.temporary import temporary_folder
from atc.names import c_string, comment
from atc.pipeline.pipeline import Compilation
from atc.program.in_place import in_place
from atc.runtime.load import open_network
from atc.templates import render
from atc.tracing import functional
from atc.tracing.errors import ArgumentError
from atc.tracing.gradient import GradManager
from atc.tracing.inline import applied, inputs_of, read_for_training, weights_of
from atc.tracing.networks import options_of
from atc.tracing.optim import SGD, Adam, AdamW, Optimizer
from atc.tracing.parameter import Parameter
from atc.tracing.recording import Array
from atc.tracing.tape import current_tape
from atc.tracing.tensor import Tensor, node
from atc.tracing.traced import Traced

ALIGNMENT = 64
"""Of each tensor in the state, in bytes."""

OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy, "square_loss": functional.square_loss,
    "l1_loss": functional.l1_loss, "binary_cross_entropy": functional.binary_cross_entropy,
}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """A tensor of the state: where it lies, and where its new value is written."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    size: int
    new: int

    @property
    def text(self) -> str:
        """The name as a C string."""
        return c_string(self.name)


def training_step(
    model: str | PathLike[str], output: str | PathLike[str], *,
    loss: str | Callable[..., Tensor] = "cross_entropy",
    optimizer: str = "sgd", lr: float = 0.01, trainable: str | Sequence[str] = "*",
    labels: Mapping[str, tuple[Any, Sequence[int]]] | None = None,
    input_shape: Mapping[str, Sequence[int]] | None = None, clip_norm: float = 0.0,
    accumulate: int = 1, optimizer_options: Mapping[str, Any] | None = None, **options: Any,
) -> TrainingStep:  # fmt: skip
    """Compile one training step of an ONNX model into the folder `output`.

    `loss` is a name of `LOSSES`, which compares the first output with a label, or a function of
    the outputs and the labels; `labels` has the type and shape of each label then. `trainable`
    are patterns of initializers' names: all others are constants, for which no gradient is
    computed. Gradients of `accumulate` steps are averaged before the parameters change; where
    their norm exceeds `clip_norm`, if that isn't 0, they are scaled down to it.
    `optimizer_options` are momentum, betas and the like, `options` those of `atc.compile`.
    Raises AtcError.
    """
    if optimizer not in OPTIMIZERS:
        raise ArgumentError(f"there is no optimizer '{optimizer}'", where="optimizer",
                            hint=f"use {', '.join(OPTIMIZERS)}")  # fmt: skip
    if isinstance(loss, str) and loss not in LOSSES:
        raise ArgumentError(f"there is no loss '{loss}'", where="loss",
                            hint=f"use {', '.join(LOSSES)}, or a function")  # fmt: skip
    if accumulate < 1 or not clip_norm >= 0:
        raise ArgumentError(f"accumulate is {accumulate}, clip_norm {clip_norm}",
                            hint="give 1 or more, and 0 or more")  # fmt: skip
    path, folder = Path(model), Path(output)
    read = read_for_training(path, input_shape or {})
    weights = weights_of(read)
    parameters = _trainable(weights, trainable, str(path))
    inputs = inputs_of(read)
    expected = labels or _labels(read, loss, str(path))
    update = _Update(
        GradManager().attach(parameters.values()),
        OPTIMIZERS[optimizer]([*parameters.values()], lr, **(optimizer_options or {})),
        clip_norm, accumulate,
    )  # fmt: skip

    def step(*tensors: Tensor) -> dict[str, Tensor]:
        given, wanted = tensors[: len(inputs)], tensors[len(inputs) :]
        fixed = {n: _constant(a) for n, a in weights.items() if n not in parameters}
        with update.manager:
            outputs = applied(read, given, {**fixed, **parameters})
            if isinstance(loss, str):
                value = LOSSES[loss](outputs[0], *wanted)
            else:
                value = loss(*outputs, *wanted)
            update.run(value)
        return {"loss": value}

    named = {v.name: _zeros(v) for v in inputs}
    named |= {n: np.zeros(tuple(s), t) for n, (t, s) in expected.items()}
    traced = Traced(step, symbolic=True, capture_as_const=False, record_only=False,
                    options=options_of(options))  # fmt: skip
    _, entry = traced.record(named, {})
    done = _compiled(entry.model, folder, options_of(options))
    pairs = [(entry.named(t), out, t) for t, out in entry.updates]
    pairs.sort(key=lambda pair: pair[0] not in parameters)
    rate = next((n for n, t in entry.sources if t is update.optimizer.rate), "")
    return _written(done, folder, path.name, pairs, [*named], (rate, lr))


def _constant(array: Array) -> Tensor:
    made = Tensor(array)
    made.constant = True
    return made


def _zeros(info: onnx.ValueInfoProto) -> Array:
    tensor = info.type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _trainable(
    weights: Mapping[str, Array], patterns: str | Sequence[str], where: str
) -> dict[str, Parameter]:
    """Return the parameters that patterns name. Raises ArgumentError for one that names none."""
    listed = [patterns] if isinstance(patterns, str) else [*patterns]
    floats = [n for n, a in weights.items() if a.dtype in (np.float32, np.float64) and a.size]
    for pattern in listed:
        if not any(fnmatchcase(n, pattern) for n in floats):
            there = one_line(", ".join(floats), 200)
            raise ArgumentError(f"trainable '{pattern}' names no weights", where=where,
                                hint=f"the model has {there}")  # fmt: skip
    chosen = [n for n in floats if any(fnmatchcase(n, p) for p in listed)]
    return {n: Parameter(weights[n], name=n) for n in chosen}


def _labels(
    model: onnx.ModelProto, loss: str | Callable[..., Tensor], where: str
) -> dict[str, tuple[Any, Sequence[int]]]:
    """Return the label that a loss by name compares the first output with."""
    if not isinstance(loss, str):
        raise ArgumentError("a function as loss needs the labels' types and shapes", where=where,
                            hint='labels={"label": ("int64", (8,))}')  # fmt: skip
    out = _zeros(model.graph.output[0])
    if loss != "cross_entropy":
        return {"label": (out.dtype, out.shape)}
    if out.ndim < 2:
        raise ModelError(f"cross_entropy of an output of {out.ndim} axes", where=where)
    return {"label": (np.int64, (out.shape[0], *out.shape[2:]))}


@dataclass
class _Update:
    """Gradients of the loss, and what the optimizer makes of them."""

    manager: GradManager
    optimizer: Optimizer
    clip_norm: float
    accumulate: int

    def run(self, loss: Tensor) -> None:
        """Record the backward pass and the update."""
        if loss.ndim:
            raise ArgumentError(f"the loss has the shape {[*loss.shape]}", hint="return its mean")
        self.manager.backward(loss)
        parameters = self.manager.attached_tensors()
        last: Tensor | None = None
        if self.accumulate > 1:
            last = self._accumulated(parameters)
        if self.clip_norm:
            self._clip(parameters)
        self.optimizer.step()
        if last is not None:
            self._only_if(last)
        self.manager.clear_grad()

    def _accumulated(self, parameters: Iterable[Parameter]) -> Tensor:
        """Let the gradients be means over steps; returns whether the latest is a last one."""
        count = Parameter(np.int64(0), name="accumulated")
        last = count + 1 == self.accumulate
        for parameter in parameters:
            total = Parameter(np.zeros(parameter.shape, parameter.dtype),
                              name=f"{parameter.name}.sum")  # fmt: skip
            assert parameter.grad is not None
            grown = total + parameter.grad
            parameter.grad = grown / float(self.accumulate)
            total.assign(node("Where", last, grown * 0.0, grown))
        count.assign(node("Where", last, count * 0, count + 1))
        return last

    def _clip(self, parameters: Iterable[Parameter]) -> None:
        """Scale the gradients down to a norm."""
        listed = [p for p in parameters if p.grad is not None]
        squares = [
            node("Cast", node("ReduceSumSquare", p.grad, keepdims=0), to=onnx.TensorProto.DOUBLE)
            for p in listed
        ]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        factor = node("Min", self.clip_norm / (node("Sqrt", total) + 1e-6), _constant(np.ones(())))
        for parameter in listed:
            kind = helper.np_dtype_to_tensor_dtype(parameter.dtype)
            parameter.grad = cast("Tensor", parameter.grad) * node("Cast", factor, to=kind)

    def _only_if(self, condition: Tensor) -> None:
        """Let the optimizer's changes be made only where a condition holds."""
        tape = current_tape()
        changed = {id(p) for p in (*self.optimizer.params, *self.optimizer.state())}
        for key in changed & {*tape.updates}:
            parameter, new = tape.updates.pop(key)
            kept = node("Where", condition, new, parameter)
            tape.updates[key] = (parameter, kept)


# ---- the library --------------------------------------------------------------------------------


def _compiled(
    model: onnx.ModelProto, folder: Path, options: Sequence[tuple[str, Any]]
) -> Compilation:
    with temporary_folder("model") as place:
        file = Path(place, f"{network_name(folder)}.onnx")
        file.write_bytes(model.SerializeToString(deterministic=True))
        return compile_file(file, folder, **dict(options))


def _written(
    done: Compilation, folder: Path, model: str, pairs: Sequence[tuple[str, str, Tensor]],
    arguments: Sequence[str], rate: tuple[str, float],
) -> TrainingStep:  # fmt: skip
    """Write the header, the first state and what Python reads beside the library."""
    several = "," in done.options.target  # each target has a program of its own
    spots = in_place(done.program, [] if several else [(p[0], p[1]) for p in pairs])
    slots, at = list[Slot](), 0
    for source, _, tensor in pairs:
        assert tensor.array is not None
        kind = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        size = tensor.array.nbytes
        slots.append(Slot(source, kind, tensor.array.shape, at, size, at))
        at += -(-size // ALIGNMENT) * ALIGNMENT
    saved, state = at, bytearray(at)
    for slot, (_, _, tensor) in zip(slots, pairs, strict=True):
        assert tensor.array is not None
        state[slot.offset : slot.offset + slot.size] = tensor.array.tobytes()
    for k, slot in enumerate(slots):
        if slot.name not in spots:
            slots[k] = Slot(slot.name, slot.dtype, slot.shape, slot.offset, slot.size, at)
            at += -(-slot.size // ALIGNMENT) * ALIGNMENT
    values = _header_values(done, model, pairs, slots, saved, at, rate[0])
    text = render("project/step.h.j2", values)
    manifest = {
        "inputs": [*arguments], "rate": rate, "saved": saved, "size": at,
        "state": [asdict(slot) | {"output": out} for slot, (_, out, _) in zip(slots, pairs,
                                                                              strict=True)],
    }  # fmt: skip
    write_files(folder, {
        f"include/{done.name}_step.h": text.encode(), f"{done.name}_state.bin": bytes(state),
        f"{done.name}_step.json": json.dumps(manifest, indent=1).encode(),
    })  # fmt: skip
    return TrainingStep(folder)


def _header_values(
    done: Compilation, model: str, pairs: Sequence[tuple[str, str, Tensor]], slots: Sequence[Slot],
    saved: int, size: int, rate: str,
) -> dict[str, Any]:  # fmt: skip
    interface = done.emission.interface
    ins = cast("Sequence[Port]", interface["inputs"])
    outs = cast("Sequence[Port]", interface["outputs"])
    reads = {slot.name: slot.offset for slot in slots}
    writes = {out: slot.new for slot, (_, out, _) in zip(slots, pairs, strict=True)}
    call = [
        f"(const {p.dtype.c} *)(const void *)(s + {reads[p.name]})" if p.name in reads
        else f"&{p.c_name}" if p.name == rate else p.c_name
        for p in ins
    ] + [
        f"({p.dtype.c} *)(void *)(s + {writes[p.name]})" if p.name in writes else p.c_name
        for p in outs
    ]  # fmt: skip
    inputs = [p for p in ins if p.name not in reads]
    outputs = [p for p in outs if p.name not in writes]
    return {
        "name": done.name, "NAME": done.name.upper(), "model": comment(model),
        "version": interface["version"], "inputs": inputs, "outputs": outputs, "slots": slots,
        "rate": rate, "saved": saved, "size": size, "arguments": ",\n    ".join(call),
        "in_place": sum(s.new == s.offset for s in slots),
        "call": ", ".join(p.c_name for p in (*inputs, *outputs)),
    }  # fmt: skip


class TrainingStep:
    """A training step from its folder, with its state: `loss = step(image, label)`.

    `lr` is the learning rate of the next steps.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        """Load a step as it was when it was compiled. Raises AtcError."""
        place = Path(folder)
        name = network_name(place.resolve())
        try:
            manifest = json.loads((place / f"{name}_step.json").read_text("utf-8"))
            data = (place / f"{name}_state.bin").read_bytes()
        except OSError as error:
            raise ModelError(f"no training step: {error.strerror}", where=str(place)) from None
        self.network = open_network(place)
        self._slots = [_slot(entry) for entry in manifest["state"]]
        self._outputs: list[str] = [entry["output"] for entry in manifest["state"]]
        self._saved: int = manifest["saved"]
        self.inputs: list[str] = manifest["inputs"]
        self._rate, self.lr = cast("tuple[str, float]", manifest["rate"])
        self._state: dict[str, Array] = {}
        self.load(data)

    def __call__(self, *arrays: Any) -> float:
        """Train on one batch; returns the loss of before."""
        given = dict(zip(self.inputs, arrays, strict=True)) | self._state
        if self._rate:
            given[self._rate] = np.float64(self.lr)
        found = self.network.run(given)
        for slot, output in zip(self._slots, self._outputs, strict=True):
            self._state[slot.name] = found.pop(output)
        (loss,) = found.values()
        return float(loss)

    def names(self) -> list[str]:
        """Return the names of the parameters, and of what the optimizer remembers."""
        return [slot.name for slot in self._slots]

    def get(self, name: str) -> Array:
        """Return a copy of a tensor of the state."""
        return self._state[name].copy()

    def set(self, name: str, value: Any) -> None:
        """Replace a tensor of the state. Raises ArgumentError for one of another type or shape."""
        now, new = self._state[name], np.asarray(value)
        if new.dtype != now.dtype or new.shape != now.shape:
            raise ArgumentError(f"{name} is {now.dtype} {[*now.shape]}, not {new.dtype} "
                                f"{[*new.shape]}")  # fmt: skip
        self._state[name] = new.copy()

    def save(self) -> bytes:
        """Return the state as `NAME_save` in C does."""
        data = bytearray(self._saved)
        for slot in self._slots:
            data[slot.offset : slot.offset + slot.size] = self._state[slot.name].tobytes()
        return bytes(data)

    def load(self, data: bytes) -> None:
        """Take a state that was saved. Raises OptionError for one of another size."""
        if len(data) != self._saved:
            raise OptionError(f"a state of {len(data)} bytes, not {self._saved}")
        for slot in self._slots:
            part = data[slot.offset : slot.offset + slot.size]
            kind = helper.tensor_dtype_to_np_dtype(slot.dtype)
            self._state[slot.name] = np.frombuffer(part, kind).reshape(slot.shape).copy()


def _slot(entry: Mapping[str, Any]) -> Slot:
    given = {k: v for k, v in entry.items() if k != "output"}
    return Slot(**{**given, "shape": tuple(entry["shape"])})
