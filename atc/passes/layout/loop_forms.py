"""Forms of nodes that are loops over views, and of those that join values or rename them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from atc.ir.graph import Node, Op
from atc.ir.ops import Epilogue, Map, MatMul, Reduce, Reshape
from atc.ir.ops.blocked import blocked_shape
from atc.ir.ops.data import Concat, Pad
from atc.ir.ops.sampling import Resample
from atc.ir.view import Split, View, compose, compose_refining, dense, simplify_loops
from atc.passes.canonical.fold_views import refine, tidy
from atc.passes.canonical.simplify_matmul import read_through
from atc.passes.canonical.sink_transposes import frame_axes
from atc.passes.layout.forms import Argument, Form, Layout, Read, Scene, plain_form, unlaid
from atc.passes.layout.operands import as_it_is, operands


def map_forms(scene: Scene, node: Node, op: Map, layout: Layout) -> Iterator[Form]:
    """Yield the forms of a Map whose result lies in a layout."""
    shape = scene.type(node.outputs[0]).shape
    if op.coordinates:
        return
    found = compose_refining(shape, [dense(shape)], 0, op.shape, op.views)
    if found is None or found[0][:2] != shape[:2]:
        return  # channels are split, as in a shuffle
    loops, _, plain = found
    read = operands(scene, layout, node.inputs, plain, loops)
    if read is None:
        return
    block = loops[1] if layout is Layout.LAST else scene.width
    arguments, views = read
    whole = Map(blocked_shape(loops, block), op.expr, views)
    yield Form(layout, _tidied(scene, whole, arguments), arguments)
    for k, argument in enumerate(arguments):  # read as it is instead
        if not isinstance(argument, Read) or argument.layout is not layout:
            continue
        moving = tuple(s if n != 1 else 0 for s, n in zip(plain[k].strides, loops, strict=True))
        other = as_it_is(argument.name, View(moving, plain[k].offset), loops, block)
        if other is not None and plain[k].strides[1] == 1:
            new = (*views[:k], other[1], *views[k + 1 :])
            direct = tidy(replace(whole, views=new))
            yield Form(layout, direct, (*arguments[:k], other[0], *arguments[k + 1 :]))


def _tidied(scene: Scene, op: Map, arguments: Sequence[Argument]) -> Map | Reshape:
    """Merge loops; what only shows its whole operand in order is that operand."""
    found, source = tidy(op), arguments[0] if arguments else None
    assert isinstance(found, Map)
    if not isinstance(source, Read) or not found.is_movement:
        return found
    size = scene.laid_out(scene.type(source.name), source.layout).size
    still = found.views[0] == dense(found.shape) and prod(found.shape) == size
    return Reshape() if still else found


def plain_loops(scene: Scene, node: Node) -> Iterator[Form]:
    """Yield forms with a plain result that read an operand through the view of another layout."""
    op = node.op
    yield plain_form(node)
    own = len(op.views) if isinstance(op, Map | Reduce) else 2 if isinstance(op, MatMul) else 0
    for k, name in enumerate(node.inputs[:own]):
        if scene.constant(name) is not None or len(scene.type(name).shape) < 3:
            continue
        for layout in _others(scene):
            inner = unlaid(scene, scene.type(name), layout)
            new = None if inner is None else _read_through(op, k, *inner)
            if new is not None:
                arguments = tuple(
                    Read(n, layout if i == k else Layout.PLAIN) for i, n in enumerate(node.inputs)
                )
                if isinstance(new, Map):
                    new = _tidied(scene, new, arguments)
                yield Form(Layout.PLAIN, new, arguments)
    yield from _all_through(scene, node, own)


def _others(scene: Scene) -> tuple[Layout, ...]:
    return scene.others if scene.bytes_alone else (Layout.BLOCKS, Layout.LAST)


def _all_through(scene: Scene, node: Node, own: int) -> Iterator[Form]:
    """Yield the forms of a Reduce that read all operands of one shape through another layout."""
    computed = [
        (k, scene.type(name)) for k, name in enumerate(node.inputs[:own])
        if scene.constant(name) is None and len(scene.type(name).shape) >= 3
    ]  # fmt: skip
    if not isinstance(node.op, Reduce) or not computed:
        return
    largest = max((type_ for _, type_ in computed), key=lambda type_: type_.size)
    alike = [k for k, type_ in computed if type_ == largest]
    for layout in _others(scene) if len(alike) > 1 else ():
        inner = unlaid(scene, largest, layout)
        op: Op | None = node.op if inner is not None else None
        for k in alike:
            op = None if op is None or inner is None else _read_through(op, k, *inner)
        if op is not None:
            arguments = tuple(
                Read(n, layout if k in alike else Layout.PLAIN) for k, n in enumerate(node.inputs)
            )
            yield Form(Layout.PLAIN, op, arguments)


def _read_through(op: Op, k: int, shape: tuple[int, ...], view: View) -> Op | None:
    """Return a loop nest with operand k read through the movement that would make it plain."""
    match op:
        case Reduce() if _in_any_order(op, prod(shape)):
            return op
        case Map() | Reduce():
            found = refine(op, k, shape, (view,))
            if found is None:
                return None
            new, (inner,) = found
            views = (*new.views[:k], inner, *new.views[k + 1 :])
            return replace(new, views=views)
        case MatMul():
            loops, views = simplify_loops(shape, (view,))  # rows are pixels, not split ones
            return read_through(op, k, loops, views)
    return None


def _in_any_order(op: Reduce, size: int) -> bool:
    """Return whether the result is the same in whatever order all of an operand is read."""
    all_of_it = len(op.views) == 1 and prod(op.shape) == 1 and prod(op.reduced) == size
    dense_ = all_of_it and not op.views[0].offset and op.views[0].is_dense((*op.shape, *op.reduced))
    return dense_ and op.how in ("Max", "Min") and not op.coordinates


def reduce_forms(scene: Scene, node: Node, op: Reduce, layout: Layout) -> Iterator[Form]:
    """Yield the form of a reduction over all pixels of each channel."""
    x = scene.type(node.inputs[0])
    own = len(node.inputs) - len(op.epilogue.views)
    loops = (*op.shape, *op.reduced)
    if own != 1 or len(op.views) != 1 or len(x.shape) < 3:
        return
    batch, channels, pixels = x.shape[0], x.shape[1], prod(x.shape[2:])
    whole = op.views[0].offset == 0 and op.views[0].is_dense(loops)
    if not whole or prod(op.reduced) != pixels or prod(op.shape) != batch * channels:
        return
    out = scene.type(node.outputs[0]).shape
    if out[:2] != (batch, channels):
        return
    found = compose(out, dense(out), op.shape, op.epilogue.views)
    if found is None or isinstance(found, Split):
        return
    read = operands(scene, layout, node.inputs[1:], found, out)
    if read is None:
        return
    block = scene.block(layout, x)
    stored = blocked_shape((batch, channels), block)
    short = tuple(View((*v.strides[:2], v.strides[-1]), v.offset) for v in read[1])
    view = View((stored[1] * pixels * block, pixels * block, 1, block))
    new = replace(
        op, shape=stored, reduced=(pixels,), views=(view,),
        epilogue=Epilogue(op.epilogue.expr, short),
    )  # fmt: skip
    yield Form(layout, new, (Read(node.inputs[0], layout), *read[0]))


def concat_forms(scene: Scene, node: Node, op: Concat, layout: Layout) -> Iterator[Form]:
    """Yield the form of operands side by side along the channels."""
    shape = scene.type(node.outputs[0]).shape
    types = [scene.type(i) for i in node.inputs]
    same = all(len(t.shape) == len(shape) and t.shape[2:] == shape[2:] for t in types)
    if not same or op.outer != shape[0] or sum(t.shape[1] for t in types) != shape[1]:
        return
    arguments = tuple(Read(name, layout) for name in node.inputs)
    if layout is Layout.LAST:
        outer = prod(shape) // shape[1]
        yield Form(layout, Concat(outer, tuple(t.shape[1] for t in types)), arguments)
    elif not any(t.shape[1] % scene.width for t in types[:-1]):  # whole blocks each but the last
        parts = tuple(scene.laid_out(t, layout).size // shape[0] for t in types)
        yield Form(layout, replace(op, parts=parts), arguments)


def reshape_forms(scene: Scene, node: Node, layout: Layout) -> Iterator[Form]:
    """Yield the form of a value under another name, whose channels stay what they are."""
    (source,), (name,) = node.inputs, node.outputs
    old, new = scene.type(source).shape, scene.type(name).shape
    if len(old) >= 2 and old[:2] == new[:2]:
        yield Form(layout, Reshape(), (Read(source, layout),))


def pad_forms(scene: Scene, node: Node, op: Pad, layout: Layout) -> Iterator[Form]:
    """Yield the form of a frame around the pixels."""
    type_ = scene.type(node.inputs[0])
    rows = frame_axes(op, type_.shape)
    if rows is None or len(rows) < 3 or any(any(row[1:]) for row in rows[:2]):
        return
    shape = scene.laid_out(type_, layout).shape
    begins, ends = ((0, 0, *(row[k] for row in rows[2:]), 0) for k in (1, 2))
    framed = replace(op, shape=shape, begins=begins, ends=ends)
    others = tuple(Read(name) for name in node.inputs[1:])
    yield Form(layout, framed, (Read(node.inputs[0], layout), *others))


def folded_pixels(views: Sequence[View], spatial: Sequence[int]) -> tuple[View, ...] | None:
    """Return views over [N, C, *spatial] with all pixels as one loop, if they can be."""
    loops, found = simplify_loops((2, 2, *spatial), views, barriers=(1, 2))
    if len(loops) > 3:
        return None
    if len(loops) == 2:
        return tuple(View((*v.strides, 0), v.offset) for v in found)
    return found


def resample_forms(scene: Scene, node: Node, op: Resample, layout: Layout) -> Iterator[Form]:
    """Yield the form that resizes an axis of pixels of a value in another layout."""
    x, y = scene.type(node.inputs[0]), scene.type(node.outputs[0])
    axis = op.axis(x.shape, y.shape)
    if axis is not None and axis > 1 and scene.layable(x, 3):
        laid = scene.laid_out(x, layout).shape
        new = replace(op, outer=prod(laid[:axis]), inner=prod(laid[axis + 1 :]))
        yield Form(layout, new, (Read(node.inputs[0], layout), *map(Read, node.inputs[1:])))
