"""An `onnx.backend.base.Backend`: a model is compiled for the shapes that it is first run with.

from atc.onnx_backend import prepare
outputs = prepare(onnx.load("model.onnx")).run([x])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
from onnx.backend.base import Backend, BackendRep, namedtupledict

from atc.backends.cuda.device import architecture_for, compute_capabilities
from atc.backends.cuda.targets import EMULATED, name_of
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags, source_flags
from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_shared
from atc.backends.toolchain.nvcc import find_nvcc, nvcc_flags
from atc.codegen.cubins import pack_cubins
from atc.codegen.emit import Emission, emit
from atc.codegen.project_options import ProjectOptions
from atc.codegen.weights import included_weights
from atc.dims import InputShape
from atc.errors import ModelError, UnsupportedError
from atc.files.temporary import temporary_folder
from atc.importers.onnx import inlined, pin_inputs
from atc.ir.graph import Array, DType, Graph
from atc.lower import lower_model
from atc.lower.strings import cells, is_text, texts
from atc.memory.arena import plan_memory
from atc.passes import run_passes
from atc.program.build import build_program
from atc.runtime.network import Network
from atc.select.select import Selection, select, target_for

FILE = "the model"
"""What errors call a model that comes from no file."""

Given = Array | list[Array] | None
"""An input: a tensor, a sequence, or an optional without a value."""

SMALL = 64
"""Elements of an input whose value may be compiled in where a shape depends on it."""


GPU = "CUDA"
"""The device that stands for a GPU of this machine: CUDA:1 for the second one."""

EMULATED_GPU = "CUDA-EMULATED"
"""The device that stands for a GPU imitated by the CPU."""

USE = f"use CPU, {GPU} where there is one, or {EMULATED_GPU}"


def target_of(device: str, target: str) -> str:
    """Return the compiler's target for a device; `target` is that for the CPU."""
    kind, number = _device(device)
    if kind == GPU:
        architecture = architecture_for(compute_capabilities()[number])
        return name_of(architecture) if architecture else "cuda"
    return f"cuda-{EMULATED}" if kind == EMULATED_GPU else target


def _device(device: str) -> tuple[str, int]:
    """Return a device's kind and number; -1 for what is not a number."""
    kind, _, number = device.partition(":")
    return kind, int(number or 0) if (number or "0").isdecimal() else -1


def compile_networks(
    graphs: Sequence[Graph], target: Target, level: str = "O2", device_id: int = 0,
    choose: Callable[[Graph, Target], Selection] = select,
    compile_all: Callable[[Sequence[Job], int], object] = compile_many,
) -> list[Network]:  # fmt: skip
    """Compile graphs into one library, at an optimisation level of the C compiler, and load it.

    `choose` takes kernels for a graph, `compile_all` makes objects in so many threads.
    """
    compiler = find_compiler(target, os.environ)
    flags = (*compile_flags(compiler, target, level), "-Iinclude", "-I.")
    with temporary_folder("backend") as temporary:
        folder = Path(temporary).resolve()
        projects = [_emit(graph, target, f"net{k}", choose) for k, graph in enumerate(graphs)]
        sources = dict.fromkeys(s for project in projects for s in _write(project, folder))
        if target.device not in ("", EMULATED):
            of_gpu = [source for source in sources if source.endswith(".cu")]
            nvcc = find_nvcc(target.device, os.environ)
            jobs = [Job(nvcc, nvcc_flags(target.device), source, folder) for source in of_gpu]
            compile_many(jobs, os.cpu_count() or 1)
            sources = dict.fromkeys(s for s in sources if not s.endswith(".cu"))
            sources |= dict.fromkeys(_write_cubins(p, folder) for p in projects if p.on_gpu)
        jobs = [Job(compiler, source_flags(flags, source), source, folder) for source in sources]
        compile_all(jobs, os.cpu_count() or 1)
        link_shared(compiler, flags, [f"{source}.o" for source in sources], "nets.so", folder)
        number = device_id if target.device else None
        return [
            Network(folder / "nets.so", each.name, device_id=number if each.on_gpu else None)
            for each in projects
        ]


