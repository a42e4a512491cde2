from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from projects import (
    STRICT,
    affine_model,
    build_example,
    build_shared,
    compile_c,
    emit_model,
    make_library,
    make_model,
    reference,
    require,
    run_example,
    sources,
    write_project,
)

from atc.backends.target import get_target
from atc.load import load

F32, F16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
COMPILERS = ("gcc", "clang-19")


def typed_model() -> onnx.ModelProto:
    """Return a model with inputs and outputs of all kinds of types."""
    types = {"h": F16, "b": BF16, "d": TensorProto.DOUBLE, "i": TensorProto.INT8,
             "u": TensorProto.UINT64, "n": TensorProto.INT64}  # fmt: skip
    nodes = [helper.make_node("Abs", [k], [f"{k}_out"]) for k in types]
    nodes.append(helper.make_node("Greater", ["d", "d2"], ["flag"]))
    inputs = [(k, t, (3,)) for k, t in types.items()] + [("d2", TensorProto.DOUBLE, (3,))]
    outputs = [(f"{k}_out", t, (3,)) for k, t in types.items()]
    return make_model(nodes, inputs, [*outputs, ("flag", TensorProto.BOOL, (3,))])


def constant_model() -> onnx.ModelProto:
    """Return a model without inputs whose output is a constant."""
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    return make_model(
        [helper.make_node("Identity", ["c"], ["y"])], [], [("y", F32, (2, 3))], {"c": value}
    )


def empty_model() -> onnx.ModelProto:
    """Return a model of tensors without elements, inner ones too."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["y"]),
    ]
    shapes = [("y", F32, (0, 2)), ("sum", F32, (0, 3))]
    return make_model(nodes, [("x", F32, (0, 3))], shapes, {"w": np.ones((3, 2), np.float32)})


MODELS = {
    "affine": affine_model, "typed": typed_model, "constant": constant_model, "empty": empty_model
}  # fmt: skip


# ---- the compilers' opinion ---------------------------------------------------------------------


@pytest.mark.parametrize("cc", COMPILERS)
@pytest.mark.parametrize(("model", "external"), [*((m, False) for m in MODELS), ("affine", True)])
def test_library_and_example_are_strict_c99(
    model: str, external: bool, cc: str, tmp_path: Path
) -> None:
    emission = emit_model(MODELS[model](), external=external)
    write_project(tmp_path, emission, external)
    program = build_example(tmp_path, "-O1", "-Wshadow", "-Wmissing-prototypes", cc=cc)
    run_example(program, *(tmp_path.glob("net_weights.bin") if external else ()))


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


@pytest.mark.parametrize("model", MODELS)
def test_sanitizers_have_nothing_to_say(model: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(MODELS[model]()))
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    run_example(build_example(tmp_path, *flags))


def test_example_prints_what_the_reference_computes(tmp_path: Path) -> None:
    model = affine_model()
    x = np.random.default_rng(1).standard_normal((2, 5)).astype(np.float32)
    write_project(tmp_path, emit_model(model))
    program = build_example(tmp_path)
    x.tofile(tmp_path / "x.bin")
    np.save(tmp_path / "x.npy", x)
    y, hidden = reference(model, x)
    for file in ("x.bin", "x.npy"):
        printed = run_example(program, tmp_path / file)
        assert list(printed) == ["y", "hidden"]
        np.testing.assert_allclose(printed["y"], y.ravel(), rtol=1e-5)
        np.testing.assert_allclose(printed["hidden"], hidden.ravel(), rtol=1e-5)


def test_example_reads_and_prints_every_type(tmp_path: Path) -> None:
    model = typed_model()
    write_project(tmp_path, emit_model(model))
    program = build_example(tmp_path)
    values = {
        "h": np.array([-1.5, 6.1e-5, np.inf], np.float16), "b": np.array([-2, 0.5, 3e38]),
        "d": np.array([-1e300, 0.1, 3]), "i": np.array([-7, 0, 127], np.int8),
        "u": np.array([0, 1, 2**64 - 1], np.uint64), "n": np.array([-(2**53), 0, 5], np.int64),
        "d2": np.array([0.0, 0, 9]),
    }  # fmt: skip
    files = []
    for name, array in values.items():
        if name == "b":
            bits = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            bits.tofile(tmp_path / name)
        else:
            np.save(tmp_path / name, array)
        files.append(tmp_path / (name if name == "b" else f"{name}.npy"))
    printed = run_example(program, *files)
    for name in ("h", "d", "i", "u", "n"):
        expected = np.abs(values[name].astype(np.float64))
        np.testing.assert_allclose(printed[f"{name}_out"], expected, rtol=1e-4)
    np.testing.assert_allclose(printed["b_out"], [2, 0.5, 3e38], rtol=5e-3)
    assert printed["flag"] == [0, 1, 0]


@pytest.mark.parametrize("case", ["short", "long", "dtype", "order", "missing", "many"])
def test_example_refuses_files_that_do_not_fit(case: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model()))
    program = build_example(tmp_path)
    x = np.zeros((2, 5), np.float32)
    match case:
        case "short":
            x.ravel()[:9].tofile(tmp_path / "x")
        case "long":
            np.zeros(11, np.float32).tofile(tmp_path / "x")
        case "dtype":
            np.save(tmp_path / "x.npy", x.astype(np.int32))
        case "order":
            np.save(tmp_path / "x.npy", np.asfortranarray(x))
    files = [tmp_path / ("x.npy" if case in ("dtype", "order") else "x")] * (1 + (case == "many"))
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert ("usage" if case == "many" else "x") in done.stderr
    assert not done.stdout


def test_example_prints_the_status_of_a_network_that_cannot_run(tmp_path: Path) -> None:
    emission = emit_model(affine_model())
    write_project(tmp_path, emission)
    main = (tmp_path / "example/main.c").read_text()
    smaller = main.replace("aligned(arena), NET_ARENA_SIZE", "aligned(arena), NET_ARENA_SIZE - 1")
    assert smaller != main
    (tmp_path / "example/main.c").write_text(smaller)
    done = subprocess.run([build_example(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the arena is too small or misaligned" in done.stderr


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
  CHECK(net_init(&ctx, arena + 1, NET_ARENA_SIZE) == NET_ERROR_ARENA)
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
  for (int status = NET_ERROR_WEIGHTS; status < NET_OK; ++status) {
    CHECK(strcmp(net_status_string(status), net_status_string(status + 1)) != 0)
  }
  CHECK(strcmp(net_status_string(NET_OK), "ok") == 0)
  CHECK(strcmp(net_status_string(77), "unknown status") == 0)
  return 0;
}
"""

