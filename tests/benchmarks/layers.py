"""Times of a network's kernel calls, from the hooks of a library built with --profile.

usage: layers.py FOLDER INPUTS RUNS [PEAK], prints JSON: run by compare.py on its core. PEAK is the
program that prints the core's GFLOP/s; it alternates with the network, as the clock varies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cffi
import numpy as np

DECLARATIONS = """
typedef struct { uint64_t runs, nanoseconds, begin; } NET_call_time;
typedef struct { const char *nodes, *op, *kernel; uint64_t operations, bytes; } NET_call_info;
typedef struct {
  const char *name; int32_t dtype; int32_t rank; const int64_t *shape; size_t size;
} NET_tensor_info;
int NET_init(void *ctx, void *arena, size_t size);
int NET_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
size_t NET_context_size(void);
size_t NET_arena_size(void);
size_t NET_alignment(void);
size_t NET_input_count(void);
size_t NET_output_count(void);
const NET_tensor_info *NET_input_info(size_t index);
const NET_tensor_info *NET_output_info(size_t index);
size_t NET_profile_count(void);
const NET_call_info *NET_profile_info(size_t index);
const NET_call_time *NET_profile_times(void *ctx);
void NET_profile_reset(void *ctx);
"""


TURNS = 12
"""Parts that the runs are cut into, with a measurement of the peak before each."""


def layer_times(
    folder: Path, inputs: dict[str, np.ndarray[Any, Any]], runs: int, between: Callable[[], object]
) -> list[Any]:
    """Return each call's nodes, op, kernel, operations, bytes and median nanoseconds.

    `between` is called now and then. Only the half of the runs counts that others interrupted
    least: in which the clock ran on least while the process didn't.
    """
    (path,) = folder.glob("lib*.so")
    name = path.stem.removeprefix("lib")
    ffi = cffi.FFI()
    ffi.cdef(DECLARATIONS.replace("NET", name))
    lib = ffi.dlopen(str(path))

    def call(function: str, *arguments: Any) -> Any:
        return getattr(lib, f"{name}_{function}")(*arguments)

    infos = [call("input_info", k) for k in range(call("input_count"))]
    given = [np.ascontiguousarray(inputs[ffi.string(i.name).decode()]) for i in infos]
    sizes = [call("output_info", k).size for k in range(call("output_count"))]
    results = [np.empty(size + 64, np.uint8) for size in sizes]
    pointers = [
        ffi.new("void *[]", [ffi.cast("void *", a.ctypes.data) for a in arrays] or 1)
        for arrays in (given, results)
    ]
    size, alignment = call("arena_size"), call("alignment")
    memory = np.zeros(size + alignment, np.uint8)
    start = memory.ctypes.data
    context = ffi.new("uint64_t[]", call("context_size") // 8 + 1)
    arena = ffi.cast("void *", start + -start % alignment)
    status = call("init", context, arena, size)
    count, times = call("profile_count"), call("profile_times", context)
    samples, lost = [], []
    for turn in range(runs + 1):
        if turn % -(-runs // TURNS) == 0:
            between()
        call("profile_reset", context)
        waited = time.perf_counter() - time.process_time()
        status = status or call("run_tensors", context, *pointers)
        lost.append(time.perf_counter() - time.process_time() - waited)
        samples.append([times[k].nanoseconds for k in range(count)])
    if status:
        raise RuntimeError(f"the network fails with status {status}")
    medians = np.median(least_interrupted(samples[1:], lost[1:]), axis=0)
    return [
        {
            "nodes": ffi.string(info.nodes).decode(), "op": ffi.string(info.op).decode(),
            "kernel": ffi.string(info.kernel).decode(), "operations": info.operations,
            "bytes": info.bytes, "ns": float(medians[k]),
        }
        for k in range(count)
        if (info := call("profile_info", k))
    ]  # fmt: skip


def least_interrupted(samples: Sequence[Any], lost: Sequence[float]) -> list[Any]:
    """Return the half of the samples in whose runs the least time was lost."""
    order = sorted(range(len(samples)), key=lambda k: lost[k])
    return [samples[k] for k in order[: (len(order) + 1) // 2]]


def main(folder: str, inputs: str, runs: str, *peak: str) -> None:
    """Print the calls and the best peak of all rounds; 0 without a program for it."""
    best = [0.0]

    def measure_peak() -> None:
        if peak:
            done = subprocess.run(peak, check=True, capture_output=True, text=True)
            best.append(float(done.stdout.split()[0]))

    with np.load(inputs) as file:
        calls = layer_times(Path(folder), dict(file), int(runs), measure_peak)
    print(json.dumps({"calls": calls, "gflops_peak": max(best)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
