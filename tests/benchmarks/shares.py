"""What part of the peak a network's heavy kernels reach together, from its table of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LARGE = 2e7
"""Operations of a call that counts: with fewer, what is measured is the memory."""
KINDS = {
    "conv_direct": "direct convolutions",
    "conv_small_oc": "direct convolutions",
    "conv_small_group": "direct convolutions",
    "matmul_tile": "matrix products",
}
"""Float kernels that compute just the definition's operations."""


@dataclass(frozen=True)
class Share:
    """The large calls of a kind: how many, their time, and their operations' part of the peak.

    `least` is the part that the slowest of them reaches.
    """

    kind: str
    calls: int
    seconds: float
    share: float
    least: float


def shares(layers: Iterable[Mapping[str, Any]], gflops_peak: float) -> list[Share]:
    """Return the shares of direct convolutions and of matrix products, as far as there are any.

    Time counts: all operations over all the time that they take. Winograd's are no direct
    convolutions; `--workspace_limit=0` keeps kernels out that need scratch, those among them.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for layer in layers:
        if layer["operations"] >= LARGE and layer["ns"] and gflops_peak:
            kind = KINDS.get(layer["kernel"].partition("(")[0])
            if kind:
                found.setdefault(kind, []).append(layer)
    return [share_of(kind, of_kind, gflops_peak) for kind, of_kind in sorted(found.items())]


def share_of(kind: str, layers: list[Mapping[str, Any]], gflops_peak: float) -> Share:
    """Return what calls of a kind reach."""
    total = sum(layer["ns"] for layer in layers)
    work = sum(layer["operations"] for layer in layers)
    least = min(layer["operations"] / layer["ns"] for layer in layers)
    return Share(kind, len(layers), 1e-9 * total, work / total / gflops_peak, least / gflops_peak)
