"""The request for a compilation: options, their files and the environment, resolved once.

Every file that an option names is opened here and nowhere after. What is decided above a
compilation, by a search or a tool, stands beside the options and never in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import onnx_ir

from atc.adapt import Adaptation, read_aipp
from atc.backends.cuda.targets import EMULATED
from atc.backends.kernel import Workload
from atc.backends.target import Target, deterministic
from atc.backends.targets import get_target
from atc.cache import Session
from atc.codegen.selftest import Expected
from atc.errors import InternalError, OptionError
from atc.farm.scheduler import Scheduler
from atc.fast_run.policy import Policy as AlgoPolicy
from atc.fast_run.policy import read_policy as read_algo_policy
from atc.files.blob import NO_WEIGHTS, Blob
from atc.options.options import Options
from atc.options.shape_profiles import fallback_of, shape_profiles_of
from atc.pipeline.debug_build import Debugging, read_debugging
from atc.pipeline.held import Held
from atc.pipeline.pass_switches import LEVELS, RULES, Switches, parse_switches, read_switches
from atc.pipeline.precision import (
    MODES_V2,
    OperatorModes,
    Policy,
    bf16_nodes,
    exact_nodes,
    node_names,
    not_in_model,
    own_types,
    read_operator_modes,
    read_policy,
    stored_nodes,
)
from atc.program.forks import ALONE, Workers
from atc.program.partition import Worth
from atc.select.select import Limits

_RESOLVED = frozenset({
    "target", "insert_op_conf", "input_format", "input_fp16_nodes", "output_type", "state",
    "precision_mode", "precision_mode_v2", "keep_dtype", "modify_mixlist", "customize_dtypes",
    "op_precision_mode", "oo_level", "fusion_switch_file", "optimization_switch",
    "op_debug_config", "op_debug_level", "fast_run_algo_policy",
})  # fmt: skip
"""Options that parts of a request were made from: they don't change any more."""


@dataclass(frozen=True)
class Decisions:
    """Decisions above a compilation: by a search over compilations, or by a tool."""

    exact_nodes: frozenset[str] = frozenset()
    """Nodes whose kernels err no more than the operator's definition."""
    bf16: bool = False
    """Whether kernels may compute in bf16 without a precision mode that says so."""
    float_nodes: frozenset[str] = frozenset()
    """Nodes for which they may not, even so."""
    float32_nodes: frozenset[str] | None = None
    """Nodes whose products keep the bits of float32, None until bf16x3's error is predicted."""
    predicted_error: float | None = None
    """The predicted error of products below float32, as a part of the output's scale."""
    measured_error: float | None = None
    """What --max_error came to, as a part of the output's scale."""
    skip_passes: frozenset[str] = frozenset()
    """Passes of the graph that are left out, whatever switches say."""
    crashing: frozenset[tuple[Workload, str]] = frozenset()
    """Kernels that the compiler crashes on, by what they compute and their labels."""
    expected: Expected | None = None
    """What the network must compute of the inputs that a self-test makes."""
    held: Held = Held()
    """What the caller keeps from run to run, which a budget of memory counts."""
    enough_memory: int = 0
    """Bytes of an arena that are enough where layers may run in stripes to need less."""
    measured_layouts: bool = False
    """Whether layouts are chosen by measured times even where kernels are by estimates."""
    before: Blob = NO_WEIGHTS
    """The weights of other networks, before this one's in a library of several."""
    joined: bool = False
    """Whether the static library becomes a part of another."""


