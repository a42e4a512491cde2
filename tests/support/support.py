"""Compiles and runs models in tests: the whole pipeline, one C compiler call for many models."""

from __future__ import annotations

import fcntl
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import cffi
import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest
from c_compiler import compile_command, compile_in
from default_run import SELECTED
from onnx import numpy_helper
from onnx_ir.passes.common import InlinePass
from tile_emulation import emulating

from atc.backends.kernel import Candidate, workload_of
from atc.backends.target import Target, host_arch, host_features
from atc.backends.targets import get_target
from atc.codegen.emit import Emission, emit
from atc.codegen.project_options import ProjectOptions
from atc.errors import AtcError
from atc.importers.onnx import pin_inputs
from atc.ir.graph import Array, DType, Graph, TensorType
from atc.lower import lower_model
from atc.memory.arena import plan_memory
from atc.passes import run_passes
from atc.program.build import build_program
from atc.select.select import Choice, select

Data = tuple[list[Array], list[Array]]
"""Inputs and expected outputs of one run."""

NodeCase = tuple[str, onnx.ModelProto, list[Data]]
"""Name, model, runs."""

CONSTANT_INPUTS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2),
    "Compress": (1,), "ConstantOfShape": (0,), "CumProd": (1,), "CumSum": (1,), "DFT": (1, 2),
    "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,),
    "MaxUnpool": (2,), "MelWeightMatrix": (0, 1, 2, 3, 4), "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,), "ReduceMean": (1,),
    "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,),
    "Reshape": (1,), "Resize": (1, 2, 3), "STFT": (1, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,),
    "Upsample": (1,),
}  # fmt: skip
"""Inputs, by operator, that decide shapes or the kind of work: known when compiling."""


# ---- models -------------------------------------------------------------------------------------


def node_model(
    op_type: str,
    inputs: Sequence[Array | None],
    outputs: int | Sequence[TensorType] = 1,
    *,
    opset: int = 21,
    domain: str = "",
    constant: Iterable[int] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node whose inputs have the arrays' types and shapes.

    None is an absent optional input. `constant` inputs become initializers, by default those of
    CONSTANT_INPUTS. `outputs` is a number or, for models that onnx's checker reads, types.
    """
    fixed = set(CONSTANT_INPUTS.get(op_type, ()) if constant is None else constant)
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given: list[onnx.ValueInfoProto] = []
    known: list[onnx.TensorProto] = []
    for i, array in enumerate(inputs):
        if array is not None and i in fixed:
            known.append(numpy_helper.from_array(np.asarray(array), names[i]))
        elif array is not None:
            code = DType.from_numpy(np.asarray(array).dtype).code
            given.append(onnx.helper.make_tensor_value_info(names[i], code, np.shape(array)))
    count = outputs if isinstance(outputs, int) else len(outputs)
    results = [onnx.ValueInfoProto(name=f"y{k}") for k in range(count)]
    if not isinstance(outputs, int):
        results = [
            onnx.helper.make_tensor_value_info(f"y{k}", t.dtype.code, t.shape)
            for k, t in enumerate(outputs)
        ]
    node = onnx.helper.make_node(
        op_type, names, [r.name for r in results], domain=domain, **attributes
    )
    graph = onnx.helper.make_graph([node], op_type, given, results, known)
    imports = [onnx.helper.make_opsetid("", opset)]
    if domain:
        imports.append(onnx.helper.make_opsetid(domain, 1))
    return onnx.helper.make_model(graph, opset_imports=imports)


MOVED = tuple(d for d in DType if d is not DType.STRING)
"""The types of numbers, all of which operators move."""

NUMBERS = tuple(d for d in MOVED if not d.is_small)
"""The types that most operators compute with."""


def random_array(dtype: DType, shape: Sequence[int], seed: int = 0) -> Array:
    """Return small random numbers of a type: integers over their range or +-100, normal floats."""
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return rng.standard_normal(tuple(shape)).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    return rng.integers(-100 if dtype.is_signed else 0, 100, tuple(shape)).astype(dtype.numpy)


def with_constants(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model with some of its inputs made initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [v for v in copy.graph.input if v.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in values.items())
    return copy


NODE_CASES = Path(__file__).parents[2] / ".pytest_cache"
"""Where the standard's node tests are kept: onnx takes five seconds to compute them."""


@cache
def standard_nodes() -> tuple[Any, ...]:
    """Return all of the standard's tests of nodes, as onnx describes them."""
    versions = (onnx.__version__, np.__version__, ml_dtypes.__version__)
    kept = NODE_CASES / f"node_cases_{'_'.join(versions)}.pickle"
    try:
        NODE_CASES.mkdir(exist_ok=True)
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait rather than compute, too
            if not kept.exists():
                fresh = kept.with_suffix(".new")
                fresh.write_bytes(pickle.dumps(_computed_node_cases()))
                fresh.rename(kept)
            return cast(tuple[Any, ...], pickle.loads(kept.read_bytes()))
    except (OSError, EOFError, pickle.UnpicklingError):  # not writable, or damaged
        return _computed_node_cases()


def _computed_node_cases() -> tuple[Any, ...]:
    from onnx.backend.test.case import base
    from onnx.backend.test.loader import load_model_tests
    from onnx.reference.ops import op_pool_common

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(base, "process_snippet", lambda *_: ("", ""))  # text of its documentation
        whole = op_pool_common.pool
        patch.setattr(op_pool_common, "pool", partial(_pooled, whole))
        cases = tuple(load_model_tests(kind="node"))
    for case in cases:
        if case.name.startswith("test_cast"):
            _keep_lowest_bits(case.data_sets)
    return cases


def _keep_lowest_bits(runs: Sequence[tuple[list[Any], list[Any]]]) -> None:
    """Replace floats cast to integers of fewer than 8 bits by those with the integers' lowest bits.

    The standard leaves open what becomes of one that they don't hold, and the tests have what
    ml_dtypes made of it, which differs between its versions 0.6 and 0.7.
    """
    narrow = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (2, 4)]
    for (x, *_), results in runs:
        y, numbers = onnx.numpy_helper.to_array(results[0]), onnx.numpy_helper.to_array(x)
        if y.dtype in narrow and DType.from_numpy(numbers.dtype).is_float:
            bits = np.trunc(numbers.astype(np.float64)).astype(np.int64).astype(y.dtype)
            results[0] = onnx.numpy_helper.from_array(bits, results[0].name)


