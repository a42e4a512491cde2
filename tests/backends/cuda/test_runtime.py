"""The C that generated libraries bring for a GPU: the driver, what a context holds, emulation."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from cuda_cases import ORDERS
from strict_driver import build_driver

from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags, source_flags
from atc.backends.toolchain.find_compiler import find_compiler
from atc.templates import verbatim

SOURCES = (
    "driver/driver.h", "driver/driver.c", "project/gpu.h", "project/gpu.c", "device.h",
    "driver/emulation.h", "driver/emulated_driver.c",
)  # fmt: skip

SANITIZER = "-fsanitize=thread"

OPEN = """
#include <dlfcn.h>
#include <stdio.h>
#include "gpu.h"
static const gpu_kernel kernels[] = {
  {"first", 1, 32, 1, 0, 0, NULL}, {"second", 2, 64, 2, 0, 0, NULL}
};
static const gpu_port ports[] = {{16, 1}, {0, 0}, {32, 0}};
static const char weights[100];
static const void *image(size_t kernel) { return &kernels[kernel]; }
static const gpu_network network = {
  kernels, 2, image, weights, sizeof weights, 256, ports, 3, NULL, 0, POOL, KEPT, SIDES, 0,
  SWAPS, SWAPS
};
static gpu_shared shared[GPU_DEVICES];
static int asked(const char *name)
{
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  int (*own)(void) = NULL;
  if (library != NULL) *(void **)&own = dlsym(library, name);
  return own == NULL ? 0 : own();
}
int main(void)
{
  gpu_state *one, *two;
  const int first = gpu_open(&one, shared, 0, &network, NULL, 0);
  const int all = asked("fake_taken");
  const int second = gpu_open(&two, shared, 0, &network, NULL, 0);
  const int more = asked("fake_taken") - all;
  const int same = first == GPU_OK && second == GPU_OK && one->weights == two->weights;
  int launched = first != GPU_OK;
  if (first == GPU_OK && gpu_enter(one)) {
    const CUdeviceptr at[2] = {one->arena, one->arena};
    launched = gpu_launch(one, NULL, 1, at);
    gpu_leave(one);
  }
  gpu_close(one);
  gpu_close(two);
  printf("%d %d %d %d %d %d\\n", first, second, more, same, launched, asked("fake_held"));
  return 0;
}
"""


def opening(pool: str = "0", kept: int = 0, sides: int = 0, swaps: int = 0) -> str:
    """Return the program, of a network with a pool that leaves others so many percent."""
    text = OPEN.replace("POOL", pool).replace("KEPT", str(kept)).replace("SIDES", str(sides))
    return text.replace("SWAPS", str(swaps))


REPLAY = """
#include <dlfcn.h>
#include <stdio.h>
#include "gpu.h"
static const gpu_kernel kernels[] = {{"first", 1, 32, 1, 0, 0, NULL}};
static const gpu_port ports[] = {{16, 0}};
static int queued;
static int both(gpu_state *gpu, CUstream stream, const CUdeviceptr *at)
{
  queued++;
  return gpu_launch(gpu, stream, 0, at) && gpu_launch(gpu, stream, 0, at);
}
static const gpu_segment segments[] = {both};
static const void *image(size_t kernel) { return &kernels[kernel]; }
static const gpu_network network = {
  kernels, 1, image, NULL, 0, 256, ports, 1, segments, 1, 0, 0, 0, DIMS, 0, 0
};
static gpu_shared shared[GPU_DEVICES];
int main(void)
{
  gpu_state *one;
  const CUdeviceptr here = 16, there = 32;
  unsigned long long took = 0;
  if (gpu_open(&one, shared, 0, &network, NULL, 0) != GPU_OK || !gpu_enter(one)) return 1;
  int done = gpu_replay(one, NULL, 0, 1, &here);
  done += gpu_replay(one, NULL, 0, 1, &here);
  printf("%d ", queued);
  done += gpu_replay(one, NULL, 0, 1, &there);
  done += gpu_replay(one, NULL, 0, 0, &here);
  printf("%d ", queued);
  for (int round = 0; round < 3; round++) {
    for (CUdeviceptr at = 64; at < 64 + 16 * TURNS; at += 16) {
      done += gpu_replay(one, NULL, 0, 1, &at);
    }
  }
  printf("%d ", queued);
  done += gpu_timed_launch(one, NULL, 0, 1, &here, &took);
  gpu_leave(one);
  gpu_close(one);
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  int (*held)(void);
  *(void **)&held = dlsym(library, "fake_held");
  printf("%d %d\\n", done, held());
  return 0;
}
"""


def compiled(folder: Path, *sources: str, options: Sequence[str] = ()) -> Path:
    """Compile sources of ours, and files of the folder, to a program there."""
    target = get_target("c99")
    compiler = find_compiler(target, os.environ)
    flags = (*compile_flags(compiler, target, "O1"), *options)
    write_ours(folder)
    ours = {Path(name).name for name in SOURCES}
    for source in sources:
        own = source_flags(flags, source)
        if source == "emulated_driver.c":  # which tells the sanitizer itself
            own = tuple(flag for flag in own if flag != SANITIZER)
        command = (*compiler.argv, *own, "-c", source, "-o", f"{source}.o")
        if source in ours:
            (folder / f"{source}.o").write_bytes(object_of_ours(source, command))
        else:
            subprocess.run(command, cwd=folder, check=True)
    objects = [f"{source}.o" for source in sources]
    words = [*options, "-o", "program", *objects, "-lm", "-ldl"]
    subprocess.run([*compiler.argv, *words], cwd=folder, check=True)
    return folder / "program"


def write_ours(folder: Path) -> None:
    for name in SOURCES:
        (folder / Path(name).name).write_text(verbatim(f"cuda/{name}"))
    (folder / "gpu_own.h").write_text("#define GPU_OWN(function) net_##function\n")
    (folder / "kernel.h").write_text(verbatim("cpu/kernel.h"))


@cache
def object_of_ours(source: str, command: Sequence[str]) -> bytes:
    """Return what a command makes of a source of ours, once for all tests."""
    with tempfile.TemporaryDirectory() as folder:
        write_ours(Path(folder))
        subprocess.run(command, cwd=folder, check=True)
        return Path(folder, f"{source}.o").read_bytes()


def fake_driver(folder: Path, *options: str) -> dict[str, str]:
    """Put a driver into a folder; returns the environment in which programs find it."""
    build_driver(folder, *options)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def said(program: Path, env: dict[str, str]) -> list[int]:
    """Return the numbers that a program prints, of which a driver has refused nothing."""
    done = subprocess.run([program], env=env, check=True, capture_output=True, text=True)
    assert not done.stderr
    return [int(word) for word in done.stdout.split()]


def test_the_drivers_functions_are_those_that_cuda_declares() -> None:
    """What a header calls by a plain name may be exported by one with a version."""
    header = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include", "cuda.h")
    if not header.exists():
        pytest.skip("cuda.h isn't there")
    declared = header.read_text("utf-8", "replace")
    names = re.findall(r'"(cu[A-Z]\w+)"', verbatim("cuda/driver/driver.c"))
    assert len(names) > 30
    for name in names:
        exported = rf"CUDAAPI {name}\(|#define \w+ +(__CUDA_API_PT\w*\()?{name}\b"
        assert re.search(exported, declared), name


def test_without_a_driver_a_context_gets_a_status(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(opening())
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "libcuda.so.1").write_text("no library")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "empty")}
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a driver")
    assert said(program, env) == [-20, -20, 0, 0, 1, 0]


def test_contexts_share_code_and_weights_and_give_all_back(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(opening())
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    env = fake_driver(tmp_path)
    own = 1 + 1 + 2  # the second context takes a stream, an arena and two ports
    assert said(program, env) == [0, 0, own, 1, 1, 0]
    assert said(program, {**env, "FAKE_NO_DEVICE": "1"}) == [-20, -20, 0, 0, 1, 0]
    taken = 1 + 2 + 2 + 2 * own  # the device's context, modules, weights and their stream, contexts
    for number in range(1, taken + 1):
        first, second, *_, held = said(program, {**env, "FAKE_FAIL_AT": str(number)})
        assert (first, second).count(0) == 1, f"call {number}"
        assert min(first, second) == -21
        assert held == 0, f"call {number}"
    assert said(program, {**env, "FAKE_FAIL_AT": str(taken + 1)})[:2] == [0, 0]


MAPS = "maps[1] = {{0, 0, 6, 2, {64, 1}, {128}, {64, 1}, {0}, {0}, {0}}};\n"
"""A row of half floats."""


@pytest.mark.parametrize(
    ("kernel", "old", "status"),
    [("0, 0, NULL", True, 0), ("200 << 10, 0, NULL", True, 0), ("0, 1, maps", False, 0),
     ("0, 1, maps", True, -24), ("228 << 10, 0, NULL", False, -22)],
)  # fmt: skip
def test_kernels_get_the_shared_memory_and_the_driver_that_they_need(
    kernel: str, old: bool, status: int, tmp_path: Path
) -> None:
    text = opening().replace('"second", 2, 64, 2, 0, 0, NULL}', f'"second", 2, 64, 2, {kernel}}}')
    text = text.replace("static const gpu_kernel", f"static const gpu_map {MAPS}"
                        "static const gpu_kernel", 1) + "const gpu_map *unused = maps;\n"
    (tmp_path / "main.c").write_text(text)
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    found = said(program, fake_driver(tmp_path, *["-DFAKE_OLD"] * old))
    assert found[:2] == [status, status]
    assert found[-2:] == [1, 0]  # it is launched where it can be; nothing is held


def test_streams_of_branches_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(opening(sides=2))
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    env = fake_driver(tmp_path)
    own = 1 + 2 * 2 + 1 + 1 + 2  # streams, events of them and of the fork, an arena, two ports
    assert said(program, env) == [0, 0, own, 1, 1, 0]
    for number in range(6, 6 + own):
        *_, held = said(program, {**env, "FAKE_FAIL_AT": str(number)})
        assert held == 0, f"call {number}"


def test_what_swaps_need_is_given_back(tmp_path: Path) -> None:
    """That no page-locked memory is left is a status, as for any other memory."""
    (tmp_path / "main.c").write_text(opening(sides=2, swaps=3))
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    env = fake_driver(tmp_path)
    own = 1 + 2 * 2 + 1 + 1 + 3 + 1 + 2  # as for branches, and memory of the host, and events
    assert said(program, env) == [0, 0, own, 1, 1, 0]
    for number in range(6, 6 + 2 * own):
        first, second, *_, held = said(program, {**env, "FAKE_FAIL_AT": str(number)})
        assert (first, second).count(0) == 1, f"call {number}"
        assert (min(first, second), held) == (-21, 0), f"call {number}"


@pytest.mark.few(1)
@pytest.mark.parametrize("pool", ["4096", "GPU_ALL"])
def test_contexts_share_a_pool_that_is_reserved_first(pool: str, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(opening(pool))
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    env = fake_driver(tmp_path)
    assert said(program, env) == [0, 0, 1, 1, 1, 0]  # the second context takes a stream alone
    for number in (1, 2, 3, 4, 5, 6):
        *_, held = said(program, {**env, "FAKE_FAIL_AT": str(number)})
        assert held == 0, f"call {number}"


@pytest.mark.few(1)
@pytest.mark.parametrize(("pool", "kept", "status"), [
    ("512", 0, -21), ("0", 20, 0), ("0", 30, -21), ("GPU_ALL", 20, 0), ("GPU_ALL", 30, -21),
])  # fmt: skip
def test_memory_that_must_stay_free_does(
    pool: str, kept: int, status: int, tmp_path: Path
) -> None:
    (tmp_path / "main.c").write_text(opening(pool, kept))  # a quarter of the memory is free
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    first, *_, held = said(program, fake_driver(tmp_path))
    assert (first, held) == (status, 0)


@pytest.mark.parametrize(("turns", "queued"), [(2, 2), (4, 6), (5, 15)])
def test_graphs_of_some_places_are_kept(turns: int, queued: int, tmp_path: Path) -> None:
    """Three graphs are there before; without room, launches are captured when they come again."""
    text = REPLAY.replace("DIMS", "0").replace("TURNS", str(turns))
    (tmp_path / "main.c").write_text(text)
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    assert said(program, fake_driver(tmp_path)) == [1, 3, 3 + queued, 5 + 3 * turns, 0]


def test_graphs_are_captured_again_only_where_tensors_move(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(REPLAY.replace("DIMS", "0").replace("TURNS", "0"))
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    env = fake_driver(tmp_path)
    assert said(program, env) == [1, 3, 3, 5, 0]
    opened = 1 + 1 + 1 + 1 + 1  # the device's context, a module, a stream, an arena, a port
    for number in range(opened + 1, opened + 9):  # three graphs and what runs them, two events
        *_, done, held = said(program, {**env, "FAKE_FAIL_AT": str(number)})
        assert (done, held) == (4, 0), f"call {number}"


EXTENTS = """
  int64_t dims[2] = {4, 0};
  const size_t places[1] = {0};
  one->dims = dims;
  one->places = places;
  for (int round = 0; round < 3; round++) {
    for (dims[1] = 0; dims[1] < SHAPES; dims[1]++) gpu_replay(one, NULL, 0, 1, &here);
    printf("%d ", queued);
  }
  gpu_launch_blocks(one, NULL, 0, 0, &here);
