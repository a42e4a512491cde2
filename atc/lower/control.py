"""Lowering of If."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from atc.dims import ceiling, is_dynamic, lower_bound, maximum
from atc.errors import ModelError, UnsupportedError
from atc.ir.graph import DType, TensorType
from atc.ir.ops import If
from atc.ir.ops.data_dependent import ReadExtents
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.fitting import fitted
from atc.lower.registry import lowers


class BranchesDiffer(UnsupportedError):
    """The results of two branches have different ranks, which what follows them must know."""


@lowers("If")
def if_(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX If-21: a condition known when compiling leaves one branch."""
    condition = ctx.const(0)
    if condition is not None:
        chosen = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        return ctx.lower_subgraph(ctx.subgraph(chosen), ctx.b)
    if is_dynamic(ctx.shape(0)):
        one = (1,) * len(ctx.shape(0))
        message = f"the condition is {ctx.type(0)}, not one BOOL"
        ctx = replace(ctx, inputs=(fitted(ctx, ctx.input(0), one, message),))
    ctx.require(ctx.type(0).size == 1, f"the condition is {ctx.type(0)}, not one BOOL")
    names = ("then_branch", "else_branch")
    made_of = [ctx.try_lower(ctx.subgraph(n)) for n in names]
    wrong = [m for m in made_of if isinstance(m, ModelError)]
    if len(wrong) == 1 and not ctx.b.loops:
        return _other(ctx, names, made_of.index(wrong[0]), wrong[0])
    if wrong:
        raise wrong[0]
    (then, then_made), (other, other_made) = (m for m in made_of if not isinstance(m, ModelError))
    counts = [_alike(ctx, then, x, other, y) for x, y in zip(then_made, other_made, strict=True)]
    graphs = [
        b.graph(ctx.subgraph(n).name or "branch", (), [*_tensors(b, made)])
        for n, b, made in zip(names, (then, other), (then_made, other_made), strict=True)
    ]
    extents: dict[tuple[int, int], int] = {}
    types = [
        _common(ctx, a, b, extents)
        for a, b in zip(*(g.types_of(g.outputs) for g in graphs), strict=True)
    ]
    written = tuple((own, *pair) for pair, own in extents.items())
    results = iter(ctx.b.emit(If(graphs[0], graphs[1], written), [ctx.input(0)], *types))
    return tuple(composite(ctx.b, results) for composite in counts)


def _other(
    ctx: LoweringContext, names: Sequence[str], wrong: int, error: ModelError
) -> tuple[str, ...]:
    """Lower the one branch that fits the shapes; a run that takes the `wrong` one ends there."""
    wanted = int(wrong == 1)
    condition = ctx.b.cast(ctx.b.reshape(ctx.input(0), (1,)), DType.INT64)
    extent = ctx.b.symbol(f"the condition of {ctx.name}", 0, 1)
    ctx.b.emit(ReadExtents((extent,)), [condition], TensorType(DType.INT64, (1,)))
    ctx.b.must_be_equal(extent, wanted)
    ctx.b.warnings.append(
        f"{ctx.label}: the {names[wrong]} doesn't work with these shapes ({error.message}): "
        f"runs with the condition {'false' if wanted else 'true'} end with a status"
    )
    return ctx.lower_subgraph(ctx.subgraph(names[1 - wrong]), ctx.b)


def _common(
    ctx: LoweringContext, a: TensorType | None, b: TensorType | None,
    extents: dict[tuple[int, int], int],
) -> TensorType:
    """Return the type of a result; where extents differ it is one that the branch taken writes."""
    if a is None or b is None or a.dtype is not b.dtype or len(a.shape) != len(b.shape):
        raise BranchesDiffer(
            f"the branches give different types, {a} and {b}", where=ctx.label,
            hint="make the condition a constant, or give both the same rank",
        )  # fmt: skip
    shape: list[int] = []
    for pair in zip(a.shape, b.shape, strict=True):
        if pair[0] != pair[1] and pair not in extents:
            label = f"an extent of {ctx.name}"
            most = maximum(*map(ceiling, pair))
            extents[pair] = ctx.b.symbol(label, min(map(lower_bound, pair)), most)
        shape.append(pair[0] if pair[0] == pair[1] else extents[pair])
    return TensorType(a.dtype, tuple(shape))


def _tensors(b: Builder, made: Sequence[str]) -> Iterator[str]:
    """Yield the results of a branch with the elements of sequences in their places."""
    for name in made:
        parts = b.parts(name)
        yield from (name,) if parts is None else parts.names or ()


Composite = Callable[[Builder, Iterator[str]], str]
"""Takes as many tensors as it needs and returns a result of the node."""


def _alike(ctx: LoweringContext, then: Builder, x: str, other: Builder, y: str) -> Composite:
    """Return how a result is put together; both branches must give as many tensors."""
    ours, theirs = then.parts(x), other.parts(y)
    if ours is None and theirs is None:
        return lambda b, tensors: next(tensors)
    shown = [_shown(None if p is None else p.names, p is None) for p in (ours, theirs)]
    if shown[0] != shown[1] or any(p is not None and p.is_stacked for p in (ours, theirs)):
        raise UnsupportedError(
            f"the branches give {shown[0]} and {shown[1]}; which one is known only at run time",
            where=ctx.label, hint="make the condition a constant",
        )  # fmt: skip
    assert ours is not None
    if ours.names is None:
        return lambda b, _: b.nothing()
    count, dtype = len(ours.names), ours.dtype
    return lambda b, tensors: b.sequence([next(tensors) for _ in range(count)], dtype)


def _shown(names: Sequence[str] | None, tensor: bool) -> str:
    if tensor:
        return "a tensor"
    return "nothing" if names is None else f"a sequence of {len(names)}"
