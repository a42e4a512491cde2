"""The passes in order: each takes a graph and returns a graph.

Target-free; costs of kernels come in as arguments. May import `ir` and `dims`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from atc.ir.graph import Array, Graph, Op
from atc.ir.ops import If, Loop
from atc.ir.verify import verify
from atc.passes.canonical.alias_slices import alias_slices
from atc.passes.canonical.common_subexpressions import eliminate_common_subexpressions
from atc.passes.canonical.conv_filter_gradient import filter_gradient_as_conv
from atc.passes.canonical.conv_transpose import conv_transpose_as_conv
from atc.passes.canonical.decompose_conv3d import decompose_conv3d
from atc.passes.canonical.decompose_pool3d import decompose_pool3d
from atc.passes.canonical.fold_views import fold_views
from atc.passes.canonical.gather_taps import gather_taps
from atc.passes.canonical.lookup_tables import build_lookup_table
from atc.passes.canonical.normalize_channels import normalize_channels
from atc.passes.canonical.overwrite_parts import overwrite_parts
from atc.passes.canonical.pack_operands import pack_operands
from atc.passes.canonical.read_parts import read_parts
from atc.passes.canonical.simplify_matmul import simplify_matmul
from atc.passes.canonical.sink_transposes import sink_transposes
from atc.passes.canonical.skip_empty import skip_empty
from atc.passes.canonical.slide_states import slide_states
from atc.passes.canonical.split_states import split_states
from atc.passes.fuse.attention import Kernels, fuse_attention
from atc.passes.fuse.compose_products import compose_products
from atc.passes.fuse.elementwise import fuse_elementwise, fuse_maps, inline_cheap, inline_conditions
from atc.passes.fuse.epilogue import fuse_epilogue, fuse_known_epilogue, look_up_sums
from atc.passes.fuse.fold_affine import fold_affine
from atc.passes.fuse.group_products import group_products
from atc.passes.fuse.mask_positions import mask_positions
from atc.passes.fuse.move_pointwise import move_pointwise
from atc.passes.fuse.packed_siblings import merge_packed_siblings
from atc.passes.fuse.parallel_convolutions import merge_parallel_convolutions
from atc.passes.fuse.read_halves import read_halves
from atc.passes.fuse.round_activations import round_activations
from atc.passes.fuse.siblings import fuse_siblings
from atc.passes.layout import Layouts, choose_layouts
from atc.passes.layout.batch_last import move_batch_last
from atc.passes.layout.store_bf16 import Storing, store_bf16
from atc.passes.layout.store_exact import store_exact
from atc.passes.layout.store_halves import store_halves
from atc.passes.layout.widen_halves import widen_halves
from atc.passes.quantized.conv_transpose import conv_transpose_of_integers
from atc.passes.quantized.fill_dilation import fill_dilation
from atc.passes.quantized.fuse_requantize import fuse_requantize
from atc.passes.quantized.lower_qdq import lower_qdq
from atc.passes.quantized.merge_padding import merge_padding
from atc.passes.quantized.narrow_scales import narrow_scales
from atc.passes.quantized.softmax import softmax_of_bytes
from atc.passes.rewriting import Rule, rewrite


@dataclass(frozen=True)
class Pass:
    """A named graph rewrite. `outer` holds the constants of the enclosing graphs."""

    name: str
    run: Callable[[Graph, Mapping[str, Array]], Graph]
    later_of: str = ""
    """The pass that this is a later run of, if it is one."""

    @property
    def switch(self) -> str:
        """The name in `--fusion_switch_file`, which all runs of a pass share."""
        return self.later_of or self.name


def _rule(name: str, rule: Rule) -> Pass:
    return Pass(name, partial(_rewrite, rule))


def _again(name: str, rule: Rule) -> Pass:
    return Pass(f"{name}_again", partial(_rewrite, rule), name)


def _rewrite(rule: Rule, graph: Graph, outer: Mapping[str, Array]) -> Graph:
    return rewrite(graph, rule, outer)


EPILOGUE = "fuse_epilogue"
"""The pass whose rule depends on what else is skipped, and on where channels are."""

PASSES: tuple[Pass, ...] = (
    _rule("skip_empty", skip_empty),  # first: nothing else need know of it
    # Fewer nodes, truer reader counts.
    Pass("eliminate_common_subexpressions", eliminate_common_subexpressions),
    _rule("lower_qdq", lower_qdq),  # while every (de)quantization is a node
    _rule("build_lookup_table", build_lookup_table),  # before anything else joins the steps
    _rule("gather_taps", gather_taps),  # when those of bytes are found, while views may be folded
    Pass("sink_transposes", sink_transposes),  # while every transpose is a node
    _rule("overwrite_parts", overwrite_parts),  # before windows are looked for
    Pass("split_states", split_states),  # while each part that is read is a node
    Pass("merge_packed_siblings", merge_packed_siblings),  # before views read through its slices
    _rule("fold_views", fold_views),  # before fusion, which then sees arithmetic only
    Pass("slide_states", slide_states),  # when each is one Concat and one view
    Pass("group_products", group_products),  # before epilogues, which would gather, too
    _rule("inline_conditions", inline_conditions),  # before epilogues read them
    _rule(EPILOGUE, fuse_epilogue),  # before fuse_elementwise, lest it merge two branches
    _rule("fold_affine", fold_affine),  # needs the BatchNorm in the epilogue
    _rule("fuse_elementwise", fuse_maps),
    _again(EPILOGUE, fuse_epilogue),  # chains such as x * sigmoid(x) are one node now
    _again("fuse_elementwise", fuse_elementwise),  # what no epilogue took, into reductions
    Pass("inline_cheap", inline_cheap),  # what epilogues and single readers have left
    Pass("round_activations", round_activations),  # when all steps of one are together
    Pass("integer_conv_transpose", conv_transpose_of_integers, "conv_transpose_as_conv"),
    _rule("merge_parallel_convolutions", merge_parallel_convolutions),  # needs scales in filters
    _again("fold_affine", fold_affine),
    Pass("move_pointwise", move_pointwise),  # needs scales in filters, epilogues whole
    _rule("compose_products", compose_products),  # which may stand in a row now
    _rule("fuse_requantize", fuse_requantize),  # when what is (de)quantized in one node is there
    _rule("simplify_matmul", simplify_matmul),  # last: others match loops with the results' shape
    _rule("fuse_attention", fuse_attention),  # with operands read through all that only moves them
)
"""The pipeline. Names are what `--fusion_switch_file` and dumps call a pass."""

RESIDUAL = "fuse_residual"
"""A name to skip: epilogues then take no operands that are computed, only constants."""


BY_ESTIMATE = Layouts()
"""Layouts of least cost, as far as that is known without the kernels."""


def layout_passes(
    width: int, layouts: Layouts = BY_ESTIMATE, storing: Storing | None = None
) -> tuple[Pass, ...]:
    """Return the passes that run last; `width` is the number of floats in a vector."""
    choose = partial(choose_layouts, width=width, layouts=layouts)
    blocked = (
        _rule("conv_transpose_as_conv", conv_transpose_as_conv),  # only Conv has vector kernels
        _rule("decompose_conv3d", decompose_conv3d),  # and only over two axes
        _rule("decompose_pool3d", decompose_pool3d),
        _rule("fill_dilation", fill_dilation),  # as windows without gaps have vector kernels
        _rule("normalize_channels", normalize_channels),
        Pass("block_layout", choose),
        _again("merge_padding", merge_padding),  # of first layers
        Pass("fuse_siblings", partial(fuse_siblings, width=width, price=layouts.price)),
        _again("fold_views", fold_views),  # what was one pixel is a view now
    )
    attention = _again("fuse_attention", partial(fuse_attention, kernels=Kernels.VECTORS))
    packed = _rule("pack_operands", partial(pack_operands, width=width))
    in_place = _rule("alias_slices", alias_slices)
    parts = Pass("read_parts", read_parts)  # when all that reads is fused
    narrow = (  # when no kernel changes
        _rule("narrow_scales", narrow_scales),
        Pass("store_bf16", partial(store_bf16, storing=storing)),
        Pass("store_exact", partial(store_exact, storing=storing)),
    )
    if width > 1:
        return (attention, *blocked, packed, in_place, parts, *narrow)
    if layouts.block:
        bytes_ = partial(choose_layouts, width=layouts.block, layouts=layouts)
        cancelled = _again("fold_views", fold_views)
        before = (Pass("batch_last", move_batch_last),) if layouts.batch_last else ()
        before = (_rule("merge_padding", merge_padding), *before)
        return (*before, Pass("block_layout", bytes_), cancelled, in_place, parts)
    padding = _rule("merge_padding", merge_padding)
    last = (
        _rule("look_up_sums", look_up_sums),  # what is no table any more is fused
        Pass("block_layout", choose),
        _again("fold_views", fold_views),
    )
    if layouts.bytes_last:
        return (padding, *last, in_place, parts)
    return (padding, in_place, parts) if layouts.least_memory else (in_place, parts)


FIRST_DEVICE_PASSES: tuple[Pass, ...] = (
    _rule("filter_gradient_as_conv", filter_gradient_as_conv),  # only Conv has kernels of GPUs
)
"""What runs before all other passes where a GPU computes, and can't be skipped."""

