"""Capabilities of this installation: the text of `atc --version`."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Mapping

from atc import __version__
from atc.backends.cpu.targets import TARGETS
from atc.backends.targets import host_target

FORMATS = ("ONNX", "MegEngine .mge", "MXNet symbol.json and .params")
_COMPILERS = ("gcc", "clang")


def version_text(environ: Mapping[str, str] | None = None) -> str:
    """Return the version and lines of targets, formats and the C compilers that are there."""
    env = os.environ if environ is None else environ
    targets = ", ".join(t.name for t in TARGETS)
    compilers = ", ".join(_compilers(env)) or "none: install gcc, or the package ziglang"
    lines = (
        f"atc {__version__}",
        f"targets: {targets}; host is {host_target().name}",
        f"C compilers: {compilers}",
        f"model formats: {', '.join(FORMATS)}",
    )
    return "".join(f"{line}\n" for line in lines)


def _compilers(environ: Mapping[str, str]) -> list[str]:
    """Return the commands that are there, in the order in which they are tried."""
    own = environ.get("CC", "").split()[:1]
    cross = [t.compiler for t in TARGETS if t.compiler != "cc"]
    found = [
        f"{shlex.quote(name)} ({path})"
        for name in dict.fromkeys((*own, *_COMPILERS, *cross))
        if (path := shutil.which(name, path=environ.get("PATH", os.defpath)))
    ]
    return [*found, "zig cc (package ziglang)"] if importlib.util.find_spec("ziglang") else found
