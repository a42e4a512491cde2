"""From the ONNX graph to the compiler's graph: one module per operator family.

Takes an `onnx_ir.Model`, gives an `ir.Graph`; may import `dims`, `errors` and `ir`. The families
register their lowerings when they are imported, which is all that is done with them here.
"""

from atc.lower import (
    attention,
    cast,
    concat_pad,
    contrib,
    control,
    conv,
    data_dependent,
    deform,
    einsum,
    elementwise,
    external,
    gather,
    generate,
    gradient,
    image,
    linalg,
    loop,
    matmul,
    ml,
    normalize,
    qonnx,
    quantize,
    random,
    reduce,
    resize,
    rnn,
    sampling,
    scatter,
    sequence,
    shape,
    signal,
    sort,
    text,
    training,
)
from atc.lower.model import lower_model
from atc.lower.registry import LOWERINGS

__all__ = [
    "LOWERINGS", "attention", "cast", "concat_pad", "contrib", "control", "conv", "data_dependent",
    "deform", "einsum", "elementwise", "external", "gather", "generate", "gradient", "image",
    "linalg", "loop", "matmul", "ml", "normalize", "qonnx", "quantize", "random", "reduce",
    "resize", "rnn", "sampling", "scatter", "sequence", "shape", "signal", "sort", "text",
    "training", "lower_model",
]
