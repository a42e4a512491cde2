"""From the ONNX graph to the compiler's graph: one module per operator family."""

from atc.lower import control, conv, elementwise, matmul, normalize, reduce, shape
from atc.lower.model import lower_model
from atc.lower.registry import LOWERINGS

__all__ = [
    "LOWERINGS", "control", "conv", "elementwise", "lower_model", "matmul", "normalize", "reduce",
    "shape",
]
