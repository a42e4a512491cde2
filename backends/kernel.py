"""Kernels: data beside a template, rendered to a C function.

A kernel says which workloads it accepts, with which parameters, how it wants its constant operands
packed and how much scratch it needs. Shapes are compile-time facts: one C function per workload.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import ClassVar

from atc.backends.packed_layout import PackedLayout
from atc.backends.target import Target
from atc.dims import bind_tokens, is_dynamic
from atc.ir.expr import Call, functions_of
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType
from atc.ir.ops import ConvBlocked, MatMul
from atc.templates import render

Params = Mapping[str, int | str | bool]
Pack = Callable[[Array], Array]


@dataclass(frozen=True)
class Workload:
    """An op with the types of its operands: what a kernel is chosen and rendered for."""

    op: Op
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    constant: tuple[bool, ...]
    """Which inputs are known when compiling (they may be packed)."""


def workload_of(graph: Graph, node: Node, constants: Mapping[str, Array]) -> Workload:
    """Return the workload of a node."""
    outputs = tuple(graph.types[o] for o in node.outputs)
    known = tuple(i in constants for i in node.inputs)
    return Workload(node.op, graph.types_of(node.inputs), outputs, known)


def weight_type(w: Workload) -> TensorType | None:
    """Return the type of a product's weights where they have 16 bits beside an input of floats."""
    if not isinstance(w.op, ConvBlocked | MatMul) or not w.constant[1]:
        return None
    x, weights = w.inputs[:2]
    mixed = x is not None and x.dtype is DType.FLOAT and weights is not None
    return weights if mixed and weights is not None and weights.dtype.is_half else None


@dataclass(frozen=True)
class WorkSplit:
    """Work-sharing of a call by threads: in so many parts, so many times.

    All pieces of a phase have ended before the next phase begins.
    """

    pieces: int = 1
    phases: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The C parameters that say what to compute; none where it is all at once."""
        return (*["piece"] * (self.pieces > 1), *["turn"] * (self.phases > 1))


def loop_cycles(w: Workload) -> float:
    """Return the cycles of a plain loop over the largest operand or result, one an element."""
    return float(max(1, *(t.size for t in (*w.inputs, *w.outputs) if t is not None)))


@dataclass(frozen=True)
class Launch:
    """How many blocks of how many threads run a kernel of a GPU."""

    blocks: int
    threads: int


class Kernel:
    """An algorithm for one op. Subclasses are stateless; override what differs."""

    name: ClassVar[str]
    """The stem of the C symbol, e.g. `conv_direct`."""
    op: ClassVar[type[Op]]
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
    """What its products are computed in: float32, bf16x3 (three products of bfloat16 halves, 16 to
    17 significant bits), bf16, or int8 where an operator of floats allows rounding to that."""
    bitwise_reproducible: ClassVar[bool] = False
    """Whether results are the same bits with all parameter sets, and for a part of the rows."""
    accepts_16_bit_weights: ClassVar[bool] = False
    """Whether input 1, floats else, may be constants of 16 bits; see `weight_type`."""
    fallible: ClassVar[tuple[str, ...]] = ()
    """Which of FAILURES its C function returns for data that it can't take; the run then ends."""

    def supports_extents(self, w: Workload) -> bool:
        """Tell whether extents known at run time, if any, are where the kernel takes them."""
        if self.dynamic or not is_dynamic(w):
            return True
        inner = tuple(t.shape[1:] for t in (*w.inputs, *w.outputs) if t is not None)
        return self.batches and not is_dynamic((w.op, inner))

    def accepts(self, w: Workload, target: Target) -> bool:
        """Return whether the kernel can do this workload on this target."""
        return True

    def parameters(self, w: Workload, target: Target) -> Sequence[Params]:
        """Parameter sets worth trying, the best guess first."""
        return ({},)

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return what the template needs beside the common values."""
        raise NotImplementedError

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        """Bytes of arena that the kernel needs while it runs."""
        return 0

    def launch(self, w: Workload, params: Params, target: Target) -> Launch | None:
        """Return how a GPU runs it; None of a C function, which the processor runs."""
        return None

    def packs(self, w: Workload, params: Params, target: Target) -> Mapping[int, Pack]:
        """Return, by input index, how constant operands are rearranged when compiling."""
        return {}

    def packing(self, w: Workload, params: Params, target: Target) -> str:
        """Return a name that kernels share which arrange constants in the same way."""
        return f"{self.name}{sorted(params.items())}" if self.packs(w, params, target) else ""

    def striped_params(
        self, w: Workload, params: Params, target: Target, x_rows: int, y_rows: int
    ) -> Params | None:
        """Return the parameters to compute stripes of rows with; None where it can't.

        They are `striped` ones: memory holds only so many rows of input 0 and of output 0 then (0:
        all), and the C function takes which rows it computes, and with which the memory begins.
        """
        return None

    def stripe_ends(self, w: Workload, params: Params, target: Target) -> Sequence[int]:
        """Return the rows of output 0 at which its stripes may end, the last one included."""
        return range(1, w.outputs[0].shape[2] + 1)

    def cuts(self, w: Workload, params: Params, target: Target, threads: int) -> Sequence[Params]:
        """Return parameters with which so many threads share a call, the best first.

        `work_split` says how they do.

        Only for calls whose parts are no calls of the same kernel. Results are the same bits.
        """
        return ()

    def work_split(self, w: Workload, params: Params, target: Target) -> WorkSplit:
        """Return how threads share a call with these parameters."""
        return WorkSplit()

    def accepted_layouts(
        self, w: Workload, params: Params, target: Target
    ) -> Mapping[int, PackedLayout]:
        """Return, by input index, packed layouts that it would read, not blocked tensors."""
        return {}

    def produces_layout(
        self, w: Workload, params: Params, target: Target, planes: PackedLayout
    ) -> bool:
        """Return whether it can write output 0 in a packed layout."""
        return False

    def packed_params(
        self, params: Params, inputs: Mapping[int, PackedLayout], y: PackedLayout | None
    ) -> Params:
        """Return the parameters to read some inputs, and write output 0, in packed layouts."""
        raise NotImplementedError

    def packing_overhead(self, w: Workload, params: Params, target: Target) -> int:
        """Return the bytes that packed constants take beyond those of the model."""
        return 0

    def in_place(self, w: Workload) -> tuple[int, ...]:
        """Return the inputs whose memory output 0 may overwrite: read before it is written."""
        return ()

    def exact(self, params: Params) -> bool:
        """Tell whether results err no more than the op's definition, computed in its type."""
        return self.precision == "float32"

    def precise_params(self, w: Workload, params: Params, target: Target) -> Params:
        """Return the parameters for least error: `exact`, where that makes a difference.

        Such a kernel has `simd_exact.h`, whose functions of vectors are rounded once.
        """
        rough = not self.portable and (self.approximate or _approximates(w.op))
        return {**params, "exact": True} if rough else params

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Return the estimated cycles on the target's machine; unmeasured, the least counts."""
        return loop_cycles(w) * (1.0 if self.portable else 0.5)


