"""`atc quantize --weights=int4`: products whose weights alone are of 4 bits, from a float model.

Every block of a column's weights has a scale, and a zero point unless they are symmetric: the form
of onnxruntime's MatMulNBits, whose quantizer does the work. Nothing is calibrated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir

from atc.errors import OptionError, one_line
from atc.files.temporary import temporary_folder
from atc.importers import load_model
from atc.ir.graph import Array
from atc.ir.strict_json import dumps
from atc.lower.context import node_name
from atc.passes.quantized.narrow_scales import as_halves
from atc.quantize.quantize import (
    IR_VERSION,
    Job,
    check_kept,
    check_output,
    need_onnxruntime,
    of_onnxruntime,
    write_model,
)

Floats = npt.NDArray[np.float64]
HALF_STEP = 2.0**-11
"""What rounding to float16 changes at most, as a part of the number."""


@dataclass(frozen=True)
class PackedWeights:
    """The weights of a product; `noise` is what rounding adds, as a part of their energy."""

    node: str
    shape: tuple[int, ...]
    noise: float


@dataclass(frozen=True)
class QuantisedWeights:
    """The result: what is packed, and the names of the products that aren't."""

    output: Path
    block: int
    symmetric: bool
    packed: tuple[PackedWeights, ...]
    left: tuple[str, ...]


def quantize_weights(job: Job) -> QuantisedWeights:
    """Pack the constant weights of MatMul nodes and write the model to `job.output`.

    Raises OptionError for wrong files and names, or without onnxruntime, UnsupportedError where
    onnxruntime can't do it.
    """
    need_onnxruntime()
    check_output(job.output)
    for name in ("calibration", "labels", "keep_worst"):
        if getattr(job, name):
            raise OptionError(
                f"--{name} and --weights=int4 can't be combined", where=f"--{name}",
                hint="weights of 4 bits need no inputs: leave it out", code="E10047",
            )  # fmt: skip
    model = load_model(job.model, job.framework, job.input_shape, job.weight)
    for node in model.graph:
        node.name = node_name(node)
    check_kept(model, job.keep_float)
    model.ir_version = max(model.ir_version or 0, IR_VERSION)
    proto = onnx_ir.to_proto(model)
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    wide = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    products = [n for n in proto.graph.node if n.op_type == "MatMul" and n.input[1] in wide]
    config = nbits.DefaultWeightOnlyQuantConfig(
        block_size=job.block, is_symmetric=job.symmetric, bits=4
    )
    with of_onnxruntime(job.model), _quiet():
        quantizer = nbits.MatMulNBitsQuantizer(
            proto, algo_config=config, nodes_to_exclude=[*job.keep_float]
        )
        quantizer.process()
    made = quantizer.model.model
    _round_scales(made)
    by_result = {n.output[0]: n for n in made.graph.node if n.op_type == "MatMulNBits"}
    constants = {t.name: t for t in made.graph.initializer}
    left = tuple(node.name for node in products if node.output[0] not in by_result)
    packed = tuple(
        _packed(node.name, wide[node.input[1]], by_result[node.output[0]], constants, job.block)
        for node in products if node.output[0] in by_result
    )  # fmt: skip
    if not packed:
        raise OptionError(
            "the model has no product of two axes with constant weights", where=str(job.model),
            hint="MatMul nodes are what --weights=int4 packs",
        )  # fmt: skip
    with temporary_folder("quantize") as folder:
        path = Path(folder, "packed.onnx")
        onnx.save(made, path)
        write_model(path, job.output)
    return QuantisedWeights(job.output, job.block, job.symmetric, packed, left)


def _packed(
    name: str, weights: Array, product: onnx.NodeProto,
    constants: Mapping[str, onnx.TensorProto], block: int,
) -> PackedWeights:  # fmt: skip
    """Return what a product's weights lose by being packed."""
    wide = weights.astype(np.float64)
    operands = [onnx.numpy_helper.to_array(constants[n]) for n in product.input[1:4]]
    errors = _unpacked(operands, wide.shape, block) - wide
    energy = float((wide**2).sum()) or 1.0
    return PackedWeights(name, wide.shape, float((errors**2).sum()) / energy)


def _round_scales(model: onnx.ModelProto) -> None:
    """Round scales to numbers of float16, whose range and precision they don't need more than.

    What errs by that is far less than half a step of 4 bits; a product then reads a tenth less.
    """
    constants = {t.name: t for t in model.graph.initializer}
    for name in {n.input[2] for n in model.graph.node if n.op_type == "MatMulNBits"}:
        scales = onnx.numpy_helper.to_array(constants[name])
        rounded = as_halves(scales).astype(scales.dtype)
        if (np.abs(rounded - scales) <= np.abs(scales) * HALF_STEP).all():
            constants[name].CopyFrom(onnx.numpy_helper.from_array(rounded, name))


def _unpacked(operands: list[Array], shape: tuple[int, ...], block: int) -> Floats:
    """Return the weights [k, n] that packed ones stand for."""
    scales = operands[1].astype(np.float64)
    q, *zeros = (a.astype(np.uint8) for k, a in enumerate(operands) if k != 1)
    k, n = shape
    numbers = np.stack([q & 15, q >> 4], -1).reshape(n, -1, block).astype(np.float64)
    blocks = numbers.shape[1]
    middle = np.full((n, blocks), 8.0)
    if zeros:
        pairs = zeros[0].reshape(n, -1)
        middle = np.stack([pairs & 15, pairs >> 4], -1).reshape(n, -1)[:, :blocks].astype(float)
    found = (numbers - middle[..., None]) * scales.reshape(n, blocks, 1)
    return np.asarray(found.reshape(n, -1)[:, :k].T)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep onnxruntime from logging what it does."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def weights_json(result: QuantisedWeights) -> str:
    """Return the report as JSON, products in the model's order."""
    return dumps({
        "output": str(result.output), "weights": "int4", "block": result.block,
        "symmetric": result.symmetric, "left_in_float": result.left,
        "products": [
            {"node": p.node, "shape": p.shape, "sqnr_db": _decibels(p)} for p in result.packed
        ],
    })  # fmt: skip


def weights_text(result: QuantisedWeights) -> str:
    """Return the report in words."""
    worst = max(result.packed, key=lambda p: p.noise)
    numbers = sum(int(np.prod(p.shape)) for p in result.packed)
    scheme = "symmetric" if result.symmetric else "with zero points"
    lines = [
        f"{len(result.packed)} products with {numbers} weights of 4 bits, blocks of "
        f"{result.block}, {scheme}",
        f"noisiest: '{one_line(worst.node, 50)}', signal to noise {_decibels(worst):.1f} dB",
    ]
    if result.left:
        lines.append("left in float: " + ", ".join(f"'{one_line(n, 50)}'" for n in result.left))
    return "\n".join([*lines, f"written: {result.output}"]) + "\n"


def _decibels(weights: PackedWeights) -> float:
    return float(-10 * np.log10(max(weights.noise, 1e-20)))