"""


@pytest.mark.parametrize(("shapes", "queued"), [(4, (4, 8, 8)), (5, (5, 10, 15))])
def test_graphs_of_some_shapes_are_kept(
    shapes: int, queued: tuple[int, ...], tmp_path: Path
) -> None:
    head, begin, rest = REPLAY.replace("DIMS", "2").partition("  int done")
    loop = EXTENTS.replace("SHAPES", str(shapes))
    end = "  gpu_leave(one);\n" + rest.partition("  gpu_leave(one);\n")[2]
    main = head + loop + end.replace("done, held()", "0, held()")
    for unused in ("  unsigned long long took = 0;\n", ", there = 32"):
        main = main.replace(unused, "")
    (tmp_path / "main.c").write_text(main)
    program = compiled(tmp_path, "main.c", "gpu.c", "driver.c")
    # Queued as they are, then captured, then replayed; nothing of a shape that had to go is left.
    assert said(program, fake_driver(tmp_path)) == [*queued, 0, 0]


KERNEL = """
#include "device.h"
KERNEL void neighbours(const int *x, int *y)
{
  K_SHARED(int, own, [8]);
  own[threadIdx.x] = x[threadIdx.x];
  BARRIER
  y[threadIdx.x + SHIFT] = own[(threadIdx.x + 1) % 8] + own[(threadIdx.x + 7) % 8];
}
EMULATED_KERNEL(neighbours, 1, 2, 0, *(const int *const *)at[0], *(int *const *)at[1])
"""

LAUNCH = """
#include <stdio.h>
#include "driver.h"
extern const char neighbours_image;
int main(void)
{
  cuda_driver driver;
  const int x[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  int y[8] = {0};
  CUdeviceptr at[2];
  CUmodule module;
  CUfunction function;
  void *arguments[] = {&at[0], &at[1]};
  if (!cuda_driver_open(&driver) || driver.context_push(NULL) != 0) return 1;
  for (int k = 0; k < 2; k++) driver.memory_alloc(&at[k], sizeof x);
  driver.copy_to_device(at[0], x, sizeof x, NULL);
  if (driver.module_load(&module, &neighbours_image) != 0) return 1;
  if (driver.module_function(&function, module, "neighbours") != 0) return 1;
  driver.launch(function, 1, 1, 1, 8, 1, 1, 0, NULL, arguments, NULL);
  const int status = driver.stream_wait(NULL);
  driver.copy_to_host(y, at[1], sizeof y, NULL);
  printf("%d", status);
  for (int k = 0; k < 8; k++) printf(" %d", y[k]);
  return 0;
}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("barrier", "shift", "right"),
    [("__syncthreads();", 0, True), ("", 0, False), ("__syncthreads();", 1, False)],
    ids=["as it should be", "without a barrier", "beyond its result"],
)
def test_the_emulation_shows_faults_of_kernels(
    barrier: str, shift: int, right: bool, tmp_path: Path
) -> None:
    text = KERNEL.replace("BARRIER", barrier).replace("SHIFT", str(shift))
    (tmp_path / "kernel.cu").write_text(text)
    (tmp_path / "main.c").write_text(LAUNCH)
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    program = compiled(tmp_path, "main.c", "kernel.cu", "emulated_driver.c")
    x = [1 << k for k in range(8)]
    expected = [0, *(x[(k + 1) % 8] + x[(k + 7) % 8] for k in range(8))]
    for order in ORDERS:
        found = said(program, {**os.environ, "ATC_EMULATED_ORDER": order})
        assert (found == expected) == right
        assert (found[0] == 700) == bool(shift)


