"""A test for each option of MegEngine's load_and_run, named by its row of the specification."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from load_and_run_cases import dump_with_cases
from onnx.reference import ReferenceEvaluator
from quantized_convs import network

from atc import templates
from atc.backends.cpu.catalogue import KERNELS
from atc.backends.cpu.targets import TARGETS
from atc.backends.target import host_arch, host_features
from atc.backends.targets import host_target
from atc.errors import OptionError
from atc.load_and_run.binary_dump import read_dump
from atc.options.options import Options
from atc.options.table import LOAD_AND_RUN

C99 = "--target=c99"


def output(run: Any, folder: Path, *words: object, where: Path) -> np.ndarray[Any, Any]:
    """Return the network's output of one run."""
    where.mkdir(exist_ok=True)
    run(folder, "--iter=1", "--warmup-iter=0", f"--bin-out-dump={where}", *words)
    (file,) = where.glob("run0-var*")
    return read_dump(file).array


@pytest.fixture
def truth(model: Path, picture: Path) -> np.ndarray[Any, Any]:
    feeds = {"data": np.load(picture), "bias": np.zeros((1, 10), np.float32)}
    result: np.ndarray[Any, Any] = ReferenceEvaluator(onnx.load(model)).run(None, feeds)[0]
    return result


# ---- runs ---------------------------------------------------------------------------------------


def test_l01_iter(run: Any, library: Path) -> None:
    found = run(library, "--iter=20")
    assert len(re.findall(r"^iter \d+/20: e2e=\d+\.\d{3} ms \(host=", found.out, re.M)) == 20
    assert re.search(r"^=== finished test #0: time=.* standard_deviation=.* max=", found.out, re.M)
    assert re.search(r"^=== median=\d+\.\d{3} ms spread=", found.out, re.M)
    assert "finished test" not in run(library, "--iter=0").out
    assert "standard_deviation=N/A" in run(library, "--iter=1").out
    run(library, "--iter=-1", status=1)


def test_l02_warmup_iter(run: Any, library: Path) -> None:
    assert run(library, "--warmup-iter=3").out.count("warm up ") == 3
    assert "warm up" not in run(library, "--warmup_iter", "0").out


def test_l03_thread(run: Any, library: Path) -> None:
    found = run(library, "--thread=3", "--iter=5", "--json").json
    assert [len(test["e2e_ms"]) for test in found["tests"]] == [5, 5, 5]
    run(library, "--thread=0", status=1)


@pytest.mark.slow
def test_l03_threads_that_disagree_are_reported(run: Any, tmp_path: Path) -> None:
    body = "static int calls; *(float *)call->output_data[0] = (float)calls++;"
    words = external_words("Counter", body, tmp_path)
    found = run(*words, "--thread=2", "--iter=3", status=5)
    assert "thread 1" in found.err
    found = run(*words, "--check-var-value=1", "--iter=4", status=5)
    assert "'clip' is not what it was in the first run" in found.err


OPERATOR = """#include "atc_external.h"
void compute_NAME(const atc_external_call *call) { (void)call; BODY }
static int types(const char *a, size_t n, const atc_external_tensor *x, size_t m,
    atc_external_tensor *y) { (void)a; (void)n; (void)m; y[0] = x[0]; return 0; }
void MGB_C_OPR_INIT_FUNC(atc_external_get_api get)
{
  static const atc_external_operator op = {"NAME", "compute_NAME", types};
  get(1)->register_operator(&op);
}
"""


def built(source: str, library: Path) -> Path:
    """Compile the C text of a library of operators."""
    header = Path(templates.__file__).parent / "project"
    text = library.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{header}", "-o", library, text], check=True)
    return library


def external_words(name: str, body: str, folder: Path) -> tuple[object, ...]:
    """Return a command line for a model of one operator with this name and C body.

    Names must differ: a process has each symbol once.
    """
    source = OPERATOR.replace("NAME", name).replace("BODY", body)
    library = built(source, folder / f"lib{name}.so")
    model = folder / f"{name}.onnx"
    model.write_bytes(external_model(name).SerializeToString())
    return model, f"--c-opr-lib={library}", C99


def external_model(op: str, **attributes: Any) -> onnx.ModelProto:
    """Return a model of an operator that only an external library knows."""
    one = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 1))
    two = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 1))
    node = onnx.helper.make_node(op, ["x"], ["y"], name="clip", domain="my.ops", **attributes)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("my.ops", 1)]
    graph = onnx.helper.make_graph([node], "external", [one], [two])
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_l04_input(
    run: Any, library: Path, picture: Path, truth: Any, tmp_path: Path
) -> None:
    given = f"data:{picture};bias:[0,0,0,0,0,0,0,0,0,0.0]"
    np.testing.assert_allclose(
        output(run, library, f"--input={given}", where=tmp_path), truth, atol=1e-5
    )
    entry = {"shape": [1, 10], "type": "float32", "raw": ["0"] * 10}
    (tmp_path / "bias.json").write_text(json.dumps({"bias": entry}))
    given = f"data:{picture};{tmp_path}/bias.json"
    np.testing.assert_allclose(
        output(run, library, f"--input={given}", where=tmp_path / "json"), truth, atol=1e-5
    )
    found = run(library, f"--input=date:{picture}", status=1)
    assert "no input 'date'" in found.err
    assert "its inputs are data, bias" in found.err


def test_l04_images_of_text_and_whole_numbers_for_floats(
    run: Any, model: Path, library: Path, tmp_path: Path
) -> None:
    image = Path(__file__).parents[2] / "samples/images/2.pgm"
    words = image.read_bytes().split()
    pixels = np.array([int(w) for w in words[4:]], np.float32).reshape(1, 1, 28, 28)
    feeds = {"data": pixels, "bias": np.arange(10, dtype=np.float32).reshape(1, 10)}
    expected = ReferenceEvaluator(onnx.load(model)).run(None, feeds)[0]
    given = f"--input=data:{image};bias:[0,1,2,3,4,5,6,7,8,9]"
    result = output(run, library, given, where=tmp_path)
    np.testing.assert_allclose(result, expected, atol=1e-5)


# ---- choice of kernels --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of one product, for which there are several kernels."""
    w = onnx.numpy_helper.from_array(np.ones((16, 16), np.float32) / 16, "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    sides = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 16)) for name in "xy"
    ]
    graph = onnx.helper.make_graph([node], "small", sides[:1], sides[1:], [w])
    opsets = [onnx.helper.make_opsetid("", 21)]
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