def _write_cubins(project: Emission, folder: Path) -> str:
    """Write the file of a project's compiled kernels; returns the source that includes it."""
    data, text = f"{project.name}_cubins.bin", f"{project.name}_cubins.S"
    own = [k.path for k in project.kernels if k.launch]
    (folder / data).write_bytes(pack_cubins([(folder / f"{p}.o").read_bytes() for p in own]))
    (folder / text).write_text(included_weights(project.name, data, "cubins"))
    return text


def _emit(
    graph: Graph, target: Target, name: str, choose: Callable[[Graph, Target], Selection]
) -> Emission:
    graph = run_passes(graph, width=target.vector_bytes // 4, device=bool(target.device))
    own = target_for(graph, target)
    program = build_program(graph, choose(graph, own), own)
    options = ProjectOptions(name=name, model=FILE, library_alone=True)
    return emit(program, plan_memory(program), target, options)


def _write(project: Emission, folder: Path) -> Iterator[str]:
    """Write a project's library; yield the sources."""
    files = {path: data for path, data in project.files.items() if path[:3] in ("src", "inc")}
    if project.blob.size:
        blob = f"{project.name}_weights.bin"
        files[blob] = project.weights
        files[f"{project.name}_weights.S"] = included_weights(project.name, blob).encode()
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        if path.endswith((".c", ".cu", ".S")):
            yield path


class AtcBackendRep(BackendRep):
    """A model ready to run; each new set of input shapes is compiled once."""

    def __init__(
        self, model: onnx.ModelProto, target: str = "host", level: str = "O2", device_id: int = 0
    ) -> None:
        """Take a model that onnx's checker accepts."""
        self.model = model
        self.target = get_target(target)
        self.level = level
        self.device_id = device_id
        initializers = {t.name for t in model.graph.initializer}
        self.inputs = [v.name for v in model.graph.input if v.name not in initializers]
        self._networks: dict[object, Network] = {}
        self._outputs = namedtupledict("Outputs", [v.name for v in model.graph.output])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs for inputs by position (a sequence, one array) or by name."""
        arrays = self.arrays(inputs)
        network = self._networks.get(_signature(arrays)) or self._networks.get(_content(arrays))
        if network is None:
            graph = self.lower(arrays)
            (network,) = compile_networks([graph], self.target, self.level, self.device_id)
            self.remember(arrays, network)
        outputs = network.run({v.name: arrays[v.name] for v in network.parameters})
        return self._outputs(*outputs.values())

    def arrays(self, inputs: Any) -> dict[str, Given]:
        """Return a run's inputs by name; UnsupportedError for types that aren't known."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self.inputs):
                raise ModelError(
                    f"{len(inputs)} inputs given, the model takes {len(self.inputs)}: "
                    + ", ".join(self.inputs)
                )
            inputs = dict(zip(self.inputs, inputs, strict=True))
        return {name: _given(name, value) for name, value in inputs.items()}

    def remember(self, arrays: Mapping[str, Given], network: Network) -> None:
        """Keep a network that was compiled of `lower(arrays)` for runs on such inputs."""
        fixed = len(network.parameters) < len(arrays)
        self._networks[_content(arrays) if fixed else _signature(arrays)] = network

    def lower(self, arrays: Mapping[str, Given]) -> Graph:
        """Return the model's graph for inputs of these shapes.

        Where that isn't enough, because the shape of a tensor depends on an input's value, small
        integer inputs and then all small ones are taken as constants.
        """
        errors = []
        for fixed in _choices(arrays):
            model = _specialised(self.model, arrays, fixed)
            try:
                return lower_model(model, FILE)
            except UnsupportedError as error:
                errors.append(error)
        raise errors[0]


def _given(name: str, value: Any) -> Given:
    """Return an input's value, of which sequences and optionals are made."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_array(name, element) for element in value]
    return _array(name, value)


def _array(name: str, value: Any) -> Array:
    known = isinstance(value, np.ndarray | np.generic)
    if isinstance(value, str | bytes) or (known and is_text(np.asarray(value))):
        return texts(cells(np.asarray(value, object)))
    if not known or value.dtype not in {d.numpy for d in DType}:
        kind = value.dtype if known else type(value).__name__
        raise UnsupportedError(f"input '{name}' is of the type {kind}")
    return np.asarray(value)


def _tensors(arrays: Mapping[str, Given]) -> dict[str, Array]:
    return {name: a for name, a in arrays.items() if isinstance(a, np.ndarray)}


def _signature(arrays: Mapping[str, Given]) -> object:
    return tuple((name, _signed(value)) for name, value in arrays.items())


def _signed(value: Given) -> object:
    if isinstance(value, list):
        return tuple((a.dtype, a.shape) for a in value)
    return None if value is None else (value.dtype, value.shape, "tensor")


def _content(arrays: Mapping[str, Given]) -> object:
    """Return what a network depends on that took the small inputs as constants."""
    small = [a for a in _tensors(arrays).values() if a.size <= SMALL]
    values = tuple(tuple(a.flat) if is_text(a) else a.tobytes() for a in small)
    return (_signature(arrays), values)


def _choices(arrays: Mapping[str, Given]) -> Iterator[frozenset[str]]:
    """Yield sets of inputs whose values may be compiled in, the smallest set first."""
    small = {n: a for n, a in _tensors(arrays).items() if a.size <= SMALL}
    integer = frozenset(n for n, a in small.items() if a.dtype.kind in "iub" and a.ndim <= 1)
    vectors = frozenset(n for n, a in small.items() if a.ndim <= 1)
    yield from dict.fromkeys((frozenset[str](), integer, vectors, frozenset(small)))


def _specialised(
    proto: onnx.ModelProto, arrays: Mapping[str, Given], fixed: frozenset[str]
) -> onnx_ir.Model:
    """Return the model with its inputs' shapes known and those of `fixed` made constants."""
    model = onnx_ir.from_proto(proto)
    model = inlined(model, FILE)
    model = pin_inputs(model, {n: _shape(a) for n, a in arrays.items()}, FILE)
    for value in list(model.graph.inputs):
        if value.name in fixed:
            model.graph.inputs.remove(value)
            value.const_value = onnx_ir.tensor(_tensors(arrays)[value.name], name=value.name)
            model.graph.register_initializer(value)
    return model


def _shape(value: Given) -> InputShape:
    if isinstance(value, list):
        return [a.shape for a in value]
    return None if value is None else value.shape


class AtcBackend(Backend):
    """The compiler behind ONNX's interface for backends."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the model can be compiled as it is.

        What depends on its inputs' values is assumed to be covered.
        """
        known = {t.name for t in model.graph.initializer}
        given = [v for v in model.graph.input if v.name not in known]
        shapes = [v.type.tensor_type.shape for v in given]
        tensors = all(v.type.HasField("tensor_type") for v in given)
        if not tensors or not all(d.HasField("dim_value") for shape in shapes for d in shape.dim):
            return cls.supports_device(device)
        try:
            lower_model(_specialised(model, {}, frozenset()), FILE)
        except UnsupportedError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU",
        target: str = "host", level: str = "O2", **kwargs: Any,
    ) -> AtcBackendRep:  # fmt: skip
        """Return the model ready to run, for one of the compiler's targets of this machine."""
        onnx.checker.check_model(model)
        if not cls.supports_device(device):
            raise UnsupportedError(f"there is no device {device}", hint=USE)
        return AtcBackendRep(model, target_of(device, target), level, _device(device)[1])

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run one node on inputs for its named inputs; `opset_version` may be given."""
        names = [name for name in node.input if name]
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        arrays = dict(zip(names, map(np.asarray, inputs), strict=True))
        graph = onnx.helper.make_graph(
            [node], "node",
            [
                onnx.helper.make_tensor_value_info(n, DType.from_numpy(a.dtype).code, a.shape)
                for n, a in arrays.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )  # fmt: skip
        opset = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        if not cls.supports_device(device):
            raise UnsupportedError(f"there is no device {device}", hint=USE)
        rep = AtcBackendRep(model, target_of(device, "host"), device_id=_device(device)[1])
        return rep.run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether networks can run there: on the CPU, a GPU, and one that is imitated."""
        kind, number = _device(device)
        if kind == GPU:
            return 0 <= number < len(compute_capabilities())
        return kind in ("CPU", EMULATED_GPU) and number == 0


is_compatible = AtcBackend.is_compatible
prepare = AtcBackend.prepare
run_model = AtcBackend.run_model
run_node = AtcBackend.run_node
supports_device = AtcBackend.supports_device
