"""Kernels: data beside a template, which `kernel_source` renders to a C function.

A kernel says which workloads it accepts, with which parameters, how it wants its constant operands
packed and how much scratch it needs. Shapes are compile-time facts: one C function per workload,
but for those that differ in extents which C takes as numbers (`render/opening.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Generic, Protocol, cast, runtime_checkable

from typing_extensions import TypeVar

from atc.backends.packed_layout import PackedLayout
from atc.backends.render.packing import Pack as Pack
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.errors import InternalError
from atc.ir.expr import expressions, functions_of
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType
from atc.ir.ops import Conv, ConvBlocked, MatMul
from atc.ir.weights import is_narrow, is_whole

Params = Mapping[str, int | str | bool]


@dataclass(frozen=True, kw_only=True)
class KernelParams:
    """A kernel's parameters, of which the fields of subclasses are one each.

    Their text names all fields without a default, and others where they differ from it.
    """

    exact: bool = False
    """Whether functions of vectors are rounded once, see `Kernel.precise_params`."""

    def shown(self) -> dict[str, int | str | bool]:
        """Return what the parameters' text names."""
        values = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.name: value for f, value in values if value != f.default}


@dataclass(frozen=True, kw_only=True)
class StripedParams(KernelParams):
    """Those of a kernel that can compute stripes of rows, see `Stripable`."""

    x_rows: int | None = None
    """The rows of input 0 in memory, 0 for all; None where all rows are computed at once."""
    y_rows: int | None = None

    @property
    def rows_held(self) -> tuple[int, ...]:
        """The rows of input 0 and of output 0 in memory; none where all are."""
        return () if self.x_rows is None else (self.x_rows, self.y_rows or 0)


OpT = TypeVar("OpT", bound=Op, default=Op)
OpT_co = TypeVar("OpT_co", bound=Op, default=Op, covariant=True)
OpT_contra = TypeVar("OpT_contra", bound=Op, default=Op, contravariant=True)
ParamsT = TypeVar("ParamsT", bound=Params | KernelParams, default=Params)
ParamsT_contra = TypeVar(
    "ParamsT_contra", bound=Params | KernelParams, default=Params, contravariant=True
)


@dataclass(frozen=True)
class Workload(Generic[OpT_co]):
    """An op with the types of its operands: what a kernel is chosen and rendered for."""

    op: OpT_co
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    constant: tuple[bool, ...]
    """Which inputs are known when compiling (they may be packed)."""
    whole: bool = False
    """Whether a product's weights are whole numbers of 12 bits times a power of two, so that its
    sums of whole numbers are exact: masks, permutations, differences of neighbours."""
    narrow: bool = False
    """Whether input 1 is known to be of signed bytes none of which is -128: two products of them
    and signed bytes are 16 bits together."""

    def input(self, index: int) -> TensorType:
        """Return the type of an input that the op can't do without."""
        found = self.inputs[index]
        if found is None:
            raise InternalError(f"{self.op.kind} without input {index}")
        return found

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash of all fields: of an op with its expressions it takes a while."""
        facts = (self.constant, self.whole, self.narrow)
        return hash((self.op, self.inputs, self.outputs, facts))

    def __getstate__(self) -> dict[str, object]:
        """Return what another process may have: hashes are each process's own."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}


def workload_of(graph: Graph, node: Node, constants: Mapping[str, Array]) -> Workload:
    """Return the workload of a node."""
    outputs = tuple(graph.types[o] for o in node.outputs)
    known = tuple(i in constants for i in node.inputs)
    weights = constants.get(node.inputs[1]) if isinstance(node.op, PRODUCTS) else None
    if weights is None and isinstance(node.op, MatMul):
        weights = constants.get(node.inputs[0])
    whole = weights is not None and is_whole(weights)
    narrow = weights is not None and is_narrow(weights)
    return Workload(node.op, graph.types_of(node.inputs), outputs, known, whole, narrow)


PRODUCTS = (Conv, ConvBlocked, MatMul)


def weight_type(w: Workload) -> TensorType | None:
    """Return the type of a product's weights where they have 16 bits, and sums are of floats."""
    if not isinstance(w.op, ConvBlocked | MatMul) or not w.constant[1]:
        return None
    x, weights = w.inputs[:2]
    widens = isinstance(w.op, ConvBlocked)
    mixed = x is not None and (x.dtype is DType.FLOAT or widens and x.dtype.is_half)
    return weights if mixed and weights is not None and weights.dtype.is_half else None