def _pooled(
    whole: Callable[..., Array], padded: Array, shape: Sequence[int], kernel: Sequence[int],
    strides: Sequence[int], *rest: Any, **named: Any,
) -> Array:  # fmt: skip
    """Return what onnx's reference of pooling does, of plain volumes without a loop in Python.

    It takes most of the time of all cases for three of these.
    """
    if len(kernel) != 3 or {*strides} != {1} or len(rest) > 2 or named.keys() - {"p"}:
        return whole(padded, shape, kernel, strides, *rest, **named)
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), (-3, -2, -1))
    power = named.get("p", 1)
    kinds: Mapping[str, Callable[[], Array]] = {
        "AVG": lambda: windows.mean((-3, -2, -1)),
        "MAX": lambda: windows.max((-3, -2, -1)),
        "LPPOOL": lambda: (np.abs(windows) ** power).sum((-3, -2, -1)) ** (1.0 / power),
    }
    return kinds[rest[1]]().astype(padded.dtype)


def node_cases(op_types: Iterable[str]) -> list[NodeCase]:
    """Return the standard's tests of one node of these operators.

    Inputs of CONSTANT_INPUTS are initializers of the models. Tests with values that aren't dense
    tensors of the types of `DType` are left out.
    """
    wanted = set(op_types)
    found = (
        _node_case(case)
        for case in standard_nodes()
        if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in wanted
    )
    return [case for case in found if case is not None]


def _node_case(case: Any) -> NodeCase | None:
    node = case.model.graph.node[0]
    names = [v.name for v in case.model.graph.input]
    fixed = {node.input[i] for i in CONSTANT_INPUTS.get(node.op_type, ()) if i < len(node.input)}
    runs: list[Data] = []
    constants: dict[str, Array] = {}
    for raw_inputs, raw_outputs in case.data_sets:
        inputs, outputs = _arrays(raw_inputs), _arrays(raw_outputs)
        if inputs is None or outputs is None:
            return None
        by_name = dict(zip(names, inputs, strict=True))
        constants |= {n: a for n, a in by_name.items() if n in fixed}
        runs.append(([a for n, a in by_name.items() if n not in fixed], outputs))
    return case.name, with_constants(case.model, constants), runs


