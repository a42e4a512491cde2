"""The machine: the core that everything runs on, and its peak of floating-point arithmetic."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atc.backends.target import get_target
from atc.backends.toolchain import (
    Job,
    compile_flags,
    compile_many,
    find_compiler,
    link_program,
    run_binary,
)
from atc.templates import verbatim

CHAINS = 12
"""Independent sums: more than two units of latency four or five need."""
STEPS = 20_000_000


def pinned_core() -> int | None:
    """Return the last core that this process may use; None where processes can't be pinned."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Stay on a core for a while, with all that is started."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def peak_program() -> str:
    """Return C that prints the GFLOP/s of fused multiply-adds that depend on nothing in memory."""
    chains = range(CHAINS)
    define = " ".join(f"vf32 a{k} = v_set1((float){k}.0f);" for k in chains)
    step = "\n      ".join(f"a{k} = v_fma(a{k}, scale, shift);" for k in chains)
    total = "v_zero()"
    for k in chains:
        total = f"v_add({total}, a{k})"
    return f"""\
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>

#include "simd.h"

static double now(void)
{{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}}

int main(int argc, char **argv)
{{
  const vf32 scale = v_set1(0.999f + (float)argc * 1e-6f), shift = v_set1((float)argc * 1e-3f);
  double best = 1e9;
  float sum[V_LANES];
  {define}
  (void)argv;
  for (int round = 0; round < 10; round++) {{
    const double begin = now();
    for (long i = 0; i < {STEPS // 10}; i++) {{
      {step}
    }}
    const double seconds = now() - begin;
    if (seconds < best) best = seconds;
  }}
  v_store(sum, {total});
  printf("%g %g\\n", 2e-9 * V_LANES * {CHAINS} * {STEPS // 10} / best, sum[0]);
  return 0;
}}
"""


def measured_peak(core: int | None) -> float:
    """Return the GFLOP/s of the widest fused multiply-adds on a core, the best of ten rounds."""
    target = get_target("host")
    compiler = find_compiler(target, os.environ)
    flags = (*compile_flags(compiler, target), "-I.")
    with tempfile.TemporaryDirectory(prefix="atc-peak-") as folder:
        cwd = Path(folder)
        (cwd / "simd.h").write_text(verbatim(f"simd/{target.simd}.h"))
        (cwd / "peak.c").write_text(peak_program())
        compile_many([Job(compiler, flags, "peak.c", cwd)], 1)
        program = link_program(compiler, flags, ["peak.c.o"], "peak", cwd)
        with pinned(core):
            done = run_binary([str(program)], 120, cwd=cwd)
    return float(done.stdout.split()[0])
