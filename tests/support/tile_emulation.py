"""Runs code for AMX where the CPU has none: the tiles' header is exchanged, the CPU isn't asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from atc.backends.target import TILES, Target, host_features

HEADER = "simd_tiles.h"
_ASKING, _TRUSTING = b"if (!cpu_is_able())", b"if (0 && !cpu_is_able())"


_HALVES = {"avx512_fp16": "-mavx512fp16"}
"""What all CPUs with tiles have and few others; without the flag vectors do without."""


def emulable(target: Target) -> Target:
    """Return a target with tiles for a CPU without, and without what else such CPUs lack."""
    lacking = {name: flag for name, flag in _HALVES.items() if name not in host_features()}
    if not emulated() or not lacking:
        return target
    cflags = tuple(f for f in target.cflags if f not in lacking.values())
    return replace(target, features=target.features.difference(lacking), cflags=cflags)


def emulated() -> bool:
    """Whether this CPU needs the emulation."""
    return not host_features() >= TILES


def emulating(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of kernels or networks, changed where they use tiles that aren't there."""
    if not emulated() or not any(path.endswith(HEADER) for path in files):
        return dict(files)
    header = Path(__file__).with_name("tiles_emulated.h").read_bytes()
    return {
        path: header if path.endswith(HEADER) else text.replace(_ASKING, _TRUSTING)
        for path, text in files.items()
    }
