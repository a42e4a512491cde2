"""Elementwise loop nests, reductions, lookup tables, transposes and reorders.

Kernels of Map, Reduce, ArgReduce, Block and Unblock. May import `render`.
"""

from atc.backends.cpu.map import (
    lookup_table,
    portable,
    reduce,
    reduce_int8,
    reorder,
    transpose,
    transpose_int8,
    vectors,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *reduce.KERNELS, *reduce_int8.KERNELS, *reorder.KERNELS, *vectors.KERNELS,
    *transpose.KERNELS, *transpose_int8.KERNELS, *lookup_table.KERNELS,
)  # fmt: skip
