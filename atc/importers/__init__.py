"""Read model files of every format as an `onnx_ir.Model` with pinned input shapes.

The only package that knows file formats. May import `dims` and `errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir

from atc.dims import Extent, InputShape
from atc.errors import ModelError, OptionError, one_line, reason_of, way_out
from atc.files.regular import regular
from atc.importers.foreign import refuse_foreign
from atc.importers.megengine import is_megengine, load_megengine
from atc.importers.mxnet import is_mxnet, load_mxnet
from atc.importers.onnx import load_onnx, pin_inputs
from atc.importers.optimised_graph import load_graph

FRAMEWORKS = {"5": "onnx", "onnx": "onnx", "mge": "mge", "mxnet": "mxnet"}
"""Values of `--framework` and their formats; ATC's other numbers are not supported."""


def load_model(
    path: Path, framework: str, shapes: Mapping[str, InputShape], weight: Path | None,
    mapped: bool = False,
) -> onnx_ir.Model:  # fmt: skip
    """Read a model file; an empty `framework` is detected from the file's first bytes.

    If `mapped`, large tensors may stay in the file, which then must not change while they are used.

    The model's metadata entry `atc.warnings` has a line for whatever is suspicious. Raises
    AtcError, also for a file of weights that isn't there, whether or not the format has one.
    """
    if FRAMEWORKS.get(framework, framework) in ("", "onnx"):
        refuse_foreign(path)
    head = _head(path)
    kind = FRAMEWORKS.get(framework) if framework else _detect(head)
    if weight is not None:
        _check_there(weight)
    model = _loaded(path, kind, framework, shapes, weight, mapped)
    if weight is not None and kind != "mxnet":
        text = f"--weight has no effect: {one_line(path.name)} is not MXNet's, it has its own"
        earlier = model.metadata_props.get("atc.warnings", "").splitlines()
        model.metadata_props["atc.warnings"] = "\n".join([*earlier, text])
    return model


def _check_there(weight: Path) -> None:
    try:
        there = regular(weight).exists()
    except OSError as error:
        raise ModelError(reason_of(error), where=f"--weight={weight}") from None
    if not there:
        raise ModelError("no such file", where=f"--weight={weight}")


def _loaded(
    path: Path, kind: str | None, framework: str, shapes: Mapping[str, InputShape],
    weight: Path | None, mapped: bool,
) -> onnx_ir.Model:  # fmt: skip
    match kind:
        case "onnx":
            return pin_inputs(load_onnx(path, mapped), shapes, path.name)
        case "mge":
            return load_megengine(path, _of_tensors(shapes, path))
        case "mxnet":
            return load_mxnet(path, weight, _of_tensors(shapes, path))
        case "graph":
            return load_graph(path)
        case _:
            raise OptionError(
                f"framework '{framework}' is not supported", where="--framework",
                hint="use 5 (onnx), mge, mxnet, torch, tflite or sklearn", code="E10001",
            )  # fmt: skip


def _of_tensors(shapes: Mapping[str, InputShape], path: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes for a format without sequences and optionals."""
    tensors: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if isinstance(shape, tuple):
            tensors[name] = tuple(_fixed(name, n, path) for n in shape)
        else:
            raise ModelError(
                f"input '{name}' of --input_shape is neither a sequence nor optional",
                where=str(path), code="E10049",
            )  # fmt: skip
    return tensors


def _fixed(name: str, extent: Extent, path: Path) -> int:
    if not isinstance(extent, int) or extent < 0:
        raise ModelError(
            f"the shape of input '{name}' is open; models of this format have fixed ones",
            where=str(path), hint="give one size per dimension", code="E10055",
        )  # fmt: skip
    return extent


def _head(path: Path) -> bytes:
    try:
        with regular(path).open("rb") as file:
            return file.read(4096)
    except OSError as error:
        raise ModelError(
            f"can't be read: {error.strerror}", where=str(path), hint=way_out(error)
        ) from error


def _detect(head: bytes) -> str:
    """Return the framework that a file's first bytes indicate; ONNX has no magic number."""
    if head.startswith(b"ATCGRAPH"):
        return "graph"
    if is_megengine(head):
        return "mge"
    return "mxnet" if is_mxnet(head) else "onnx"