NAIVE = {kernel.name for kernel in KERNELS if kernel.portable}

needs_vectors = pytest.mark.skipif(
    host_target().vector_bytes == 4, reason="needs a target with vectors"
)


@pytest.mark.slow
@needs_vectors
def test_l05_full_run(run: Any, small: Path, tmp_path: Path) -> None:
    kept = tmp_path / "net"
    run(small, "--full-run", f"--model-dump={kept}", "--iter=1")
    (node,) = json.loads((kept / "net.report.json").read_text())["nodes"]
    measured = {m["kernel"].partition("(")[0] for m in node["measurements"]}
    assert measured & NAIVE
    assert measured - NAIVE


@needs_vectors
def test_l06_fast_run(run: Any, small: Path, tmp_path: Path) -> None:
    kept = tmp_path / "net"
    run(small, "--fast-run", f"--model-dump={kept}", "--iter=1")
    (node,) = json.loads((kept / "net.report.json").read_text())["nodes"]
    assert not {m["kernel"].partition("(")[0] for m in node["measurements"]} & NAIVE
    found = run(small, "--fast-run", "--full-run", status=1)
    assert "exclude each other" in found.err


@needs_vectors
def test_l06_a_product_without_an_optimised_kernel_is_an_error(run: Any, tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, (2, 3))
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, (2, 2))
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="wide product")
    w = onnx.numpy_helper.from_array(np.ones((3, 2)), "w")
    graph = onnx.helper.make_graph([node], "wide", [x], [y], [w])
    model = tmp_path / "wide.onnx"
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), model)
    found = run(model, "--fast-run", status=1)
    assert "only a naive kernel" in found.err
    assert "wide product" in found.err


@needs_vectors
def test_l07_fast_run_algo_policy(run: Any, small: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.txt"
    found = run(small, f"--fast-run-algo-policy={policy}", status=1)
    assert "is not there" in found.err
    run(small, f"--fast-run-algo-policy={policy}", "--fast-run", "--iter=1")
    written = policy.read_bytes()
    found = run(small, f"--fast-run-algo-policy={policy}", "--iter=1", "--verbose")
    assert "measuring" not in found.err
    assert policy.read_bytes() == written


def test_l08_reproducible(run: Any, library: Path, picture: Path, tmp_path: Path) -> None:
    results = [
        output(run, library, f"--input=data:{picture}", "--reproducible", *more, where=tmp_path)
        for more in ((), ("--thread=2",), ("--multithread=2",))
    ]
    assert len({r.tobytes() for r in results}) == 1


@pytest.mark.slow
@needs_vectors
@pytest.mark.usefixtures("unconfigured")
def test_l09_fast_run_shared_batch_size(run: Any, small: Path) -> None:
    found = run(small, "--fast-run-shared-batch-size=4", status=1)
    assert "add --fast_run" in found.err
    words = ("--full-run", "--fast-run-shared-batch-size=4", "--iter=1")
    run(small, *words)
    cache = Path(os.environ["ASCEND_CACHE_PATH"], "algo_cache")
    kept = {p: p.read_bytes() for p in cache.glob("*.json")}
    assert kept
    run(small, *words, "--batch-size=8")
    assert {p: p.read_bytes() for p in kept} == kept


def test_l10_binary_equal_between_batch(run: Any, model: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(2).standard_normal((1, 1, 28, 28)).astype(np.float32)
    np.save(tmp_path / "row.npy", rows)
    given = f"--input=data:{tmp_path}/row.npy"
    words = (given, "--batch-size=5", "--binary-equal-between-batch", "--target=c99")
    result = output(run, model, *words, where=tmp_path / "out")
    assert result.shape == (5, 10)
    assert len({row.tobytes() for row in result}) == 1


# ---- inputs and outputs --------------------------------------------------------------------------


def test_l11_io_dump(run: Any, library: Path, plain: Path, tmp_path: Path) -> None:
    run(library, f"--io-dump={tmp_path}/values.txt", "--iter=1")
    text = (tmp_path / "values.txt").read_text()
    heads = re.findall(r"^var\d+ produced: name=.* owner_opr=.*\{\w+\} opr\d+$", text, re.M)
    assert len(heads) >= 5
    assert "name=prob" in text
    found = run(plain, f"--io-dump={tmp_path}/values.txt", status=1)
    assert "compiled without hooks" in found.err


def test_l12_io_dump_to_streams(run: Any, library: Path, tmp_path: Path) -> None:
    run(library, f"--io-dump={tmp_path}/values.txt", "--iter=0")
    text = (tmp_path / "values.txt").read_text()
    assert text in run(library, "--io-dump-stdout", "--iter=0").out
    assert text in run(library, "--io-dump-stderr", "--iter=0").err


def test_l13_bin_io_dump(
    run: Any, library: Path, picture: Path, truth: Any, tmp_path: Path
) -> None:
    run(library, f"--bin-io-dump={tmp_path}", f"--input=data:{picture}", "--iter=1")
    dumped = [read_dump(path) for path in sorted(tmp_path.iterdir())]
    assert all(re.fullmatch("[0-9a-f]{6}", path.name) for path in tmp_path.iterdir())
    (found,) = [d for d in dumped if "name:prob}" in d.name.partition(" owner")[0]]
    np.testing.assert_allclose(found.array, truth, atol=1e-5)
    assert "is not a folder" in run(library, f"--bin-io-dump={tmp_path}/none", status=1).err


def test_l14_bin_out_dump(run: Any, plain: Path, tmp_path: Path) -> None:
    run(plain, f"--bin-out-dump={tmp_path}", "--iter=3", "--warmup-iter=2")
    (number,) = json.loads((plain / "lenet.report.json").read_text())["output_variables"]
    assert number > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"run{k}-var{number}" for k in range(5)]


def test_l14_variables_have_the_numbers_of_other_dumps(
    run: Any, library: Path, plain: Path, picture: Path, tmp_path: Path
) -> None:
    whole, given = tmp_path / "whole", f"--input=data:{picture}"
    whole.mkdir()
    run(library, f"--bin-io-dump={whole}", given, "--iter=1")
    for folder in (library, plain):
        outputs = tmp_path / folder.parent.name
        result = output(run, folder, given, where=outputs)
        (file,) = outputs.glob("run0-var*")
        same = read_dump(whole / f"{int(file.name.removeprefix('run0-var')):06x}")
        np.testing.assert_array_equal(same.array, result)
        assert "name:prob}" in same.name.partition(" owner")[0]


def test_l14_several_outputs(run: Any, tmp_path: Path) -> None:
    """One that is an input, one that is a constant, one that another reads, one reshaped."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Exp", ["x"], ["e"]), node("CumSum", ["e", "axis"], ["c"]),
             node("Reshape", ["c", "four"], ["r"]), node("Identity", ["x"], ["same"]),
             node("Identity", ["two"], ["known"])]  # fmt: skip
    known = [onnx.numpy_helper.from_array(np.int64(0), "axis"),
             onnx.numpy_helper.from_array(np.int64([4, 1]), "four"),
             onnx.numpy_helper.from_array(np.float32([2]), "two")]  # fmt: skip
    shapes = {"e": (2, 2), "r": (4, 1), "same": (2, 2), "known": (1,)}
    outputs = [info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()]
    x = info("x", onnx.TensorProto.FLOAT, (2, 2))
    graph = onnx.helper.make_graph(nodes, "several", [x], outputs, known)
    path, kept = tmp_path / "several.onnx", tmp_path / "net"
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    given, folders = "--input=x:[[1.0,2],[3,4]]", [tmp_path / n for n in ("all", "out")]
    for folder in folders:
        folder.mkdir()
    run(path, C99, given, f"--bin-io-dump={folders[0]}", "--iter=1", f"--model-dump={kept}")
    run(kept, given, f"--bin-out-dump={folders[1]}", "--iter=1", "--warmup-iter=0")
    numbers = json.loads((kept / "net.report.json").read_text())["output_variables"]
    assert len(set(numbers)) == 4
    for number, (name, shape) in zip(numbers, shapes.items(), strict=True):
        dumped = read_dump(folders[1] / f"run0-var{number}")
        assert (dumped.array.shape, name in dumped.name) == (shape, True)
        whole = read_dump(folders[0] / f"{number:06x}").array
        np.testing.assert_array_equal(whole.reshape(shape), dumped.array)


def test_l15_copy_to_host(run: Any, library: Path, tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    run(library, "--copy-to-host", f"--profile={profile}")
    (copy,) = copies(json.loads(profile.read_text()))
    assert (copy["name"], copy["type"]) == ("copy_to_host", "Copy")
    run(library, f"--profile={profile}")
    assert copies(json.loads(profile.read_text())) == []


def copies(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the copies of outputs that a profile has times of."""
    operators = profile["graph_exec"]["operator"]
    timed = [operators[k] for k in profile["profiler"]["host"]]
    return [o for o in timed if o["type"] == "Copy"]


# ---- layouts ------------------------------------------------------------------------------------


def _warned(run: Any, plain: Path, option: str, part: str) -> None:
    found = run(plain, option, "--iter=1")
    assert found.err.count("W10001") == 1
    assert option.lstrip("-").replace("-", "_").partition("=")[0] in found.err
    assert part in found.err
    assert "W10001" not in run(plain, "--iter=1").err


@pytest.mark.slow
def test_l16_l17_l20_layouts_of_bytes_on_a_gpu(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "bytes.onnx"
    onnx.save(network(2), path)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(2, 3, 16, 20)).astype("f"))
    given, results = ("--target=cuda-emulated", f"--input=x:{tmp_path / 'x.npy'}"), []
    options = {"--iter=1": "0", "--enable-nchw4": "4", "--enable-nchw32": "32",
               "--enable-chwn4": "2,4"}  # fmt: skip
    for option, block in options.items():
        kept = tmp_path / f"net{len(results)}"
        words = (option, *given, f"--model-dump={kept}")
        results.append(output(run, path, *words, where=tmp_path / f"out{len(results)}"))
        text = (kept / f"{kept.name}.graph.txt").read_text()
        source = (kept / "src" / f"{kept.name}.c").read_text()
        assert (f",{block}] = ConvBlocked" in text) == (block != "0")
        assert ("ConvBlocked" in source) == (block != "0")
        np.testing.assert_array_equal(results[-1], results[0])
    both = run(path, *given, "--enable-nchw4", "--enable-nchw32", status=1)
    assert "--enable_nchw4 and --enable_nchw32 exclude each other" in both.err


