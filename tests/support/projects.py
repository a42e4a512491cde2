"""Writes generated projects to disk and builds them, as a user with a C compiler would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import default_run
import numpy as np
import onnx
import onnx_ir
import pytest
from c_compiler import compile_in
from joined_sources import joined_text
from onnx import TensorProto, helper, numpy_helper

from atc.backends.targets import get_target
from atc.codegen.emit import Emission, emit
from atc.codegen.project_options import Instrumentation, ProjectOptions, WeightFiles
from atc.codegen.sanity import GUARD
from atc.codegen.weights import included_weights
from atc.ir.graph import Array, Graph
from atc.lower import lower_model
from atc.memory.arena import plan_memory
from atc.options.values import Checks
from atc.passes import run_passes
from atc.program.build import build_program
from atc.select.select import select

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off")

F32, F16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16

Value = tuple[str, int, tuple[int, ...]]
"""Name, ONNX element type, shape."""


def require(tool: str) -> str:
    """Return the path of a program, the environment's own too; skips the test without it."""
    path = shutil.which(tool) or shutil.which(tool, path=Path(sys.executable).parent)
    if path is None:
        pytest.skip(f"{tool} isn't installed")
    return path


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """Return a model of these nodes and values."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*v) for v in inputs],
        [helper.make_tensor_value_info(*v) for v in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def affine_model(size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """Return y = relu(x @ w + b) @ v, with weights, an arena and two outputs (y and relu's)."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"], name="activation"),
        helper.make_node("Sigmoid", ["hidden"], ["gate"]),
        helper.make_node("MatMul", ["gate", "v"], ["y"]),
    ]
    shapes = [("y", TensorProto.FLOAT, (2, 3)), ("hidden", TensorProto.FLOAT, (2, size))]
    constants = {"w": weights(5, size), "b": weights(size), "v": weights(size, 3)}
    return make_model(nodes, [("x", TensorProto.FLOAT, (2, 5))], shapes, constants)


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


def emit_model(
    model: onnx.ModelProto, name: str = "net", *, file: str = "model.onnx", **given: Any
) -> Emission:
    """Return the project of a model with static shapes, as `emit_graph` does of its graph."""
    graph = lower_model(onnx_ir.from_proto(model), file)
    return emit_graph(graph, name, file=file, **given)


def emit_graph(
    graph: Graph,
    name: str = "net",
    target: str = "c99",
    external: bool = False,
    file: str = "model.onnx",
    profile: bool = False,
    hooks: bool = False,
    checks: Checks | None = None,
    log: bool = False,
) -> Emission:
    """Return the project of a graph."""
    record = get_target(target)
    graph = run_passes(graph, width=record.vector_bytes // 4)
    program = build_program(graph, select(graph, record), record)
    options = ProjectOptions(
        name=name, model=file, model_hash="0" * 64, weights=WeightFiles(external=external),
        instrumentation=Instrumentation(profile, hooks, log, checks),
    )  # fmt: skip
    return emit(program, plan_memory(program, guard=GUARD if checks else 0), record, options)


def write_project(folder: Path, emission: Emission, external: bool = False) -> Path:
    """Write a project as the pipeline does, less the libraries and reports; returns the folder."""
    files = dict(emission.files)
    if emission.weights:
        blob = f"{emission.name}_weights.bin"
        files[blob] = emission.weights
        if not external:
            text = included_weights(emission.name, blob)
            files[f"{emission.name}_weights.S"] = text.encode()
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def sources(folder: Path) -> list[str]:
    """Return the sources of a project's library."""
    found = [*sorted(folder.glob("src/**/*.c")), *folder.glob("*_weights.S")]
    return [str(p.relative_to(folder)) for p in found]


MANY = 12
"""Kernels that are compiled as one file rather than each by itself."""


def joined_sources(folder: Path) -> list[str]:
    """Return a project's sources, its kernels joined in one file: headers of vectors are long.

    The compiler needs `-Isrc/kernels`, too.
    """
    found = sources(folder)
    kernels = [path for path in found if path.startswith("src/kernels/")]
    joined = folder / "joined_kernels.c"
    joined.write_text(joined_text({k: (folder / k).read_text("utf-8") for k in kernels}))
    return [joined.name, *(path for path in found if path not in kernels)]


def compile_c(folder: Path, *arguments: str, cc: str = "") -> None:
    """Run the compiler in a project with strict flags; its words are the test's failure.

    Where it isn't named, default runs may take another in its place (c_compiler.py) for the
    network alone: tcc doesn't align what programs declare.
    """
    named = "-o" in arguments and not any(Path(word).is_absolute() for word in arguments)
    result = arguments[arguments.index("-o") + 1] if named else None
    kernels = [word for word in arguments if word.startswith("src/kernels/")]
    network = all(word.startswith("src/") for word in arguments if word.endswith(".c"))
    compiler = require(cc or ("cc" if network else "gcc"))
    joined = folder / "joined_kernels.c"
    if len(kernels) >= MANY and "-c" not in arguments:
        joined.write_text(joined_text({k: (folder / k).read_text("utf-8") for k in kernels}))
        others = (word for word in arguments if word not in kernels)
        arguments = (joined.name, *others, "-Isrc/kernels")  # before libraries
    compile_in(folder, [compiler, *STRICT, "-Iinclude", "-I.", *arguments], result)
    joined.unlink(missing_ok=True)


def build_shared(folder: Path, name: str = "net", cc: str = "", level: str = "") -> Path:
    """Build a project's shared library, at the run's own level, and return its path."""
    library = f"lib{name}.so"
    shape = (level or default_run.level(), "-fPIC", "-shared", "-fvisibility=hidden")
    compile_c(folder, *shape, "-o", library, *sources(folder), "-lm", cc=cc)
    return folder / library


def build_example(folder: Path, *flags: str, cc: str = "") -> Path:
    """Build a project's example program and return its path."""
    files = ("example/main.c", *sources(folder), "-lm")
    compile_c(folder, *(flags or (default_run.level(),)), "-o", "example.exe", *files, cc=cc)
    return folder / "example.exe"


def cmake(folder: Path, *options: str, build: Path | None = None) -> Path:
    """Configure and build a folder; returns the build folder."""
    tool, ninja = require("cmake"), require("ninja")
    build = build or folder / "build"
    configure = [
        tool, "-S", folder, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", *options,
    ]  # fmt: skip
    for command in (configure, [tool, "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return build


def make_library(folder: Path, model: onnx.ModelProto, name: str = "net") -> Path:
    """Compile a model to a shared library in `folder` and return the library's path."""
    return build_shared(write_project(folder, emit_model(model, name)), name)


def run_example(program: Path, *files: Path) -> dict[str, list[float]]:
    """Run an example program; return the printed values by output."""
    command = [str(program), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    result: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        if line.endswith("]"):
            result[line.rpartition(" [")[0]] = values = []
        else:
            values += map(float, line.split())
    return result


def reference(model: onnx.ModelProto, *inputs: Array) -> list[Array]:
    """Return what the standard's reference computes."""
    from onnx.reference import ReferenceEvaluator

    names = [v.name for v in model.graph.input]
    evaluator = ReferenceEvaluator(model)
    return [np.asarray(a) for a in evaluator.run(None, dict(zip(names, inputs, strict=True)))]
