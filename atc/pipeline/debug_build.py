"""Debug builds: which kernels are built how, and the files that are kept of them.

The switches of `--op_debug_config` are ATC's; for C they mean:

- `oom`: build with AddressSanitizer. Whoever loads the library must have its runtime: link the
  program with `-fsanitize=address`, or start it with `LD_PRELOAD=libasan.so`
- `dump_bin`: keep objects and descriptions; `dump_cce`: the sources too
- `dump_loc`: keep the sources and their maps from lines to nodes
- `ccec_O0`, `ccec_g`: compile with `-O0`, with `-g`
- `check_flag`: nothing, there are no synchronisation flags to check; a warning says so
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir
from onnx_ir.traversal import RecursiveGraphIterator

from atc.backends.kernel_source import KernelSource
from atc.cache import DebugConfig, parse_debug_config
from atc.dims import max_value
from atc.errors import OptionError
from atc.ir.text import op_text
from atc.options.files import read_text
from atc.options.options import Options
from atc.program.steps import Call, Program, calls

LEVEL_FILES: Mapping[int, tuple[str, ...]] = {
    0: (),
    1: (".o", ".json", ".c", "_loc.json"),
    2: (".o", ".json", ".c", "_loc.json"),
    3: (".o", ".json"),
    4: (".o", ".json", ".c", "_compute.json"),
}
"""The files that each `--op_debug_level` keeps, by what follows the kernel's name."""