@pytest.mark.parametrize("option", ["--enable-nchw4", "--enable-chwn4", "--enable-nchw32"])
def test_l16_l17_l20_are_of_gpus(run: Any, plain: Path, model: Path, option: str) -> None:
    _warned(run, plain, option, "of no effect on a library that is compiled already")
    found = run(model, option, C99, "--iter=0")
    assert "it is for int8 on CUDA, the target is a CPU" in found.err


@pytest.mark.parametrize(
    ("row", "option", "block"),
    [("l18", "nchw44", 4), pytest.param("l19", "nchw88", 8, marks=pytest.mark.slow)],
)
def test_l18_l19_blocked_layouts(
    run: Any, model: Path, picture: Path, truth: Any, tmp_path: Path, row: str, option: str,
    block: int,
) -> None:  # fmt: skip
    able = [t for t in TARGETS if t.arch == host_arch() and t.vector_bytes == 4 * block]
    if not able or not able[0].features <= host_features():
        pytest.skip(f"this machine has no vectors of {block} floats")
    kept = tmp_path / "net"
    words = (f"--enable-{option}", f"--input=data:{picture}", f"--model-dump={kept}")
    np.testing.assert_allclose(
        output(run, model, *words, where=tmp_path / "out"), truth, atol=1e-5
    )
    assert f",{block}] = ConvBlocked" in (kept / "net.graph.txt").read_text()
    assert '"reorder to nchw"' in (kept / "src" / "net.c").read_text()


def test_l20_enable_nchw32_fuses(run: Any, plain: Path) -> None:
    words = ("--enable-nchw32", "--noenable-fuse-conv-bias-nonlinearity")
    assert "switches --enable_fuse_conv_bias_nonlinearity on" in run(plain, *words).err


def test_l21_enable_nchw64(run: Any, plain: Path) -> None:
    assert "int4" in run(plain, "--enable-nchw64", status=1).err


def test_l22_enable_nhwcd4(run: Any, plain: Path) -> None:
    _warned(run, plain, "--enable-nhwcd4", "the compiler's own layout is used")


