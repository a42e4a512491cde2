"""Lowerings of onnxruntime's own operators (com.microsoft and com.microsoft.nchwc).

May import `lower` and what it may; importing them registers them.
"""

from atc.lower.contrib import (
    attention,
    blocks,
    causal_conv,
    experts,
    fused,
    grouped_attention,
    indexing,
    linear_attention,
    nchwc,
    positions,
    quantize,
    tensor,
)

__all__ = [
    "attention", "blocks", "causal_conv", "experts", "fused", "grouped_attention", "indexing",
    "linear_attention", "nchwc", "positions", "quantize", "tensor",
]