def _arrays(values: Sequence[Any]) -> list[Array] | None:
    known = {d.numpy for d in DType}
    result = []
    for value in values:
        array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        if not isinstance(array, np.ndarray | np.generic) or np.asarray(array).dtype not in known:
            return None
        result.append(np.asarray(array))
    return result


# ---- compiling ----------------------------------------------------------------------------------


def compile_graph(model: onnx.ModelProto, *, fold: bool = True) -> Graph:
    """Lower a model with static input shapes."""
    ir = onnx_ir.from_proto(model)
    if len(ir.functions):
        ir = InlinePass()(ir).model
    return lower_model(ir, "test.onnx", never_fold=not fold)


def pinned(model: onnx.ModelProto, inputs: Sequence[Array]) -> onnx.ModelProto:
    """Return the model with its inputs' shapes set to those of the arrays."""
    known = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in known]
    shapes = {n: a.shape for n, a in zip(names, inputs, strict=True)}
    return onnx_ir.to_proto(pin_inputs(onnx_ir.from_proto(model), shapes, "test.onnx"))


def build_emission(graph: Graph, target: Target, name: str) -> Emission:
    """Return the C project of a lowered graph."""
    graph = run_passes(graph, width=target.vector_bytes // 4)
    program = build_program(graph, select(graph, target), target)
    arena = plan_memory(program)
    options = ProjectOptions(name=name, model="test.onnx", library_alone=True)
    return emit(program, arena, target, options)


@dataclass(frozen=True)
class Runner:
    """A compiled model that lies in a loaded library."""

    library: Any
    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once. Memory starts as garbage and is fenced; a write outside fails the test."""
        assert len(inputs) == len(self.inputs), f"{len(inputs)} inputs for {len(self.inputs)}"
        for array, type_ in zip(inputs, self.inputs, strict=True):
            assert (array.dtype, array.shape) == (type_.dtype.numpy, type_.shape)
        size = self._call("arena_size")
        arena = _Fenced(size)
        sources = [_Fenced(a.nbytes, np.ascontiguousarray(a).tobytes()) for a in inputs]
        results = [_Fenced(t.nbytes) for t in self.outputs]
        context = _INTERFACE.new("char[4096]")  # of those with threads too
        assert self._call("init", context, self._pointer(arena), size) == 0
        status = self._call(
            "run_tensors", context,
            [self._pointer(s) for s in sources], [self._pointer(r) for r in results],
        )  # fmt: skip
        stop = getattr(self.library, f"{self.name}_stop_threads", None)
        if stop is not None:  # they must be, before the context goes
            stop(context)
        assert status == 0
        for fenced in (arena, *sources, *results):
            fenced.check()
        for array, source in zip(inputs, sources, strict=True):
            assert source.bytes() == array.tobytes(), "an input was overwritten"
        return [
            np.frombuffer(r.bytes(), t.dtype.numpy).reshape(t.shape)
            for r, t in zip(results, self.outputs, strict=True)
        ]

    def _call(self, function: str, *args: Any) -> int:
        return int(getattr(self.library, f"{self.name}_{function}")(*args))

    def _pointer(self, fenced: _Fenced) -> Any:
        return _INTERFACE.cast("void *", fenced.address)


class _Fenced:
    """Memory, 64-byte aligned, between two fences of known bytes."""

    FENCE = 256

    def __init__(self, size: int, content: bytes | None = None) -> None:
        self.size = size
        self.memory = np.full(size + 2 * self.FENCE + 64, 0xA5, np.uint8)
        self.start = self.FENCE + (-(self.memory.ctypes.data + self.FENCE)) % 64
        self.address = self.memory.ctypes.data + self.start
        if content is not None:
            self.memory[self.start : self.start + size] = np.frombuffer(content, np.uint8)

    def bytes(self) -> bytes:
        return self.memory[self.start : self.start + self.size].tobytes()

    def check(self) -> None:
        outside = np.concatenate([self.memory[: self.start], self.memory[self.start + self.size :]])
        assert (outside == 0xA5).all(), "a kernel wrote outside its tensors"


def compile_models(
    models: Sequence[onnx.ModelProto | Graph],
    target: str = "c99",
    *,
    fold: bool = True,
    flags: Sequence[str] = (),
) -> list[Runner | Exception]:
    """Compile models into one library; a model that can't be compiled gives its exception."""
    record = get_target(target)
    built: list[tuple[Graph, Emission] | Exception] = []
    for k, model in enumerate(models):
        try:
            graph = model if isinstance(model, Graph) else compile_graph(model, fold=fold)
            built.append((graph, build_emission(graph, record, f"m{k}")))
        except AtcError as error:
            built.append(error)
    good = [b for b in built if not isinstance(b, Exception)]
    runners = iter(_compile(good, record, flags)) if good else iter(())
    return [b if isinstance(b, Exception) else next(runners) for b in built]


def compile_candidates(
    cases: Sequence[tuple[Graph, Candidate]], target: Target
) -> list[Runner | Exception]:
    """Compile graphs of one node, each by the given kernel with the given parameters."""
    built = []
    for k, (graph, candidate) in enumerate(cases):
        (node,) = graph.nodes
        choice = Choice(workload_of(graph, node, graph.constants), candidate, ())
        program = build_program(graph, {node.outputs[0]: choice}, target)
        options = ProjectOptions(name=f"m{k}", model="test.onnx", library_alone=True)
        emission = emit(program, plan_memory(program), target, options)
        built.append((graph, emission))
    return _compile(built, target, ())


def runnable(name: str) -> bool:
    """Whether this machine can run a target's code in this process."""
    return get_target(name).features <= host_features() and get_target(name).arch == host_arch()


def _compile(
    parts: Sequence[tuple[Graph, Emission]], target: Target, flags: Sequence[str]
) -> list[Runner | Exception]:
    """Compile all into one library; on failure halve, so that the others still run.

    Where each compiles alone `_write_unit` is wrong, which hundreds of calls would hide.
    """
    try:
        library = _build_library([e for _, e in parts], target, flags)
    except AssertionError as error:
        if len(parts) == 1:
            return [error]
        middle = len(parts) // 2
        halves = [
            *_compile(parts[:middle], target, flags),
            *_compile(parts[middle:], target, flags),
        ]
        if not any(isinstance(h, Exception) for h in halves):
            raise
        return halves
    return [
        Runner(
            library, e.name, tuple(g.types[i] for i in g.inputs),
            tuple(g.types[o] for o in g.outputs),
        )
        for g, e in parts
    ]  # fmt: skip


_API = """int {0}_init(void *, void *, size_t); size_t {0}_arena_size(void);
int {0}_run_tensors(void *, const void *const *, void *const *); void {0}_stop_threads(void *);"""


_INTERFACE = cffi.FFI()


@cache
def _declare(name: str) -> None:
    """Declare the functions of models of a name, in whichever library: parsing takes a while."""
    _INTERFACE.cdef(_API.format(name))


def _build_library(
    emissions: Sequence[Emission], target: Target, flags: Sequence[str]
) -> Any:
    for emission in emissions:
        _declare(emission.name)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _write_unit(root, emissions)
        command = compile_command(target, flags)
        command += ["-shared", "-nostartfiles", "-I", "include", "-o", "lib.so", "unit.c", "-lm"]
        compile_in(root, command, "lib.so")
        return _INTERFACE.dlopen(str(root / "lib.so"))


def _write_unit(root: Path, emissions: Sequence[Emission]) -> None:
    """Write all projects' C into one folder, and one file that includes all sources."""
    files = emulating({
        path: _OF_USERS.sub(b"", data) if path == f"src/{e.name}.c" else data
        for e in emissions for path, data in e.files.items() if _is_c(path)
    })  # fmt: skip
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    lines: list[str] = []
    for k, path in enumerate(p for p in files if p.startswith("src/") and p.endswith(".c")):
        statics = static_names(files[path].decode())
        lines += [f"#define {n} {n}_{k}" for n in statics]
        lines += [f'#include "{path}"', *(f"#undef {n}" for n in statics)]
    lines += (_weights(root, e.name, e.weights) for e in emissions)
    (root / "unit.c").write_text("\n".join(lines) + "\n")


_OF_USERS = re.compile(
    rb"^\w[\w ]*[ *]\w+_(?:abi_version|build_info|status_string|context_size|alignment|weights_size"
    rb"|(?:input|output)_(?:count|info))\([^)\n]*\)(?: \{[^\n]*\}|\n\{\n.*?^\})\n",
    re.MULTILINE | re.DOTALL,
)
"""Functions of a library that a Runner doesn't call: half the time of compiling most models."""


def _is_c(path: str) -> bool:
    return path.startswith(("include/", "src/"))


def _weights(root: Path, name: str, data: bytes) -> str:
    """Return the C that defines a model's weights: numbers, which every compiler reads, if few."""
    if len(data) > _FEW:
        (root / f"{name}.bin").write_bytes(data)
        return f'__asm__("{_WEIGHTS.format(name)}");'
    words = np.frombuffer(data + bytes(8 - len(data) % 8), np.uint64)
    numbers = ",\n".join(f"{word:#x}u" for word in words.tolist())
    return f"const uint64_t {name}_weights_data[] __attribute__((aligned(64))) = {{\n{numbers}}};"


_FEW = 32 << 10
"""Bytes that are quickly written and read as numbers."""
_WEIGHTS = (
    r".pushsection .rodata\n.global {0}_weights_data\n.balign 64\n"
    r"{0}_weights_data:\n.incbin \"{0}.bin\"\n.popsection"
)


_STATIC = re.compile(
    r"^(?:(?:static|K_INLINE)\b[^;={(]*?|(?:typedef )?struct (?=\w+ \{)|enum \{ )\b(\w+)\s*[\[(={]",
    re.MULTILINE,
)


def static_names(text: str) -> list[str]:
    """Return the names of a file's own functions, tables, structures and constants."""
    return sorted(set(_STATIC.findall(text)))


def run_models(
    models: Sequence[onnx.ModelProto],
    inputs: Sequence[Sequence[Array]],
    target: str = "c99",
    *,
    fold: bool = True,
) -> list[list[Array] | Exception]:
    """Compile models together and run each once on its inputs; failures are returned."""
    given = [pinned(m, x) for m, x in zip(models, inputs, strict=True)]
    runners = compile_models(given, target, fold=fold)
    return [r if isinstance(r, Exception) else r(x) for r, x in zip(runners, inputs, strict=True)]


def run_model(
    model: onnx.ModelProto, inputs: Sequence[Array], target: str = "c99", *, fold: bool = True
) -> list[Array]:
    """Compile a model and run it once; raises what goes wrong."""
    (result,) = run_models([model], [inputs], target, fold=fold)
    if isinstance(result, Exception):
        raise result
    return result


@dataclass
class Batch:
    """Named models that are compiled a chunk at a time, when one of the chunk is asked for.

    With parametrised tests this is one compiler call per `chunk` tests, in whichever process.
    Of those that tests are named after only the ones that this run selects are in it.
    """

    models: Mapping[str, onnx.ModelProto]
    target: str = "c99"
    fold: bool = True
    chunk: int = 24
    compiled: dict[str, Runner | Exception] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Runner:
        """Return a compiled model; raises what went wrong in compiling it."""
        if name not in self.compiled:
            names = list(self.models)
            if name in SELECTED:
                names = [n for n in names if n in SELECTED]
            first = names.index(name) // self.chunk * self.chunk
            part = names[first : first + self.chunk]
            runners = compile_models([self.models[n] for n in part], self.target, fold=self.fold)
            self.compiled.update(zip(part, runners, strict=True))
        runner = self.compiled[name]
        if isinstance(runner, Exception):
            raise runner
        return runner


# ---- comparing ----------------------------------------------------------------------------------


def assert_close(
    got: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-3, atol: float = 1e-7
) -> None:
    """Compare outputs as the standard's own suite does; integers and booleans must be equal."""
    assert len(got) == len(expected)
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.shape == b.shape, f"output {k} has the shape {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"output {k} has the type {a.dtype}, not {b.dtype}"
        if not DType.from_numpy(a.dtype).is_float:
            np.testing.assert_array_equal(a, b, err_msg=f"output {k}")
            continue
        relative = max(rtol, 2**-6) if a.dtype.name == "bfloat16" else rtol
        wide = (a.astype(np.float64), b.astype(np.float64))
        np.testing.assert_allclose(*wide, rtol=relative, atol=atol, err_msg=f"output {k}")