SWAP = """
#include <stdio.h>
#include "gpu.h"
static const gpu_port ports[] = {{16, 0}};
static int swapping(gpu_state *gpu, CUstream stream, const CUdeviceptr *at)
{
  (void)at;
  return gpu_swap_out(gpu, stream, 0, 8, gpu->arena, 8)
    && gpu_swap_out(gpu, stream, 1, 0, gpu->arena + 8, 8) && FIRST
    && gpu_swap_in(gpu, stream, 2, 8, gpu->arena + 8, 8)
    && gpu_swap_in(gpu, stream, 3, 0, gpu->arena, 8)
    && gpu_swapped(gpu, stream, 2) && gpu_swapped(gpu, stream, 3) && THEN;
}
static const gpu_segment segments[] = {swapping};
static const gpu_network network = {
  NULL, 0, NULL, NULL, 0, 16, ports, 1, segments, 1, 0, 0, 2, 0, 16, 4
};
static gpu_shared shared[GPU_DEVICES];
int main(void)
{
  gpu_state *one;
  long long x[2] = {1, 2};
  if (gpu_open(&one, shared, 0, &network, NULL, 0) != GPU_OK || !gpu_enter(one)) return 1;
  gpu_to_device(one, one->stream, one->arena, x, sizeof x);
  const int done = gpu_replay(one, one->stream, 0, 0, one->ports);
  gpu_to_host(one, one->stream, x, one->arena, sizeof x);
  const int waited = gpu_wait(one, one->stream);
  gpu_leave(one);
  gpu_close(one);
  printf("%d %d %d %d\\n", done, waited, (int)x[0], (int)x[1]);
  return 0;
}
"""