@dataclass(frozen=True)
class WorkSplit:
    """Work-sharing of a call by threads: in so many parts, so many times.

    All partitions of a phase have ended before the next phase begins.
    """

    partitions: int = 1
    phases: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The C parameters that say what to compute; none where it is all at once."""
        return (*["partition"] * (self.partitions > 1), *["phase"] * (self.phases != 1))


def loop_cycles(w: Workload) -> float:
    """Return the cycles of a plain loop over the largest operand or result, one an element."""
    return float(max(1, *(t.size for t in (*w.inputs, *w.outputs) if t is not None)))


@dataclass(frozen=True)
class Walk:
    """Places where a convolution's windows begin (im2col): `steps` along each axis.

    The innermost axis is first. From `lower` they go to `upper`, which counts from an axis' last
    pixel; then comes the next row.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """A tensor that blocks of a GPU read box by box, by its copy engine: a kernel's `argument`.

    It begins so many bytes into that; extents and a box's are the innermost axis' first, strides
    are bytes of the others'. `type` is the driver's number of the type of numbers. With a `walk`
    the axes are channels, those of an image, and images; a box has channels of so many pixels.
    """

    name: str
    argument: int
    begin: int
    type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    walk: Walk | None = None

    @property
    def text(self) -> str:
        """The map in a comment."""
        shape, box = (",".join(map(str, n[::-1])) for n in (self.extents, self.box))
        steps = ",".join(map(str, self.strides[::-1]))
        start = f" from byte {self.begin}" if self.begin else ""
        layout = f"[{shape}] by {steps} bytes, type {self.type}"
        windows = "" if self.walk is None else " of windows"
        return f"of argument {self.argument}{start}: {layout}, in [{box}]{windows}"


@dataclass(frozen=True)
class Launch:
    """The blocks and threads that run a kernel of a GPU, at most.

    `wanted` are the blocks that a run's own extents are worth; 0: always as many. Where there are
    `later` blocks, at most as many, each number of them runs when all before have ended, and the
    kernel is given the `phase`: 0, 1, and so on. `shared` are the bytes of shared memory that it is
    launched with, `maps` what it is given behind the arguments.
    """

    blocks: int
    threads: int
    wanted: int = field(default=0, compare=False)
    later: tuple[int, ...] = ()
    shared: int = 0
    maps: tuple[TensorMap, ...] = ()