INTEGER_PASSES: tuple[Pass, ...] = (
    _rule("softmax_of_bytes", softmax_of_bytes),  # first: while every (de)quantization is a node
    _rule("build_lookup_table", partial(build_lookup_table, always=True)),
)
"""What runs before all other passes where functions of bytes are computed without floats."""

VECTOR_PASSES: tuple[Pass, ...] = (
    Pass("widen_halves", widen_halves),  # first: kernels of vectors compute in floats
)
"""What runs before all other passes where the processor has vectors."""

DEVICE_PASSES: tuple[Pass, ...] = (
    _again("conv_transpose_as_conv", partial(conv_transpose_as_conv, least=8, early=True)),
    _again("merge_padding", merge_padding),
    _again("fuse_attention", partial(fuse_attention, kernels=Kernels.DEVICE)),
    _rule("mask_positions", mask_positions),  # kernels of CPUs that round know none
    Pass("store_halves", store_halves),
    _rule("read_halves", read_halves),  # last: the kernels of a GPU multiply them as they are
)
"""What runs behind all other passes where a GPU computes."""


def pass_names() -> tuple[str, ...]:
    """Return what `--fusion_switch_file` calls the passes."""
    small = layout_passes(1, Layouts(bytes_last=True))
    passes = (*INTEGER_PASSES, *VECTOR_PASSES, *PASSES, *small, *layout_passes(2), *DEVICE_PASSES)
    return tuple(dict.fromkeys(p.switch for p in passes))


