"""All targets by name, and the choice of the host's own."""

from __future__ import annotations

import difflib
import sys
from dataclasses import replace

from atc.backends.cpu.targets import ALIASES, TARGETS
from atc.backends.cuda.device import architecture_for, compute_capabilities
from atc.backends.cuda.targets import CUDA_TARGETS, name_of
from atc.backends.machine import Machine
from atc.backends.machines import host_machine
from atc.backends.target import Target, host_arch, host_features
from atc.errors import OptionError


def get_target(
    name: str, option: str = "target", machine: Machine | None = None
) -> Target:
    """Return the target called `name`; `host` and the empty name mean this machine's best one.

    Estimates count on `machine`; if that is None, for `host` on this machine's record, and for a
    target that is named on its default, so that it compiles to the same code on any machine.

    Case doesn't matter, nor do `_` for `-` (`x86_64-avx2`), and the x86-64 psABI's level names are
    known. A target of this machine's own architecture is built with the host's compiler and
    needs no emulator. `cuda` means this machine's first GPU, and any GPU where there is none.
    Raises OptionError, which lists the names, for any other name; `option` is
    the one that gave it.
    """
    wanted = name.strip().lower().replace("_", "-")
    if wanted in ("", "host"):
        return _on(host_target(), machine)
    wanted = _of_device() if wanted == "cuda" else ALIASES.get(wanted, wanted)
    for target in (*TARGETS, *CUDA_TARGETS):
        if target.name == wanted:
            return _on(_at_home(target), machine)
    names = [target.name for target in (*TARGETS, *CUDA_TARGETS)]
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    raise OptionError(
        f"unknown target '{name}'; the targets are host, {', '.join(names)}",
        where=f"--{option}",
        hint=f"did you mean {near[0]}?" if near else "",
    )


def _of_device() -> str:
    """Return the name of the target of this machine's first GPU."""
    found = compute_capabilities()
    architecture = architecture_for(found[0]) if found else None
    return name_of(architecture) if architecture else "cuda"


def host_target() -> Target:
    """Return the most capable target whose features this machine's CPU has; `c99` if none."""
    return _on(best_target(TARGETS, host_arch(), host_features()), host_machine())


def best_target(targets: tuple[Target, ...], arch: str, features: frozenset[str]) -> Target:
    """Return the last of `targets` (ordered weakest first) that a CPU can run."""
    able = [
        t for t in targets if t.arch in ("", arch) and t.features <= features and not t.bare
        and t.big_endian == (sys.byteorder == "big")
    ]  # fmt: skip
    return _at_home(able[-1])


def _on(target: Target, machine: Machine | None) -> Target:
    return replace(target, machine=machine) if machine is not None else target


def _at_home(target: Target) -> Target:
    if target.arch != host_arch() or target.bare:
        return target
    return replace(target, compiler="cc", compiler_words=(), runner=())
