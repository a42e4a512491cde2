"""Compiled networks of recorded graphs, each compiled once per process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx

from atc.api import compile_holding
from atc.files.blob import NO_WEIGHTS, Blob
from atc.files.temporary import temporary_folder
from atc.names import network_identifier
from atc.options.table import OPTIONS
from atc.pipeline.held import Held
from atc.pipeline.pipeline import Compilation
from atc.runtime.load import open_network
from atc.runtime.network import Network
from atc.tracing.errors import ArgumentError

KEPT = 512
"""Networks that a process keeps."""

Options = tuple[tuple[str, Any], ...]
"""Keywords of `atc.compile`, sorted."""


def options_of(keywords: Mapping[str, Any]) -> Options:
    """Return keywords of `atc.compile`; kernels are shared through the op compiler cache.

    Raises ArgumentError for an unknown keyword.
    """
    known = {name for name, s in OPTIONS.items() if s.role in ("compilation", "tool")}
    unknown = {*keywords} - known
    if unknown:
        raise ArgumentError(f"there is no keyword '{min(unknown)}'", hint="see atc.compile")
    return tuple(sorted({"op_compiler_cache_mode": "enable", **keywords}.items()))


def network_of(model: onnx.ModelProto, options: Options, held: Held = Held()) -> Network:  # noqa: B008
    """Compile a model, or return the network that was compiled for an equal one.

    Raises AtcError.
    """
    return _network(model.SerializeToString(deterministic=True), model.graph.name, options, held)


@lru_cache(maxsize=KEPT)
def _network(model: bytes, name: str, options: Options, held: Held) -> Network:
    with temporary_folder("trace") as folder:
        output = Path(folder, network_identifier(name))
        write_library(model, output, options, held)
        return open_network(output)  # the system keeps what it has loaded


def write_library(
    model: bytes, output: Path, options: Options, held: Held = Held(),  # noqa: B008
    before: Blob = NO_WEIGHTS,
) -> Compilation:  # fmt: skip
    """Compile the bytes of an ONNX model into the folder `output`. Raises AtcError.

    `before` are the weights of other networks, in a library of several.
    """
    with temporary_folder("model") as folder:
        path = Path(folder, f"{network_identifier(output.name)}.onnx")
        path.write_bytes(model)
        return compile_holding(held, {"model": path, "output": output, **dict(options)}, before)
