"""`atc targets`: every target, the tools that this machine has for it, and what to install."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from atc.backends.cpu.targets import ALIASES, TARGETS
from atc.backends.cuda.device import architecture_for, compute_capabilities
from atc.backends.cuda.targets import CUDA_TARGETS, EMULATED, PORTABLE
from atc.backends.target import Target, host_arch, host_features
from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.probe import find_runner, target_compiler
from atc.backends.toolchain.processes import Log, no_log
from atc.devices.network import Device
from atc.errors import AtcError
from atc.starter.boards import BOARDS


@dataclass(frozen=True)
class Tool:
    """A program that a target needs: its path, '' where it isn't there; what to do then.

    `about` is its version, or why there is none that could be installed.
    """

    path: str
    about: str = ""
    install: str = ""


@dataclass(frozen=True)
class TargetRow:
    """A target with the compiler that builds for it here, what runs its programs, and boards.

    `here` says that this machine runs programs for it by itself: then there is no runner.
    """

    name: str
    is_host: bool
    aliases: tuple[str, ...]
    features: tuple[str, ...]
    bare: bool
    compiler: Tool
    here: bool
    runner: Tool
    boards: tuple[str, ...]


def target_rows(environ: Mapping[str, str], log: Log = no_log) -> tuple[TargetRow, ...]:
    """Return all targets, looking for each one's tools."""
    host = host_target().name
    gpus = {architecture_for(each) for each in compute_capabilities()}
    return tuple(
        _row(get_target(each.name), host, gpus, environ, log) for each in (*TARGETS, *CUDA_TARGETS)
    )


def _row(
    target: Target, host: str, gpus: Iterable[str | None], environ: Mapping[str, str], log: Log
) -> TargetRow:
    here = _runs_here(target, set(gpus))
    return TargetRow(
        target.name, target.name == host,
        tuple(sorted(name for name, meant in ALIASES.items() if meant == target.name)),
        tuple(sorted(target.features)), target.bare, _compiler(target, environ, log), here,
        Tool("") if here else _runner(target, environ),
        tuple(board.name for board in BOARDS.get(target.name, ())),
    )  # fmt: skip


def _runs_here(target: Target, gpus: set[str | None]) -> bool:
    """Return whether this machine runs libraries for a target: its processor, or its GPU, can."""
    if target.device and target.device != EMULATED:
        return bool(gpus - {None}) if target.device == PORTABLE else target.device in gpus
    return Device(target).is_native and target.features <= host_features()


def _compiler(target: Target, environ: Mapping[str, str], log: Log) -> Tool:
    """Return what would compile for a target; where nothing does, what to install."""
    try:
        found = target_compiler(target, environ, log=log)
    except AtcError as error:
        return Tool("", error.message, error.hint)
    return Tool(found.argv[0], found.version)


def _runner(target: Target, environ: Mapping[str, str]) -> Tool:
    """Return the emulator that runs a target's programs here."""
    if target.device:
        return Tool("", "no GPU of this kind")
    if target.arch == host_arch() and not target.bare:
        lacking = ", ".join(sorted(target.features - host_features()))
        return Tool("", f"this processor has no {lacking}")
    if not target.runner or (target.bare and target.name not in BOARDS):
        return Tool("", "nothing here runs programs for it")
    found, advice = find_runner(target, environ)
    return Tool(found[0] if found else "", target.runner[0], advice)


def targets_json(rows: Iterable[TargetRow]) -> str:
    """Return the rows as JSON."""
    return json.dumps({"targets": [asdict(row) for row in rows]}, indent=2) + "\n"


def targets_text(rows: Iterable[TargetRow]) -> str:
    """Return a table, a line for each target, and below it what to install for the others."""
    rows = tuple(rows)
    cells = [("target", "compiler", "run by", "starters for"), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    aliases = ", ".join(f"{a} is {row.name}" for row in rows for a in row.aliases)
    notes = [f"host is {row.name}" for row in rows if row.is_host]
    return "\n".join([*lines, "", *notes, aliases, *_missing(rows)]) + "\n"


def _cells(row: TargetRow) -> tuple[str, str, str, str]:
    compiler, runner = row.compiler, row.runner
    by = "this machine" if row.here else Path(runner.path).name or "-"
    return row.name, Path(compiler.path).name or "-", by, ", ".join(row.boards)


def _missing(rows: Iterable[TargetRow]) -> list[str]:
    """Return the ways to what is missing, each once with the targets that want it."""
    wanted: dict[str, list[str]] = {}
    for row in rows:
        for tool in (row.compiler, row.runner):
            if not tool.path and tool.install:
                wanted.setdefault(tool.install, []).append(row.name)
    lines = [f"{', '.join(names)}: {install}" for install, names in wanted.items()]
    return ["", "What is missing:", *(f"  {line}" for line in lines)] if lines else []
