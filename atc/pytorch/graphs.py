"""A graph of Dynamo's: as a module that can be exported, and as the call of a compiled network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import ml_dtypes
import numpy as np
import torch

from atc.errors import AtcError
from atc.pytorch.open_shapes import OpenShapes, Place, number_of, numbers_made
from atc.runtime.network import Network

Run = Callable[..., Any]


@dataclass(frozen=True)
class Computed:
    """A tensor that the library computes."""

    order: tuple[int, ...] = ()
    """Its axes as they lie in memory, where PyTorch has them in another order."""

    def laid(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor as it lies in eager PyTorch."""
        if not self.order:
            return tensor
        back = [self.order.index(axis) for axis in range(tensor.dim())]
        return tensor.permute(self.order).contiguous().permute(back)


Result = Callable[[Sequence[Any]], Any] | Computed
"""What gives a result from a call's inputs, or what is known of one that is computed."""


class _Item:
    """A number of Python's in the place of a tensor without axes, whose item a graph takes."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        """Return the number."""
        return self._value


class Bound(torch.nn.Module):  # type: ignore[misc]
    """A graph as a module of its tensors alone, whose outputs are those that are computed."""

    def __init__(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], given: Sequence[int],
        items: Collection[int], shapes: OpenShapes, results: Sequence[Result],
    ) -> None:  # fmt: skip
        super().__init__()
        self.training = False
        self.graph_module = graph
        self._computed = [k for k, r in enumerate(results) if isinstance(r, Computed)]
        self._given = [*given]
        self._fixed = {
            k: _Item(x.item()) if k in items else x for k, x in enumerate(inputs) if k not in given
        }
        places = shapes.places()
        self._extents: dict[int, Place] = {k: places[name] for k, name in shapes.numbers.items()}
        for k, x in self._fixed.items():
            if isinstance(x, torch.nn.Parameter):
                self.register_parameter(f"fixed_{k}", x)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the results that are computed."""
        listed: list[Any] = [None] * (len(self._given) + len(self._fixed))
        for k, tensor in zip(self._given, tensors, strict=True):
            listed[k] = tensor
        for k, x in self._fixed.items():
            listed[k] = getattr(self, f"fixed_{k}") if isinstance(x, torch.nn.Parameter) else x
        for k, (place, axis) in self._extents.items():
            listed[k] = listed[place].shape[axis]
        results = self.graph_module(*listed)
        return tuple(results[k] for k in self._computed)


def results_of(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], shapes: OpenShapes
) -> list[Result]:
    """Return what gives a graph's results.

    It is run once, on copies. Raises ImpureError for a graph that does more than compute, AtcError
    for numbers that can't be told.
    """
    copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    whole = copy.deepcopy(graph)
    pairs = [(x, y) for x, y in zip(inputs, copies, strict=True) if isinstance(x, torch.Tensor)]
    pairs += zip(graph.buffers(), whole.buffers(), strict=True)
    state = torch.random.get_rng_state()
    results = whole(*copies)
    if not torch.equal(state, torch.random.get_rng_state()):
        torch.random.set_rng_state(state)
        raise ImpureError("the graph draws random numbers", code="E10055")
    if not all(torch.equal(_bits(x), _bits(y)) for x, y in pairs):
        raise ImpureError("the graph changes tensors in place", code="E10055")
    given = {id(copy): k for k, copy in enumerate(copies) if isinstance(copy, torch.Tensor)}
    return [
        itemgetter(given[id(result)]) if id(result) in given else _result(result, symbol, shapes)
        for result, symbol in zip(results, numbers_made(graph), strict=True)
    ]


def _result(result: Any, symbol: Any, shapes: OpenShapes) -> Result:
    if isinstance(result, torch.Tensor):
        check_type(result)
        order = sorted(range(result.dim()), key=result.stride, reverse=True)
        lies_so = result.is_contiguous() or not result.permute(order).is_contiguous()
        return Computed(() if lies_so else tuple(order))
    return number_of(symbol, shapes) if symbol is not None and shapes.axes else lambda _: result


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


class ImpureError(AtcError):
    """A graph does more than compute: it draws random numbers, or changes what it is given."""


_TYPES = frozenset((
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16,
    torch.float16, torch.float32, torch.float64,
))  # fmt: skip


def check_type(tensor: torch.Tensor) -> None:
    """Raise AtcError for a tensor whose type no library takes or gives."""
    if tensor.dtype not in _TYPES:
        raise unsupported(f"a tensor is of {tensor.dtype}")


def unsupported(why: str) -> AtcError:
    """Return the error of a graph that runs eagerly."""
    return AtcError(why, code="E10055")


def runner(network: Network, given: Sequence[int], results: Sequence[Result]) -> Run:
    """Return the call of a network on tensors, which are read where they lie."""
    count = sum(isinstance(r, Computed) for r in results)
    try:
        places = [int(t.name.removeprefix("tensors_")) for t in network.inputs]
        read = [given[k] for k in places]
    except (ValueError, IndexError):
        read = []
    if len(read) != len(network.inputs) or len(network.outputs) != count:
        raise unsupported("the exporter changed the graph's inputs or outputs")

    def run(*inputs: Any) -> Any:
        found = network(*[_array(inputs[k]) for k in read])
        tensors = iter(found if isinstance(found, tuple) else (found,))
        return tuple(
            r.laid(_tensor(next(tensors))) if isinstance(r, Computed) else r(inputs)
            for r in results
        )

    return run


def _array(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's elements where they lie, or in order if they don't lie so."""
    x = x.detach().contiguous()
    if x.dtype is torch.bfloat16:  # which numpy itself doesn't have
        bits: np.ndarray[Any, Any] = x.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: np.ndarray[Any, Any] = x.numpy()
    return array


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
