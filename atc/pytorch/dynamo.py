"""`torch.compile(model, backend="atc")`: graphs that Dynamo finds run in compiled libraries.

A graph is compiled for the shapes that it is called with; where Dynamo leaves extents open, one
library takes ranges of them. Parameters are read anew by each call; with the option `freeze` they
are packed into the library as constants. Where gradients are recorded, forward and backward are
graphs of their own (`autograd.py`). What can't be compiled runs eagerly, and a warning says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from atc.api import compile as compile_file
from atc.errors import AtcError, one_line
from atc.files.temporary import temporary_folder
from atc.pytorch.autograd import leave_out_checkpoints, of_operators
from atc.pytorch.export import export, reason
from atc.pytorch.graphs import (
    Bound,
    Computed,
    ImpureError,
    Run,
    check_type,
    results_of,
    runner,
    unsupported,
)
from atc.pytorch.open_shapes import (
    NOTHING_OPEN,
    Limits,
    OpenShapes,
    Range,
    dims_of,
    input_shape_of,
    limits_of,
    narrowed,
    numbers_read,
    open_shapes,
)
from atc.runtime.load import open_network

_EAGERLY = "atc runs a graph eagerly"

_PRECISION = frozenset(
    {"precision_mode", "precision_mode_v2", "op_select_implmode", "max_error", "allow_hf32"}
)
"""Keywords that say what products may be computed in, in the place of PyTorch's own setting."""

LARGEST = 16
"""Libraries that are kept of one graph, and shapes whose library is known at once."""


def backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> Run:  # fmt: skip
    """Return what runs a graph: the entry point `torch_dynamo_backends` of the name `atc`.

    `options` are `torch.compile`'s: keywords of `atc.compile`; `freeze`, for parameters that don't
    change any more; `dynamic`, the `(lowest, largest)` extents of libraries for ranges, or False
    for a library for each shape. Products of floats are rounded no further than
    `torch.set_float32_matmul_precision` allows: not at all by default. Raises OptionError.
    """
    keywords = {"op_compiler_cache_mode": "enable", **(options or {})}
    limits = limits_of(keywords.pop("dynamic", "input_shape" not in keywords))
    freeze = bool(keywords.pop("freeze", False))
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    if freeze or not _are_recorded(tensors):
        leave_out_checkpoints(graph)
        return _Graph(graph, freeze, limits, keywords)
    try:
        return of_operators(
            graph, example_inputs, lambda part: _Graph(part, False, limits, keywords, True)
        )
    except TensorifyScalarRestartAnalysis:
        raise  # Dynamo traces again
    except Exception as error:  # AOTAutograd raises whatever its parts do
        why = f"its gradients can't be traced: {reason(error)}"
        warnings.warn(one_line(f"{_EAGERLY}: {why}"), stacklevel=2)
        leave_out_checkpoints(graph)
        eager: Run = graph.forward
        return eager