EXTERNAL = r"""
#include <stdio.h>
#include "net.h"
#define CHECK(condition) if (!(condition)) { puts(#condition); return 1; }
static union { double align[8]; unsigned char bytes[NET_ARENA_SIZE + NET_ALIGNMENT]; } memory;
static unsigned char weights[NET_WEIGHTS_SIZE + NET_ALIGNMENT];
int main(void)
{
  unsigned char *arena = memory.bytes, *w = weights;
  net_context ctx;
  while ((uintptr_t)arena % NET_ALIGNMENT != 0) ++arena;
  while ((uintptr_t)w % NET_ALIGNMENT != 0) ++w;
  CHECK(net_weights_size() == NET_WEIGHTS_SIZE)
  CHECK(net_init(&ctx, arena, NET_ARENA_SIZE, NULL, NET_WEIGHTS_SIZE) == NET_ERROR_WEIGHTS)
  CHECK(net_init(&ctx, arena, NET_ARENA_SIZE, w, NET_WEIGHTS_SIZE - 1) == NET_ERROR_WEIGHTS)
  CHECK(net_init(&ctx, arena, NET_ARENA_SIZE, w + 4, NET_WEIGHTS_SIZE) == NET_ERROR_WEIGHTS)
  CHECK(net_init(&ctx, arena, NET_ARENA_SIZE, w, NET_WEIGHTS_SIZE) == NET_OK)
  return 0;
}
"""