def test_l23_enable_nchw44_dot_is_for_arms_targets_with_it(run: Any, model: Path) -> None:
    option = "--enable-nchw44-dot"
    for name in ("aarch64-neon", "x86-64-avx512-vnni"):
        found = run(model, option, f"--target={name}", status=1)
        assert f"target {name} has no dot product of int8 as ARM's have it" in found.err
        assert "use aarch64-neon-dotprod or aarch64-neon-i8mm" in found.err
    assert "exclude each other" in run(model, option, "--enable-nchw44", status=1).err
    if host_arch() != "aarch64":
        assert "compiles for another machine" in run(model, option, status=1).err
        found = run(model, option, "--target=aarch64-neon-dotprod", status=1)
        assert "aarch64-neon-dotprod doesn't run on this machine" in found.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sums"), [("aarch64-neon-dotprod", "dot"), ("aarch64-neon-i8mm", "mmla")]
)
def test_l23_enable_nchw44_dot(run: Any, tmp_path: Path, name: str, sums: str) -> None:
    """A convolution of bytes in blocks of 4 whose sums are dot products, with I8MM four at once."""
    if host_arch() != "aarch64" and shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("there is no compiler for aarch64")
    path, kept = tmp_path / "bytes.onnx", tmp_path / "net"
    onnx.save(quantized_conv(), path)
    found = run(
        path, "--enable-nchw44-dot", f"--target={name}", f"--model-dump={kept}", "--iter=1"
    )
    if host_arch() != "aarch64":
        assert "nothing is run on this machine" in found.out
    report = json.loads((kept / "net.report.json").read_text())
    assert report["target"] == name
    assert "+dotprod" in (kept / "CMakeLists.txt").read_text()
    (conv,) = [n for n in report["nodes"] if n["op"].startswith("Conv")]
    (kernel,) = (kept / "src" / "kernels").glob(f"{conv['symbol']}*")
    assert sums in kernel.read_text()
    words = ["aarch64-linux-gnu-objdump" if host_arch() != "aarch64" else "objdump", "-d"]
    code = subprocess.run([*words, kept / "libnet.so"], capture_output=True, text=True).stdout
    assert f"{sums}\tv" in code


def quantized_conv() -> onnx.ModelProto:
    """Return a model of a convolution of bytes by bytes, 16 channels to 16."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    weights = np.random.default_rng(0).integers(-9, 9, (16, 16, 3, 3)).astype(np.int8)
    known = [onnx.numpy_helper.from_array(a, n) for n, a in {
        "s": np.float32(0.1), "z": np.uint8(3), "w": weights, "ws": np.float32(0.05),
        "wz": np.int8(0)}.items()]  # fmt: skip
    nodes = [
        node("QLinearConv", ["x", "s", "z", "w", "ws", "wz", "s", "z"], ["y"], pads=[1, 1, 1, 1])
    ]
    sides = [[info(n, onnx.TensorProto.UINT8, (1, 16, 12, 12))] for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "bytes", *sides, known)
    opsets = [onnx.helper.make_opsetid("", 21)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.slow
@needs_vectors
@pytest.mark.usefixtures("unconfigured")
def test_l24_layout_transform(run: Any, model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "net"
    words = ("--layout-transform=cpu", "--iter=1", "--json", f"--model-dump={kept}")
    found = run(model, *words).json["layout_transform"]
    assert {"nchw", "nhwc", "auto"} < set(found["costs"])
    assert found["costs"][found["chosen"]] == min(found["costs"].values())
    files = Path(os.environ["ASCEND_CACHE_PATH"], "algo_cache").glob("*.json")
    rows = [row for file in files for row in json.loads(file.read_text())["ns"].values()]
    labels = {label for row in rows for label in row}
    assert any("conv" in label for label in labels)
    assert any("block" in label.split("_") for label in labels)  # conversions
    assert run(model, *words).json["layout_transform"] == {**found, "chosen": "auto"}
    run(model, "--layout-transform=tpu", status=1)
    assert "the target is not a GPU" in run(model, "--layout-transform=cuda", status=1).err


@pytest.mark.slow
def test_l25_layout_transform_dump(
    run: Any, model: Path, picture: Path, truth: Any, tmp_path: Path
) -> None:
    dump = tmp_path / "lenet.mge"  # the name doesn't make it a dump of MegEngine's
    found = run(model, f"--layout-transform-dump={dump}", status=1)
    assert "needs --layout_transform" in found.err
    words = ("--layout-transform=cpu", f"--layout-transform-dump={dump}", "--iter=0", "--verbose")
    found = run(model, *words, f"--model-dump={tmp_path}/one/net")
    assert f"layout transform: {dump} is a graph in atc's own format (ATCGRAPH)" in found.out
    given = f"--input=data:{picture}"
    result = output(run, dump, given, f"--model-dump={tmp_path}/two/net", where=tmp_path / "out")
    np.testing.assert_allclose(result, truth, atol=1e-5)
    texts = [(tmp_path / n / "net/net.graph.txt").read_text() for n in ("one", "two")]
    assert texts[0] == texts[1]


# ---- graph and memory ---------------------------------------------------------------------------


def calls(run: Any, model: Path, *words: object) -> int:
    """Return how many kernel calls a model is compiled to."""
    found = run(model, "--iter=1", "--json", C99, *words).json
    return int(found["compile"]["kernel_calls"])


@pytest.mark.slow
def test_l26_enable_fuse_conv_bias_nonlinearity(run: Any, model: Path) -> None:
    fused = calls(run, model, "--enable-fuse-conv-bias-nonlinearity")
    assert fused == calls(run, model)
    assert fused < calls(run, model, "--enable-fuse-conv-bias-nonlinearity=0", "--enable_jit=0")


@pytest.mark.slow
def test_l27_enable_fuse_conv_bias_with_z(run: Any, tmp_path: Path) -> None:
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("Add", ["c", "x"], ["s"]),
             node("Relu", ["s"], ["y"])]  # fmt: skip
    w = onnx.numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w")
    sides = [[info(n, onnx.TensorProto.FLOAT, (1, 2, 4, 4))] for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "block", *sides, [w])
    path = tmp_path / "block.onnx"
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    assert calls(run, path, "--enable-fuse-conv-bias-with-z") == 1
    assert calls(run, path, "--noenable-fuse-conv-bias-with-z") == 2


def test_l28_enable_fuse_preprocess(run: Any, tmp_path: Path) -> None:
    """Bytes of a picture with channels last: cast, scaled, transposed and convolved."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Cast", ["x"], ["f"], to=1), node("Div", ["f", "most"], ["d"]),
             node("Transpose", ["d"], ["t"], perm=[0, 3, 1, 2]),
             node("Relu", ["t"], ["y"])]  # fmt: skip
    most = onnx.numpy_helper.from_array(np.float32(255), "most")
    x = info("x", onnx.TensorProto.UINT8, (1, 4, 4, 3))
    y = info("y", onnx.TensorProto.FLOAT, (1, 3, 4, 4))
    path = tmp_path / "bytes.onnx"
    graph = onnx.helper.make_graph(nodes, "bytes", [x], [y], [most])
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    assert calls(run, path, "--enable-fuse-preprocess") == 1