Observer = Callable[[str, Graph], None]


def run_passes(
    graph: Graph,
    observe: Observer = lambda name, graph: None,
    skip: frozenset[str] = frozenset(),
    outer: Mapping[str, Array] | None = None,
    width: int = 1,
    layouts: Layouts = BY_ESTIMATE,
    storing: Storing | None = None,
    device: bool = False,
) -> Graph:
    """Run every pass that isn't skipped; each result is verified and shown to `observe`.

    `width` is the number of floats in a vector of the machine, 1 where it has none; `layouts` says
    how values are laid out where there is a choice, `storing` which may be in 16 bits; with
    `device` a GPU computes what is in no control flow. A name in
    `skip` leaves out all runs of a pass, one that ends in `_again` only the later one.
    """
    outside = outer or {}
    verify(graph, "lowering")
    observe("lowering", graph)
    first = INTEGER_PASSES if layouts.integers else VECTOR_PASSES if width > 1 else ()
    passes = (*first, *PASSES, *layout_passes(width, layouts, storing))
    if device:
        passes = (*FIRST_DEVICE_PASSES, *passes, *DEVICE_PASSES)
    for each in passes:
        if {each.name, each.switch} & skip:
            continue
        if each.switch == EPILOGUE:
            fuse = fuse_known_epilogue if RESIDUAL in skip else fuse_epilogue
            vectors = first is VECTOR_PASSES and not device
            rule = partial(fuse, bytes_last=layouts.bytes_last, vectors=vectors)
            each = replace(each, run=partial(_rewrite, rule))
        result = each.run(graph, outside)
        if result is not graph:  # which is verified already, and never changes
            verify(result, each.name)
        graph = result
        observe(each.name, graph)
    return _inside(graph, skip, outside, width, layouts, storing)


def _inside(
    graph: Graph, skip: frozenset[str], outer: Mapping[str, Array], width: int, layouts: Layouts,
    storing: Storing | None,
) -> Graph:  # fmt: skip
    """Run the passes on the graphs inside control flow."""
    if not any(node.op.subgraphs() for node in graph.nodes):
        return graph
    constants = {**outer, **graph.constants}
    inside = partial(
        run_passes, skip=skip, outer=constants, width=width, layouts=layouts, storing=storing
    )
    nodes = tuple(
        replace(n, op=_op_inside(n.op, inside)) if n.op.subgraphs() else n for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _op_inside(op: Op, inside: Callable[[Graph], Graph]) -> Op:
    match op:
        case If():
            then, other = inside(op.then_branch), inside(op.else_branch)
            return replace(op, then_branch=then, else_branch=other)
        case Loop():
            return replace(op, body=inside(op.body))
        case _:
            return op
