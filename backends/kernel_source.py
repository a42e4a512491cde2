"""C functions of kernels: a candidate rendered for a workload, with its symbol and arguments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from atc.backends.kernel import (
    Candidate,
    Launch,
    Workload,
    WorkSplit,
    split_of,
    stripe_names,
)
from atc.backends.render.code import functions_changed, names_in
from atc.backends.render.opening import opened_extents
from atc.backends.render.own_math import HEADER, with_own_math
from atc.backends.render.simplify import simplified
from atc.backends.target import Target
from atc.dims import bind_tokens
from atc.ir.graph import TensorType
from atc.templates import render


@dataclass(frozen=True)
class Argument:
    """One parameter of a C kernel function: a pointer, or to a GPU's kernel also an extent."""

    type: str
    name: str
    qualifier: str = ""
    """`restrict` of a pointer whose memory no other one reaches."""

    def __str__(self) -> str:
        space = "" if self.type.endswith("*") and not self.qualifier else " "
        return f"{self.type}{self.qualifier}{space}{self.name}"


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
    """C of the extents that a call hands over: numbers, and expressions over the network's table
    `d`. Kernels that differ in nothing else share the function."""
    headers: tuple[str, ...] = ()
    work_split: WorkSplit = field(default=WorkSplit(), compare=False)
    launch: Launch | None = None
    """How a GPU runs it; None: it is a C function."""

    @property
    def tiles(self) -> bool:
        """Whether it needs the permission to use AMX's tiles."""
        return "tiles" in self.headers

    @property
    def vocabulary(self) -> bool:
        """Whether it is written in the terms of simd.h and simd_math.h."""
        return not self.portable or HEADER in self.headers

    @property
    def path(self) -> str:
        """The path of the file in the generated project."""
        return f"src/kernels/{self.symbol}.{'cu' if self.launch else 'c'}"

    @property
    def table(self) -> str:
        """The last argument of a call, that of the extents; '' where the function takes none."""
        return f"(const int64_t[]){{{', '.join(self.dims)}}}" if self.dims else ""

    @property
    def prototype(self) -> str:
        """The C declaration without the semicolon."""
        parameters = ", ".join(map(str, self.arguments))
        return f"{'int' if self.fallible else 'void'} {self.symbol}({parameters})"


FAILURES = {
    "STRING": (-6, "a string is too long for its cell"),
    "NUMBER": (-11, "a text is not a number"),
    "FORMAT": (-12, "a file is not an image of a format that is read: BMP, JPEG, PNG, PNM, TIFF"),
    "IMAGE": (-13, "an image is damaged, of another size than the model's, or of a kind of its "
              "format that isn't read"),
}  # fmt: skip
"""Statuses of networks that kernels return (`enum k_failure` in `kernel.h`), and what they mean."""

Render: TypeAlias = Callable[[Candidate, Workload, Target], KernelSource]
"""What renders the C function of a candidate for a workload, as `render_kernel` does."""

_PLACEHOLDER = "ATC_SYMBOL"
_DIM = re.compile(r"dim(\d+)")


def render_kernel(candidate: Candidate, w: Workload, target: Target) -> KernelSource:
    """Render the C function of a candidate for a workload."""
    kernel, params = candidate.kernel, candidate.params
    scratch = kernel.scratch(w, params, target)
    work_split, launch = split_of(kernel, w, params, target), kernel.launch(w, params, target)
    arguments = _arguments(
        candidate, w, scratch, work_split, "__restrict__" if launch else "restrict"
    )
    if launch and launch.later:
        arguments += (Argument("ptrdiff_t", "phase"),)
    text, dims = bind_tokens(_text(candidate, w, target, arguments), "dim{}".format, "*/")
    headers = candidate.headers
    if dims and launch:
        arguments += tuple(Argument("ptrdiff_t", f"dim{k}") for k in range(len(dims)))
    elif dims:
        arguments = (*arguments, Argument("const int64_t *", "dims", "restrict"))
    if dims:
        text, dims = bind_tokens(_text(candidate, w, target, arguments), "dim{}".format, "*/")
    if target.machine.near_lines:
        text = text.replace("v_prefetch_l2(", "v_prefetch_l1(")
    text = simplified(text)  # before extents are read, lest one be read for nothing
    if dims and not launch:
        text = functions_changed(text, _with_dims)
    lanes = target.vector_bytes // 4
    if target.own_math and not launch and (kernel.portable or lanes == 1):
        text, own = with_own_math(text, lanes)
        headers += own
    dtype = w.outputs[0].dtype.label
    # The target too: two networks with different compiler flags may meet in one program.
    built = f"{target.name} deterministic" if target.deterministic else target.name
    digest = hashlib.sha256(f"{built}\n{text}".encode()).hexdigest()[:12]
    symbol = f"atc_{kernel.name}_{dtype}_{digest}"
    return KernelSource(
        symbol, text.replace(_PLACEHOLDER, symbol), arguments, scratch, kernel.portable,
        kernel.fallible, dims, headers, work_split, launch,
    )  # fmt: skip


