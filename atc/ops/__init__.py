"""The IR's op families: frozen values with typed attributes, no C and no target in them."""

from atc.ops.attention import Attention
from atc.ops.blocked import Block, ConvBlocked, NormalizeBlocked, Unblock
from atc.ops.control import If, Loop
from atc.ops.conv import Conv, ConvTranspose, Pool, Window
from atc.ops.data import WriteExtents
from atc.ops.elementwise import (
    ArgReduce,
    Epilogue,
    Map,
    Part,
    Reduce,
    Reshape,
    identity_epilogue,
)
from atc.ops.matmul import MatMul
from atc.ops.normalize import Normalize, Softmax
from atc.ops.rnn import Cell, Recurrent

__all__ = [
    "ArgReduce", "Attention", "Block", "Cell", "Conv", "ConvBlocked", "ConvTranspose",
    "Epilogue", "If", "Loop", "Map", "MatMul", "Normalize", "NormalizeBlocked", "Part", "Pool",
    "Recurrent", "Reduce", "Reshape", "Softmax", "Unblock", "Window", "WriteExtents",
    "identity_epilogue",
]
