"""From the ONNX graph to the compiler's graph: one module per operator family."""

from atc.lower import (
    attention,
    cast,
    concat_pad,
    contrib,
    contrib_attention,
    contrib_quantize,
    control,
    conv,
    einsum,
    elementwise,
    gather,
    generate,
    linalg,
    loop,
    matmul,
    ml,
    ml_trees,
    noise,
    normalize,
    quantize,
    reduce,
    resize,
    rnn,
    sampling,
    scatter,
    sequence,
    shape,
    signal,
    sort,
)  # fmt: skip
from atc.lower.model import lower_model
from atc.lower.registry import LOWERINGS

__all__ = [
    "LOWERINGS", "attention", "cast", "concat_pad", "contrib", "contrib_attention",
    "contrib_quantize",
    "control", "conv", "einsum", "elementwise", "gather", "generate", "linalg", "loop",
    "lower_model", "matmul", "ml", "ml_trees", "noise", "normalize", "quantize", "reduce",
    "resize", "rnn", "sampling", "scatter", "sequence", "shape", "signal", "sort",
]