def striped(params: Params, x_rows: int, y_rows: int) -> Params:
    """Return parameters of a function that computes stripes of rows, see `striped_params`."""
    return {**params, "x_rows": x_rows, "y_rows": y_rows}


def stripe_names(params: Params) -> tuple[str, ...]:
    """Return the C parameters that say which rows to compute; none where it is always all."""
    if "x_rows" not in params:
        return ()
    firsts = (("x_first", params["x_rows"]), ("y_first", params["y_rows"]))
    return ("begin", "end", *(name for name, rows in firsts if rows))


APPROXIMATED = frozenset({
    "Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Softplus",
})  # fmt: skip
"""Functions of expressions that vectors compute less exactly than libm."""


def _approximates(value: object) -> bool:
    """Return whether an expression in a value calls a function of APPROXIMATED."""
    if isinstance(value, Call):
        return not APPROXIMATED.isdisjoint(functions_of(value))
    if isinstance(value, tuple):
        return any(map(_approximates, value))
    if is_dataclass(value):
        return any(_approximates(getattr(value, f.name)) for f in fields(value))
    return False


@dataclass(frozen=True)
class Candidate:
    """A kernel with one parameter set."""

    kernel: Kernel
    params: Params = field(default_factory=dict)

    @property
    def headers(self) -> tuple[str, ...]:
        """Headers beside the vocabulary."""
        return (*self.kernel.headers, *["exact"] * bool(self.params.get("exact")))

    @property
    def label(self) -> str:
        """The candidate in reports, e.g. `conv_nchwc(nv=2, p=14)`."""
        inner = ", ".join(f"{k}={v}" for k, v in sorted(self.params.items()))
        return f"{self.kernel.name}({inner})" if inner else self.kernel.name


@dataclass(frozen=True)
class Argument:
    """One pointer parameter of a C kernel function."""

    type: str
    name: str


@dataclass(frozen=True)
class KernelSource:
    """A rendered C function. Equal text means equal symbol, so equal kernels are one function."""

    symbol: str
    text: str
    arguments: tuple[Argument, ...]
    scratch: int = field(compare=False)
    portable: bool
    fallible: tuple[str, ...] = ()
    dims: tuple[str, ...] = field(default=(), compare=False)
    """C expressions of the extents that a call hands over, over the network's table `d`."""
    headers: tuple[str, ...] = ()
    work_split: WorkSplit = field(default=WorkSplit(), compare=False)
    launch: Launch | None = None
    """How a GPU runs it; None: it is a C function."""

    @property
    def tiles(self) -> bool:
        """Whether it needs the permission to use AMX's tiles."""
        return "tiles" in self.headers

    @property
    def path(self) -> str:
        """The path of the file in the generated project."""
        return f"src/kernels/{self.symbol}.{'cu' if self.launch else 'c'}"

    @property
    def prototype(self) -> str:
        """The C declaration without the semicolon."""
        parameters = ", ".join(f"{a.type}{a.name}" for a in self.arguments)
        return f"{'int' if self.fallible else 'void'} {self.symbol}({parameters})"


