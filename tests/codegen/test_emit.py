from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from projects import (
    F32,
    MODELS,
    STRICT,
    affine_model,
    build_example,
    build_shared,
    compile_c,
    emit_model,
    make_library,
    make_model,
    require,
    run_example,
    sources,
    write_project,
)

from atc.backends.kernel_source import FAILURES
from atc.backends.targets import get_target
from atc.codegen.weights import included_weights
from atc.ir.graph import DType
from atc.runtime.load import load
from atc.templates import verbatim

# ---- the compilers' opinion ---------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "external", "cc"),
    [
        *((m, False, "gcc") for m in MODELS),
        ("affine", True, "clang-19"),
        *(pytest.param(m, False, "clang-19", marks=pytest.mark.slow) for m in MODELS),
        pytest.param("affine", True, "gcc", marks=pytest.mark.slow),
    ],
)
def test_library_and_example_are_strict_c99(
    model: str, external: bool, cc: str, tmp_path: Path
) -> None:
    emission = emit_model(MODELS[model](), external=external)
    write_project(tmp_path, emission, external)
    program = build_example(tmp_path, "-O1", "-Wshadow", "-Wmissing-prototypes", cc=cc)
    run_example(program, *(tmp_path.glob("net_weights.bin") if external else ()))


@pytest.mark.parametrize("external", [False, True])
def test_a_big_endian_processor_is_refused(external: bool, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), external=external), external)
    order = ("-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__", "-fsyntax-only")
    command = [require("gcc"), *order, "-Iinclude", "src/net.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "error: #error" in done.stderr
    assert "little-endian" in done.stderr


@pytest.mark.parametrize("target", ["c99", "c99-big-endian"])
def test_init_looks_where_a_compiler_says_nothing(target: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), target=target))
    (tmp_path / "order.c").write_text(
        '#include "net.h"\nint main(void)\n{\n  static net_arena arena;\n  net_context ctx;\n'
        "  return net_init(&ctx, &arena, sizeof arena) == "
        f"{'NET_OK' if target == 'c99' else 'NET_ERROR_WEIGHTS'} ? 0 : 1;\n}}\n"
    )
    words = [require("gcc"), "-U__BYTE_ORDER__", "-Iinclude", "-I.", *sources(tmp_path), "order.c"]
    subprocess.run([*words, "-lm", "-o", "order"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "order"], check=False).returncode == 0