_SWITCH_FILES: Mapping[str, tuple[str, ...]] = {
    "dump_bin": (".o", ".json"),
    "dump_cce": (".o", ".json", ".c"),
    "dump_loc": (".c", "_loc.json"),
}
_SWITCH_FLAGS: Mapping[str, tuple[str, ...]] = {
    "oom": ("-fsanitize=address", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"),
    "ccec_O0": ("-O0",),
    "ccec_g": ("-g",),
}
_SWITCHES = (*_SWITCH_FILES, *_SWITCH_FLAGS, "check_flag")

FOLDER = "kernel_meta"


@dataclass(frozen=True)
class Debugging:
    """The subject and the manner of debugging.

    `flags` and `files` are for the kernels that `config` lists, or for all if it lists none.
    """

    level: int = 0
    config: DebugConfig = field(default_factory=DebugConfig)

    @property
    def files(self) -> tuple[str, ...]:
        """The files to keep, by what follows the kernel's name."""
        switched = (_SWITCH_FILES.get(switch, ()) for switch in self.config.switches)
        kept = {*LEVEL_FILES[self.level], *(name for names in switched for name in names)}
        return tuple(sorted(kept))

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags on top of the usual ones."""
        switched = (_SWITCH_FLAGS.get(switch, ()) for switch in self.config.switches)
        level = ("-O0", "-g") if self.level == 2 else ()
        return tuple(dict.fromkeys((*level, *(flag for flags in switched for flag in flags))))

    @property
    def of_all(self) -> bool:
        """Whether every kernel is debugged, not only listed ones."""
        return self.level != 0 or not self.config.operators

    def warnings(self, operators: Mapping[str, frozenset[str]]) -> Iterator[str]:
        """Yield what is asked for in vain, given the model's operator types by node name."""
        if "check_flag" in self.config.switches:
            yield "check_flag of op_debug_config has no meaning for C and is passed over"
        if "oom" in self.config.switches:
            yield (
                "the library has AddressSanitizer in it: load it into a program that was linked "
                "with -fsanitize=address or started with LD_PRELOAD=libasan.so"
            )
        known = {*operators, *(f"OpType::{t}" for types in operators.values() for t in types)}
        for name in self.config.operators:
            if name not in known:
                yield f"'{name}' of op_debug_list is not an operator of the model"


def read_debugging(options: Options) -> Debugging:
    """Return what the options say; raises OptionError for a wrong file or an unknown switch."""
    config = DebugConfig()
    if options.op_debug_config:
        path = options.op_debug_config
        config = parse_debug_config(read_text(path, "op_debug_config"), str(path))
        for switch in config.switches:
            if switch not in _SWITCHES:
                raise OptionError(
                    f"unknown switch '{switch}' of op_debug_config",
                    where=str(options.op_debug_config), hint=f"use {', '.join(_SWITCHES)}",
                )  # fmt: skip
    return Debugging(options.op_debug_level, config)


def operator_types(model: onnx_ir.Model) -> dict[str, frozenset[str]]:
    """Return the operator types of a model by node name (a name may stand for several)."""
    found: dict[str, frozenset[str]] = {}
    for node in RecursiveGraphIterator(model.graph):
        name = node.name or (node.outputs[0].name if node.outputs else "") or node.op_type
        found[name] = found.get(name, frozenset()) | {node.op_type}
    return found


def listed_kernels(
    programs: Iterable[Program], config: DebugConfig, operators: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """Return the symbols of the kernels that a listed operator uses, fused ones included."""
    return frozenset(
        call.source.symbol
        for program in programs
        for call in calls(program.steps)
        if any(
            config.lists(name, op_type)
            for name in call.node.origin
            for op_type in operators.get(name, {""})
        )
    )


# ------------------------------------------------------------------------------ the kept files


@dataclass(frozen=True)
class Schedule:
    """A program, and the source that makes its calls: its path and its text.

    The calls of the programs before it may stand there, too.
    """

    program: Program
    path: str
    text: str


@dataclass(frozen=True)
class Use:
    """A call of a kernel: the file and the number of the line where it stands, if it is found."""

    call: Call
    path: str
    line: int | None


@dataclass(frozen=True)
class Build:
    """A build as its kept files describe it: its objects by path, and its schedules."""

    target: str
    compiler: str
    flags: tuple[str, ...]
    objects: Mapping[str, bytes]
    schedules: Sequence[Schedule]


def kernel_files(build: Build, kinds: Sequence[str], symbols: frozenset[str]) -> dict[str, bytes]:
    """Return the files of the given kinds to keep of these kernels, by name."""
    uses: dict[str, list[Use]] = {}
    for use in _uses(build.schedules):
        uses.setdefault(use.call.source.symbol, []).append(use)
    files: dict[str, bytes] = {}
    for symbol in sorted(symbols & set(uses)):
        source = uses[symbol][0].call.source
        for kind in kinds:
            files[f"{symbol}{kind}"] = _content(kind, source, uses[symbol], build)
    return files


def write_kernel_meta(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files into `folder`/kernel_meta, beside those of other runs."""
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / FOLDER / name).write_bytes(data)
    except OSError as error:
        raise OptionError(
            f"can't write {folder / FOLDER}: {error.strerror}", where="--debug_dir",
            hint="choose another folder",
        ) from None  # fmt: skip


def _uses(schedules: Iterable[Schedule]) -> Iterator[Use]:
    """Yield the calls of all programs, which stand in their sources in this order."""
    ends: dict[str, int] = {}
    for schedule in schedules:
        lines = [line.lstrip() for line in schedule.text.splitlines()]
        for k, call in enumerate(calls(schedule.program.steps)):
            launched = call.source.path.endswith(".cu")  # by a number, below its comment
            begin = f"/* {k}: " if launched else f"{call.source.symbol}("
            at = range(ends.get(schedule.path, 0), len(lines))
            found = next((n for n in at if lines[n].startswith(begin)), None)
            line = None if found is None else found + 1 + launched
            ends[schedule.path] = line or at.start
            yield Use(call, schedule.path, line)


def _content(
    kind: str, source: KernelSource, uses: Sequence[Use], build: Build
) -> bytes:
    match kind:
        case ".o":
            return build.objects[source.path]
        case ".c":
            return source.text.encode()
        case ".json":
            return _json(_description(source, uses, build))
        case "_loc.json":
            return _json(_locations(source, uses))
        case _:
            return _json(_computation(source, uses))


def _description(source: KernelSource, uses: Sequence[Use], build: Build) -> dict[str, object]:
    call = uses[0].call
    return {
        "kernelName": source.symbol,
        "binFileName": source.symbol,
        "binFileSuffix": ".o",
        "sha256": hashlib.sha256(build.objects[source.path]).hexdigest(),
        "kernel": call.choice.candidate.label,
        "op": call.node.op.kind,
        "inputs": [str(t) if t else None for t in call.choice.workload.inputs],
        "outputs": [str(t) for t in call.choice.workload.outputs],
        "workspace": max_value(source.scratch),
        "target": build.target,
        "compiler": build.compiler,
        "flags": list(build.flags),
        "nodes": [list(use.call.node.origin) for use in uses],
    }


def _locations(source: KernelSource, uses: Sequence[Use]) -> dict[str, object]:
    """Map the kernel's lines, and those of the schedule that call it, to the model's nodes."""
    every = sorted({name for use in uses for name in use.call.node.origin})
    last = len(source.text.splitlines())
    return {
        "kernelName": source.symbol,
        "lines": [
            {"file": source.path, "first": 1, "last": last, "nodes": every},
            *(
                {"file": use.path, "first": use.line, "last": use.line,
                 "nodes": list(use.call.node.origin)}
                for use in uses
                if use.line is not None
            ),
        ],
    }  # fmt: skip


def _computation(source: KernelSource, uses: Sequence[Use]) -> dict[str, object]:
    """Describe what the kernel computes: the op with its fused expression, for each use."""
    return {
        "kernelName": source.symbol,
        "uses": [
            {"op": op_text(node.op), "nodes": list(node.origin),
             "inputs": list(node.inputs), "outputs": list(node.outputs)}
            for node in (use.call.node for use in uses)
        ],
    }  # fmt: skip


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode()
