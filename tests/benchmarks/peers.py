"""What is compared: each engine turns a model into a function from inputs to outputs.

This file runs in the engines' own processes. It imports nothing of the compiler and as little of
Python as it can, each engine before anything else, so that what a process takes is the engine's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Inputs = Mapping[str, str]
"""Files of arrays by the inputs' names."""
Run = Callable[[], "list[np.ndarray[Any, Any]]"]
Prepare = Callable[[str, Inputs, int], Run]


def read(inputs: Inputs) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays in the files."""
    import numpy as np

    return {name: np.load(path) for name, path in inputs.items()}


def prepare_atc(module: str, inputs: Inputs, threads: int) -> Run:
    """Load a compiled network, which knows its number of threads, by its folder's Python module."""
    del threads
    folder, _, name = module.removesuffix(".py").rpartition("/")
    sys.path.insert(0, folder)
    net = import_module(name).load()
    arrays = read(inputs)
    bound = net.bind(*(arrays[t.name] for t in net.inputs))

    def run() -> list[np.ndarray[Any, Any]]:
        bound()
        return list(bound.outputs)

    return run


def prepare_onnxruntime(model: str, inputs: Inputs, threads: int) -> Run:
    """Load a model with all of onnxruntime's optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = read(inputs)
    return lambda: session.run(None, feeds)


def prepare_openvino(model: str, inputs: Inputs, threads: int) -> Run:
    """Load a model for single runs in float32."""
    return _openvino(model, inputs, threads, "f32")


def prepare_openvino_bf16(model: str, inputs: Inputs, threads: int) -> Run:
    """Load a model for single runs in bfloat16, where the CPU has products of it."""
    return _openvino(model, inputs, threads, "bf16")


def _openvino(model: str, inputs: Inputs, threads: int, precision: str) -> Run:
    import openvino

    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    # Copies: shared memory would have to outlive what it is shared with.
    tensors = {name: openvino.Tensor(array) for name, array in read(inputs).items()}
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)

    def run() -> list[np.ndarray[Any, Any]]:
        request.infer()
        return [request.get_output_tensor(k).data for k in range(len(compiled.outputs))]

    return run


def prepare_mnn(model: str, inputs: Inputs, threads: int) -> Run:
    """Load a model that `conversion` made; in float32."""
    import MNN

    known, arrays = description(model), narrowed(read(inputs))
    config = {"backend": "CPU", "precision": "high", "memory": "high", "numThread": threads}
    manager = MNN.nn.create_runtime_manager((config,))
    net = MNN.nn.load_module_from_file(
        model, known["inputs"], known["outputs"], runtime_manager=manager, dynamic=False,
        shape_mutable=False,
    )  # fmt: skip
    expr = MNN.expr
    kinds = {"f": expr.float, "i": expr.int, "u": expr.int, "b": expr.int}
    variables = []
    for name in known["inputs"]:
        array = arrays[name]
        variables.append(expr.placeholder([*array.shape], expr.NCHW, kinds[array.dtype.kind]))
        variables[-1].write(array)

    def run() -> list[np.ndarray[Any, Any]]:
        found = net.forward(variables)
        several = found if isinstance(found, (list, tuple)) else [found]
        blocked = expr.NC4HW4
        return [
            (expr.convert(y, expr.NCHW) if y.data_format == blocked else y).read() for y in several
        ]

    return run


def prepare_ncnn(model: str, inputs: Inputs, threads: int) -> Run:
    """Load a model that `conversion` made; in float32."""
    import ncnn

    known, arrays = description(model), narrowed(read(inputs))
    net = ncnn.Net()
    net.opt.num_threads, net.opt.use_vulkan_compute = threads, False
    for width in ("fp16", "bf16"):
        for use in ("packed", "storage", "arithmetic"):
            if hasattr(net.opt, f"use_{width}_{use}"):
                setattr(net.opt, f"use_{width}_{use}", False)
    if net.load_param(model) or net.load_model(model.removesuffix("param") + "bin"):
        raise ValueError("ncnn can't load what pnnx wrote")
    mats = []
    for k, (name, batched) in enumerate(known["inputs"].items()):
        mat = ncnn.Mat(arrays[name], **({"batch_index": 0} if batched else {}))
        mats.append((f"in{k}", mat.clone()))
    outputs = [(f"out{k}", batched) for k, batched in enumerate(known["outputs"])]

    def run() -> list[np.ndarray[Any, Any]]:
        extractor = net.create_extractor()
        for name, mat in mats:
            extractor.input(name, mat)
        found = []
        for name, batched in outputs:
            _, mat = extractor.extract(name)
            found.append(mat.numpy(batch_index=0) if batched else mat.numpy())
        return found

    return run


def description(model: str) -> dict[str, Any]:
    """Return what `conversion` wrote beside a model."""
    import json

    with open(model.rpartition(".")[0] + ".json", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def narrowed(
    arrays: Mapping[str, np.ndarray[Any, Any]],
) -> dict[str, np.ndarray[Any, Any]]:
    """Return arrays with int32 for wider integers, which some engines have none of."""
    return {n: a.astype("int32") if a.dtype == "int64" else a for n, a in arrays.items()}


def prepare_bare(model: str, inputs: Inputs, threads: int) -> Run:
    """Do nothing, with numpy: what the other processes take beside their engines."""
    del model, threads
    arrays = read(inputs)
    return lambda: [*arrays.values()]


BARE = "bare"
ENGINES: Mapping[str, Prepare] = {
    "atc": prepare_atc,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "openvino_bf16": prepare_openvino_bf16,
    "mnn": prepare_mnn,
    "ncnn": prepare_ncnn,
    BARE: prepare_bare,
}
_BF16 = "_bf16"
_MODULES: Mapping[str, Sequence[str]] = {
    "openvino_bf16": ("openvino",), "mnn": ("MNN",), "ncnn": ("ncnn", "pnnx"),
}  # fmt: skip
"""What engines need, the engine itself first, where that isn't a module of their name."""


def installed(name: str) -> bool:
    """Whether an engine, and what converts models for it, can be imported."""
    return name == "atc" or all(find_spec(module) for module in _MODULES.get(name, (name,)))


def described(name: str) -> str:
    """Return an engine's name and version."""
    from importlib.metadata import version

    return name if name == "atc" else f"{name} {version(_MODULES.get(name, (name,))[0])}"


def precision_of(name: str) -> str:
    """Return what a peer is set to compute in."""
    return "bf16" if name.endswith(_BF16) else "float32"
