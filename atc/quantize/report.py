"""Report of `atc quantize`: layers with their noise, the worst ones, the accuracy."""

from __future__ import annotations

from collections.abc import Iterator

from atc.errors import one_line
from atc.ir.strict_json import dumps
from atc.quantize.layer_noise import MOST, Layer
from atc.quantize.quantize import Quantised, worst_layers

WORST = 5
"""Layers that the text names as the worst ones."""

_HEADINGS = ("node", "op", "", "SQNR dB", "added noise", "cosine")


def quantised_json(result: Quantised) -> str:
    """Return the report as JSON; layers in the model's order, worst ones by name."""
    accuracy = result.accuracy
    return dumps({
        "output": str(result.output), "method": result.method,
        "per_channel": result.per_channel, "samples": result.samples,
        "compared_on": min(result.samples, MOST), "kept_in_float": result.kept,
        "worst": [layer.node for layer in worst_layers(result.layers)[:WORST]],
        "layers": [
            {"node": layer.node, "op": layer.op, "value": layer.value,
             "quantised": layer.quantised, "sqnr_db": layer.sqnr, "added_noise": layer.added,
             "cosine": layer.cosine}
            for layer in result.layers
        ],
        "accuracy": None if accuracy is None else {
            "count": accuracy.count, "float32": accuracy.float32, "int8": accuracy.quantised,
        },
    })  # fmt: skip


def quantised_text(result: Quantised) -> str:
    """Return the report as a table and some lines in words."""
    rows = [_HEADINGS, *map(_row, result.layers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *_summary(result)]) + "\n"


def _row(layer: Layer) -> tuple[str, ...]:
    return (
        one_line(layer.node, 50), one_line(layer.op, 30), "int8" if layer.quantised else "float",
        f"{layer.sqnr:.1f}", f"{layer.added:.2e}", f"{layer.cosine:.6f}",
    )  # fmt: skip


def _summary(result: Quantised) -> Iterator[str]:
    noisy = [layer for layer in worst_layers(result.layers) if layer.added > 0][:WORST]
    worst = ", ".join(f"'{one_line(layer.node, 50)}'" for layer in noisy)
    yield f"layers that add most noise: {worst or 'none'}"
    if result.kept:
        yield "kept in float: " + ", ".join(f"'{one_line(n, 50)}'" for n in result.kept)
    channels = "per channel" if result.per_channel else "per tensor"
    yield (
        f"calibrated on {result.samples} inputs ({result.method}, {channels}), layers compared on "
        f"{min(result.samples, MOST)}"
    )
    if result.accuracy is not None:
        a = result.accuracy
        yield (
            f"accuracy of the compiled libraries on {a.count} labelled inputs: float32 "
            f"{a.float32:.2%}, int8 {a.quantised:.2%}"
        )
    yield f"written: {result.output}"