def _allowed_precision(tensors: Iterable[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what PyTorch's own setting says of products, where no option says it.

    Graphs that have tensors of 16 bits aren't asked: the setting is about products of floats.
    """
    halves = (torch.float16, torch.bfloat16)
    asked = options.keys() & _PRECISION or torch.get_float32_matmul_precision() != "highest"
    if asked or any(isinstance(x, torch.Tensor) and x.dtype in halves for x in tensors):
        return {}
    return {"precision_mode": "must_keep_origin_dtype"}


def _are_recorded(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether gradients are recorded of what is computed of tensors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _casts(graph: torch.fx.GraphModule) -> bool:
    """Return whether a graph, or a part, is under autocast, of which the exporter loses the types.

    Whoever calls it under another one gets another graph.
    """
    inside = any(n.target is torch.amp.autocast_mode._enter_autocast for n in graph.graph.nodes)
    return inside or any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


@dataclass(frozen=True)
class _Library:
    """A library for ranges of extents; `kinds` say what else its inputs are."""

    kinds: tuple[Any, ...]
    ranges: Mapping[str, Range]
    run: Run

    def takes(self, kinds: tuple[Any, ...], extents: Mapping[str, int]) -> bool:
        """Return whether it is the right one for a call."""
        return self.kinds == kinds and all(
            low <= extents[name] <= high for name, (low, high) in self.ranges.items()
        )


class _Graph:
    """A graph and the libraries that were compiled of it."""

    def __init__(
        self, graph: torch.fx.GraphModule, freeze: bool, limits: Limits | None,
        options: Mapping[str, Any], of_operators: bool = False,
    ) -> None:  # fmt: skip
        self._graph, self._freeze, self._of_operators = graph, freeze, of_operators
        self._limits, self._options = limits, dict(options)
        self._runs: dict[Any, Run] = {}
        self._libraries: list[_Library] = []
        self._warned: set[str] = set()
        self._read = numbers_read(graph)
        self._numbers: set[Any] = set()
        self._open = NOTHING_OPEN
        self._closed = ""
        """Why each shape has a library of its own, though extents are open."""
        try:
            if limits is not None:
                self._open = open_shapes(graph)
        except AtcError as error:
            self._close(error)

    def __call__(self, *inputs: Any) -> Any:
        """Return the graph's outputs."""
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        weights = [*self._graph.parameters(), *self._graph.buffers()]
        if _are_recorded((*tensors, *weights)):
            return self._eager(
                "gradients are recorded, and parameters are constants: call it under "
                "torch.no_grad(), or without freeze", *inputs,
            )  # fmt: skip
        key = tuple(self._kind(k, x) for k, x in enumerate(inputs))
        run = self._runs.get(key)
        if run is None:
            run = self._made(inputs)
            while len(self._runs) >= LARGEST:
                self._runs.pop(next(iter(self._runs)))
            self._runs[key] = run
        return run(*inputs)

    def _made(self, inputs: Sequence[Any]) -> Run:
        """Return what runs the graph on inputs of these kinds, eagerly if nothing else does."""
        if not self._of_operators and _casts(self._graph):
            return self._functional(inputs, "it casts by itself")
        try:
            with ThreadPoolExecutor(1) as clean:  # derivatives run in a state without export
                return clean.submit(self._found, inputs).result()
        except ImpureError as error:
            if self._of_operators:
                return partial(self._eager, str(error))
            return self._functional(inputs, str(error))
        except AtcError as error:
            return partial(self._eager, str(error))

    def _functional(self, inputs: Sequence[Any], why: str) -> Run:
        """Return what runs a graph without what it does beside computing, which is done behind."""
        try:
            return of_operators(
                self._graph, inputs, lambda part: _Graph(part, False, None, self._options, True)
            )
        except Exception as error:  # AOTAutograd raises whatever its parts do
            return partial(self._eager, f"{why}: {reason(error)}")

    def _eager(self, why: str, *inputs: Any) -> Any:
        self._warn(_EAGERLY, why)
        return self._graph(*inputs)

    def _warn(self, what: str, why: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(one_line(f"{what}: {why}"), stacklevel=4)

    def _kind(self, index: int, x: Any, named: Mapping[int, str] | None = None) -> Any:
        """Return what must be equal for a library to be the right one; `named` axes are open."""
        if index in self._read.items:
            return repr(x.item())
        if self._is_fixed(index, x):
            return (type(x), id(x) if isinstance(x, torch.Tensor) else x)
        shape = tuple(x.shape) if not named else tuple(
            named.get(axis, extent) for axis, extent in enumerate(x.shape)
        )  # fmt: skip
        return (x.dtype, shape, x.device.type)

    def _is_fixed(self, index: int, x: Any) -> bool:
        """Return whether an input is a constant of the library."""
        return index in self._read.items or not isinstance(x, torch.Tensor) or (
            self._freeze and isinstance(x, torch.nn.Parameter)
        )  # fmt: skip

    def _found(self, inputs: Sequence[Any]) -> Run:
        """Return what runs the graph on inputs of these shapes and with these parameters."""
        while ranges := self._open.ranges(inputs, self._limits or (0, None)):
            try:
                return self._in_range(inputs, ranges)
            except AtcError as error:
                self._close(error)
        run, _ = self._compiled(inputs, {})
        if self._closed:
            self._warn("atc compiles a library for each shape", self._closed)
        return run

    def _in_range(self, inputs: Sequence[Any], ranges: Mapping[str, Range]) -> Run:
        """Return what runs the graph in a library for ranges."""
        extents = self._open.extents(inputs)
        kinds = tuple(
            self._open.numbers.get(k) or self._kind(k, x, self._open.named(k))
            for k, x in enumerate(inputs)
        )
        for library in self._libraries:
            if library.takes(kinds, extents):
                return library.run
        run, ranges = self._compiled(inputs, ranges)
        self._libraries = [*self._libraries[1 - LARGEST :], _Library(kinds, ranges, run)]
        return run

    def _close(self, error: AtcError) -> None:
        """Keep open from now on what is more likely to work, and at last nothing."""
        batches = self._open.batches()
        self._open = batches if batches != self._open else NOTHING_OPEN
        self._closed = str(error)

    def _check_numbers(self, inputs: Sequence[Any]) -> None:
        """Raise AtcError where Python's numbers, which are constants, change all the time."""
        self._numbers.add(tuple(self._kind(k, inputs[k]) for k in self._read.numbers))
        if len(self._numbers) > LARGEST:
            raise unsupported(f"its numbers have changed {LARGEST} times; make them tensors")

    def _check(self, inputs: Sequence[Any], given: Sequence[int], shapes: OpenShapes) -> None:
        """Raise AtcError where no library can be given these inputs; others are constants."""
        self._check_numbers(inputs)
        if {k for k, _ in shapes.axes} - {*given}:
            raise unsupported("a constant has an open extent")
        if any(x.device.type != "cpu" for x in inputs if isinstance(x, torch.Tensor)):
            raise unsupported("a tensor isn't on the CPU")
        for k in given:
            check_type(inputs[k])
        if not self._freeze and any(True for _ in self._graph.parameters()):
            raise unsupported("the graph owns parameters, which may change; use freeze")

    def _compiled(
        self, inputs: Sequence[Any], ranges: Mapping[str, Range]
    ) -> tuple[Run, Mapping[str, Range]]:
        """Return what runs the graph on inputs like these, and the ranges that it is for."""
        shapes = self._open if ranges else NOTHING_OPEN
        given = [k for k, x in enumerate(inputs) if not self._is_fixed(k, x)]
        self._check(inputs, given, shapes)
        results = results_of(self._graph, inputs, shapes)
        chosen = [r for r in results if not isinstance(r, Computed)]
        if len(chosen) == len(results):
            return lambda *again: tuple(r(again) for r in chosen), ranges
        module = Bound(self._graph, inputs, given, self._read.items, shapes, results)
        options = self._options | _allowed_precision(inputs, self._options)
        with temporary_folder("dynamo") as folder:
            path, output = Path(folder, "graph.onnx"), Path(folder, "graph")
            dims = dims_of(shapes, given, ranges) if ranges else None
            tensors = [inputs[k] for k in given]
            axes = export(module, tensors, path, dims, of_operators=self._of_operators)
            if ranges:
                ranges = narrowed(axes, shapes, given, ranges)
                options["input_shape"] = input_shape_of(axes, ranges)
            compile_file(path, output, **options)
            try:
                network = open_network(output)
            except MemoryError:
                raise unsupported(f"there is no memory for extents of {ranges}") from None
        return runner(network, given, results), ranges
