"""`atc machine`: what estimates of kernels count on, shown and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from atc.backends.machine import Cache, Machine
from atc.backends.targets import host_target
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.fast_run.machine import measure_machine
from atc.options.machine import chosen_machine, keep, kept_path, processor, read_kept


@dataclass(frozen=True)
class Shown:
    """A machine, and in words where its numbers come from."""

    machine: Machine
    source: str


def shown_machine(
    name: str, measure: bool, environ: Mapping[str, str], diagnostics: Diagnostics
) -> Shown:
    """Return the machine that is asked for; `measure` measures the host and keeps what it finds.

    Raises OptionError for an unknown name, and where nothing can be kept or the machine was busy,
    ToolchainError where nothing can be measured.
    """
    if name != "host":
        if measure:
            raise OptionError(
                f"only the host can be measured, not '{name}'", where="--measure",
                hint="leave --machine out",
            )  # fmt: skip
        machine = chosen_machine(name)
        assert machine is not None
        return Shown(machine, f"from {name}" if name.endswith(".json") else "as it is known")
    path, known = kept_path(environ), host_target().machine
    if measure:
        if path is None:
            raise OptionError(
                "there is no folder for configuration", where="--measure", hint="set HOME"
            )
        diagnostics.stage("measuring this machine")
        measured = measure_machine(known, environ)
        if measured.doubt:
            raise OptionError(
                f"this machine is busy, so nothing is kept: {measured.doubt}", where="--measure",
                hint="measure again while nothing else runs",
            )  # fmt: skip
        keep(measured.machine, path)
        return Shown(measured.machine, f"measured, kept in {path}")
    if path is not None and path.is_file():
        return Shown(read_kept(path), f"measured, kept in {path}")
    return Shown(known, "as it is known; atc machine --measure measures it")


def machine_text(shown: Shown) -> str:
    """Return a table of a machine's numbers."""
    machine = shown.machine
    rows = [("machine", f"{machine.name}, {shown.source}"), ("this processor", processor())]
    rows += _instructions(machine)
    for name, cache in (
        ("L1 cache", machine.l1),
        ("L2 cache", machine.l2),
        ("L3 cache", machine.l3),
    ):
        rows.append((name, _cache(cache)))
    rows.append(("memory", f"{machine.memory:g} bytes per cycle"))
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)


def _instructions(m: Machine) -> Iterator[tuple[str, str]]:
    vectors = f"vectors of {m.datapath} bytes"
    yield "multiply-adds", f"{m.fmas:g} per cycle on {vectors}, {m.fma_latency:g} cycles each"
    yield "loads", f"{m.loads:g} per cycle of {vectors}"


def _cache(cache: Cache) -> str:
    if not cache.size:
        return "none"
    size = f"{cache.size / 1024:g} KiB, {cache.rate:g} bytes per cycle"
    return f"{size}, {cache.latency:g} cycles until a line is there"