def test_l29_weight_preprocess(run: Any, model: Path, library: Path) -> None:
    assert calls(run, model, "--weight-preprocess") == calls(run, model)
    report = json.loads((library / "lenet.report.json").read_text())
    assert not [n for n in report["nodes"] if n["op"] in ("Block", "Unblock")]
    assert "rearranged when compiling" in run(model, C99, "--noweight-preprocess").err


def test_l30_const_shape(run: Any, plain: Path) -> None:
    run(plain, "--const-shape", "--iter=1")
    found = run(plain, "--const-shape", "--input=data:{2,1,28,28}", status=1)
    assert "must have the shape [1, 1, 28, 28], not [2, 1, 28, 28]" in found.err


def test_l31_fake_first(run: Any, library: Path, tmp_path: Path) -> None:
    from atc.load_and_run.context import Context
    from atc.load_and_run.engine import open_engine

    run(library, "--fake-first", "--iter=1")
    engine = open_engine(library)
    context = Context(
        engine, [np.zeros(t.shape, t.dtype) for t in engine.inputs],
        [np.zeros(t.shape, t.dtype) for t in engine.outputs],
    )  # fmt: skip
    context.prepare()
    assert {call.runs for call in context.profile()} == {0}


def test_l32_no_sanity_check(run: Any, plain: Path) -> None:
    assert "sanity check" in run(plain, "--verbose").err
    assert "sanity check" not in run(plain, "--verbose", "--no-sanity-check").err


def test_l32_checks_that_are_compiled_in(run: Any, small: Path, tmp_path: Path) -> None:
    words = (small, C99, "--input=x:[nan" + ",1.0" * 15 + "]", "--sanity_check=nan", "--iter=1")
    kept = f"--model-dump={tmp_path}/net"
    found = run(*words, kept, status=5)
    assert "input 'x'" in found.err
    assert "sanity check" in found.err
    run(*words, "--no-sanity-check")
    found = run(tmp_path / "net", "--no-sanity-check", "--iter=1")
    assert "compiled in" in found.err


@pytest.mark.slow
def test_l32_the_sanity_check_finds_writes_into_inputs(run: Any, tmp_path: Path) -> None:
    words = external_words("Rude", "*(float *)call->input_data[0] = 1.0f;", tmp_path)
    assert "wrote into its inputs" in run(*words, status=5).err
    run(*words, "--no-sanity-check")


