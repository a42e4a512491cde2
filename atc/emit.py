"""Renders a program and its memory plan to the files of the deployable; touches no disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc import __version__
from atc.backends.kernel import KernelSource
from atc.backends.target import Target
from atc.ir import Array, TensorType
from atc.memory import ALIGNMENT, Arena
from atc.names import c_string, comment, identifier, unique_identifiers
from atc.program import Branch, Call, Program, Step, calls
from atc.templates import render, verbatim

ABI_VERSION = 1
"""Bumped when a struct or prototype of the generated header changes."""


@dataclass(frozen=True)
class Emission:
    """The files of the generated project by path, and what the build and the report need."""

    files: Mapping[str, bytes]
    name: str
    kernels: tuple[KernelSource, ...]
    weights: bytes


@dataclass(frozen=True)
class Tensor:
    """An input, output, constant or intermediate value as the templates see it."""

    c_name: str
    type: str
    c_type: str
    comment: str
    shape: tuple[int, ...]
    nbytes: int
    dtype: int
    offset: int = 0
    used: bool = True
    c_string: str = ""
    table: str = ""

    @property
    def dims(self) -> str:
        """The shape as it stands in comments."""
        return f"[{', '.join(map(str, self.shape))}]"

    @property
    def note(self) -> str:
        """The model's own name where the C name differs."""
        return "" if self.comment == self.c_name else f'  "{self.comment}"'


def emit(
    program: Program,
    arena: Arena,
    target: Target,
    *,
    name: str,
    model: str,
    model_hash: str,
    options: str,
    external_weights: bool = False,
) -> Emission:
    """Return the generated project. `name` is the prefix of everything, `model` a file name."""
    name = identifier(name)
    kernels = tuple(dict.fromkeys(c.source for c in calls(program.steps)))
    offsets, blob = _layout_weights(program)
    scribe = _Scribe(program, arena, offsets)
    schedule = list(scribe.steps(program.steps))
    build_info = (
        f"atc={__version__}; target={target.name}; model={comment(model)}; "
        f"model_sha256={model_hash}; {options}"
    )
    values: dict[str, object] = {
        "name": name, "upper": name.upper(), "version": __version__, "model": comment(model),
        "target": target.name, "inputs": scribe.inputs, "outputs": scribe.outputs,
        "arena_size": arena.plan.size, "alignment": ALIGNMENT, "abi": ABI_VERSION,
        "weights_size": len(blob), "external": external_weights, "checks": target.cpu_checks,
        "call": ", ".join(t.c_name for t in (*scribe.inputs, *scribe.outputs)),
        "constants": scribe.constants, "values": scribe.locals, "schedule": schedule,
        "build_info": c_string(build_info), "kernels": _users(program, kernels),
        "has_simd": any(not k.portable for k in kernels), "cflags": target.cflags,
        "sources": [k.path for k in kernels], "needs_weights": bool(blob) and not external_weights,
    }  # fmt: skip
    files = {
        f"include/{name}.h": render("project/net.h.j2", values),
        f"src/{name}.c": render("project/net.c.j2", values),
        f"src/{name}_kernels.h": render("project/kernels.h.j2", values),
        "src/kernel.h": verbatim("cpu/kernel.h"),
        **{k.path: k.text for k in kernels},
    }
    if values["has_simd"]:
        files["src/simd.h"] = verbatim(f"simd/{target.simd}.h")
        files["src/simd_math.h"] = verbatim("simd/math.h")
    encoded = {path: text.encode() for path, text in files.items()}
    return Emission(encoded, name, kernels, blob)


