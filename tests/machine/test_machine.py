"""Whole networks on emulated processors: AMX's own instructions, refusals, and what replaces them.

Needs an emulator: see bochs.py. What a network's example program prints there must be what it
prints here, where tiles are emulated in C.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from machine.bochs import FOR_MACHINE, HERE, MODELS, Machine, Run, Write, find_machine
from onnx import TensorProto, helper, numpy_helper
from tile_emulation import emulable, emulating

from atc.api import compile as compile_network
from atc.backends.target import host_arch, host_features
from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.build.library import library_flags
from atc.build.objects import BuildContext
from atc.cache import open_cache
from atc.cache.algo import open_algo_cache
from atc.fast_run.measure import Bench, fast_run
from atc.fast_run.task import workloads
from atc.ir.graph import Array
from atc.passes import run_passes
from support import compile_graph

AMX, AVX512, AVX2 = "x86-64-amx", "x86-64-avx512-vnni", "x86-64-avx2"
ALL = (AMX, AVX512, AVX2, "c99")
F32 = TensorProto.FLOAT
RNG = np.random.default_rng(0)

SMALL_STACK = """
#define _DEFAULT_SOURCE
#include <signal.h>
/* As runtimes of languages do: an alternative stack that is too small for tiles. */
__attribute__((constructor)) static void install_stack(void)
{
  static char room[8192];
  const stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
  if (sigaltstack(&stack, 0)) __builtin_trap();
}
"""


@pytest.fixture(scope="module")
def machine() -> Machine:
    found = find_machine()
    if found is None:
        pytest.skip("BOCHS names no emulator")
    if host_arch() != "x86_64" or not host_features() >= get_target(AVX512).features:
        pytest.skip("needs a CPU with AVX-512 to compare with")
    return found


def floats(*shape: int) -> Array:
    """Return weights that keep the size of what they multiply."""
    return (RNG.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto], x: Sequence[int], y: Sequence[int], **weights: Array
) -> onnx.ModelProto:
    """Return a model from x to y."""
    ends = [helper.make_tensor_value_info(n, F32, s) for n, s in (("x", x), ("y", y))]
    known = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def products() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    return model(nodes, (48, 200), (48, 70), v=floats(200, 160), w=floats(160, 70))


def convolutions() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["b"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Conv", ["b", "u"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    return model(
        nodes, (1, 3, 20, 20), (1, 96, 1, 1),
        v=floats(64, 3, 3, 3), w=floats(64, 64, 3, 3), u=floats(96, 64, 1, 1),
    )  # fmt: skip


def attention() -> onnx.ModelProto:
    heads, size = 2, 64
    nodes = [helper.make_node("MatMul", ["x", w], [f"{w}1"]) for w in ("q", "k", "v")]
    for w, perm in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
        nodes.append(helper.make_node("Reshape", [f"{w}1", "split"], [f"{w}2"]))
        nodes.append(helper.make_node("Transpose", [f"{w}2"], [f"{w}3"], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["q3", "k3"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v3"], ["o"]),
        helper.make_node("Transpose", ["o"], ["o1"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["o1", "joined"], ["y"]),
    ]
    width = heads * size
    return model(
        nodes, (64, width), (64, width), q=floats(width, width), k=floats(width, width),
        v=floats(width, width), scale=np.array(size**-0.5, np.float32),
        split=np.array([-1, heads, size]), joined=np.array([-1, width]),
    )  # fmt: skip


def recurrent() -> onnx.ModelProto:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "h"], hidden_size=64),
        helper.make_node("Squeeze", ["h", "first"], ["y"]),
    ]
    return model(
        nodes, (6, 32, 48), (32, 64), w=floats(1, 256, 48), r=floats(1, 256, 64),
        b=floats(1, 512), first=np.array([0]),
    )  # fmt: skip


def bytes_of_weights() -> onnx.ModelProto:
    """Return a model of two quantized layers."""
    nodes, value = [], "x"
    for k in range(2):
        nodes += [
            helper.make_node("QuantizeLinear", [value, "s", "z"], [f"q{k}"]),
            helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"d{k}"]),
            helper.make_node("DequantizeLinear", [f"w{k}", "t", "n"], [f"e{k}"]),
            helper.make_node("MatMul", [f"d{k}", f"e{k}"], [f"m{k}"]),
            helper.make_node("Relu", [f"m{k}"], [f"r{k}"]),
        ]
        value = f"r{k}"
    nodes += [helper.make_node("Identity", [value], ["y"])]
    weights = {f"w{k}": RNG.integers(-127, 128, (128, 128)).astype(np.int8) for k in range(2)}
    return model(
        nodes, (64, 128), (64, 128), **weights, s=np.array(0.02, np.float32),
        z=np.array(0, np.uint8), t=np.array(0.001, np.float32), n=np.array(0, np.int8),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "products": (products, {}),
    "products in bf16": (products, {"precision_mode": "allow_mix_precision_bf16"}),
    "convolutions": (convolutions, {}),
    "convolutions in bf16": (convolutions, {"precision_mode": "allow_mix_precision_bf16"}),
    "attention": (attention, {}),
    "recurrent": (recurrent, {}),
    "recurrent in bf16": (recurrent, {"precision_mode": "allow_mix_precision_bf16"}),
    "bytes": (bytes_of_weights, {}),
}


def project(folder: Path, name: str, target: str) -> Path:
    """Compile a network; return the folder of its sources, with an input `x`."""
    build, options = NETWORKS[name]
    onnx.save(build(), folder / "net.onnx")
    compile_network(folder / "net.onnx", folder / "net", target=target, **options)
    shape = [d.dim_value for d in build().graph.input[0].type.tensor_type.shape.dim]
    RNG.standard_normal(shape).astype(np.float32).tofile(folder / "x")
    return folder / "net"


def example(
    out: Path, to: Path, *flags: str, target: str = AMX, emulate: bool = False, extra: str = ""
) -> Path:  # fmt: skip
    """Build the example program of a project for a target, or for several, each with its flags."""
    to.mkdir()
    texts = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for path, data in (emulating(texts) if emulate else texts).items():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_bytes(data)
    (to / "extra.c").write_text(extra or "typedef int nothing;")
    command = ["gcc", "-O1", "-ffp-contract=off", *flags]
    parts = {part: get_target(_name_of(part.name)) for part in (to / "targets").glob("*")}
    if not parts:
        parts = {to: get_target(target)}
    for part, own in parts.items():
        own = emulable(own) if emulate else own
        sources = [*part.glob("src/**/*.c"), *part.glob("*.S")]
        _compile([*command, *own.cflags, "-I", str(part), "-I", str(part / "include")],
                 sources, part)  # fmt: skip
    rest = [to / "example/main.c", to / "extra.c"]
    rest += to.glob("src/*.c") if to not in parts else []
    includes = [f"-I{path}" for path in (to / "include", *(p / "include" for p in parts))]
    _compile([*command, *includes], rest, to)
    objects = sorted(to.rglob("*.o"))
    subprocess.run([*command, *objects, "-o", to / "program", "-lm"], check=True)
    return to / "program"


def _name_of(folder: str) -> str:
    return folder.removeprefix("net_").replace("x86_64", "x86-64").replace("_", "-")


def _compile(command: Sequence[str], sources: Sequence[Path], folder: Path) -> None:
    names = [str(path.relative_to(folder)) for path in sources]
    done = subprocess.run(
        [*command, "-c", *names], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:4000]


def ran_on(machine: Machine, program: Path, x: Path) -> tuple[int, str]:
    """Return a program's status and what it printed."""
    given = [Write("program", program.read_bytes()), Write("x", x.read_bytes())]
    (answer,) = machine.run([*given, Run(("program", "x"))])
    return answer.status, answer.text