BOTH = "gpu_swapped(gpu, stream, 0) && gpu_swapped(gpu, stream, 1)"


@pytest.mark.parametrize(
    ("first", "then", "right"),
    [(BOTH, "1", (True, True)), ("1", BOTH, (True, False)), ("1", "1", (False, False))],
    ids=["as it should be", "too late", "never"],
)
def test_the_emulation_shows_copies_that_are_not_waited_for(
    first: str, then: str, right: tuple[bool, bool], tmp_path: Path
) -> None:
    """Two values are exchanged through the host's memory: both are there before one comes back."""
    (tmp_path / "main.c").write_text(SWAP.replace("FIRST", first).replace("THEN", then))
    program = compiled(tmp_path, "main.c", "gpu.c", "emulated_driver.c")
    for order, is_right in zip(("forward", "reverse"), right, strict=True):
        done, waited, *exchanged = said(program, {**os.environ, "ATC_EMULATED_ORDER": order})
        assert (exchanged == [2, 1]) == is_right
        assert (done, waited) == (first + then != "11", 1)  # a graph whose streams aren't joined


LOAD = """
#include <string.h>
#include "device.h"
KERNEL void neighbours(const int *x, int *y)
{
  K_SHARED(uint64_t, barrier, [1]);
  if (threadIdx.x == 0) emulated_begin(barrier, 1);
  __syncthreads();
  if (threadIdx.x == 7) {
    const int at[] = {0};
    struct emulated_map map = {};
    map.address = (const unsigned char *)x;
    map.extents[0] = map.box[0] = 8;
    map.rank = 1;
    map.size = 4;
    emulated_arrive(barrier, 32);
    emulated_load(emulated_shared, &map, barrier, 0, at, 1);
    memset(&map, 0xff, sizeof map);
  }
  emulated_await(barrier, 0);
  y[threadIdx.x] = ((const int *)(const void *)emulated_shared)[threadIdx.x];
}
EMULATED_KERNEL(neighbours, 1, 2, 0, *(const int *const *)at[0], *(int *const *)at[1])
"""


