"""Kernels that compilers begin with while the rest of their library is planned and written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atc.backends.kernel import Candidate, Workload
from atc.backends.kernel_source import KernelSource, render_kernel
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler
from atc.build.objects import BuildContext, Compiling, compiling, kernel_unit, object_key
from atc.cache import Cache
from atc.codegen.sources import kernel_tree
from atc.diagnostics import Diagnostics
from atc.pipeline.caches import build_context, cache_of
from atc.pipeline.request import Request


@dataclass(frozen=True)
class Early:
    """Compilers at work in the folder of a build whose kernels aren't all known."""

    cache: Cache
    """The one of the build, open from now on."""
    context: BuildContext
    begun: Compiling
    parse: bool
    """Whether there will be so many kernels that parsing their headers alone is worth it."""

    def render(self, candidate: Candidate, w: Workload, target: Target) -> KernelSource:
        """Render a kernel, and begin to compile it if the cache lacks it."""
        kernel = render_kernel(candidate, w, target)
        files = {path: text.encode() for path, text in kernel_tree([kernel], target).items()}
        unit = kernel_unit(kernel)
        if self.cache.lacks(object_key(files, unit, self.context)):
            self.begun.begin(unit, files, parse=self.parse)
        return kernel


@contextmanager
def begin_early(
    request: Request, compiler: Compiler, cwd: Path, workloads: int, diagnostics: Diagnostics
) -> Iterator[Early | None]:
    """Yield what begins with kernels in the folder `cwd` as they are rendered, None where it can't.

    It can where the first plan is the last one, and kernels are compiled here and as usual.
    `workloads` is the number of different ones that will be rendered at most.
    """
    if not _may_begin(request):
        yield None
        return
    with cache_of(request, diagnostics.warn) as cache:
        context = build_context(request, compiler, cache, diagnostics)
        with compiling(cwd, context) as begun:
            yield Early(cache, context, begun, parse=workloads >= context.many)


def _may_begin(request: Request) -> bool:
    options, debugging = request.options, request.debugging
    elsewhere = request.farm is not None or bool(request.target.device)
    unusual = options.keep_build or debugging.level or debugging.config.switches
    again = options.memory_budget or options.recompute != "none"
    times_threads = options.sharers > 1 and options.measures and options.thread_tuning
    return not (elsewhere or unusual or again or times_threads)