def nested_function(
    candidate: Candidate, w: Workload, target: Target, name: str, extent: Callable[[str], str]
) -> tuple[str, tuple[Argument, ...]]:
    """Render a candidate as a static function of another kernel's file; returns its parameters too.

    The last one is `ptrdiff_t rows`, over which `extent` writes what only the run knows.
    """
    split = split_of(candidate.kernel, w, candidate.params, target)
    scratch = candidate.kernel.scratch(w, candidate.params, target)
    arguments = _arguments(candidate, w, scratch, split, "restrict")
    arguments += (Argument("ptrdiff_t", "rows"),)
    text = _text(candidate, w, target, arguments, nested=True).replace(_PLACEHOLDER, name)
    text, dims = bind_tokens(text, "rows{}".format)
    written = {f"rows{k}": extent(each) for k, each in enumerate(dims)}
    for part in [part for part, c in written.items() if c == "rows"]:
        text = re.sub(rf"\b{part}\b", "rows", text)
        del written[part]

    def declared(head: str, body: str) -> str:
        used = names_in(body)
        parts = (f"  const ptrdiff_t {p} = {c};\n" for p, c in written.items() if p in used)
        return head + "".join(parts) + body

    return functions_changed(text, declared), arguments


def _with_dims(head: str, body: str) -> str:
    """Return a C function with the extents that it uses read from `dims` first."""
    names = names_in(body)
    used = sorted(int(found[1]) for name in names if (found := _DIM.fullmatch(name)))
    lines = [f"  const ptrdiff_t dim{k} = (ptrdiff_t)dims[{k}];\n" for k in used]
    if "dims" in names_in(head) and not used and "dims" not in names:
        lines = ["  (void)dims; /* this one needs none */\n"]
    return head + "".join(lines) + body


def _parameters(arguments: Sequence[Argument]) -> str:
    return ",\n    ".join(map(str, arguments))


def _text(
    candidate: Candidate, w: Workload, target: Target, arguments: Sequence[Argument],
    nested: bool = False,
) -> str:  # fmt: skip
    kernel, launch = candidate.kernel, candidate.kernel.launch(w, candidate.params, target)
    shared, shown = opened_extents(candidate, w, target)
    params, table = shown.params, shared is not w
    values: dict[str, object] = {
        "symbol": _PLACEHOLDER,
        "parameters": _parameters(arguments),
        "kernel": kernel,
        "params": params,
        "label": shown.label,
        "portable": kernel.portable,
        "headers": candidate.headers,
        "arguments": arguments,
        "launch": launch,
        "nested": nested,
        "frame": "cuda/kernel.cu.j2" if launch else "cpu/kernel.c.j2",
        "operands": [f"x{i} {_shown(t)}" for i, t in enumerate(shared.inputs) if t is not None],
        "results": [f"y{i} {_shown(t)}" for i, t in enumerate(shared.outputs)],
        "dims_parameter": ", const int64_t *dims" if table else "",
        "dims_argument": ", dims" if table else "",
        **kernel.values(shared, params, target),
    }
    return render(kernel.template, values)


def _shown(type_: TensorType) -> str:
    return f"{type_.dtype.label}[{','.join(map(str, type_.shape))}]"


def _arguments(
    candidate: Candidate, w: Workload, scratch: int, work_split: WorkSplit, restrict: str
) -> tuple[Argument, ...]:
    overwrites = candidate.kernel.overwrites(w, candidate.params)
    shared = {i for inputs in overwrites.values() for i in inputs}
    arguments = []
    for i, type_ in enumerate(w.inputs):
        if type_ is not None:
            qualifier = "" if i in shared else restrict
            arguments.append(Argument(f"const {type_.dtype.c} *", f"x{i}", qualifier))
    for i, out in enumerate(w.outputs):
        qualifier = "" if overwrites.get(i) else restrict
        arguments.append(Argument(f"{out.dtype.c} *", f"y{i}", qualifier))
    if scratch:
        arguments.append(Argument("void *", "scratch", restrict))
    for k in range(len(w.op.written)):
        arguments.append(Argument("int64_t *", f"count{k}", "restrict"))
    arguments += (Argument("ptrdiff_t", name) for name in stripe_names(candidate.params))
    arguments += (Argument("int", name) for name in work_split.names)
    return tuple(arguments)
