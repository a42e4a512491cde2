"""What the options say of the model, its files read: interface, precision, passes, kernels."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir

from atc.adapt import Adaptation, read_aipp
from atc.fusion_switches import LEVELS, Switches, parse_switches, read_switches
from atc.options import Options
from atc.passes import pass_names
from atc.precision_policy import MODES_V2, Policy, exact_nodes, read_policy
from atc.select import Limits


def adaptation_of(options: Options) -> Adaptation:
    """Return what inputs and outputs are to be; raises OptionError for a wrong AIPP file."""
    conf = options.insert_op_conf
    return Adaptation(
        read_aipp(conf) if conf is not None else (), options.input_format,
        options.input_fp16_nodes, options.output_type,
    )  # fmt: skip


DEFAULT_BOUND, PRECISE_BOUND = 1e-4, 1e-5
"""What errors of float32 kernels are to stay under, as a part of the output's scale."""

_ROUNDINGS = 16  # roundings to 16 bits, one on another


@dataclass(frozen=True)
class Contract:
    """What a library states of its precision: `error_bound` is a part of the output's scale.

    `measured_error` is against float64, where it was measured when compiling.
    """

    precision: str
    implmode: str
    error_bound: float
    measured_error: float | None

    @property
    def text(self) -> str:
        """The contract as `<name>_build_info()` tells it."""
        told = f"precision={self.precision}; implmode={self.implmode}; "
        told += f"error_bound={self.error_bound:.3g}"
        if self.measured_error is None:
            return told
        return f"{told}; measured_error={self.measured_error:.2e}"


def contract_of(options: Options) -> Contract:
    """Return what a library of these options states of its precision."""
    implmode = options.op_select_implmode
    precise = implmode.startswith("high_precision") and not options.optypelist_for_implmode
    plain = PRECISE_BOUND if precise else DEFAULT_BOUND
    bound = options.max_error or max(plain, _ROUNDINGS * policy_of(options).epsilon)
    name = precision_mode(options) or ("high_precision" if precise else "default")
    return Contract(name, implmode, bound, options.measured_error)


def precision_mode(options: Options) -> str:
    """Return the precision mode in its older spelling."""
    return options.precision_mode or MODES_V2[options.precision_mode_v2]


def policy_of(options: Options) -> Policy:
    """Return which tensors are kept in which types; raises OptionError for a wrong file."""
    files = (options.keep_dtype, options.modify_mixlist, options.customize_dtypes)
    return read_policy(precision_mode(options), *files)


def switches_of(options: Options) -> Switches:
    """Return the passes that are off: by level, then file, then single switches."""
    off = options.skip_passes | (frozenset(pass_names()) - LEVELS[options.oo_level])
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
    if not listed and options.op_precision_mode is None:
        return Limits(mode.startswith("high_precision"), workspace, options.kernels, own)
    exact = exact_nodes(model, mode, listed, options.op_precision_mode)
    return Limits(False, workspace, options.kernels, exact | own)
