"""Graphs whose gradients are recorded: AOTAutograd makes a forward and a backward graph of each.

Both are graphs of ATen's operators that change nothing in place. Random numbers are drawn by
PyTorch before a graph runs, from the generator and in the order of eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import default_partition
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.nn.attention import SDPBackend, sdpa_kernel

from atc.errors import UnsupportedError
from atc.pytorch.graphs import Run
from atc.pytorch.kept_registry import kept_registry
from atc.pytorch.open_shapes import OpenShapes, number_of, open_shapes

_ATEN = torch.ops.aten


def of_operators(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], compiled: Callable[[Any], Run]
) -> Run:
    """Return what runs a graph in graphs of operators, with its gradients if they are recorded.

    Tensors that it changes in place are changed behind them. `compiled` makes what runs such a
    graph. Raises what AOTAutograd raises.
    """

    def compiler(part: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        draws = _hoist_random_numbers(part)
        run = compiled(part)
        return make_boxed_func(lambda *given: run(*given, *(draw(given) for draw in draws)))

    traced = aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, decompositions=_decompositions(),
        partition_fn=default_partition,
    )  # fmt: skip
    with sdpa_kernel(SDPBackend.MATH):  # the other ways of attention have derivatives of their own
        run: Run = traced(graph, inputs)
    return run


def leave_out_checkpoints(graph: torch.fx.GraphModule) -> None:
    """Let a graph that runs eagerly keep what it would compute again.

    Dynamo's checkpoints leave it to compilers that the same random numbers are drawn again.
    """
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if node.target is torch.ops.higher_order.tag_activation_checkpoint:
                    node.target, node.kwargs = _called, {}
            part.recompile()


def _called(part: torch.fx.GraphModule, *operands: Any) -> Any:
    return part(*operands)


def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    table = core_aten_decompositions()
    table.pop(_ATEN.bernoulli.default, None)  # it draws other numbers than eager PyTorch does
    with kept_registry():
        core = {**table}
    return {
        **core,
        **get_decompositions([
            _ATEN._native_batch_norm_legit, _ATEN._native_batch_norm_legit_functional,
            _ATEN._native_batch_norm_legit_no_training,
        ]),
        _ATEN.native_dropout.default: _dropout,
    }  # fmt: skip


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a mask as eager PyTorch does."""
    if train is False:
        return x, torch.ones_like(x, dtype=torch.bool)
    kept = _ATEN.bernoulli.p(torch.empty_like(x), 1 - p)
    return x * (kept * (0.0 if p == 1 else 1 / (1 - p))), kept.to(torch.bool)


# ---- random numbers -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Draw:
    """A call that draws random numbers for tensors of given types and shapes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: OpenShapes
    states: Mapping[torch.fx.Node, int]
    """Which inputs of the graph are states of the generator."""

    def __call__(self, inputs: Sequence[Any]) -> Any:
        def made(node: torch.fx.Node) -> torch.Tensor:
            if node in self.states:
                return inputs[self.states[node]]
            value = node.meta["val"]
            how = {"dtype": value.dtype, "device": value.device}
            numbers = (n if type(n) is int else number_of(n, self.shapes)(inputs)
                       for n in (*value.shape, *value.stride()))  # fmt: skip
            sizes = [*numbers]
            return torch.empty_strided(sizes[: value.dim()], sizes[value.dim() :], **how)

        return self.function(*torch.fx.map_arg(self.args, made), **self.kwargs)


_BY_SHAPE = frozenset((
    _ATEN.bernoulli.p, _ATEN.rand_like.default, _ATEN.randn_like.default,
    _ATEN.randint_like.default, _ATEN.randint_like.low_dtype, _ATEN.uniform.default,
    _ATEN.normal_functional.default, _ATEN.exponential.default,
))  # fmt: skip
"""Operators of one tensor, that draw as many numbers as it has, whatever these are."""


def _mask(x: torch.Tensor, p: float) -> torch.Tensor:
    """Draw in the order of a tensor's memory, as eager PyTorch does in place."""
    made: torch.Tensor = torch.empty_like(x).bernoulli_(p)
    return made


