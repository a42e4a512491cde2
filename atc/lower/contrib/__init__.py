"""Lowerings of onnxruntime's own operators (com.microsoft).

Need only be imported: they register themselves.
"""

from atc.lower.contrib import (
    attention,
    blocks,
    causal_conv,
    experts,
    fused,
    indexing,
    positions,
    quantize,
    tensor,
)

__all__ = [
    "attention", "blocks", "causal_conv", "experts", "fused", "indexing", "positions", "quantize",
    "tensor",
]
