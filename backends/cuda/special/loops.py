"""The kernels of `backends/parallel_for` on a GPU: a thread for each iteration of the loop."""

from __future__ import annotations

from typing import Generic

from atc.backends.cuda.kernel import DeviceKernel, grid
from atc.backends.kernel import Launch, OpT, ParamsT, Workload
from atc.backends.parallel_for import linalg, linear_attention, ngrams, sampling, signal, svm, trees
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.target import Target
from atc.dims import upper_bound
from atc.ir.ops.linalg import Determinant, Inverse
from atc.ir.ops.linear_attention import LinearAttention
from atc.ir.ops.ngrams import NGrams
from atc.ir.ops.sampling import GridSample, RoiAlign, RoiPool
from atc.ir.ops.signal import Dft
from atc.ir.ops.svm import CouplePairs
from atc.ir.ops.trees import TreeEnsemble

THREADS, MOST_BLOCKS = 128, 1 << 13
"""Threads of a block: four warps, as iterations take many registers."""

ROOM = 1 << 26
"""Bytes of scratch for all threads of a launch, unless a single block needs more."""


class Threads(DeviceKernel[OpT, ParamsT], ParallelFor[OpT, ParamsT], Generic[OpT, ParamsT]):
    """A loop's iterations, several per thread where there are more of them than threads."""

    def launch(self, w: Workload[OpT], params: ParamsT, target: Target) -> Launch:
        """As many blocks as there are iterations and room for."""
        iterations = self.iterations(w)
        threads = min(THREADS, -(-max(upper_bound(iterations), 1) // 32) * 32)
        each = self.iteration_scratch(w)
        most = max(ROOM // (each * threads), 1) if each else MOST_BLOCKS
        return grid(-(-iterations // threads), min(most, MOST_BLOCKS), threads)

    def scratch(self, w: Workload[OpT], params: ParamsT, target: Target) -> int:
        """Return what all threads need."""
        launch = self.launch(w, params, target)
        return launch.blocks * launch.threads * self.iteration_scratch(w)


class InverseThreads(Threads[Inverse | Determinant], linalg.InverseElimination):
    """Inverse."""

    name = "cuda_inverse"


class DeterminantThreads(Threads[Inverse | Determinant], linalg.DeterminantElimination):
    """Determinant."""

    name = "cuda_determinant"


class TreeWalkThreads(Threads[TreeEnsemble], trees.TreeWalk):
    """TreeEnsemble."""

    name = "cuda_tree_ensemble"


class GridSampleThreads(Threads[GridSample], sampling.GridSampleTaps):
    """GridSample, a thread for each point."""

    name = "cuda_grid_sample"


class RoiAlignThreads(Threads[RoiAlign], sampling.RoiAlignBins):
    """RoiAlign, a thread for each channel of a region."""

    name = "cuda_roi_align"


class RoiPoolThreads(Threads[RoiPool], sampling.RoiPoolBins):
    """RoiPool, a thread for each channel of a region."""

    name = "cuda_roi_pool"


class DftThreads(Threads[Dft], signal.DftStockham):
    """Dft, a thread for each column."""

    name = "cuda_dft"


class NGramThreads(Threads[NGrams], ngrams.NGramWalk):
    """NGrams."""

    name = "cuda_ngrams"


class CouplePairsThreads(Threads[CouplePairs], svm.CouplePairsIteration):
    """CouplePairs."""

    name = "cuda_couple_pairs"


class LinearAttentionThreads(
    Threads[LinearAttention, linear_attention.PartitionedParams],
    linear_attention.LinearAttentionSteps,
):
    """LinearAttention, a thread for each column of a state."""

    name = "cuda_linear_attention"

    def columns(self, w: Workload[LinearAttention]) -> int:
        """Return one column: neighbouring threads read neighbours."""
        return 1


KERNELS = (
    InverseThreads(), DeterminantThreads(), TreeWalkThreads(), GridSampleThreads(),
    RoiAlignThreads(), RoiPoolThreads(), DftThreads(), NGramThreads(), CouplePairsThreads(),
    LinearAttentionThreads(),
)  # fmt: skip