@dataclass(frozen=True)
class Request:
    """All that a compilation depends on but the model's own files; see `resolve_request`.

    `targets` are several where a library is to choose among them; every stage of one compilation
    sees one.
    """

    options: Options
    environ: Mapping[str, str]
    targets: tuple[Target, ...]
    adaptation: Adaptation
    policy: Policy
    given_switches: Switches
    operator_modes: OperatorModes | None
    debugging: Debugging
    algo_policy: AlgoPolicy = field(default_factory=dict)
    """The kernels that --fast_run_algo_policy names, as they were when the compilation began."""
    decisions: Decisions = field(default_factory=Decisions)
    farm: Scheduler | None = field(default=None, compare=False)
    """The cluster that compiles and measures."""
    session: Session = field(default_factory=Session, compare=False, repr=False)
    """What the caller learned of the caches."""

    @property
    def target(self) -> Target:
        """The target of one compilation."""
        (target,) = self.targets
        return target

    @property
    def width(self) -> int:
        """The number of floats in a vector that passes may count on, 1 for portable kernels."""
        return 1 if self.options.kernels == "portable" else self.target.vector_bytes // 4

    @property
    def switches(self) -> Switches:
        """The passes that are off, those that were decided to be left out among them."""
        off = self.given_switches.off | self.decisions.skip_passes
        return replace(self.given_switches, off=off)

    @cached_property
    def shape_profiles(self) -> tuple[Request, ...]:
        """The requests for the shapes that options list, the largest first; none without."""
        return tuple(replace(self, options=each) for each in shape_profiles_of(self.options))

    @property
    def profiles(self) -> tuple[Request, ...]:
        """The requests of one library's networks: of listed shapes first, of all shapes last."""
        general = fallback_of(self.options)
        every = (*self.shape_profiles, *([replace(self, options=general)] if general else []))
        return every or (self,)

    @property
    def smallest(self) -> Request:
        """The request for the last of the listed shapes, this one where none are."""
        return self.shape_profiles[-1] if self.shape_profiles else self

    @property
    def sharing(self) -> tuple[Workers, Worth]:
        """The branches that run at the same time, and which calls are divided among threads."""
        options = self.options
        if self.target.device:
            streams = options.parallel_branches or options.gpu_streams
            return Workers(streams, always=options.parallel_branches > 1), Worth()
        if self.target.bare:
            return ALONE, Worth()
        wanted = options.parallel_branches or options.num_threads
        copies = options.parallel_copy_size
        branches = min(wanted, options.workspaces or wanted)
        return (
            Workers(branches, options.sharers, always=options.parallel_branches > 1),
            Worth(not options.thread_tuning, None if copies < 0 else copies),
        )

    def unknown_precise(self, model: onnx_ir.Model) -> Iterator[str]:
        """Yield warnings of operators named for kernels that are precise, but not in the model."""
        listed, modes = self.options.optypelist_for_implmode, self.operator_modes
        yield from not_in_model(model, "optypelist_for_implmode", (), listed)
        if modes is not None:
            yield from not_in_model(model, "op_precision_mode", modes.nodes, modes.types)

    def limits(self, model: onnx_ir.Model) -> Limits:
        """Return what kernels must keep to."""
        options, decided = self.options, self.decisions
        workspace = None if options.workspace_limit < 0 else options.workspace_limit
        mode, listed = options.op_select_implmode, options.optypelist_for_implmode
        limits = Limits(
            mode.startswith("high_precision"), workspace, options.kernels, decided.exact_nodes,
            weight_price=options.weight_price, tensor_cores=options.tensor_cores,
            host_compute=options.host_compute, crashing=decided.crashing,
        )  # fmt: skip
        if listed or self.operator_modes is not None:
            exact = exact_nodes(model, mode, listed, self.operator_modes or OperatorModes())
            limits = replace(limits, exact=False, exact_nodes=exact | decided.exact_nodes)
        own = own_types(model, self.policy)
        low = bf16_nodes(model, self.policy, own)
        if self.policy.mode in ("force_fp32", "must_keep_origin_dtype"):
            kept = {"float32", *["bf16"] * bool(low)}
            return replace(limits, precisions=frozenset(kept), bf16_nodes=low)
        if options.allow_hf32 and not options.max_error:
            limits = replace(limits, precisions=limits.precisions | {"tf32"})
        float32 = decided.float32_nodes
        if decided.bf16 and not self.policy.mode:
            low |= node_names(model) - decided.float_nodes
        return replace(
            limits, precisions=limits.precisions | ({"bf16"} if low else set()), bf16_nodes=low,
            float_nodes=node_names(model, self.policy.keep), wide_nodes=float32 or frozenset(),
            stored_nodes=stored_nodes(model, self.policy, own),
        )  # fmt: skip

    def decide(self, **decisions: Any) -> Request:
        """Return the request with these decisions in the place of what was decided before."""
        return replace(self, decisions=replace(self.decisions, **decisions))

    def with_options(self, **changes: Any) -> Request:
        """Return the request with other values of options that no part of it was made from."""
        if _RESOLVED & changes.keys():
            raise InternalError(f"{min(_RESOLVED & changes.keys())} is resolved already")
        return replace(self, options=replace(self.options, **changes))

    def for_target(self, target: Target) -> Request:
        """Return the request for one target."""
        return replace(self, options=replace(self.options, target=target.name), targets=(target,))


