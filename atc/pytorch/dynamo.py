"""`torch.compile(model, backend="atc")`: graphs that Dynamo finds run in compiled libraries.

A graph is compiled for the shapes that it is called with. Parameters are read anew by each call;
with the option `freeze` they are packed into the library as constants. What can't be compiled runs
eagerly, and a warning says why.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from atc.api import compile as compile_file
from atc.errors import AtcError, one_line
from atc.files.temporary import temporary_folder
from atc.pytorch.export import export
from atc.runtime.load import open_network
from atc.runtime.network import Network

_TYPES = frozenset(
    f"torch.{name}" for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16",
                                 "float32", "float64")
)  # fmt: skip

LARGEST = 16
"""Libraries that are kept of one graph, for as many shapes."""

Run = Callable[..., Any]


def backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> Run:  # fmt: skip
    """Return what runs a graph: the entry point `torch_dynamo_backends` of the name `atc`.

    `options` are `torch.compile`'s: keywords of `atc.compile`, and `freeze`, for parameters that
    don't change any more.
    """
    keywords = {"op_compiler_cache_mode": "enable", **(options or {})}
    return _Graph(graph, bool(keywords.pop("freeze", False)), keywords)


class _Graph:
    """A graph and the libraries that were compiled of it."""

    def __init__(
        self, graph: torch.fx.GraphModule, freeze: bool, options: Mapping[str, Any]
    ) -> None:
        self._graph, self._freeze = graph, freeze
        self._options = dict(options)
        self._runs: dict[Any, Run] = {}
        self._warned = False

    def __call__(self, *inputs: Any) -> Any:
        """Return the graph's outputs."""
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        weights = [*self._graph.parameters(), *self._graph.buffers()]
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *weights)):
            return self._eager("gradients are recorded; call it under torch.no_grad()", inputs)
        key = tuple(self._kind(x) for x in inputs)
        run = self._runs.get(key)
        if run is None:
            try:
                run = self._compiled(inputs)
            except AtcError as error:
                return self._eager(str(error), inputs)
            while len(self._runs) >= LARGEST:
                self._runs.pop(next(iter(self._runs)))
            self._runs[key] = run
        return run(*inputs)

    def _eager(self, why: str, inputs: Sequence[Any]) -> Any:
        if not self._warned:
            self._warned = True
            warnings.warn(one_line(f"atc runs a graph eagerly: {why}"), stacklevel=3)
        return self._graph(*inputs)

    def _kind(self, x: Any) -> Any:
        """Return what must be equal for a library to be the right one."""
        if self._is_fixed(x):
            return (type(x), id(x) if isinstance(x, torch.Tensor) else x)
        return (x.dtype, tuple(x.shape), x.device.type)

    def _is_fixed(self, x: Any) -> bool:
        """Return whether an input is a constant of the library."""
        return not isinstance(x, torch.Tensor) or (
            self._freeze and isinstance(x, torch.nn.Parameter)
        )

    def _compiled(self, inputs: Sequence[Any]) -> Run:
        """Return what runs the graph on inputs of these shapes and with these parameters."""
        given = [k for k, x in enumerate(inputs) if not self._is_fixed(x)]
        if any(x.device.type != "cpu" for x in inputs if isinstance(x, torch.Tensor)):
            raise _unsupported("a tensor isn't on the CPU")
        foreign = {str(inputs[k].dtype) for k in given} - _TYPES
        if foreign:
            raise _unsupported(f"a tensor is of {foreign.pop()}")
        if not self._freeze and any(True for _ in self._graph.parameters()):
            raise _unsupported("the graph owns parameters, which may change; use freeze")
        whole = _results(self._graph, inputs)
        module = _Bound(self._graph, inputs, given)
        with temporary_folder("dynamo") as folder:
            path, output = Path(folder, "graph.onnx"), Path(folder, "graph")
            export(module, [inputs[k] for k in given], path)
            compile_file(path, output, **self._options)
            network = open_network(output)
        return _runner(network, given, whole)


class _Bound(torch.nn.Module):  # type: ignore[misc]
    """A graph as a module of its tensors alone, whose outputs are tensors."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], given: Sequence[int]):
        super().__init__()
        self.graph_module = graph
        self._given = [*given]
        self._fixed = {k: x for k, x in enumerate(inputs) if k not in given}
        for k, x in self._fixed.items():
            if isinstance(x, torch.nn.Parameter):
                self.register_parameter(f"fixed_{k}", x)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the tensors among the graph's results."""
        listed: list[Any] = [None] * (len(self._given) + len(self._fixed))
        for k, tensor in zip(self._given, tensors, strict=True):
            listed[k] = tensor
        for k, x in self._fixed.items():
            listed[k] = getattr(self, f"fixed_{k}") if isinstance(x, torch.nn.Parameter) else x
        return tuple(r for r in self.graph_module(*listed) if isinstance(r, torch.Tensor))


def _results(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Return what a graph gives, with None for each tensor.

    Raises AtcError for a graph that does more than compute: it is run once, on copies.
    """
    copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    whole = copy.deepcopy(graph)
    pairs = [(x, y) for x, y in zip(inputs, copies, strict=True) if isinstance(x, torch.Tensor)]
    pairs += zip(graph.buffers(), whole.buffers(), strict=True)
    state = torch.random.get_rng_state()
    results = whole(*copies)
    if not torch.equal(state, torch.random.get_rng_state()):
        torch.random.set_rng_state(state)
        raise _unsupported("the graph draws random numbers")
    if not all(torch.equal(_bits(x), _bits(y)) for x, y in pairs):
        raise _unsupported("the graph changes tensors in place")
    if any(a is b for a in results for b in copies if isinstance(a, torch.Tensor)):
        raise _unsupported("the graph returns an input")
    return [None if isinstance(r, torch.Tensor) else (r,) for r in results]


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def _unsupported(why: str) -> AtcError:
    return AtcError(why, code="E10055")


def _runner(network: Network, given: Sequence[int], whole: Sequence[Any]) -> Run:
    """Return the call of a network on tensors, which are read where they lie."""
    count = sum(r is None for r in whole)
    try:
        places = [int(t.name.removeprefix("tensors_")) for t in network.inputs]
        read = [given[k] for k in places]
    except (ValueError, IndexError):
        read = []
    if len(read) != len(network.inputs) or len(network.outputs) != count:
        raise _unsupported("the exporter changed the graph's inputs or outputs")

    def run(*inputs: Any) -> Any:
        arrays = [inputs[k].detach().contiguous().numpy() for k in read]
        found = network(*arrays)
        tensors = iter(found if isinstance(found, tuple) else (found,))
        return tuple(torch.from_dlpack(next(tensors)) if r is None else r[0] for r in whole)

    return run
