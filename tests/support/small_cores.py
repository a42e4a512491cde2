"""Small cores as kernels are tested for them: emulated in C on the host, or on qemu's boards."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from atc.backends.cpu.targets import TARGETS
from atc.backends.target import Target
from atc.backends.targets import get_target

BARE = Path(__file__).with_name("bare_metal")
CORES = tuple(t.name for t in TARGETS if t.name.startswith("cortex-m"))
PLACES = {
    "cortex-m33": ("-Wl,--defsym=FLASH=0x10000000", "-Wl,--defsym=RAM=0x38000000"),
    "cortex-m55": ("-Wl,--defsym=RAM=0x60000000", "-Wl,--defsym=CONSTANTS=0x61000000"),
    "cortex-m85": ("-Wl,--defsym=RAM=0x60000000", "-Wl,--defsym=CONSTANTS=0x61000000"),
}
"""Where code and data lie on boards that have them elsewhere than the others."""


def on_host(name: str, *flags: str) -> Target:
    """Return a target whose kernels the host's compiler builds, their instructions emulated."""
    target = get_target(name)
    return replace(
        target, arch="", cflags=flags, compiler="cc", compiler_words=(), runner=(), bare=False
    )


def under_qemu(name: str) -> Target:
    """Return a target whose test programs run on qemu's board; skip where the tools are missing."""
    target = get_target(name)
    for tool in (target.compiler, target.runner[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"{name} needs {tool}")
    start = ("-fno-pic", "-nostartfiles", "--specs=nano.specs", "--specs=rdimon.specs")
    start += (str(BARE / "startup.c"),)
    script = (f"-Wl,-T,{BARE / 'link.ld'}", *PLACES.get(name, ()))
    alone = f'exec {shlex.join(target.runner)} "$0"'  # an emulator of a machine takes no arguments
    return replace(
        target, cflags=(*target.cflags, *start, *script), runner=("sh", "-c", alone)
    )