def printed_here(program: Path, x: Path) -> str:
    command = [str(program), str(x)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_the_same_bits_on_tiles(name: str, machine: Machine, tmp_path: Path) -> None:
    out = project(tmp_path, name, AMX)
    assert any(b"tiles_begin" in p.read_bytes() for p in out.glob("src/kernels/*.c"))
    here = example(out, tmp_path / "here", "-DBYTES_ARE_UNSIGNED", emulate=True)
    there = example(out, tmp_path / "there", *FOR_MACHINE)
    status, printed = ran_on(machine, there, tmp_path / "x")
    assert (status, printed) == (0, printed_here(here, tmp_path / "x"))


@pytest.mark.slow
def test_candidates_on_tiles_are_measured(machine: Machine) -> None:
    runner = (sys.executable, str(HERE / "bochs.py"), f"--model={machine.model}")
    target = replace(get_target(AMX), runner=runner)
    compiler = find_compiler(target, {**os.environ, "CC": shlex.join(("gcc", *FOR_MACHINE))})
    flags = library_flags(compiler, target)
    cache = open_cache("disable", None, AMX, versions={}, environ={}, warn=pytest.fail)
    context = BuildContext(target, compiler, flags, cache, 2, lambda _: None)
    graph = run_passes(compile_graph(products()), width=16)
    bench = Bench(context, open_algo_cache(None, "this machine", pytest.fail), timeout=300)
    found = fast_run(workloads(graph, {}), bench)
    measured = [m for ms in found.values() for m in ms if "amx" in m.label]
    assert measured
    assert all(m.time_ns for m in measured), measured


@pytest.mark.slow
def test_tiles_are_refused_by_a_status(machine: Machine, tmp_path: Path) -> None:
    out = project(tmp_path, "products", AMX)
    plain = example(out, tmp_path / "plain", *FOR_MACHINE)
    small = example(out, tmp_path / "small", *FOR_MACHINE, extra=SMALL_STACK)
    status, printed = ran_on(machine, small, tmp_path / "x")
    assert (status, "lacks" in printed) == (1, True), printed
    for target in (AVX512, AVX2, "x86-64-sse2"):
        other = replace(machine, model=MODELS[target])
        status, printed = ran_on(other, plain, tmp_path / "x")
        assert (status, "lacks" in printed) == (1, True), (other.model, printed)


@pytest.mark.slow
def test_other_targets_run_where_tiles_cannot(machine: Machine, tmp_path: Path) -> None:
    out = project(tmp_path, "products", ",".join(ALL))
    plain = example(out, tmp_path / "plain", *FOR_MACHINE)
    small = example(out, tmp_path / "small", *FOR_MACHINE, extra=SMALL_STACK)
    alone = {}
    for target in ALL:
        folder = out / "targets" / f"net_{target.replace('-', '_')}"
        program = example(folder, tmp_path / target, target=target, emulate=target == AMX)
        alone[target] = printed_here(program, tmp_path / "x")
    for model, target in (
        (MODELS[AMX], AMX), (MODELS[AVX512], AVX512), (MODELS[AVX2], AVX2),
        (MODELS["x86-64-sse2"], "c99"),
    ):  # fmt: skip
        got = ran_on(replace(machine, model=model), plain, tmp_path / "x")
        assert got == (0, alone[target]), model
    assert ran_on(machine, small, tmp_path / "x") == (0, alone[AVX512])