@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_weights_are_refused_where_bytes_have_another_order(
    compiler: str, tmp_path: Path
) -> None:
    text = included_weights("net", "w.bin", order="big")
    (tmp_path / "w.S").write_text(text)
    (tmp_path / "w.bin").write_bytes(bytes(8))
    command = [require(compiler), "-I.", "-c", "w.S"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "error" in done.stderr
    assert "big-endian processors" in done.stderr
    (tmp_path / "w.S").write_text(included_weights("net", "w.bin", order="little"))
    subprocess.run(command, cwd=tmp_path, check=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("external", [False, True])
def test_header_is_cpp(external: bool, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), external=external), external)
    (tmp_path / "use.cpp").write_text(
        '#include "net.h"\n'
        'static_assert(NET_OK == 0, "");\n'
        "int main() { return net_abi_version() == NET_ABI_VERSION ? 0 : 1; }\n"
    )
    command = [require("g++"), "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    build_shared(tmp_path)
    subprocess.run(
        [*command, "-Iinclude", "use.cpp", "./libnet.so", "-o", "use.exe"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    subprocess.run([tmp_path / "use.exe"], cwd=tmp_path, check=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS)
def test_sanitizers_have_nothing_to_say(model: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(MODELS[model]()))
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    run_example(build_example(tmp_path, *flags))


# ---- the interface ------------------------------------------------------------------------------

CONTRACT = r"""
#include <stdio.h>
#include <string.h>
#include "net.h"
#define CHECK(condition) if (!(condition)) { puts(#condition); return 1; }
static unsigned char memory[NET_ARENA_SIZE + 2 * NET_ALIGNMENT];
int main(void)
{
  unsigned char *arena = memory;
  net_context ctx;
  float x[10] = {0}, y[6], hidden[16];
  const void *inputs[] = {x};
  void *outputs[] = {y, hidden};
  while ((uintptr_t)arena % NET_ALIGNMENT != 0) ++arena;
  CHECK(net_abi_version() == NET_ABI_VERSION)
  CHECK(net_arena_size() == NET_ARENA_SIZE && net_alignment() == NET_ALIGNMENT)
  CHECK(net_context_size() == sizeof ctx && net_weights_size() == 0)
  CHECK(net_input_count() == 1 && net_output_count() == 2)
  CHECK(net_input_info(1) == NULL && net_output_info(2) == NULL)
  CHECK(net_input_info((size_t)-1) == NULL)
  CHECK(strcmp(net_output_info(1)->name, "hidden") == 0 && net_output_info(1)->rank == 2)
  CHECK(net_output_info(1)->shape[1] == 8 && net_output_info(1)->size == sizeof hidden)
  CHECK(net_init(NULL, arena, NET_ARENA_SIZE) == NET_ERROR_ARGUMENT)
  CHECK(net_init(&ctx, NULL, NET_ARENA_SIZE) == NET_ERROR_ARENA)
  CHECK(net_init(&ctx, arena + 1, NET_ARENA_SIZE) == NET_ERROR_ALIGNMENT)
  CHECK(net_init(&ctx, arena, NET_ARENA_SIZE - 1) == NET_ERROR_ARENA)
  CHECK(net_run(&ctx, x, y, hidden) == NET_ERROR_ARGUMENT)
  CHECK(net_init(&ctx, arena, sizeof memory) == NET_OK)
  CHECK(net_run(NULL, x, y, hidden) == NET_ERROR_ARGUMENT)
  CHECK(net_run(&ctx, NULL, y, hidden) == NET_ERROR_ARGUMENT)
  CHECK(net_run(&ctx, x, y, NULL) == NET_ERROR_ARGUMENT)
  CHECK(net_run_tensors(&ctx, NULL, outputs) == NET_ERROR_ARGUMENT)
  CHECK(net_run_tensors(&ctx, inputs, NULL) == NET_ERROR_ARGUMENT)
  CHECK(net_run(&ctx, x, y, hidden) == NET_OK)
  CHECK(net_run_tensors(&ctx, inputs, outputs) == NET_OK)
  for (int status = NET_ERROR_ALIGNMENT; status < NET_OK; ++status) {
    CHECK(strcmp(net_status_string(status), net_status_string(status + 1)) != 0)
  }
  CHECK(strcmp(net_status_string(NET_OK), "ok") == 0)
  CHECK(strcmp(net_status_string(77), "unknown status") == 0)
  return 0;
}
"""

EXTERNAL = r"""
#include <stdio.h>
#include <string.h>
#include "net.h"
#define CHECK(condition) if (!(condition)) { puts(#condition); return 1; }
static net_arena arena;
static NET_ALIGNED unsigned char weights[NET_WEIGHTS_SIZE], copy[NET_WEIGHTS_SIZE];
int main(int argc, char **argv)
{
  unsigned char *const w = weights;
  float x[10] = {1}, y[6], again[6], hidden[16];
  net_context ctx;
  FILE *const file = fopen(argv[argc - 1], "rb");
  CHECK(file != NULL && fread(weights, 1, sizeof weights, file) == sizeof weights)
  fclose(file);
  CHECK(net_weights_size() == NET_WEIGHTS_SIZE)
  CHECK(net_init(&ctx, &arena, sizeof arena, NULL, NET_WEIGHTS_SIZE) == NET_ERROR_WEIGHTS)
  CHECK(net_init(&ctx, &arena, sizeof arena, w, NET_WEIGHTS_SIZE - 1) == NET_ERROR_WEIGHTS)
  CHECK(net_init(&ctx, &arena, sizeof arena, w + 4, NET_WEIGHTS_SIZE) == NET_ERROR_ALIGNMENT)
  for (size_t at = 0; at < sizeof weights; at += 97) { /* those of another network of this size */
    weights[at] ^= 1;
    CHECK(net_init(&ctx, &arena, sizeof arena, w, NET_WEIGHTS_SIZE) == NET_ERROR_WEIGHTS)
    weights[at] ^= 1;
  }
  CHECK(net_set_weights(&ctx, w, NET_WEIGHTS_SIZE) == NET_ERROR_ARGUMENT)
  CHECK(net_init(&ctx, &arena, sizeof arena, w, NET_WEIGHTS_SIZE) == NET_OK)
  CHECK(net_run(&ctx, x, y, hidden) == NET_OK)
  memcpy(copy, weights, sizeof copy);
  copy[0] ^= 1;
  CHECK(net_set_weights(&ctx, copy, sizeof copy) == NET_ERROR_WEIGHTS)
  CHECK(net_set_weights(&ctx, copy, sizeof copy - 1) == NET_ERROR_WEIGHTS)
  CHECK(net_set_weights(&ctx, NULL, sizeof copy) == NET_ERROR_WEIGHTS)
  CHECK(net_run(&ctx, x, again, hidden) == NET_OK && memcmp(y, again, sizeof y) == 0)
  copy[0] ^= 1;
  CHECK(net_set_weights(&ctx, copy, sizeof copy) == NET_OK)
  memset(weights, 0, sizeof weights);
  CHECK(net_run(&ctx, x, again, hidden) == NET_OK && memcmp(y, again, sizeof y) == 0)
  return 0;
}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("external", [False, True])
def test_statuses_versions_and_queries(external: bool, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), external=external), external)
    (tmp_path / "use.c").write_text(EXTERNAL if external else CONTRACT)
    compile_c(tmp_path, "-O1", "-o", "use.exe", "use.c", *sources(tmp_path), "-lm")
    program = [tmp_path / "use.exe", tmp_path / "net_weights.bin"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_header_lists_what_may_end_a_run() -> None:
    kernel = verbatim("cpu/kernel.h")
    for name, (number, meaning) in FAILURES.items():
        assert re.search(rf"\bK_ERROR_{name} = {number}\b", kernel)
        assert meaning.isascii()
    cases = {"StringConcat": ("STRING",), "ImageDecoder": ("FORMAT", "IMAGE"), "Relu": ()}
    for op, expected in cases.items():
        kind, shape = {"StringConcat": (TensorProto.STRING, [2]), "Relu": (TensorProto.FLOAT, [2]),
                       "ImageDecoder": (TensorProto.UINT8, [64])}[op]  # fmt: skip
        names = ["a", "b"] if op == "StringConcat" else ["a"]
        out = [4, 4, 3] if op == "ImageDecoder" else shape
        graph = helper.make_graph(
            [helper.make_node(op, names, ["y"])], "g",
            [helper.make_tensor_value_info(n, kind, shape) for n in names],
            [helper.make_tensor_value_info("y", kind, out)],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        files = emit_model(model).files
        header = files["include/net.h"].decode()
        listed = re.findall(r"NET_ERROR_(\w+) += (-\d+), +/\* (.*) \*/", header)
        own = {n: (int(k), text) for n, k, text in listed if n in FAILURES}
        assert own == {name: FAILURES[name] for name in expected}
        for name, (_, meaning) in own.items():
            assert f'case NET_ERROR_{name}: return "{meaning}";' in files["src/net.c"].decode()


def test_build_info_names_what_made_it(tmp_path: Path) -> None:
    net = load(make_library(tmp_path, affine_model()))
    fields = dict(pair.split("=", 1) for pair in net.build_info.split("; "))
    assert {"atc", "target", "model", "model_sha256"} <= fields.keys()
    assert (fields["target"], fields["model"]) == ("c99", "model.onnx")


THREADS = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "net.h"
static unsigned char memory[2][NET_ARENA_SIZE + NET_ALIGNMENT];
static float x[2][10], expected[2][6];
static int run(int k, float *y)
{
  float hidden[16];
  unsigned char *arena = memory[k];
  net_context ctx;
  while ((uintptr_t)arena % NET_ALIGNMENT != 0) ++arena;
  if (net_init(&ctx, arena, NET_ARENA_SIZE) != NET_OK) return 1;
  return net_run(&ctx, x[k], y, hidden) != NET_OK;
}
static void *repeat(void *which)
{
  const int k = *(const int *)which;
  float y[6];
  for (int i = 0; i < 20000; ++i) {
    if (run(k, y) || memcmp(y, expected[k], sizeof y) != 0) return which;
  }
  return NULL;
}
int main(void)
{
  pthread_t threads[2];
  int which[2] = {0, 1}, failed = 0;
  for (int k = 0; k < 2; ++k) {
    for (int i = 0; i < 10; ++i) x[k][i] = (float)((i * 7 + k * 3) % 5 - 2);
    failed |= run(k, expected[k]);
  }
  for (int k = 0; k < 2; ++k) failed |= pthread_create(&threads[k], NULL, repeat, &which[k]);
  for (int k = 0; k < 2; ++k) {
    void *result;
    failed |= pthread_join(threads[k], &result) || result != NULL;
  }
  return failed;
}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_two_contexts_run_at_once(sanitizer: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model()))
    (tmp_path / "use.c").write_text(THREADS)
    flags = ("-O1", f"-fsanitize={sanitizer}", "-pthread", "-D_POSIX_C_SOURCE=200809L")
    compile_c(tmp_path, *flags, "-o", "use.exe", "use.c", *sources(tmp_path), "-lm")
    done = subprocess.run([tmp_path / "use.exe"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


# ---- the library file ---------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("external", [False, True])
def test_library_exports_its_interface_only(external: bool, tmp_path: Path) -> None:
    emission = emit_model(affine_model(), external=external)
    library = build_shared(write_project(tmp_path, emission, external), cc="gcc")
    said = subprocess.run(
        [require("nm"), "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in said.stdout.splitlines()}
    declared = re.findall(
        r"^NET_API .*?\b(net_\w+)\(", emission.files["include/net.h"].decode(), re.M
    )
    assert exported == set(declared)
    assert len(declared) == 14 + external


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS)
def test_library_has_no_writable_data(model: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(MODELS[model]()))
    for k, source in enumerate(sources(tmp_path)):
        compile_c(tmp_path, "-O2", "-fPIC", "-c", source, "-o", f"{k}.o")
    objects = [str(p) for p in tmp_path.glob("*.o")]
    said = subprocess.run(
        [require("readelf"), "-SW", *objects], capture_output=True, text=True, check=True
    )
    # Pointers to strings are set when the library is loaded, then protected: .data.rel.ro.
    sizes = {
        m[1]: int(m[2], 16)
        for m in re.finditer(r"\] (\.\S+) +\S+ +\w+ \w+ (\w+) \w+ +W", said.stdout)
        if not m[1].startswith(".data.rel.ro")
    }
    assert not any(sizes.values()), sizes


# ---- text ---------------------------------------------------------------------------------------


def test_comments_trace_calls_and_buffers_to_the_model() -> None:
    emission = emit_model(affine_model())
    text = emission.files["src/net.c"].decode()
    assert re.search(r'/\* 0: MatMul ".*activation.*": x, w.* -> hidden \*/\n  atc_matmul', text)
    assert re.search(r"float \*const t\d = .*; /\* .* f32\[2,8\], steps \d-\d \*/", text)
    kernels = emission.files["src/net_kernels.h"].decode()
    assert all(k.symbol in kernels for k in emission.kernels)


def test_no_file_speaks_of_this_machine(tmp_path: Path) -> None:
    for path, data in emit_model(affine_model()).files.items():
        for word in (os.getcwd(), os.path.expanduser("~"), str(tmp_path)):
            assert word.encode() not in data, path


DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from projects import affine_model, emit_model
e = emit_model(affine_model(), target=sys.argv[2])
print(hashlib.sha256(repr((sorted(e.files.items()), e.weights)).encode()).hexdigest())
"""


@pytest.mark.slow
def test_bytes_depend_on_neither_folder_nor_hash_seed(tmp_path: Path) -> None:
    running = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        command = [
            sys.executable,
            "-c",
            DIGEST,
            str(Path(__file__).parents[1] / "support"),
            get_target("host").name,
        ]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        running.append(
            subprocess.Popen(command, cwd=tmp_path / seed, env=env, stdout=subprocess.PIPE)
        )
    digests = {process.communicate()[0] for process in running}
    assert all(process.returncode == 0 for process in running)
    assert len(digests) == 1


def test_equal_constants_lie_once() -> None:
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    nodes = [helper.make_node("Sub", ["x", "a"], ["s"]), helper.make_node("Div", ["b", "s"], ["y"])]
    shapes = [("y", F32, (4, 4)), ("s", F32, (4, 4))]
    model = make_model(nodes, [("x", F32, (4, 4))], shapes, {"a": w, "b": w.copy()})
    assert len(emit_model(model).weights) == w.nbytes


@pytest.mark.slow
def test_a_thousand_calls_are_one_kernel_and_compile(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    count = 1000
    weights = {f"m{k}": random.standard_normal((2, 2)).astype(np.float32) for k in range(count)}
    nodes = [helper.make_node("MatMul", [f"a{k}", f"m{k}"], [f"a{k + 1}"]) for k in range(count)]
    model = make_model(nodes, [("a0", F32, (2, 2))], [(f"a{count}", F32, (2, 2))], weights)
    emission = emit_model(model)
    assert len(emission.kernels) == 1
    write_project(tmp_path, emission)
    compile_c(tmp_path, "-O2", "-fPIC", "-c", "src/net.c", "-o", "net.o")


def test_strict_flags_are_those_of_the_build() -> None:
    from atc.backends.toolchain.compiler import compile_flags
    from atc.backends.toolchain.find_compiler import find_compiler

    target = get_target("c99")
    assert set(STRICT) <= set(compile_flags(find_compiler(target, os.environ), target))


@pytest.mark.slow
def test_example_prints_every_number_of_the_small_types(tmp_path: Path) -> None:
    types = [d for d in DType if d.is_small]
    codes = [np.arange(1 << d.bits, dtype=np.uint8) for d in types]
    model = make_model(
        [helper.make_node("Identity", [d.label], [f"{d.label}_out"]) for d in types],
        [(d.label, d.code, c.shape) for d, c in zip(types, codes, strict=True)],
        [(f"{d.label}_out", d.code, c.shape) for d, c in zip(types, codes, strict=True)],
    )
    emission = emit_model(model)
    assert "numbers of 2 and 4 bits one per byte" in emission.files["include/net.h"].decode()
    write_project(tmp_path, emission)
    files = [tmp_path / f"{d.label}.npy" for d in types]
    for file, dtype, code in zip(files, types, codes, strict=True):
        np.save(file, code.view(dtype.numpy))
    printed = run_example(build_example(tmp_path), *files)
    for dtype, code in zip(types, codes, strict=True):
        wanted = code.view(dtype.numpy).astype(np.float64)
        np.testing.assert_allclose(printed[f"{dtype.label}_out"], wanted, rtol=1e-5)
