"""The IR's op families: frozen values with typed attributes, no C and no target in them.

May import the rest of `ir`.
"""

from atc.ir.ops import (  # all of them, for whoever reads ops by name
    data_dependent,
    external,
    grouped,
    image,
    linalg,
    linear_attention,
    ngrams,
    quantize,
    sampling,
    signal,
    strings,
    svm,
    trees,
)
from atc.ir.ops.attention import Attention
from atc.ir.ops.blocked import Block, ConvBlocked, NormalizeBlocked, Unblock
from atc.ir.ops.control import If, Loop
from atc.ir.ops.conv import Conv, ConvFilterGradient, ConvTranspose, Pool, Window
from atc.ir.ops.data import WriteExtents
from atc.ir.ops.elementwise import (
    ArgReduce,
    Epilogue,
    Map,
    Reduce,
    Reshape,
    SubView,
    identity_epilogue,
)
from atc.ir.ops.matmul import MatMul
from atc.ir.ops.normalize import Normalize, Softmax
from atc.ir.ops.rnn import Cell, Recurrent

__all__ = [
    "ArgReduce",
    "Attention",
    "Block",
    "Cell",
    "Conv",
    "ConvBlocked",
    "ConvFilterGradient",
    "ConvTranspose",
    "Epilogue",
    "If",
    "Loop",
    "Map",
    "MatMul",
    "Normalize",
    "NormalizeBlocked",
    "Pool",
    "Recurrent",
    "Reduce",
    "Reshape",
    "Softmax",
    "SubView",
    "Unblock",
    "Window",
    "WriteExtents",
    "data_dependent",
    "external",
    "grouped",
    "identity_epilogue",
    "image",
    "linalg",
    "linear_attention",
    "ngrams",
    "quantize",
    "sampling",
    "signal",
    "strings",
    "svm",
    "trees",
]
