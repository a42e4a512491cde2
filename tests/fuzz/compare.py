"""Compiles many drawn models together, runs them, and compares with two references.

A result is wrong where neither reference agrees with it. What both references leave open, because
a tiny change of an input changes it much, isn't compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from fuzz.draw import Array
from fuzz.exact_sums import in_unsigned, restored
from joined_sources import compile_joined

from atc.backends.targets import get_target
from atc.errors import AtcError, InternalError, UnsupportedError
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.runtime.network import Network
from support import compile_models

Run: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
RTOL, ATOL = 2e-4, 2e-4
"""Of float32; the absolute part is of the largest magnitude of the tensor."""


@dataclass(frozen=True)
class Case:
    """A model with its inputs, where it comes from, and what the standard's reference computes."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: tuple[Array, ...] | None = None


@dataclass(frozen=True)
class Failure:
    """A model that isn't compiled and run as it should be."""

    case: Case
    reason: str


def check(cases: Sequence[Case], target: str = "c99", level: str = "-O0") -> list[Failure]:
    """Compile, run and compare the cases; return what fails."""
    try:
        if get_target(target).device:
            runners = _on_a_gpu(cases, target)
        else:
            runners = compile_models([c.model for c in cases], target, flags=[level])
    except Exception as error:  # compile_models lets through what isn't an AtcError: a mistake
        if len(cases) == 1:
            return [Failure(cases[0], f"{type(error).__name__}: {error}")]
        return [f for case in cases for f in check([case], target, level)]
    found = []
    for case, runner in zip(cases, runners, strict=True):
        reason = _reason(case, runner)
        if reason:
            found.append(Failure(case, reason))
    return found


def _on_a_gpu(cases: Sequence[Case], target: str) -> list[Run | Exception]:
    """Compile cases for a GPU, or the imitated one, into one library."""
    found: list[Run | Exception] = []
    graphs = []
    for case in cases:
        try:
            graphs.append(AtcBackendRep(case.model, target).lower(case.feeds))
            found.append(lambda arrays: [])
        except AtcError as error:
            found.append(error)
    networks = iter(compile_networks(graphs, get_target(target), "O0", compile_all=compile_joined))
    return [f if isinstance(f, Exception) else _running(next(networks)) for f in found]


def _running(network: Network) -> Run:
    return lambda arrays: [
        *network.run({v.name: a for v, a in zip(network.inputs, arrays, strict=True)}).values()
    ]


def _reason(case: Case, runner: Run | Exception) -> str:
    match runner:
        case InternalError():
            return str(runner)
        case UnsupportedError():
            return f"refused: {runner}"
        case AtcError():
            return "" if case.expected is None else f"refused: {runner}"
        case Exception():
            return f"{type(runner).__name__}: {runner}"
    try:
        got = runner([case.feeds[i.name] for i in case.model.graph.input])
    except (AssertionError, RuntimeError) as error:
        return f"running: {error}"
    return difference(case, got)


def difference(case: Case, got: Sequence[Array]) -> str:
    """Return where the results differ from both references, '' where they don't."""
    expected = case.expected if case.expected is not None else run_reference(case)
    if expected is not None and not compare(got, expected):
        return ""
    second = run_onnxruntime(case)
    if second is not None and not compare(got, second):
        return ""
    if expected is None and second is None:
        return ""
    base = expected if expected is not None else second
    assert base is not None
    return compare(got, base, _unsteady(case, base))


def compare(
    got: Sequence[Array], expected: Sequence[Array], ignore: Sequence[Array] | None = None
) -> str:
    """Return the first difference between outputs, '' where there is none."""
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {k} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        wrong = _wrong(a, b)
        if ignore is not None:
            wrong &= ~ignore[k]
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong)) if a.ndim else ()
            return (
                f"output {k} ({a.dtype}{list(a.shape)}) differs at {at}: {a[at]!r}, not {b[at]!r}; "
                f"{int(wrong.sum())} of {a.size} elements"
            )
    return ""


def _wrong(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f" and a.dtype.name != "bfloat16":
        return np.asarray(a != b)
    coarse = {"float16": 2e-2, "bfloat16": 6e-2}.get(a.dtype.name, RTOL)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(y), np.abs(y), 0)
        scale = finite.max(initial=0.0)
        close = np.abs(x - y) <= coarse * np.abs(y) + min(ATOL * max(scale, 1e-3), 1e30)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.asarray(~(close | same))


def run_reference(case: Case) -> tuple[Array, ...] | None:
    """Return what the standard's reference computes, None where it can't."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            return tuple(
                map(np.asarray, ReferenceEvaluator(case.model).run(None, dict(case.feeds)))
            )
    except Exception:  # the reference raises whatever numpy does
        return None


def run_onnxruntime(case: Case) -> tuple[Array, ...] | None:
    """Return what onnxruntime computes, None where it isn't installed or refuses the model."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        model, larger = in_unsigned(case.model, case.feeds)
        inferred = onnx.shape_inference.infer_shapes(model)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in model.graph.output]
        return tuple(restored(names, session.run(None, dict(case.feeds)), larger))
    except Exception:  # its errors are of many kinds
        return None


