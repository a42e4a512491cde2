"""Runs a compiled library and a reference on the same inputs and compares their outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir

from atc.accuracy.differences import Difference, compare, plain_form
from atc.accuracy.float64 import INTEGER_OPS, run_in_double
from atc.accuracy.inputs import sized_inputs
from atc.accuracy.run_inputs import RUNS, inputs_of_runs
from atc.adapt import Adaptation, adapt
from atc.adapt.outputs import find_outputs
from atc.adapt.states import initial_states, states_of
from atc.convert import load_model
from atc.dims import Extent, InputShape
from atc.errors import (
    OptionError,
    UnsupportedError,
    VerificationError,
    one_line,
)
from atc.files.temporary import temporary_folder
from atc.ir.graph import Array
from atc.pipeline.request import Request
from atc.runtime.layers import Layered
from atc.runtime.load import open_network
from atc.runtime.shown import html_table
from atc.runtime.values import Tensor, Value

TOLERANCE = 1e-4
"""Largest difference that passes, as a part of the output's largest magnitude."""

_IR_VERSION = 8  # 2021: initializers needn't be inputs, bfloat16, functions
_ADAPTABLE = 17  # an opset in which added nodes mean the same as in that of their own


@dataclass(frozen=True)
class Verification:
    """A comparison of all outputs; `reference` names what ran beside the library."""

    reference: str
    inputs: str
    tolerance: float
    differences: tuple[Difference, ...]
    precision: str = ""
    """What the library says of its arithmetic, where the comparison measures its error."""
    layers: tuple[Difference, ...] = ()
    """The differences of what nodes computed, by their names, where a device shows it."""

    @property
    def error(self) -> float:
        """The largest difference of all outputs, as a part of the output's largest magnitude."""
        return max((d.max_rel for d in self.differences), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether all outputs agree."""
        return all(d.passed for d in self.differences)

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the comparison."""
        rows = [
            (d.name, d.type, f"{d.max_abs:.3g}", f"{d.max_rel:.3g}", f"{d.rmse:.3g}",
             "ok" if d.passed else "DIFFERS")
            for d in self.differences
        ]  # fmt: skip
        headings = ("output", "type", "max abs", "max rel", "rmse", "")
        return html_table(f"compared with {self.reference}", headings, rows,
                          f"{self.inputs}, tolerance {self.tolerance:g}")  # fmt: skip

    def require(self) -> None:
        """Raise VerificationError that names the worst output, unless all agree."""
        failed = [d for d in self.differences if not d.passed]
        if failed:
            worst = max(failed, key=lambda d: d.max_rel)
            hint = f"{self.reference} rounds, too: atc verify --float64 compares with doubles"
            if self.precision:
                hint = "rounding adds up in deep networks: see max_abs before you raise --tolerance"
            raise VerificationError(
                f"output '{worst.name}' differs from {self.reference} by {worst.max_rel:.3g} of "
                f"its largest magnitude, {self.tolerance:g} is allowed; {len(failed)} of "
                f"{len(self.differences)} outputs differ",
                hint=hint,
            )  # fmt: skip


class Runnable(Protocol):
    """A network that can be compared: `Network`, or one that runs on a device."""

    inputs: tuple[Tensor, ...]
    parameters: tuple[Value, ...]
    results: tuple[Value, ...]

    @property
    def build_info(self) -> str:
        """The library's own account of its build."""

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs by name."""


@runtime_checkable
class Streaming(Protocol):
    """A network whose runs, from one to the next, have to be asked for together."""

    def run_each(self, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Compute the outputs of each run by name."""


Reference = Callable[[onnx_ir.Model, Sequence[str], Mapping[str, Array]], tuple[str, list[Any]]]
"""Computes the outputs of these names from inputs, and says what it is called."""


@dataclass(frozen=True)
class Subject:
    """A model file as the user names it to the importers."""

    model: Path
    framework: str = ""
    weight: Path | None = None
    out_nodes: tuple[str, ...] = ()
    input_shape: Mapping[str, InputShape] = field(default_factory=dict)
    adaptation: Adaptation = field(default_factory=Adaptation)
    epsilon: float = 0.0
    """The relative error of one rounding, where the library rounds more than the model says."""
    shape_profile: Mapping[str, InputShape] = field(default_factory=dict)
    """The shapes of the shape profile to run, where there are some, as --input_shape gives them."""


def subject_of(request: Request) -> Subject:
    """Return the model of a compilation, as its library takes it."""
    options = request.options
    return Subject(
        options.model, options.framework, options.weight, options.out_nodes, options.input_shape,
        request.adaptation, request.policy.epsilon,
        request.smallest.options.input_shape if request.shape_profiles else {},
    )  # fmt: skip


def verify_library(
    subject: Subject, library: Path, *, tolerance: float = TOLERANCE, seed: int = 0,
    inputs: Path | None = None, float64: bool = False, run: Reference | None = None,
    opened: Callable[[Path], Runnable] | None = None, runs: int = 0,
) -> Verification:  # fmt: skip
    """Compare a library (or its folder) with a reference on seeded inputs, or those of an .npz.

    There are as many `runs` as the .npz has inputs for, or one, or RUNS of a network that carries
    states, which go on where the last one ended; the reference is given them.
    With `float64` the reference computes in float64, and the tolerance is the bound that the
    library states, unless the model itself rounds to integers. `run` is asked in its place, if
    given.

    Raises OptionError if the library isn't one of this model or the inputs don't fit,
    UnsupportedError if no reference can run the model.
    """
    if opened is None:
        _check_sanitizer(library)
    net: Runnable = (opened or open_network)(library)
    grows = bool(subject.adaptation.states) and any(_varies(net, v) for v in net.parameters)
    model = _model_of(subject, net, grows)
    states = dict(states_of(model))
    outputs = [v.name or "" for v in model.graph.outputs if v.name not in states.values()]
    if len(outputs) != len(net.results):
        raise OptionError(
            f"the library has {len(net.results)} outputs, the model {len(outputs)}",
            where=str(library), hint="give the --out_nodes that it was compiled with",
        )  # fmt: skip
    own = {v.name: _sizes(v) for v in model.graph.inputs} if subject.shape_profile else {}
    types = {t.name: (own.get(t.name, t.shape), np.dtype(t.dtype)) for t in net.inputs}
    if grows and inputs is not None:
        raise OptionError(
            "a file has inputs of one length, but the states grow from run to run",
            where="--input", hint="leave it out: the runs are of seeded inputs",
        )  # fmt: skip
    usual = RUNS if states else 1
    every, source = (
        ([{}] * (runs or usual), f"seed {seed}")
        if grows else inputs_of_runs(types, inputs, seed, runs, usual)
    )  # fmt: skip
    stated, precision = stated_precision(net.build_info)
    if stated is not None and stated > TOLERANCE:  # it rounds, or may, by more
        tolerance = max(tolerance, stated)
    if float64:
        rounds = any(node.op_type in INTEGER_OPS for node in model.graph)
        tolerance = tolerance if rounds or stated is None else stated
    run = run or (run_in_double if float64 else run_reference)
    carried = initial_states(model)
    seen = _layer_names(net, model, outputs)
    given, wanted = list[dict[str, Any]](), list[list[Any]]()
    for step, feeds in enumerate(every):
        sized = sized_inputs(model, types, carried, step, seed) if grows else feeds
        if sized is None:
            break  # the states are full
        given.append({v.name: _fed(net, v, sized) for v in net.parameters})
        reference, expected = run(
            model, [*outputs, *states.values(), *seen], {**sized, **carried}
        )
        wanted.append(expected)
        carried = {
            name: np.asarray(array).astype(carried[name].dtype)
            for name, array in zip(states, expected[len(outputs) :], strict=False)
        }
    compared: list[Difference] = []
    for step, (got, expected) in enumerate(zip(_run_each(net, given), wanted, strict=True)):
        for name, a, b in _elements(outputs, list(got.values()), expected[: len(outputs)]):
            same = a.astype(b.dtype) if float64 and b.dtype == np.float64 else a
            shown = f"{name}, run {step + 1}" if states or len(every) > 1 else name
            compared.append(compare(shown, same, b, tolerance))
    known = dict(zip([*outputs, *states.values(), *seen], wanted[-1], strict=True))
    layers = tuple(_compared_layers(net, known, tolerance))
    shown = precision if float64 else ""
    return Verification(reference, source, tolerance, tuple(compared), shown, layers)


def _model_of(subject: Subject, net: Runnable, grows: bool) -> onnx_ir.Model:
    """Return the model with the library's interface, at its shapes unless its states grow."""
    alike = [v for v in net.parameters if not (subject.shape_profile and _varies(net, v))]
    shapes = {**{v.name: _pinned(net, v) for v in alike}, **subject.shape_profile}
    pinned = subject.input_shape if subject.adaptation.reshapes or grows else shapes
    model = load_model(subject.model, subject.framework, pinned, subject.weight)
    if subject.adaptation.adds_nodes:
        model = _newer(model)
    adapt(model, subject.adaptation, find_outputs(model, subject.out_nodes))
    return model


def _run_each(net: Runnable, inputs: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    return net.run_each(inputs) if isinstance(net, Streaming) else map(net.run, inputs)


def _layer_names(
    net: Runnable, model: onnx_ir.Model, outputs: Sequence[str]
) -> list[str]:  # fmt: skip
    """Return the names of nodes' results that the network shows and the model knows."""
    shown = {name for layer in net.layers for name in layer.names} if _shows(net) else set()
    results = (v.name for node in model.graph for v in node.outputs if v.name)
    return [name for name in dict.fromkeys(results) if name in shown and name not in outputs]


def _compared_layers(
    net: Runnable, known: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    """Yield the differences of what nodes computed in the latest run, in its order."""
    for layer in net.layers if _shows(net) else ():
        expected = next((np.asarray(known[v]) for v in layer.names if v in known), None)
        got = None if expected is None else plain_form(layer.result, True, expected)
        if expected is not None and got is not None:
            yield compare(layer.node, got.astype(expected.dtype), expected, tolerance)


def _shows(net: Runnable) -> TypeGuard[Layered]:
    return isinstance(net, Layered)


def stated_precision(build_info: str) -> tuple[float | None, str]:
    """Return the error bound that a library states, and its precision as it calls it."""
    fields = dict(pair.split("=", 1) for pair in build_info.split("; ") if "=" in pair)
    bound = float(fields["error_bound"]) if "error_bound" in fields else None
    return bound, fields.get("precision", "unknown")


def _pinned(net: Runnable, value: Value) -> InputShape:
    """Return the shapes that an input was compiled for, as --input_shape gives them."""
    if value.count is None:
        return None
    shapes: list[tuple[Extent, ...]] = [
        t.shape for t in net.inputs[value.first : value.first + value.count]
    ]
    return shapes if value.is_sequence else shapes[0]


def _varies(net: Runnable, value: Value) -> bool:
    """Return whether an input is a tensor of several shapes."""
    tensor = net.inputs[value.first]
    return value.is_plain and bool(tensor.lowest) and tensor.lowest != tensor.shape


def _sizes(value: onnx_ir.Value) -> tuple[int, ...]:
    return tuple(n for n in value.shape or () if isinstance(n, int))


def _fed(net: Runnable, value: Value, feeds: Mapping[str, Array]) -> Array | list[Array] | None:
    if value.count is None:
        return None
    arrays = [feeds[t.name] for t in net.inputs[value.first : value.first + value.count]]
    return arrays if value.is_sequence else arrays[0]


def _elements(
    names: Sequence[str], got: Sequence[Any], expected: Sequence[Any]
) -> Iterator[tuple[str, Array, Array]]:
    """Yield the tensors to compare: of a sequence its elements, of nothing none.

    Of a map it is the values, or its keys where they differ.
    """
    for name, a, b in zip(names, got, expected, strict=True):
        if isinstance(a, list) and isinstance(b, list | tuple) and len(a) == len(b):
            yield from _elements([f"{name}_{k}" for k in range(len(a))], a, b)
        elif isinstance(a, dict) and isinstance(b, dict):
            same = sorted(a) == sorted(b)
            x, y = ([m[k] for k in sorted(m)] if same else sorted(m) for m in (a, b))
            yield name, np.asarray(x), np.asarray(y)
        elif a is not None or b is not None:
            yield name, np.asarray(a), np.asarray(b)


def _newer(model: onnx_ir.Model) -> onnx_ir.Model:
    """Return the model in an opset that has what an adaptation adds, if onnx can convert it."""
    if model.opset_imports.get("", _ADAPTABLE) >= _ADAPTABLE:
        return model
    try:
        return onnx_ir.from_proto(
            onnx.version_converter.convert_version(onnx_ir.to_proto(model), _ADAPTABLE)
        )
    except Exception as error:  # the converter raises many kinds
        raise UnsupportedError(
            "no reference can run the model with what is added to it: onnx can't convert it to "
            f"opset {_ADAPTABLE}: {one_line(str(error), 120)}"
        ) from error


def _check_sanitizer(library: Path) -> None:
    """Refuse a library whose AddressSanitizer would end this process as it is loaded."""
    files = [library] if library.is_file() else library.glob("lib*.so")
    checked = any(b"__asan_init\0" in path.read_bytes() for path in files)
    if checked and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise OptionError(
            "the library has AddressSanitizer in it, which this process has not",
            where=str(library), hint="start atc verify with LD_PRELOAD=libasan.so",
        )  # fmt: skip


# ---------------------------------------------------------------------------------- reference


Runner = Callable[[Path, Sequence[str], Mapping[str, Array]], list[Any]]


def run_reference(
    model: onnx_ir.Model, outputs: Sequence[str], feeds: Mapping[str, Array]
) -> tuple[str, list[Any]]:
    """Return the name of the first reference that can run the model, and its outputs."""
    reasons = []
    with temporary_folder("verify") as folder:
        path = Path(folder) / "model.onnx"
        _save(model, outputs, path)
        for name, run in _references():
            try:
                return name, run(path, outputs, feeds)
            except Exception as error:  # what they raise is theirs to choose
                reasons.append(f"{name}: {one_line(str(error), 200)}")
    raise UnsupportedError(
        "no reference can run the model on these inputs: " + "; ".join(reasons),
        hint="give inputs that fit the model with atc verify --input=x.npz",
    )


def _references() -> Iterator[tuple[str, Runner]]:
    if find_spec("onnxruntime") is not None:
        yield "onnxruntime", _run_onnxruntime
    yield "onnx.reference", _run_onnx_reference


def _save(model: onnx_ir.Model, outputs: Sequence[str], path: Path) -> None:
    """Write the model with these outputs, its weights in a file of their own."""
    values = {v.name: v for v in (*model.graph.inputs, *model.graph.initializers.values())}
    values |= {v.name: v for node in model.graph for v in node.outputs}
    model.graph.outputs[:] = [values[name] for name in outputs]
    model.ir_version = min(model.ir_version or _IR_VERSION, _needed_ir_version(model))
    onnx_ir.save(model, path, external_data=f"{path.name}.data")


def _needed_ir_version(model: onnx_ir.Model) -> int:
    """Return the oldest version of the file format that will do: onnxruntime lags behind onnx."""
    imports = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    return max(_IR_VERSION, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))


def _run_onnxruntime(
    path: Path, outputs: Sequence[str], feeds: Mapping[str, Array]
) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Its optimisations may change the results, those of quantised models visibly.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [_result(a) for a in session.run([*outputs], dict(feeds))]


def _run_onnx_reference(
    path: Path, outputs: Sequence[str], feeds: Mapping[str, Array]
) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load(path))
    return [_result(a) for a in evaluator.run([*outputs], dict(feeds))]


def _result(value: Any) -> Any:
    """Return an output as arrays: a list where it's a sequence, None where there's no value."""
    if value is None or isinstance(value, list):
        return value
    return np.asarray(value)