def test_a_map_is_read_when_a_box_is_asked_for(tmp_path: Path) -> None:
    """Kernels have maps as parameters, which end with the thread that asks."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "kernel.cu").write_text(LOAD)
    (tmp_path / "main.c").write_text(LAUNCH.replace("8, 1, 1, 0, NULL", "8, 1, 1, 1024, NULL"))
    program = compiled(tmp_path, "main.c", "kernel.cu", "emulated_driver.c")
    for order in ORDERS:
        found = said(program, {**os.environ, "ATC_EMULATED_ORDER": order})
        assert found == [0, *(1 << k for k in range(8))]


def test_what_no_thread_has_shared_is_a_large_number(tmp_path: Path) -> None:
    """Every block begins so, the second one, too: what the first one wrote is gone."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    text = KERNEL.replace("SHIFT", "0").replace("BARRIER", "__syncthreads();")
    text = text.replace("  own[", "  if (threadIdx.x != 3 || blockIdx.x == 0) own[")
    (tmp_path / "kernel.cu").write_text(text)
    (tmp_path / "main.c").write_text(LAUNCH.replace("function, 1, 1, 1", "function, 2, 1, 1"))
    program = compiled(tmp_path, "main.c", "kernel.cu", "emulated_driver.c")
    found = said(program, {**os.environ})
    assert [found[1 + 2], found[1 + 4]] == [0x4B4B4B4B + (1 << 1), 0x4B4B4B4B + (1 << 5)]


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_the_emulation_tells_a_sanitizer_what_orders_threads(barrier: str, tmp_path: Path) -> None:
    """Without a barrier numbers are right by chance: threads read what those before them wrote."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    text = KERNEL.replace("SHIFT", "0").replace("BARRIER", barrier)
    text = text.replace("(threadIdx.x + 1) % 8", "threadIdx.x / 2")
    text = text.replace("(threadIdx.x + 7) % 8", "threadIdx.x / 4")
    (tmp_path / "kernel.cu").write_text(text)
    (tmp_path / "main.c").write_text(LAUNCH)
    try:
        program = compiled(
            tmp_path, "main.c", "kernel.cu", "emulated_driver.c",
            options=(SANITIZER, "-DATC_EMULATED_RACES"),
        )  # fmt: skip
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no thread sanitizer")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer doesn't run on this system")
    right = [(1 << k // 2) + (1 << k // 4) for k in range(8)]
    assert [int(word) for word in done.stdout.split()] == [0, *right]
    assert ("data race" in done.stderr) == (not barrier)


CAPTURED = """
  int done = 0;
  gpu_state *two;
  CUstream stream;
  CUgraph graph;
  const CUdeviceptr here = 16;
  const cuda_driver *const driver = &shared[0].driver;
  if (gpu_open(&one, shared, 0, &network, NULL, 0) != GPU_OK || !gpu_enter(one)) return 1;
  done += driver->stream_create(&stream, 1) == 0;
  done += driver->capture_begin(stream, 0) == 0; /* nobody else may reserve memory */
  done += gpu_open(&two, shared, 0, &network, NULL, 0) == GPU_OK;
  done += gpu_replay(two, stream, 0, 1, &here);
  gpu_close(two);
  done += driver->capture_end(stream, &graph) == 0 && graph != NULL;
  done += driver->graph_destroy(graph) == 0 && driver->stream_destroy(stream) == 0;
  gpu_leave(one);
  gpu_close(one);
  printf("%d %d\\n", queued, done);
  return 0;
}
"""

NO_KERNEL = """#include "gpu.h"
#include "emulation.h"
static void none(void *const *at) { (void)at; }
static const struct emulated_kernel no_kernel = {none, 0, 1, 0};
"""


@pytest.mark.parametrize("source", ["driver.c", "emulated_driver.c"])
def test_contexts_may_be_prepared_while_a_stream_is_captured(source: str, tmp_path: Path) -> None:
    """As for the first run on a stream that a library captures."""
    main = REPLAY.replace("DIMS", "0").partition("  const CUdeviceptr here")[0] + CAPTURED
    if source != "driver.c":
        main = main.replace('#include "gpu.h"\n', NO_KERNEL)
        main = main.replace("return &kernels[kernel];", "return &no_kernel + kernel;")
    (tmp_path / "main.c").write_text(main)
    program = compiled(tmp_path, "main.c", "gpu.c", source)
    assert said(program, fake_driver(tmp_path)) == [1, 6]
