"""Kernels that are one loop of independent iterations: in C, or threads of a GPU.

Both have the same template. May import `render`.
"""

from atc.backends.kernel import AnyKernel
from atc.backends.parallel_for import linalg, linear_attention, ngrams, sampling, signal, svm, trees

KERNELS: tuple[AnyKernel, ...] = (
    linalg.InverseElimination(), linalg.DeterminantElimination(), trees.TreeWalk(),
    sampling.GridSampleTaps(), sampling.RoiAlignBins(), sampling.RoiPoolBins(),
    signal.DftStockham(), ngrams.NGramWalk(), svm.CouplePairsIteration(),
    linear_attention.LinearAttentionSteps(),
)  # fmt: skip
"""As C functions."""