def test_l33_disable_mem_opt(run: Any, model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "net"
    run(model, C99, "--disable_mem_opt", f"--model-dump={kept}", "--iter=1")
    memory = json.loads((kept / "net.report.json").read_text())["memory"]
    places = sorted((b["offset"], b["bytes"]) for b in memory["buffers"])
    assert all(a + size <= b for (a, size), (b, _) in zip(places, places[1:], strict=False))


@pytest.mark.slow
def test_l34_workspace_limit(run: Any, model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "net"
    run(model, "--workspace_limit=0", f"--model-dump={kept}", "--iter=1")
    report = json.loads((kept / "net.report.json").read_text())
    assert not [b for b in report["memory"]["buffers"] if b["scratch"]]


def test_l35_record_comp_seq(run: Any, library: Path) -> None:
    found = run(library, "--const", "--record-comp-seq", "--io-dump-stdout", "--iter=1").out
    assert " val: <see lazy value>" in found
    assert "==== recorded values" in found


def test_l36_record_comp_seq2(run: Any, model: Path, plain: Path, tmp_path: Path) -> None:
    assert "needs --no_sanity_check" in run(model, "--record-comp-seq2", status=1).err
    both = ("--record-comp-seq2", "--no-sanity-check")
    assert "--fake_first" in run(model, *both, "--fake-first", status=1).err
    kept = tmp_path / "lenet"
    run(model, C99, *both, f"--model-dump={kept}", "--iter=1")
    sizes = [(folder / "liblenet.so").stat().st_size for folder in (kept, plain)]
    assert sizes[0] < sizes[1]


@pytest.mark.slow
def test_l37_enable_jit(run: Any, tmp_path: Path) -> None:
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Exp", ["x"], ["e"]), node("Tanh", ["e"], ["t"]), node("Abs", ["t"], ["a"]),
             node("ReduceSum", ["a", "axes"], ["y"])]  # fmt: skip
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    x = info("x", onnx.TensorProto.FLOAT, (4, 8))
    y = info("y", onnx.TensorProto.FLOAT, (4, 1))
    path = tmp_path / "chain.onnx"
    graph = onnx.helper.make_graph(nodes, "chain", [x], [y], [axes])
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    assert calls(run, path, "--enable_jit") == 1
    assert calls(run, path, "--jit_level=1") == 2
    assert calls(run, path, "--enable_jit=0") == 4


# ---- device -------------------------------------------------------------------------------------


def test_l38_cpu(run: Any, plain: Path) -> None:
    run(plain, "--cpu")


@pytest.mark.slow
def test_l39_cuda(run: Any, plain: Path, model: Path) -> None:
    here = run(model, C99, "--json")
    there = run(model, "--cuda", "--target=cuda-emulated", "--json", "--iter=1")
    assert there.json["outputs"].keys() == here.json["outputs"].keys()
    for name, found in there.json["outputs"].items():
        assert found["mean"] == pytest.approx(here.json["outputs"][name]["mean"], rel=1e-4)
    assert "cuda-emulated" in there.json["build_info"]
    assert "exclude each other" in run(plain, "--cpu", "--cuda", status=1).err
    words = ("--cuda", "--target=cuda-emulated")
    assert "the library is for a CPU" in run(plain, *words, status=1).err


def test_l39_cuda_needs_a_device(
    run: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atc.load_and_run.rules.compute_capabilities", lambda: ())
    assert "no CUDA driver, or no device" in run(model, "--cuda", status=1).err
    monkeypatch.setattr("atc.load_and_run.rules.compute_capabilities", lambda: ((9, 0),))
    monkeypatch.setattr("atc.load_and_run.compilation.compile_model", _show_target)
    assert "compiled for cuda" in run(model, "--cuda", status=1).err


def _show_target(options: Options, *others: object) -> None:
    raise OptionError(f"compiled for {options.target}")


def test_l40_cpu_default(run: Any, plain: Path) -> None:
    assert run(plain, "--cpu-default", "--json").json["pool_cores"] == []
    assert "starts no threads" in run(plain, "--cpu-default", "--multithread=2", status=1).err


def test_l41_multithread(
    run: Any, library: Path, picture: Path, truth: Any, tmp_path: Path
) -> None:
    words = ("--multithread=3", f"--input=data:{picture}")
    np.testing.assert_allclose(output(run, library, *words, where=tmp_path), truth, atol=1e-5)
    found = run(library, *words, "--json")
    assert len(found.json["pool_cores"]) == 3
    assert "computes in one thread" in found.err
    run(library, "--multithread=2", "--multithread-default=2", status=1)


def test_l42_multithread_default(run: Any, library: Path) -> None:
    found = run(library, "--multithread-default=2", "--json").json
    assert len(found["pool_cores"]) == 2


@pytest.mark.parametrize("option", ["--multithread", "--multithread_default"])
def test_l41_l42_alone_there_is_a_thread_for_each_core(
    run: Any, library: Path, option: str
) -> None:
    cores = len(os.sched_getaffinity(0))
    assert len(run(library, "--json", option, "--iter=1").json["pool_cores"]) == cores
    assert len(run(option, library, "--json").json["pool_cores"]) == cores
    assert len(run(library, "--json", option, "3").json["pool_cores"]) == 3
    assert run(library, "--json", option, "-1").json["pool_cores"] == []
    assert "whole number" in run(library, f"{option}=many", status=1).err


def test_l41_a_default_device_of_several_threads(
    run: Any, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGE_DEFAULT_DEVICE", "multithread3:0")
    assert len(run(library, "--json").json["pool_cores"]) == 3
    assert run(library, "--json", "--cpu-default").json["pool_cores"] == []
    assert len(run(library, "--json", "--multithread=2").json["pool_cores"]) == 2
    monkeypatch.setenv("MGE_DEFAULT_DEVICE", "multithread0")
    assert "unknown device" in run(library, status=1).err


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["--multithread=2", pytest.param("--multithread-default=2", marks=pytest.mark.slow)]
)
def test_l41_l42_a_model_is_compiled_for_the_threads(
    run: Any, tmp_path: Path, option: str
) -> None:
    w = onnx.numpy_helper.from_array(np.ones((256, 512), np.float32) / 256, "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (64, 256))
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (64, 512))
    path = tmp_path / "product.onnx"
    opsets = [onnx.helper.make_opsetid("", 21)]
    graph = onnx.helper.make_graph([node], "product", [x], [y], [w])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((64, 256), np.float32))
    given, core = f"--input=x:{tmp_path}/x.npy", min(os.sched_getaffinity(0))
    one = output(run, path, given, C99, where=tmp_path / "one")
    pinned = (option, f"--multi-thread-core-ids={core},{core}")
    two = output(run, path, given, C99, *pinned, where=tmp_path / "two")
    np.testing.assert_array_equal(one, two)
    found = run(path, given, C99, *pinned, "--json")
    assert found.json["pool_cores"] == [[core], [core]]
    assert "W10001" not in found.err


def test_l43_multi_thread_core_ids(run: Any, library: Path) -> None:
    core = min(os.sched_getaffinity(0))
    words = ("--multithread=2", f"--multi-thread-core-ids={core},{core}")
    assert run(library, *words, "--json").json["pool_cores"] == [[core], [core]]
    assert "1 cores for 2 threads" in run(
        library, "--multithread=2", "--multi-thread-core-ids=0", status=1
    ).err
    assert "needs --multithread" in run(library, "--multi-thread-core-ids=0", status=1).err
    assert "no core 99999" in run(
        library, "--multithread=1", "--multi-thread-core-ids=99999", status=1
    ).err


def test_l44_rocm(run: Any, plain: Path) -> None:
    assert "load_and_run has no ROCm" in run(plain, "--rocm", status=1).err


def test_l45_rocm_enable_miopen_search(run: Any, plain: Path) -> None:
    _warned(run, plain, "--rocm-enable-miopen-search", "no ROCm target")


def test_l46_tensorrt(run: Any, plain: Path) -> None:
    _warned(run, plain, "--tensorrt", "own kernels run")


def test_l47_tensorrt_cache(run: Any, plain: Path) -> None:
    _warned(run, plain, "--tensorrt-cache=engines.bin", "op compiler cache")


# ---- checks and profiles ------------------------------------------------------------------------


def test_l48_check_dispatch(run: Any, library: Path, tmp_path: Path) -> None:
    assert run(library, "--check-dispatch", "--json").json["idle_calls"] == []
    words = external_words("Idle", "", tmp_path)
    found = run(*words, "--check-dispatch", "--no-sanity-check")
    assert re.search(r"WARNING: operator clip\{External\} opr0 .* dispatches no work", found.out)


def test_l49_range(run: Any, library: Path) -> None:
    run(library, "--range=100", "--input=bias:[1.0,0,0,0,0,0,0,0,0,0]")
    words = ("--input=bias:[0,300.0,0,0,0,0,0,0,0,0]", "--range=100")
    found = run(library, *words, status=5)
    assert re.search(r"var\d+ 'scores' of node '.*' is \d+.* at \[0, 1\]", found.err)
    assert run(library, "--input=bias:[nan,0.0,0,0,0,0,0,0,0,0]", "--range=100", status=5)


def test_l50_check_var_value(run: Any, library: Path) -> None:
    found = run(library, "--check-var-value=2", "--iter=30")
    assert re.search(r"check_var_value: all \d+ values passed", found.out)
    assert "none has the index 99" in run(library, "--check-var-value=1:99", status=5).err
    assert "is not an interval" in run(library, "--check-var-value=often", status=1).err


def test_l51_profile(run: Any, library: Path, plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for _ in range(20):  # others use the machine, too
        run(library, f"--profile={path}", "--iter=30")
        profile = json.loads(path.read_text())
        whole, kernels = profile["run"]["seconds"], profile["run"]["kernel_seconds"]
        if kernels >= 0.9 * whole:
            break
    assert 0.9 * whole <= kernels <= profile["run"]["network_seconds"] <= whole
    assert set(profile) >= {"graph_exec", "profiler"}
    sections = {"device", "host", "opr_footprint", "opr_internal_pf"}
    assert set(profile["profiler"]) == sections
    spans = [span for nodes in profile["profiler"]["device"].values() for span in nodes.values()]
    assert all(0 <= s["start"] <= s["kern"] <= s["end"] <= whole for s in spans)
    assert "compile it with --profile" in run(plain, f"--profile={path}", status=1).err


@pytest.mark.parametrize("more", [(), ("--copy-to-host",)])
def test_l51_the_profile_has_what_megengines_tools_read(
    run: Any, library: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """The keys that ProfileAnalyzer, profile_analyze and draw_graph of MegEngine 1.13 look up."""
    path = tmp_path / "profile.json"
    run(library, f"--profile={path}", "--iter=3", *more)
    profile = json.loads(path.read_text())
    operators, variables = profile["graph_exec"]["operator"], profile["graph_exec"]["var"]
    check_graph(operators, variables)
    for section in ("device", "host"):
        for key, times in profile["profiler"][section].items():
            assert all(t["end"] >= t["kern"] >= t["start"] for t in times.values())
            assert operators[key]["id"] == key
    timed = profile["profiler"]["device"]
    assert timed.keys() == profile["profiler"]["opr_footprint"].keys()
    for key, footprint in profile["profiler"]["opr_footprint"].items():
        assert isinstance(footprint["computation"], int)
        assert footprint["memory"] > 0
        for side in ("in", "out"):
            numbers = operators[key]["input" if side == "in" else "output"]
            shapes = [variables[n]["mem_plan"]["layout"]["shape"] for n in numbers]
            assert footprint[f"{side}_shapes"] == shapes or operators[key]["type"] == "Copy"
    kinds = {o["type"] for o in operators.values()}
    assert {"Host2DeviceCopy", "ImmutableTensor", "MatMul"} <= kinds


def check_graph(operators: dict[str, Any], variables: dict[str, Any]) -> None:
    """Check that operators and variables refer to each other by numbers, as MegEngine's do."""
    givers = [v for o in operators.values() for v in o["output"]]
    assert sorted(givers) == sorted(variables)  # each has exactly one
    for key, o in operators.items():
        assert (o["id"], int(key) >= 0) == (key, True)
        assert {o["name"], o["type"]} - {""}
        assert {*o["input"], *o["output"]} <= variables.keys()
    for key, v in variables.items():
        layout = v["mem_plan"]["layout"]
        assert (v["id"], len(layout["stride"])) == (key, len(layout["shape"]))
        assert layout["dtype"] == "Float32"


def test_l52_profile_host(run: Any, library: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    run(library, f"--profile-host={path}")
    profiler = json.loads(path.read_text())["profiler"]
    assert profiler["device"] == {}
    assert profiler["host"]


# ---- debugging ----------------------------------------------------------------------------------


def test_l53_model_info(run: Any, plain: Path) -> None:
    found = run(plain, "--model-info").out
    assert found.count("type    name  shape        dtype") == 2
    assert re.search(r"^input   data  \{1,1,28,28\}  float32$", found, re.M)
    assert re.search(r"^output  prob  \{1,10\}       float32$", found, re.M)


def test_l54_verbose(run: Any, model: Path) -> None:
    assert "[DEBUG] planning memory" in run(model, C99, "--verbose", "--iter=1").err
    assert "[DEBUG]" not in run(model, C99, "--iter=1").err


@pytest.mark.slow
def test_l55_disable_assert_throw(run: Any, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.mge", tmp_path / "wrong.mge"
    right.write_bytes(dump_with_cases())
    wrong.write_bytes(dump_with_cases(0.5))
    assert run(right, C99, "--iter=1").out.count("is as expected") == 2
    assert "test #1: output 'prob' differs by 0.5" in run(wrong, C99, status=5).err
    found = run(wrong, C99, "--disable-assert-throw")
    assert "assert failed: test #1" in found.out
    assert found.out.count("finished test") == 2


def test_l56_get_static_mem_info(run: Any, library: Path, tmp_path: Path) -> None:
    run(library, f"--get-static-mem-info={tmp_path}")
    info = json.loads((tmp_path / "StaticMemoryInfo.json").read_text())
    chunks = [c for c in info["chunk"].values() if c["type"] == "static_mem"]
    numbers = [{k: int(v) for k, v in c.items() if k != "type"} for c in chunks]
    assert numbers
    for i, a in enumerate(numbers):
        for b in numbers[:i]:
            together = a["time_begin"] < b["time_end"] and b["time_begin"] < a["time_end"]
            overlap = (
                a["logic_addr_begin"] < b["logic_addr_end"]
                and b["logic_addr_begin"] < a["logic_addr_end"]
            )
            assert not (together and overlap)
    assert {c["type"] for c in info["chunk"].values()} == {"static_mem", "weight_mem"}


def test_l56_what_graph_info_analyze_reads(run: Any, library: Path, tmp_path: Path) -> None:
    """The keys that graph_info_analyze of MegEngine 1.13 looks up, to show them in tensorboard."""
    run(library, f"--get-static-mem-info={tmp_path}")
    check_static_memory(tmp_path)
    graph = json.loads((tmp_path / "graph.json").read_text())
    check_graph(graph["operator"], graph["var"])


def check_static_memory(folder: Path) -> None:
    info, graph = (
        json.loads((folder / name).read_text()) for name in ("StaticMemoryInfo.json", "graph.json")
    )
    operators, chunks = info["opr"], info["chunk"]
    drawn = [o["name"] for o in graph["operator"].values()]
    assert len(set(drawn)) == len(drawn)
    assert {o["name"] for o in operators.values()} <= set(drawn)
    for key, chunk in chunks.items():
        assert chunk["id"] == key
        assert chunk["overwrite_dest_id"] == "-1"
        assert operators[chunk["time_begin"]]["name"] in drawn
        times = range(int(chunk["time_begin"]), int(chunk["time_end"]))
        assert {str(t) for t in times} <= operators.keys()
    assert [o["id"] for o in operators.values()] == list(operators)


def test_l56_control_flow_has_a_name_and_a_time(run: Any, tmp_path: Path) -> None:
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    sides = [[info(n, onnx.TensorProto.FLOAT, (3,))] for n in ("x", "y")]
    branches = []
    for k, op in enumerate(("Exp", "Tanh")):
        inner = [node(op, ["x"], [f"a{k}"]), node("CumSum", [f"a{k}", "axis"], [f"b{k}"])]
        result = [info(f"b{k}", onnx.TensorProto.FLOAT, (3,))]
        branches.append(onnx.helper.make_graph(inner, op, [], result))
    nodes = [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["c"]),
             node("If", ["c"], ["i"], then_branch=branches[0], else_branch=branches[1]),
             node("CumSum", ["i", "axis"], ["y"])]  # fmt: skip
    known = [onnx.numpy_helper.from_array(np.int64(0), "axis"),
             onnx.numpy_helper.from_array(np.float32(0), "zero")]  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "branches", *sides, known)
    path = tmp_path / "branches.onnx"
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    run(path, C99, f"--get-static-mem-info={tmp_path}/info", "--iter=1")
    check_static_memory(tmp_path / "info")
    assert "control flow" in (tmp_path / "info" / "StaticMemoryInfo.json").read_text()


def test_l57_wait_gdb(run: Any, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr("sys.stdin", type("", (), {"readline": lambda _: waited.append(1)})())
    assert f"wait for gdb attach (pid={os.getpid()})" in run(plain, "--wait-gdb").out
    assert waited == [1]


# ---- external operators -------------------------------------------------------------------------

SAMPLE = Path(__file__).parents[2] / "samples" / "external_op"


@pytest.fixture(scope="session")
def external(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the sample's model and library."""
    folder = tmp_path_factory.mktemp("external")
    library, model = folder / "libleaky_clip.so", folder / "leaky_clip.onnx"
    header = Path(templates.__file__).parent / "project"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC"]
    source = SAMPLE / "leaky_clip.c"
    subprocess.run(["cc", *flags, f"-I{header}", "-o", library, source], check=True)
    subprocess.run([sys.executable, SAMPLE / "make_model.py", model], check=True)
    return model, library


@pytest.mark.slow
def test_l58_c_opr_lib(run: Any, external: tuple[Path, Path], tmp_path: Path) -> None:
    model, library = external
    kept = tmp_path / "net"
    assert "LeakyClip" in run(model, C99, status=1).err
    given = "--input=x:[-3.0,0.5,9.0]"
    words = (given, C99, f"--c-opr-lib={library}", f"--model-dump={kept}")
    result = output(run, model, *words, where=tmp_path / "a")
    np.testing.assert_array_equal(result, np.float32([[-2.5, 3, 11]]))
    again = output(run, kept, given, f"--c-opr-lib={library}", where=tmp_path / "b")
    np.testing.assert_array_equal(again, result)
    assert (kept / "include" / "atc_external.h").is_file()
    command = [sys.executable, "-P", "-m", "atc", "load_and_run", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "leaky_clip" in done.stderr


def test_l59_c_opr_lib_with_param(run: Any, external: tuple[Path, Path], tmp_path: Path) -> None:
    model, library = external
    words = (model, C99, "--iter=1", "--input=x:[-3.0,0.5,9.0]")
    run(*words, f"--c-opr-lib={library}", "--c-opr-lib-with-param")
    assert "needs --c_opr_lib" in run(*words, "--c-opr-lib-with-param", status=1).err
    text = (SAMPLE / "leaky_clip.c").read_text().partition("/* Memory for")[0]
    bare = built(text, tmp_path / "libbare.so")
    found = run(*words, f"--c-opr-lib={bare}", "--c-opr-lib-with-param", status=1)
    for name in ("malloc", "h2d", "free"):
        assert f"copr_param_device_ptr_{name}" in found.err


def test_l60_c_interface(run: Any, external: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = external
    found = run(model, f"--c-opr-lib={built('int nothing;', tmp_path / 'libnone.so')}", status=1)
    assert "lacks the function mgb_c_opr_init" in found.err
    other = (SAMPLE / "leaky_clip.c").read_text()
    named = '#define MGB_C_OPR_INIT_FUNC my_init\n' + other
    words = ("--c-opr-init-interface=my_init", C99, "--iter=1")
    assert "lacks the function my_init" in run(
        model, f"--c-opr-lib={external[1]}", *words, status=1
    ).err
    run(model, f"--c-opr-lib={built(named, tmp_path / 'libnamed.so')}", *words)
    later = built(other.replace("ATC_EXTERNAL_VERSION)", "99)"), tmp_path / "liblater.so")
    assert "registers no operator" in run(model, f"--c-opr-lib={later}", status=1).err


def test_l61_compare_binary_iodump(run: Any, library: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, bias in zip(folders, ("0.0", "0.0", "9.0"), strict=True):
        folder.mkdir()
        values = ",".join([bias] + ["0"] * 9)
        run(library, f"--bin-io-dump={folder}", f"--input=bias:[{values}]", "--iter=1")
    tool = {"command": "compare_binary_iodump"}
    assert "equal" in run(*folders[:2], **tool).out
    found = run(folders[0], folders[2], status=5, **tool)
    assert len(found.lines) == 2  # scores and prob
    assert len(run(folders[0], folders[2], "-s", status=5, **tool).lines) == 1
    run(folders[0], folders[2], "-e", "2", **tool)
    (folders[1] / "extra").write_bytes(b"")
    assert "extra" in run(*folders[:2], status=1, **tool).err
    absent, file = tmp_path / "absent", folders[1] / "extra"
    for other, reason in ((absent, "is not there"), (file, "is a file, not a folder")):
        for pair in ((folders[0], other), (other, folders[0])):
            assert f"{other} {reason} (hint: " in run(*pair, status=1, **tool).err


def test_l62_capabilities(run: Any) -> None:
    found = run("--version").out
    assert all(word in found for word in ("c99", "x86-64", "gcc"))


# ---- completeness -------------------------------------------------------------------------------


def test_every_row_has_its_test() -> None:
    rows = {s.row for s in LOAD_AND_RUN if s.row}
    assert rows == {f"L-{k:02}" for k in range(1, 63)}
    tested = {number for name in globals() for number in re.findall(r"_l(\d\d)", name)}
    assert {f"L-{number}" for number in tested} == rows


def test_every_option_is_accepted() -> None:
    names = {s.name for s in LOAD_AND_RUN}
    others = """batch_size optimize_for_inference fuse_grain enable_ioc16 lite mdl
    c_opr_init_interface share_param_mem packed_model_dump pack_info_json pack_cache
    pack_info_cryption pack_model_cryption model_dump fitting dump_fitting_model"""
    assert set(others.split()) <= names