class Kernel(Generic[OpT, ParamsT]):
    """An algorithm for one op. Subclasses are stateless; override what differs.

    Six facts define it: `accepts`, `parameters`, `packs`, `scratch`, `values` and `cost`.
    What only some can is a protocol of its own: `Stripable`, `Splittable`, `PacksActivations`.
    """

    name: ClassVar[str]
    """The stem of the C symbol, e.g. `conv_direct`."""
    op: type[OpT]
    template: ClassVar[str]
    dynamic: ClassVar[bool] = False
    """Whether it takes extents that are known only when the network runs."""
    batches: ClassVar[bool] = False
    """Whether it does so where that is the first axis of all tensors."""
    portable: ClassVar[bool] = True
    """Whether it is plain C99 (else it uses the vector vocabulary of the target's table)."""
    headers: ClassVar[tuple[str, ...]] = ()
    """Headers beside the vocabulary that it always includes, stems in `templates/simd`."""
    approximate: ClassVar[bool] = False
    """Whether its template itself calls functions that vectors approximate."""
    precision: ClassVar[str] = "float32"
    """What its products are computed in: float32, bf16x6 (six products of numbers split into three
    bfloat16, 24 bits), bf16x3 (three products of halves, 16 to 17 significant bits), tf32 (11
    bits), bf16, or int8 where an operator of floats allows rounding to that."""
    tensor_cores: ClassVar[bool] = False
    """Whether a GPU's tensor cores compute it."""
    cycle: ClassVar[float] = 1.0
    """What a processor's cycle is in the unit of `cost`."""
    bitwise_reproducible: ClassVar[bool] = False
    """Whether results are the same bits with all parameter sets, and for a part of the rows."""
    accepts_16_bit_weights: ClassVar[bool] = False
    """Whether input 1, floats else, may be constants of 16 bits; see `weight_type`."""
    rounds_operands: ClassVar[bool] = False
    """Whether input 0 of a ConvBlocked may be floats that are to be rounded to 16 bits."""
    fallible: ClassVar[tuple[str, ...]] = ()
    """Which of FAILURES its C function returns for data that it can't take; the run then ends."""

    def supports_extents(self, w: Workload[OpT]) -> bool:
        """Return whether extents known at run time, if any, are where the kernel takes them."""
        if self.dynamic or not is_dynamic(w):
            return True
        inner = tuple(t.shape[1:] for t in (*w.inputs, *w.outputs) if t is not None)
        return self.batches and not is_dynamic((w.op, inner))

    def accepts(self, w: Workload[OpT], target: Target) -> bool:
        """Return whether the kernel can do this workload on this target."""
        return True

    def parameters(self, w: Workload[OpT], target: Target) -> Sequence[ParamsT]:
        """Parameter sets worth trying, the best guess first."""
        return (cast(ParamsT, {}),)

    def values(self, w: Workload[OpT], params: ParamsT, target: Target) -> dict[str, object]:
        """Return what the template needs beside the common values."""
        raise NotImplementedError

    def scratch(self, w: Workload[OpT], params: ParamsT, target: Target) -> int:
        """Bytes of arena that the kernel needs while it runs."""
        return 0

    def launch(self, w: Workload[OpT], params: ParamsT, target: Target) -> Launch | None:
        """Return how a GPU runs it; None of a C function, which the processor runs."""
        return None

    def packs(self, w: Workload[OpT], params: ParamsT, target: Target) -> Mapping[int, Pack]:
        """Return, by input index, how constant operands are rearranged when compiling."""
        return {}

    def packing(self, w: Workload[OpT], params: ParamsT, target: Target) -> str:
        """Return a name that kernels share which arrange constants in the same way."""
        shown = sorted(shown_params(params).items())
        return f"{self.name}{shown}" if self.packs(w, params, target) else ""

    def packing_overhead(self, w: Workload[OpT], params: ParamsT, target: Target) -> int:
        """Return the bytes that packed constants take beyond those of the model."""
        return 0

    def in_place(self, w: Workload[OpT]) -> tuple[int, ...]:
        """Return the inputs whose memory output 0 may overwrite: read before it is written."""
        return ()

    def overwrites(self, w: Workload[OpT], params: ParamsT) -> Mapping[int, tuple[int, ...]]:
        """Return the inputs whose memory each output may overwrite, if it's more than output 0."""
        return {0: self.in_place(w)}

    def exact(self, params: ParamsT) -> bool:
        """Return whether results err no more than the op's definition, computed in its type."""
        return self.precision == "float32"

    def precise_params(self, w: Workload[OpT], params: ParamsT, target: Target) -> ParamsT:
        """Return the parameters for least error: `exact`, where that makes a difference.

        Such a kernel has `simd_exact.h`, whose functions of vectors are rounded once.
        """
        rough = not self.portable and (self.approximate or _approximates(w.op))
        if not rough:
            return params
        if isinstance(params, KernelParams):
            return replace(params, exact=True)
        return cast(ParamsT, {**params, "exact": True})

    def cost(self, w: Workload[OpT], params: ParamsT, target: Target) -> float:
        """Return the estimated cycles on the target's machine; unmeasured, the least counts."""
        return loop_cycles(w) * (1.0 if self.portable else 0.5)


AnyKernel = Kernel[Any, Any]
"""A kernel of some op, with parameters of its own."""


@runtime_checkable
class Stripable(Protocol[OpT_contra, ParamsT]):
    """A kernel that can compute stripes of rows, one after the other."""

    def striped_params(
        self, w: Workload[OpT_contra], params: ParamsT, target: Target, x_rows: int, y_rows: int
    ) -> ParamsT | None:
        """Return the parameters to compute stripes of rows with; None where it can't.

        They are `striped` ones: memory holds only so many rows of input 0 and of output 0 then (0:
        all), and the C function takes which rows it computes, and with which the memory begins.
        """
        raise NotImplementedError

    def stripe_ends(
        self, w: Workload[OpT_contra], params: ParamsT, target: Target
    ) -> Sequence[int]:
        """Return the rows of output 0 at which its stripes may end, the last one included."""
        return range(1, w.outputs[0].shape[2] + 1)