def resolve_request(
    options: Options, environ: Mapping[str, str] | None = None, decisions: Decisions | None = None
) -> Request:
    """Read the files that options name and return what they all come to.

    Raises OptionError for a wrong file, and for options that contradict each other.
    """
    return Request(
        options, environ or {}, _targets(options), _adaptation(options), _policy(options),
        _switches(options),
        read_operator_modes(options.op_precision_mode) if options.op_precision_mode else None,
        read_debugging(options), _algo_policy(options), decisions or Decisions(),
    )  # fmt: skip


_BUILDING = ("compiler", "compiler_words", "runner", "zig")
"""What of a target says who compiles its code and who runs it."""


def _targets(options: Options) -> tuple[Target, ...]:
    """Return the targets that the options list, the best first.

    Raises OptionError for an unknown one, one listed twice, those of several architectures, one
    of several that has no operating system, and a real GPU beside an imitated one.
    """
    text, where = options.target, f"--{options.target_option}"
    option, machine = options.target_option, options.machine
    targets = tuple(get_target(name, option, machine) for name in text.split(","))
    names = [target.name for target in targets]
    repeated = next((name for k, name in enumerate(names) if name in names[:k]), None)
    if repeated is not None:
        raise OptionError(f"{repeated} is listed twice", where=where)
    devices = {target.device for target in targets if target.device}
    if options.fused_code == "cuda" and not devices:
        raise OptionError(
            f"{text} is not a GPU, and fused operators are to be CUDA's", where="--fused_code",
            hint="add --target=cuda, or leave out --fused_code=cuda or MGB_JIT_BACKEND=NVRTC",
        )  # fmt: skip
    if EMULATED in devices and len(devices) > 1:
        raise OptionError(
            f"'{text}' are GPUs and one that is imitated", where=where,
            hint="compile a library for each",
        )  # fmt: skip
    kinds = {target.arch for target in targets if target.arch}
    if len(kinds) > 1:
        raise OptionError(
            f"'{text}' are targets of several architectures, {' and '.join(sorted(kinds))}",
            where=where, hint="compile a library for each",
        )  # fmt: skip
    if len({target.big_endian for target in targets}) > 1:
        raise OptionError(
            f"'{text}' are targets of both byte orders", where=where,
            hint="compile a library for each",
        )  # fmt: skip
    alone = next((target.name for target in targets if target.bare), None)
    if alone and len(targets) > 1:
        raise OptionError(
            f"{alone} has no operating system that says what its processor can", where=where,
            hint="compile a library for each",
        )  # fmt: skip
    targets = _of_one_processor(targets)
    if options.max_ram and not devices:
        targets = tuple(replace(target, saves_memory=True) for target in targets)
    if not options.deterministic_math:
        return targets
    if devices:
        raise OptionError(
            f"{text} is a GPU, which rounds sums in another order", where="--deterministic_math",
            hint="choose a target that is a CPU",
        )  # fmt: skip
    return tuple(deterministic(target, get_target("c99")) for target in targets)


def _of_one_processor(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Build those that any processor will do for by the compiler of the others' architecture."""
    known = next((target for target in targets if target.arch), None)
    if known is None:
        return targets
    own = {key: getattr(known, key) for key in ("arch", *_BUILDING)}
    return tuple(t if t.arch or t.device else replace(t, **own) for t in targets)


def _adaptation(options: Options) -> Adaptation:
    """Return what inputs and outputs are to be."""
    conf = options.insert_op_conf
    return Adaptation(
        read_aipp(conf) if conf is not None else (), options.input_format,
        options.input_fp16_nodes, options.output_type, options.state,
        options.input_type.upper(),
    )  # fmt: skip


def _policy(options: Options) -> Policy:
    """Return which tensors are kept in which types."""
    mode = options.precision_mode or MODES_V2[options.precision_mode_v2]
    return read_policy(mode, options.keep_dtype, options.modify_mixlist, options.customize_dtypes)


def _algo_policy(options: Options) -> AlgoPolicy:
    """Return the entries of a policy; there must be one where nothing is measured."""
    path = options.fast_run_algo_policy
    if path is None or (options.measures and not path.exists()):
        return {}
    return read_algo_policy(path)


def _switches(options: Options) -> Switches:
    """Return the passes that are off: by level, then file, then single switches."""
    off = frozenset(RULES) - LEVELS[options.oo_level]
    unknown: tuple[str, ...] = ()
    given = []
    if options.fusion_switch_file is not None:
        given.append(read_switches(options.fusion_switch_file))
    if options.optimization_switch:
        given.append(parse_switches(options.optimization_switch))
    for each in given:
        off = (off | each.off) - each.on
        unknown += each.unknown
    return Switches(off=off, unknown=unknown)
