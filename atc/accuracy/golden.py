"""`--selftest`: what a reference computes becomes a part of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir

from atc.accuracy.compare import TOLERANCE, run_reference, subject_of
from atc.accuracy.float64 import INTEGER_OPS, run_in_double
from atc.adapt import adapt
from atc.adapt.outputs import find_outputs
from atc.adapt.states import initial_states, states_of
from atc.codegen.selftest import Expected, golden_of, inputs_by_formula
from atc.convert import load_model
from atc.diagnostics import Diagnostics
from atc.errors import OptionError, UnsupportedError
from atc.ir.graph import Array
from atc.pipeline.input_types import input_types
from atc.pipeline.pipeline import Compilation, Compile
from atc.pipeline.request import Request

_ROUNDINGS = 16  # as many errors of one rounding are no mistake
_LARGEST = 1 << 28  # bytes of constants of a model that is evaluated in float64, too


def selftested(inner: Compile) -> Compile:
    """Wrap a compilation: one with a self-test is given what its outputs must be."""

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        if not request.options.has_selftest:
            return inner(request, diagnostics)
        diagnostics.stage("computing the self-test")
        return inner(request.decide(expected=expected_of(request)), diagnostics)

    return compile


def expected_of(request: Request) -> Expected:
    """Return what the reference computes of the self-test's inputs.

    Of a network that carries states it is what the second run computes.

    Raises OptionError for networks that have no self-test: those of several shapes, of sequences,
    and of types that aren't numbers.
    """
    types = None if request.shape_profiles else input_types(request)
    if types is None or any(each.lowest != each.shape for each in types.values()):
        raise OptionError(
            "a network of several shapes has no self-test", where="--selftest",
            hint="pin the shapes with --input_shape, or leave --selftest out",
        )  # fmt: skip
    subject = subject_of(request)
    model = load_model(subject.model, subject.framework, subject.input_shape, subject.weight)
    adapt(model, subject.adaptation, find_outputs(model, subject.out_nodes))
    states, carried = dict(states_of(model)), initial_states(model)
    feeds = {
        name: inputs_by_formula(each.shape, np.dtype(each.dtype), k)
        for k, (name, each) in enumerate(types.items())
    }
    names = [v.name or "" for v in model.graph.outputs if v.name not in states.values()]
    following = [*states.values()]
    for _ in range(1 if states else 0):
        _, found = run_reference(model, [*names, *following], {**feeds, **carried})
        carried = dict(zip(states, map(np.asarray, found[len(names) :]), strict=True))
    feeds |= carried
    values = _values(model, [*names, *following], feeds)
    outputs = [values.get(name) for name in names]
    if any(output is None or isinstance(output, list | dict) for output in outputs):
        raise OptionError("a network of sequences has no self-test", where="--selftest")
    tolerance = max(TOLERANCE, _ROUNDINGS * subject.epsilon)
    arrays = {name: each for name, each in values.items() if isinstance(each, np.ndarray)}
    errors = _errors(model, arrays, feeds)
    golden = golden_of([arrays[n] for n in names], tolerance, [errors.get(n, 0.0) for n in names])
    return Expected(golden, arrays, tolerance, errors)


def _errors(
    model: onnx_ir.Model, values: Mapping[str, Array], feeds: Mapping[str, Array]
) -> dict[str, float]:
    """Return the largest error of each of the reference's floats, as float64 shows it.

    A sigmoid of -12 is known to an error of 1, not of itself. There are none where float64 can't
    evaluate the model, or where it rounds to integers: another byte is no error.
    """
    constants = sum(v.const_value.nbytes for v in model.graph.initializers.values()
                    if v.const_value is not None)  # fmt: skip
    if constants > _LARGEST or any(node.op_type in INTEGER_OPS for node in model.graph):
        return {}
    names = [name for name, each in values.items() if each.dtype.kind == "f"]
    try:
        exact = dict(zip(names, run_in_double(model, names, feeds)[1], strict=True))
    except UnsupportedError:
        return {}
    errors = {}
    for name, value in exact.items():
        if isinstance(value, np.ndarray) and value.shape == values[name].shape:
            error = float(np.abs(value - values[name]).max(initial=0))
            errors[name] = error if np.isfinite(error) else 0.0
    return errors


def _values(
    model: onnx_ir.Model, outputs: Sequence[str], feeds: Mapping[str, Array]
) -> dict[str, Any]:
    """Return the outputs by name, and the results of the nodes where a reference has them."""
    results = [v.name for node in model.graph for v in node.outputs if v.name]
    every = [*dict.fromkeys([*outputs, *results])]
    kept = [*model.graph.outputs]
    try:
        return dict(zip(every, run_reference(model, every, feeds)[1], strict=True))
    except UnsupportedError:  # a result is nothing that can be an output
        model.graph.outputs[:] = kept
        return dict(zip(outputs, run_reference(model, outputs, feeds)[1], strict=True))