@runtime_checkable
class Splittable(Protocol[OpT_contra, ParamsT]):
    """A kernel that threads can share a call of, whose parts are no calls of the same kernel."""

    def shared_params(
        self, w: Workload[OpT_contra], params: ParamsT, target: Target, threads: int
    ) -> Sequence[ParamsT]:
        """Return parameters with which so many threads share a call, the best first.

        `work_split` says how they do. Results are the same bits.
        """
        raise NotImplementedError

    def work_split(self, w: Workload[OpT_contra], params: ParamsT, target: Target) -> WorkSplit:
        """Return how threads share a call with these parameters."""
        raise NotImplementedError


@runtime_checkable
class PacksActivations(Protocol[OpT_contra, ParamsT]):
    """A kernel that reads and writes tensors in packed layouts, not as blocked ones."""

    def accepted_layouts(
        self, w: Workload[OpT_contra], params: ParamsT, target: Target
    ) -> Mapping[int, PackedLayout]:
        """Return, by input index, packed layouts that it would read."""
        raise NotImplementedError

    def produces_layout(
        self, w: Workload[OpT_contra], params: ParamsT, target: Target, planes: PackedLayout
    ) -> bool:
        """Return whether it can write output 0 in a packed layout."""
        raise NotImplementedError

    def packed_params(
        self, params: ParamsT, inputs: Mapping[int, PackedLayout], y: PackedLayout | None
    ) -> ParamsT:
        """Return the parameters to read some inputs, and write output 0, in packed layouts."""
        raise NotImplementedError


@runtime_checkable
class PacksPanels(Protocol[OpT_contra, ParamsT_contra]):
    """A kernel of products that packs constant B as [columns / c, depth, c], zeros at the end."""

    def panel_columns(
        self, w: Workload[OpT_contra], params: ParamsT_contra, target: Target
    ) -> int:
        """Return c; 0 where B isn't packed so."""
        raise NotImplementedError


def shown_params(params: Params | KernelParams) -> Mapping[str, int | str | bool]:
    """Return what the text of parameters names, by name."""
    return params.shown() if isinstance(params, KernelParams) else params


def split_of(kernel: AnyKernel, w: Workload, params: Any, target: Target) -> WorkSplit:
    """Return how threads share a call of a kernel with these parameters."""
    if not _is_splittable(cast(Hashable, type(kernel))):
        return WorkSplit()
    return cast("Splittable[Any, Any]", kernel).work_split(w, params, target)


@cache  # Python looks at all members of a protocol each time
def _is_splittable(kind: Hashable) -> bool:
    return isinstance(kind, type) and issubclass(kind, Splittable)


def stripe_names(params: Params | KernelParams) -> tuple[str, ...]:
    """Return the C parameters that say which rows to compute; none where it is always all."""
    if not isinstance(params, StripedParams) or params.x_rows is None:
        return ()
    firsts = (("x_first", params.x_rows), ("y_first", params.y_rows))
    return ("begin", "end", *(name for name, rows in firsts if rows))


APPROXIMATED = frozenset({
    "Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Softplus",
})  # fmt: skip
"""Functions of expressions that vectors compute less exactly than libm."""


def _approximates(op: Op) -> bool:
    """Return whether an expression of an op calls a function of APPROXIMATED."""
    return any(not APPROXIMATED.isdisjoint(functions_of(e)) for e in expressions(op))


@dataclass(frozen=True)
class Candidate:
    """A kernel with one parameter set."""

    kernel: AnyKernel
    params: Any = field(default_factory=dict)

    @property
    def headers(self) -> tuple[str, ...]:
        """Headers beside the vocabulary."""
        return (*self.kernel.headers, *["exact"] * bool(shown_params(self.params).get("exact")))

    @cached_property
    def label(self) -> str:
        """The candidate in reports, e.g. `conv_nchwc(nv=2, p=14)`."""
        inner = ", ".join(f"{k}={v}" for k, v in sorted(shown_params(self.params).items()))
        return f"{self.kernel.name}({inner})" if inner else self.kernel.name
