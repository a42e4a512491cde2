"""Lowerings of onnxruntime's own operators (com.microsoft).

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
    positions,
    quantize,
    tensor,
)

__all__ = [
    "attention", "blocks", "causal_conv", "experts", "fused", "grouped_attention", "indexing",
    "linear_attention", "positions", "quantize", "tensor",
]