FAILURES = {
    "STRING": (-6, "a string is too long for its cell"),
    "NUMBER": (-11, "a text is no number"),
    "FORMAT": (-12, "a file is no image of a format that is read: BMP, JPEG, PNG, PNM, TIFF"),
    "IMAGE": (-13, "an image is damaged, of another size than the model's, or of a kind of its "
              "format that isn't read"),
}  # fmt: skip
"""Statuses of networks that kernels return (`enum k_failure` in `kernel.h`), and what they mean."""

_PLACEHOLDER = "ATC_SYMBOL"
_FUNCTION = re.compile(r"(?P<head>^[^\n]*\)\n{\n)(?P<body>.*?)(?=^})", re.DOTALL | re.MULTILINE)


def render_kernel(candidate: Candidate, w: Workload, target: Target) -> KernelSource:
    """Render the C function of a candidate for a workload."""
    kernel, params = candidate.kernel, candidate.params
    scratch = kernel.scratch(w, params, target)
    work_split, launch = kernel.work_split(w, params, target), kernel.launch(w, params, target)
    arguments = _arguments(
        candidate, w, scratch, work_split, "__restrict__" if launch else "restrict"
    )
    text, dims = bind_tokens(_text(candidate, w, target, arguments), "dim{}".format, "*/")
    if dims:
        arguments = (*arguments, Argument("const int64_t *restrict ", "dims"))
        text, dims = bind_tokens(_text(candidate, w, target, arguments), "dim{}".format, "*/")
        text = _FUNCTION.sub(_with_dims, text)
    dtype = w.outputs[0].dtype.label
    # The target too: two networks with different compiler flags may meet in one program.
    digest = hashlib.sha256(f"{target.name}\n{text}".encode()).hexdigest()[:12]
    symbol = f"atc_{kernel.name}_{dtype}_{digest}"
    return KernelSource(
        symbol, text.replace(_PLACEHOLDER, symbol), arguments, scratch, kernel.portable,
        kernel.fallible, dims, candidate.headers, work_split, launch,
    )  # fmt: skip


def _with_dims(function: re.Match[str]) -> str:
    """Return a C function with the extents that it uses read from `dims` first."""
    head, body = function["head"], function["body"]
    used = sorted({int(k) for k in re.findall(r"\bdim(\d+)\b", body)})
    lines = [f"  const ptrdiff_t dim{k} = (ptrdiff_t)dims[{k}];\n" for k in used]
    if head.endswith("dims)\n{\n") and not used and not re.search(r"\bdims\b", body):
        lines = ["  (void)dims; /* this one needs none */\n"]
    return head + "".join(lines) + body


def _parameters(arguments: Sequence[Argument]) -> str:
    return ",\n    ".join(f"{a.type}{a.name}" for a in arguments)


def _text(
    candidate: Candidate, w: Workload, target: Target, arguments: Sequence[Argument]
) -> str:
    kernel, params = candidate.kernel, candidate.params
    types = [w.inputs[i] for i in range(len(w.inputs))]
    values: dict[str, object] = {
        "symbol": _PLACEHOLDER,
        "parameters": _parameters(arguments),
        "kernel": kernel,
        "params": params,
        "label": candidate.label,
        "portable": kernel.portable,
        "headers": candidate.headers,
        "arguments": arguments,
        "launch": kernel.launch(w, params, target),
        "operands": [f"x{i} {_shown(t)}" for i, t in enumerate(types) if t is not None],
        "results": [f"y{i} {_shown(t)}" for i, t in enumerate(w.outputs)],
        **kernel.values(w, params, target),
    }
    return render(kernel.template, values)


def _shown(type_: TensorType) -> str:
    return f"{type_.dtype.label}[{','.join(map(str, type_.shape))}]"


def _arguments(
    candidate: Candidate, w: Workload, scratch: int, work_split: WorkSplit, restrict: str
) -> tuple[Argument, ...]:
    shared = candidate.kernel.in_place(w)
    arguments = []
    for i, type_ in enumerate(w.inputs):
        if type_ is not None:
            qualifier = "" if i in shared else f"{restrict} "
            arguments.append(Argument(f"const {type_.dtype.c} *{qualifier}", f"x{i}"))
    for i, out in enumerate(w.outputs):
        qualifier = "" if shared and i == 0 else f"{restrict} "
        arguments.append(Argument(f"{out.dtype.c} *{qualifier}", f"y{i}"))
    if scratch:
        arguments.append(Argument(f"void *{restrict} ", "scratch"))
    for k in range(len(w.op.written)):
        arguments.append(Argument("int64_t *restrict ", f"count{k}"))
    arguments += (Argument("ptrdiff_t ", name) for name in stripe_names(candidate.params))
    arguments += (Argument("int ", name) for name in work_split.names)
    return tuple(arguments)
