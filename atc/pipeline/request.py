"""What the options say of the model, its files read: interface, precision, passes, kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir

from atc.adapt import Adaptation, read_aipp
from atc.options.options import Options
from atc.pipeline.pass_switches import LEVELS, RULES, Switches, parse_switches, read_switches
from atc.pipeline.precision import (
    MODES_V2,
    Policy,
    bf16_nodes,
    exact_nodes,
    node_names,
    read_policy,
    stored_nodes,
)
from atc.program.forks import Workers
from atc.program.partition import Worth
from atc.select.select import Limits, Selection


def adaptation_of(options: Options) -> Adaptation:
    """Return what inputs and outputs are to be; raises OptionError for a wrong AIPP file."""
    conf = options.insert_op_conf
    return Adaptation(
        read_aipp(conf) if conf is not None else (), options.input_format,
        options.input_fp16_nodes, options.output_type,
    )  # fmt: skip


DEFAULT_BOUND, PRECISE_BOUND = 1e-4, 1e-5
"""What errors of float32 kernels are to stay under, as a part of the output's scale."""

PRECISIONS = ("float32", "bf16x3", "bf16", "int8")
"""What kernels compute products in, most precise first."""

_ROUNDINGS = 32  # roundings to 16 bits, one on another


@dataclass(frozen=True)
class Contract:
    """What a library states of its precision: `error_bound` is a part of the output's scale.

    `products` is what the chosen kernels multiply in, of PRECISIONS. `measured_error` is against
    float64, where it was measured when compiling; `split_error` what products in bf16x3 or bf16
    alone add, as far as that was foreseen.
    """

    precision: str
    implmode: str
    error_bound: float
    measured_error: float | None
    products: tuple[str, ...]
    split_error: float | None = None

    @property
    def text(self) -> str:
        """The contract as `<name>_build_info()` tells it."""
        told = f"precision={self.precision}; implmode={self.implmode}; "
        told += f"products={'+'.join(self.products)}; error_bound={self.error_bound:.3g}"
        if self.split_error is not None:
            told += f"; split_error={self.split_error:.2e}"
        if self.measured_error is None:
            return told
        return f"{told}; measured_error={self.measured_error:.2e}"


def contract_of(options: Options, selection: Selection) -> Contract:
    """Return what a library of these options and kernels states of its precision."""
    implmode = options.op_select_implmode
    precise = implmode.startswith("high_precision") and not options.optypelist_for_implmode
    plain = PRECISE_BOUND if precise else DEFAULT_BOUND
    bound = options.max_error or max(plain, _ROUNDINGS * policy_of(options).epsilon)
    name = precision_mode(options) or ("high_precision" if precise else "default")
    used = {choice.candidate.kernel.precision for choice in selection.values()}
    products = tuple(p for p in PRECISIONS if p in used or p == PRECISIONS[0])
    split = options.split_error if {"bf16x3", "bf16"} & used else None
    return Contract(name, implmode, bound, options.measured_error, products, split)


def precision_mode(options: Options) -> str:
    """Return the precision mode in its older spelling."""
    return options.precision_mode or MODES_V2[options.precision_mode_v2]


def policy_of(options: Options) -> Policy:
    """Return which tensors are kept in which types; raises OptionError for a wrong file."""
    files = (options.keep_dtype, options.modify_mixlist, options.customize_dtypes)
    return read_policy(precision_mode(options), *files)


def switches_of(options: Options) -> Switches:
    """Return the passes that are off: by level, then file, then single switches."""
    off = options.skip_passes | (frozenset(RULES) - LEVELS[options.oo_level])
    unknown: tuple[str, ...] = ()
    given = []
    if options.fusion_switch_file is not None:
        given.append(read_switches(options.fusion_switch_file))
    if options.optimization_switch:
        given.append(parse_switches(options.optimization_switch))
    for each in given:
        off = (off | each.off) - (each.on - options.skip_passes)
        unknown += each.unknown
    return Switches(off=off, unknown=unknown)


def limits_of(options: Options, model: onnx_ir.Model) -> Limits:
    """Return what kernels must keep to."""
    workspace = None if options.workspace_limit < 0 else options.workspace_limit
    mode, listed = options.op_select_implmode, options.optypelist_for_implmode
    own = options.exact_nodes
    limits = Limits(mode.startswith("high_precision"), workspace, options.kernels, own)
    limits = replace(limits, weight_price=options.weight_price)
    if listed or options.op_precision_mode is not None:
        exact = exact_nodes(model, mode, listed, options.op_precision_mode)
        limits = replace(limits, exact=False, exact_nodes=exact | own)
    return _with_precisions(limits, options, model)


def _with_precisions(limits: Limits, options: Options, model: onnx_ir.Model) -> Limits:
    """Return limits with what kernels may compute products in, as the precision options say."""
    policy = policy_of(options)
    if policy.mode in ("force_fp32", "must_keep_origin_dtype"):
        return replace(limits, precisions=frozenset({"float32"}))
    low = bf16_nodes(model, policy)
    if options.bf16 and not policy.mode:
        low |= node_names(model) - options.float_nodes
    allowed = limits.precisions | ({"bf16"} if low else set())
    kept = node_names(model, policy.keep) | (options.plain_nodes or frozenset())
    stored = stored_nodes(model, policy)
    return replace(
        limits, precisions=allowed, bf16_nodes=low, float_nodes=kept, stored_nodes=stored
    )


def sharing_of(options: Options) -> tuple[Workers, Worth]:
    """Return how many branches run at the same time, and which calls are divided among threads."""
    wanted, copies = options.parallel_branches or options.num_threads, options.parallel_copy_size
    branches = min(wanted, options.workspaces or wanted)
    return (
        Workers(branches, options.sharers, always=options.parallel_branches > 1),
        Worth(not options.thread_tuning, None if copies < 0 else copies),
    )