def _unsteady(case: Case, expected: Sequence[Array]) -> list[Array]:
    """Return which results change much when float inputs and constants change a little."""
    rng = np.random.default_rng(0)
    ignore = [np.zeros(a.shape, bool) for a in expected]

    def near(a: Array) -> Array:
        if a.dtype.kind != "f" or not a.size:
            return a
        with np.errstate(all="ignore"):
            return np.asarray(a * (1 + 3e-6 * rng.standard_normal(a.shape))).astype(a.dtype)

    for _ in range(3):
        feeds = {name: near(a) for name, a in case.feeds.items()}
        model = onnx.ModelProto.FromString(case.model.SerializeToString())
        for tensor in model.graph.initializer:
            moved_array = near(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved_array, tensor.name))
        moved = Case(case.name, model, feeds)
        results = run_reference(moved) or run_onnxruntime(moved)
        if results is None:
            return ignore
        for k, (a, b) in enumerate(zip(results, expected, strict=True)):
            ignore[k] |= _wrong(a, b) if a.shape == b.shape else True
    return ignore


# ---- shrinking ----------------------------------------------------------------------------------


def shrink(failure: Failure, fails: Callable[[Case], str]) -> Failure:
    """Return the smallest part of a failing model that still fails.

    Nodes are taken out one by one; what they computed becomes an input.
    """
    best, values = failure, _all_values(failure.case)
    for cut in (_only_output, _without_node):
        changed = True
        while changed:
            changed = False
            for k in range(max(len(best.case.model.graph.node), len(best.case.model.graph.output))):
                smaller = cut(best.case, k, values)
                if smaller is None or len(smaller.model.graph.node) == 0:
                    continue
                reason = fails(smaller)
                if reason:
                    best, changed = Failure(smaller, reason), True
                    break
    return best


def _all_values(case: Case) -> dict[str, Array]:
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    del model.graph.output[:]
    names = [o for n in model.graph.node for o in n.output if o]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    whole = Case(case.name, model, case.feeds)
    results = run_reference(whole) or run_onnxruntime(whole) or ()
    return {**dict(zip(names, results, strict=False)), **case.feeds}


def _only_output(case: Case, k: int, values: Mapping[str, Array]) -> Case | None:
    """Return the model with its k-th inner value as the only output."""
    names = [o for n in case.model.graph.node for o in n.output if o]
    if k >= len(names) or (
        len(case.model.graph.output) == 1 and case.model.graph.output[0].name == names[k]
    ):
        return None
    later = [o.name for o in case.model.graph.output]
    if len(later) == 1 and names.index(later[0]) <= k:
        return None
    return _rebuilt(case, list(case.model.graph.node), [names[k]], values)


def _without_node(case: Case, k: int, values: Mapping[str, Array]) -> Case | None:
    nodes = list(case.model.graph.node)
    if k >= len(nodes) or len(nodes) == 1:
        return None
    made = set(nodes[k].output)
    outputs = [o.name for o in case.model.graph.output if o.name not in made]
    return _rebuilt(case, nodes[:k] + nodes[k + 1 :], outputs, values) if outputs else None


def _rebuilt(
    case: Case, nodes: list[onnx.NodeProto], outputs: list[str], values: Mapping[str, Array]
) -> Case | None:
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.insert(0, node)
            needed |= set(node.input)
    made = {o for n in kept for o in n.output}
    constants = [t for t in case.model.graph.initializer if t.name in needed]
    free = [n for n in needed if n and n not in made and n not in {t.name for t in constants}]
    if any(n not in values for n in free) or any(o not in made for o in outputs):
        return None
    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape
        )
        for n in sorted(free)
    ]
    results = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(kept, "fuzz", inputs, results, constants)
    model = helper.make_model(
        graph, opset_imports=list(case.model.opset_import), ir_version=case.model.ir_version
    )
    return Case(case.name, model, {n: values[n] for n in free})


def text(model: onnx.ModelProto) -> str:
    """Return a model as text, without its numbers."""
    lines = [
        f"  in   {v.name} {v.type.tensor_type.elem_type} "
        f"{[d.dim_value for d in v.type.tensor_type.shape.dim]}"
        for v in model.graph.input
    ]
    lines += [f"  init {t.name} {t.data_type} {list(t.dims)}" for t in model.graph.initializer]
    for n in model.graph.node:
        attributes = " ".join(f"{a.name}={_plain(a)}" for a in n.attribute)
        results, operands = ", ".join(map(str, n.output)), ", ".join(map(str, n.input))
        lines.append(f"  {results} = {n.op_type}({operands}) {attributes}")
    opsets = [f"{o.domain}:{o.version}" for o in model.opset_import]
    return "\n".join([f"  opsets {opsets}", *lines])


def _plain(attribute: Any) -> object:
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:
        return "?"
    return list(value) if hasattr(value, "__len__") and not isinstance(value, bytes) else value