@pytest.mark.parametrize("external", [False, True])
def test_statuses_versions_and_queries(external: bool, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), external=external), external)
    (tmp_path / "use.c").write_text(EXTERNAL if external else CONTRACT)
    compile_c(tmp_path, "-O1", "-o", "use.exe", "use.c", *sources(tmp_path), "-lm")
    done = subprocess.run([tmp_path / "use.exe"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_two_contexts_run_at_once(sanitizer: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model()))
    (tmp_path / "use.c").write_text(THREADS)
    flags = ("-O1", f"-fsanitize={sanitizer}", "-pthread", "-D_POSIX_C_SOURCE=200809L")
    compile_c(tmp_path, *flags, "-o", "use.exe", "use.c", *sources(tmp_path), "-lm")
    done = subprocess.run([tmp_path / "use.exe"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


# ---- the library file ---------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
def test_library_exports_its_interface_only(external: bool, tmp_path: Path) -> None:
    emission = emit_model(affine_model(), external=external)
    library = build_shared(write_project(tmp_path, emission, external))
    said = subprocess.run(
        [require("nm"), "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in said.stdout.splitlines()}
    declared = re.findall(
        r"^NET_API .*?\b(net_\w+)\(", emission.files["include/net.h"].decode(), re.M
    )
    assert exported == set(declared)
    assert len(declared) == 14


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


# ---- hostile models -----------------------------------------------------------------------------

NAMES = [
    "x*/ int", 'a"b\\', "数据\u202e", "int", "class", "NET_OK", "uint8_t", "t0", "w0", "atc_map",
    "net_run", "a\nb", "%s%n", "n" * 100_000, "??/", "ctx", "t#1", "", "a.b", "a b", "a_b",
]  # fmt: skip


def test_tensors_may_have_any_name(tmp_path: Path) -> None:
    names = [f"{name} " for name in NAMES] + [name for name in NAMES if name]
    nodes, scales = [], {}
    for name in names:
        nodes += [
            helper.make_node("Exp", [name], [f"{name}/exp"], name=name),
            helper.make_node(
                "Mul", [f"{name}/exp", f"{name} scale"], [f"{name}."], name=f"{name}*/"
            ),
        ]
        scales[f"{name} scale"] = np.array([1, 2, len(scales)], np.float32)
    shapes = [[(f"{name}{end}", F32, (2, 3)) for name in names] for end in ("", ".")]
    model = make_model(nodes, *shapes, scales)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    inputs = {name: x + np.float32(k) for k, name in enumerate(names)}
    net = load(make_library(tmp_path, model))
    assert [t.name for t in net.inputs] == names
    results = net.run(inputs)
    assert list(results) == [f"{name}." for name in names]
    for got, expected in zip(results.values(), reference(model, *inputs.values()), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    subprocess.run([build_example(tmp_path)], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize("name", ["math", "kernel", "m", "int", "模型"])
def test_a_network_may_have_any_name(name: str, tmp_path: Path) -> None:
    emission = emit_model(affine_model(), name)
    write_project(tmp_path, emission)
    x = np.ones((2, 5), np.float32)
    y, _ = load(build_shared(tmp_path, emission.name))(x)
    np.testing.assert_allclose(y, reference(affine_model(), x)[0], rtol=1e-5)
    run_example(build_example(tmp_path))


def test_the_models_file_may_have_any_name(tmp_path: Path) -> None:
    file = '*/ "; """\\\n evil=1; target=fake 模型?' + "x" * 5000
    write_project(tmp_path, emit_model(affine_model(), file=file))
    net = load(build_shared(tmp_path))
    fields = dict(pair.split("=", 1) for pair in net.build_info.split("; "))
    assert fields["target"] == "c99"
    assert "evil" not in fields
    run_example(build_example(tmp_path))
    compile((tmp_path / "net.py").read_text(), "net.py", "exec")


def identity(source: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [source], [result])


def test_outputs_that_are_inputs_or_constants_or_twice_the_same(tmp_path: Path) -> None:
    c = np.arange(3, dtype=np.float32)
    nodes = [
        identity("x", "copy"), identity("c", "fixed"), helper.make_node("Neg", ["x"], ["neg"]),
        identity("neg", "again"), helper.make_node("Reshape", ["neg", "s"], ["shaped"]),
    ]  # fmt: skip
    outputs = [("copy", F32, (3,)), ("fixed", F32, (3,)), ("again", F32, (3,)), ("neg", F32, (3,)),
               ("shaped", F32, (3, 1)), ("c", F32, (3,))]  # fmt: skip
    constants = {"c": c, "s": np.array([3, 1])}
    model = make_model(nodes, [("x", F32, (3,))], outputs, constants)
    net = load(make_library(tmp_path, model))
    x = np.array([1, -2, 3], np.float32)
    results = net.run({"x": x})
    expected = {"copy": x, "fixed": c, "again": -x, "neg": -x, "shaped": -x.reshape(3, 1), "c": c}
    assert list(results) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


def test_an_output_may_be_an_input_of_the_same_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, [("x", F32, (3,))], [("x", F32, (3,)), ("y", F32, (3,))])
    net = load(make_library(tmp_path, model))
    x = np.array([1, -2, 3], np.float32)
    same, negated = net(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(negated, -x)
    assert [t.name for t in net.outputs] == ["x", "y"]


def test_an_unused_input_stays_a_parameter(tmp_path: Path) -> None:
    model = make_model(
        [identity("x", "y")], [("unused", F32, (2,)), ("x", F32, (2,))], [("y", F32, (2,))]
    )
    net = load(make_library(tmp_path, model))
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(net(x * 0, x), x)


def test_models_without_inputs_or_elements(tmp_path: Path) -> None:
    constant = load(make_library(tmp_path / "constant", constant_model()))
    np.testing.assert_array_equal(constant(), np.arange(6, dtype=np.float32).reshape(2, 3))
    empty = load(make_library(tmp_path / "empty", empty_model()))
    assert [a.shape for a in empty(np.zeros((0, 3), np.float32))] == [(0, 2), (0, 3)]


def test_both_branches_of_an_if_are_written_and_read_outputs(tmp_path: Path) -> None:
    branches = {
        f"{key}_branch": helper.make_graph(
            [helper.make_node(op, ["z", "w"], [f"{key}_y"])], key, [],
            [helper.make_tensor_value_info(f"{key}_y", F32, (3,))],
        )
        for key, op in (("then", "Add"), ("else", "Mul"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Neg", ["x"], ["z"]),
        helper.make_node("If", ["c"], ["y"], name="choice", **branches),
    ]
    inputs = [("c", TensorProto.BOOL, ()), ("x", F32, (3,))]
    w = np.array([5, 6, 7], np.float32)
    model = make_model(nodes, inputs, [("y", F32, (3,)), ("z", F32, (3,))], {"w": w})
    net = load(make_library(tmp_path, model))
    x = np.array([1, 2, 3], np.float32)
    for condition, expected in ((True, w - x), (False, -x * w)):
        y, z = net(np.array(condition), x)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(z, -x)


def test_names_of_outputs_may_be_those_that_the_compiler_would_choose(tmp_path: Path) -> None:
    chain = ["x", "t#3", "t#2", "t#1", "t#0", "t#4"]
    nodes = [
        helper.make_node(op, [chain[k]], [chain[k + 1]])
        for k, op in enumerate(["Neg", "Exp", "Sqrt", "Tanh", "Abs"])
    ]
    model = make_model(nodes, [("x", F32, (3,))], [(n, F32, (3,)) for n in chain[1:]])
    x = np.array([1, -2, 0.5], np.float32)
    results = load(make_library(tmp_path, model)).run({"x": x})
    for got, expected in zip(results.values(), reference(model, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


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


def test_bytes_depend_on_neither_folder_nor_hash_seed(tmp_path: Path) -> None:
    running = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        command = [
            sys.executable,
            "-c",
            DIGEST,
            str(Path(__file__).parent),
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
    from atc.backends.toolchain import compile_flags, find_compiler

    target = get_target("c99")
    assert set(STRICT) <= set(compile_flags(find_compiler(target, os.environ), target))