def _again(
    state: torch.Tensor, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Draw from a state of the generator's, which goes on behind as if nothing was drawn."""
    with torch.random.fork_rng(devices=()):
        torch.random.set_rng_state(state)
        made: torch.Tensor = function(*args, **kwargs)
        return made


def _write_out_states(graph: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """Make functions of how checkpoints save states of the generator, and draw from them again.

    Returns which inputs of the graph are such states.
    """
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    states = {}
    for node in [*graph.graph.nodes]:
        if node.target is run_and_save_rng_state:
            function, *args = node.args
            with graph.graph.inserting_before(node):
                made = (graph.graph.call_function(torch.random.get_rng_state),
                        graph.graph.call_function(function, tuple(args), node.kwargs))  # fmt: skip
            for user in [*node.users]:
                new = made[user.args[1]]
                new.meta = dict(user.meta)
                user.replace_all_uses_with(new)
                graph.graph.erase_node(user)
            graph.graph.erase_node(node)
            made[0].meta["val"] = torch.random.get_rng_state()
        elif node.target is run_with_rng_state:
            node.target = _again
            state = node.args[0]
            if state in inputs:
                states[state] = inputs.index(state)
                state.meta["val"] = torch.random.get_rng_state()  # whose size is fixed
    return states


def _hoist_random_numbers(graph: torch.fx.GraphModule) -> list[_Draw]:
    """Make inputs of the random numbers that a graph draws; return what draws them.

    Where one depends on other values than extents all stay, in their order.
    """
    draws: list[_Draw] = []
    states = _write_out_states(graph)
    last = [n for n in graph.graph.nodes if n.op == "placeholder"][-1:]
    shapes = open_shapes(graph, partly=True)
    random = [n for n in graph.graph.nodes if _is_random(n)]
    by_shape = all([_is_by_shape(node, shapes) for node in random])
    for node in random:
        if node.target is _ATEN.bernoulli.p:
            node.target = _mask
        node.args = tuple(_mask if a is _ATEN.bernoulli.p else a for a in node.args)
    if not by_shape:
        graph.recompile()
        return draws
    for node in random:
        draws.append(_Draw(node.target, node.args, node.kwargs, shapes, states))
        with graph.graph.inserting_after(last[0]) if last else graph.graph.inserting_before():
            drawn = graph.graph.placeholder(f"drawn_{len(draws)}")
        drawn.meta = dict(node.meta)
        node.replace_all_uses_with(drawn)
        graph.graph.erase_node(node)
        last = [drawn]
    if draws:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return draws


def _is_random(node: torch.fx.Node) -> bool:
    """Return whether a node draws random numbers, or tells the generator's state."""
    return node.target in (torch.random.get_rng_state, _again) or (
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
    )


def _is_by_shape(node: torch.fx.Node, shapes: OpenShapes) -> bool:
    """Return whether random numbers depend on nothing but a shape that calls tell."""
    function, operands = node.target, node.all_input_nodes
    if function is _again:
        if node.args[0].op != "placeholder":
            return False
        function, operands = node.args[1], operands[1:]
    values = [n.meta["val"] for n in operands]
    if not values:
        return _is_closed(node.meta["val"])
    (value, *others) = values
    if others or function not in _BY_SHAPE or not isinstance(value, torch.Tensor):
        return False
    try:
        for number in (*value.shape, *value.stride()):
            if type(number) is not int:
                number_of(number, shapes)
    except UnsupportedError:
        return False
    return True


def _is_closed(value: Any) -> bool:
    """Return whether a tensor has the same shape in all calls."""
    return isinstance(value, torch.Tensor) and all(type(n) is int for n in value.shape)
