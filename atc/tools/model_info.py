"""Text of `--display_model_info` about a compiled model."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from atc import __version__
from atc.errors import one_line
from atc.program.steps import calls

if TYPE_CHECKING:
    from atc.pipeline.pipeline import Compilation


def model_info(done: Compilation) -> str:
    """Return memory, kernels, target and versions, a line each."""
    plan = done.arena.plan
    gap = 100 * (plan.size / plan.lower_bound - 1) if plan.lower_bound else 0.0
    swapped = done.program.on_host
    place = "in a file" if done.options.external_weight else "in the library"
    lines = [
        ("model", f"{done.options.model.name} -> {done.folder}"),
        *(("input", f"{name}: {done.program.types[name]}") for name in done.program.inputs),
        *(("output", f"{name}: {done.program.types[name]}") for name in done.program.outputs),
        ("arena", f"{plan.size} bytes, lower bound {plan.lower_bound}, gap {gap:.1f} %"),
        *[("swapped", f"{len(swapped)} values, {done.arena.host_size} bytes of the host's memory")]
        * bool(swapped),
        ("weights", f"{done.emission.blob.size} bytes {place}"),
        ("kernels", _kernels(done)),
        ("target", done.target.name),
        ("compiler", done.compiler.version),
        ("objects", f"{done.build.compiled} compiled, {done.build.cached} from the cache"),
        ("versions", ", ".join(_versions())),
    ]
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:<{width}}  {one_line(text)}\n" for name, text in lines)


def _kernels(done: Compilation) -> str:
    """Return how many calls and functions each tier has."""
    called = [call.source for call in calls(done.program.steps)]
    tiers = Counter("portable" if source.portable else "tuned" for source in called)
    functions = Counter("portable" if source.portable else "tuned" for source in set(called))
    parts = [
        f"{tier}: {tiers[tier]} calls of {functions[tier]} functions"
        for tier in ("tuned", "portable")
    ]
    return ", ".join(parts)


def _versions() -> list[str]:
    found = [f"atc {__version__}"]
    for package in ("onnx", "onnx-ir", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found