def _layout_weights(program: Program) -> tuple[dict[str, int], bytes]:
    """Return each constant's offset and the blob, in order of first use; equal bytes lie once."""
    order = dict.fromkeys(
        a for call in calls(program.steps) for a in call.arguments if a in program.constants
    )
    offsets: dict[str, int] = {}
    seen: dict[bytes, int] = {}
    parts: list[bytes] = []
    size = 0
    for name in order:
        data = constant_bytes(program.constants[name])
        digest = hashlib.sha256(data).digest()
        if digest not in seen:
            seen[digest] = size
            padded = -(-len(data) // ALIGNMENT) * ALIGNMENT
            parts += [data, bytes(padded - len(data))]
            size += padded
        offsets[name] = seen[digest]
    return offsets, b"".join(parts)


def constant_bytes(array: Array) -> bytes:
    """Return an array's elements, little endian, row-major."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _users(program: Program, kernels: Sequence[KernelSource]) -> list[dict[str, str]]:
    users: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    for call in calls(program.steps):
        origin = call.node.origin[0] if call.node.origin else "a copy"
        users.setdefault(call.source.symbol, []).append(comment(origin, 40))
        labels[call.source.symbol] = call.choice.candidate.label
    return [
        {"prototype": k.prototype, "label": labels[k.symbol], "users": _listed(users[k.symbol])}
        for k in kernels
    ]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


class _Scribe:
    """Names every value once and writes the schedule."""

    def __init__(self, program: Program, arena: Arena, offsets: Mapping[str, int]) -> None:
        self.program, self.arena = program, arena
        read = {a for c in calls(program.steps) for a in c.arguments}
        read |= {b.condition for b in _branches(program.steps)}
        read = {program.home(r) for r in read}
        io = unique_identifiers([*program.inputs, *program.outputs], "t")
        split = len(program.inputs)
        self.names = dict(zip(program.inputs, io[:split], strict=True))
        self.inputs = [
            self._io(v, n, k, "input", v in read)
            for k, (v, n) in enumerate(zip(program.inputs, io[:split], strict=True))
        ]
        self.outputs = [
            self._io(v, n, k, "output", True)
            for k, (v, n) in enumerate(zip(program.outputs, io[split:], strict=True))
        ]
        for value, name in zip(program.outputs, io[split:], strict=True):
            self.names[program.home(value)] = name
        self.constants = [
            self._local(v, f"w{k}", offset) for k, (v, offset) in enumerate(offsets.items())
        ]
        self.locals = [
            self._local(v, f"t{k}", offset) for k, (v, offset) in enumerate(arena.offsets.items())
        ]
        self.number = 0

    def _io(self, value: str, name: str, index: int, kind: str, used: bool) -> Tensor:
        tensor = self._tensor(value, name)
        return replace(
            tensor, used=used, c_string=c_string(value), table=f"{kind}_{index}_shape"
        )

    def _tensor(self, value: str, name: str) -> Tensor:
        type_: TensorType = self.program.types[value]
        return Tensor(
            name, str(type_), type_.dtype.c, comment(value), type_.shape, type_.nbytes,
            type_.dtype.code,
        )  # fmt: skip

    def _local(self, value: str, name: str, offset: int) -> Tensor:
        self.names[value] = name
        tensor = self._tensor(value, name)
        return replace(tensor, offset=offset, comment=f"{tensor.comment} {tensor.type}")

    def _pointer(self, value: str) -> str:
        if value in self.names:
            return self.names[value]
        return self.names[self.program.home(value)]

    def steps(self, steps: Sequence[Step]) -> Iterator[str]:
        for step in steps:
            match step:
                case Call():
                    yield from self._call(step)
                case Branch():
                    yield from self._branch(step)

    def _call(self, call: Call) -> Iterator[str]:
        node = call.node
        origin = " + ".join(comment(o, 48) for o in node.origin[:4]) or "copy"
        reads = ", ".join(comment(i, 32) for i in node.inputs if i)
        writes = ", ".join(comment(o, 32) for o in node.outputs)
        yield f'/* {self.number}: {node.op.kind} "{origin}": {reads} -> {writes} */'
        arguments = [self._pointer(a) for a in call.arguments]
        if call.source.scratch:
            arguments.append(f"arena + {self.arena.scratch[node.outputs[0]]}")
        yield f"{call.source.symbol}({', '.join(arguments)});"
        self.number += 1

    def _branch(self, branch: Branch) -> Iterator[str]:
        origin = " + ".join(comment(o, 48) for o in branch.node.origin)
        yield f'/* {self.number}: If "{origin}" */'
        self.number += 1
        yield f"if (*{self._pointer(branch.condition)}) {{"
        yield from (f"  {line}" for line in self.steps(branch.then))
        yield "} else {"
        yield from (f"  {line}" for line in self.steps(branch.otherwise))
        yield "}"


def _branches(steps: Sequence[Step]) -> Iterator[Branch]:
    for step in steps:
        if isinstance(step, Branch):
            yield step
            yield from _branches(step.then)
            yield from _branches(step.otherwise)
