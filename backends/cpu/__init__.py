"""CPU kernels by family; `KERNELS` is the catalogue in order of preference among equals."""

from atc.backends.cpu import (
    attention,
    attention_simd,
    conv,
    conv_blocked,
    conv_window,
    conv_window_loops,
    conv_winograd,
    data,
    elementwise,
    external,
    linalg,
    matmul,
    matmul_dot,
    matmul_packed,
    matmul_tile,
    ngrams,
    normalize,
    normalize_simd,
    reduce_simd,
    relayout,
    resize,
    rnn,
    rnn_simd,
    sampling,
    signal,
    sort,
    strings,
    trees,
    vector_map,
)
from atc.backends.kernel import Kernel

KERNELS: tuple[Kernel, ...] = (
    *elementwise.KERNELS, *reduce_simd.KERNELS, *matmul.KERNELS, *matmul_tile.KERNELS,
    *matmul_dot.KERNELS, *attention.KERNELS, *attention_simd.KERNELS, *conv.KERNELS,
    *data.KERNELS, *normalize.KERNELS, *normalize_simd.KERNELS, *conv_blocked.KERNELS,
    *conv_window.KERNELS, *conv_window_loops.KERNELS, *conv_winograd.KERNELS, *relayout.KERNELS,
    *rnn.KERNELS, *rnn_simd.KERNELS, *matmul_packed.KERNELS, *linalg.KERNELS, *trees.KERNELS,
    *vector_map.KERNELS, *resize.KERNELS, *sort.KERNELS, *sampling.KERNELS, *signal.KERNELS,
    *strings.KERNELS, *ngrams.KERNELS, *external.KERNELS,
)  # fmt: skip
