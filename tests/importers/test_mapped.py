"""ONNX files whose large tensors are mapped: the same models and errors as when they are read."""

from __future__ import annotations

import importlib
import mmap
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.compile import compile_model
from atc.errors import AtcError, ModelError
from atc.importers.mapped import LEAST
from atc.importers.onnx import load_onnx
from atc.options.options import Options

F32 = TensorProto.FLOAT
COUNT = LEAST // 4


def raw(kind: int, size: int = LEAST, name: str = "w") -> onnx.TensorProto:
    """Return a tensor of so many random bytes."""
    bits = onnx_ir.DataType(kind).bitwidth
    data = np.random.default_rng(kind).integers(0, 100, size, np.uint8).tobytes()
    return onnx.TensorProto(name=name, data_type=kind, dims=[2, size * 4 // bits], raw_data=data)


def model(*tensors: onnx.TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()) -> onnx.ModelProto:
    """Return a model with these initializers, some more nodes and an odd beginning."""
    x, y = (helper.make_tensor_value_info(name, F32, [1]) for name in "xy")
    main = helper.make_node("Identity", ["x"], ["y"], name="odd" * 7)
    graph = helper.make_graph([main, *nodes], "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def constant(name: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=raw(F32))


def branches() -> onnx.NodeProto:
    """Return an If whose branches hold an initializer and a constant."""
    y = helper.make_tensor_value_info("b", F32, None)
    one = helper.make_graph([helper.make_node("Identity", ["v"], ["b"])], "t", [], [y],
                            [raw(F32, name="v")])  # fmt: skip
    other = helper.make_graph([constant("b")], "e", [], [y])
    return helper.make_node("If", ["c"], ["z"], then_branch=one, else_branch=other)


def numbers(name: str = "w") -> onnx.TensorProto:
    """Return a large tensor whose numbers are fields of the message."""
    return helper.make_tensor(name, F32, [COUNT], np.arange(COUNT, dtype=np.float32))


ONE = helper.make_tensor("c", TensorProto.BOOL, [], [True])
TYPES = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "INT64", "FLOAT8E4M3FN", "BOOL")
MAPPED: dict[str, tuple[onnx.ModelProto, int]] = {
    **{t.lower(): (model(raw(TensorProto.DataType.Value(t))), 1) for t in TYPES},
    "two": (model(raw(F32), raw(F32, 2 * LEAST, "v"), raw(F32, 64, "u")), 2),
    "constant": (model(nodes=(constant("k"),)), 1),
    "branches": (model(ONE, nodes=(branches(),)), 2),
    "small": (model(raw(F32, LEAST - 64)), 0),
    "int4": (model(raw(TensorProto.INT4)), 0),
    "numbers": (model(numbers()), 0),
}


def arrays(loaded: onnx_ir.Model) -> list[np.ndarray]:
    """Return the arrays of all tensors of a model."""
    found = []
    for graph in (loaded.graph, *loaded.graph.subgraphs()):
        found += [v.const_value.numpy() for v in graph.initializers.values() if v.const_value]
        found += [
            a.value.numpy() for node in graph for a in node.attributes.values()
            if isinstance(a.value, onnx_ir.TensorProtocol)
        ]  # fmt: skip
    return found


def in_file(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, mmap.mmap)


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_model_has_the_tensors_of_one_that_is_read(name: str, tmp_path: Path) -> None:
    proto, count = MAPPED[name]
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    read, mapped = arrays(load_onnx(path)), arrays(load_onnx(path, mapped=True))
    assert sum(map(in_file, mapped)) == count
    assert not any(map(in_file, read))
    for one, other in zip(read, mapped, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def changed(change: Callable[[onnx.TensorProto], object]) -> onnx.ModelProto:
    tensor = raw(F32)
    change(tensor)
    return model(tensor)


ODD = {
    "too long": changed(lambda t: setattr(t, "raw_data", t.raw_data + b"more")),
    "negative": changed(lambda t: t.dims.__setitem__(slice(None), [-1, -COUNT])),
    "no type": changed(lambda t: setattr(t, "data_type", 0)),
    "unknown type": changed(lambda t: setattr(t, "data_type", 99)),
    "a string": changed(lambda t: setattr(t, "data_type", TensorProto.STRING)),
    "external too": changed(lambda t: t.external_data.add(key="location", value="none.bin")),
}


def outcome(path: Path, mapped: bool) -> object:
    """Return the tensors of a file, or why it is refused."""
    try:
        return [(a.dtype, a.shape, a.tobytes()) for a in arrays(load_onnx(path, mapped))]
    except AtcError as error:
        return str(error)
    except (KeyError, TypeError, ValueError) as error:  # of tensors without numbers
        return repr(error)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_tensor_is_refused_in_the_same_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(ODD[name].SerializeToString())
    assert outcome(path, mapped=True) == outcome(path, mapped=False)


def test_a_place_that_no_one_could_have_written_is_refused(tmp_path: Path) -> None:
    """The name that stands for the file itself gives nothing of it beyond its end."""
    tensor = raw(F32)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "\0"), ("offset", "9" * 12)):
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "net.onnx"
    path.write_bytes(model(tensor, numbers("v")).SerializeToString())
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        load_onnx(path, mapped=True)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_read_or_refused_in_the_same_way(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    data = bytearray(MAPPED["branches" if seed % 2 else "two"][0].SerializeToString())
    headers = [k for k in range(len(data)) if k < 150 or data[k : k + 2] == b"\x0a\x01"]
    for _ in range(random_.randint(1, 3)):
        at = random_.choice(headers) + random_.randint(0, 8)
        data[min(at, len(data) - 1)] = random_.randrange(256)
    path = tmp_path / "net.onnx"
    path.write_bytes(data[: random_.choice([len(data), len(data), random_.randrange(len(data))])])
    assert outcome(path, mapped=True) == outcome(path, mapped=False)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_external_tensors_of_a_file_share_its_mapping(tmp_path: Path) -> None:
    values = {f"w{k}": np.full((2, 3), k, np.float32) for k in range(50)}
    tensors = [numpy_helper.from_array(array, name) for name, array in values.items()]
    path = tmp_path / "m.onnx"
    onnx.save(model(*tensors), path, save_as_external_data=True, location="data", size_threshold=0)
    before = len(os.listdir("/proc/self/fd"))
    found = load_onnx(path, mapped=True)
    for name, array in values.items():
        tensor = found.graph.initializers[name].const_value
        assert tensor is not None
        assert (tensor.numpy() == array).all()
    assert len(os.listdir("/proc/self/fd")) - before <= 2


def in_two_files(folder: Path) -> dict[str, Path]:
    """Write a model whose large tensors lie in its own file and one that also has a data file."""
    own, apart = folder / "own.onnx", folder / "apart.onnx"
    weights = np.random.default_rng(0).standard_normal((2, 128, 256)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, F32, [1, 128]) for name in "xy")
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["y"]),
    ]
    tensors = [
        numpy_helper.from_array(weights[0], "a"),
        numpy_helper.from_array(weights[1].reshape(256, 128), "b"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(net, own)
    onnx.save(net, apart, save_as_external_data=True, location="data", size_threshold=0)
    return {"own": own, "apart": folder / "data"}


STAGES = {
    "lowered": "atc.pipeline.lowering.run_passes",
    "packed": "atc.pipeline.writing.emit",
}
"""What runs when a model has been read, and when its kernels have been chosen."""


@pytest.mark.few(2)
@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file can't be shortened there")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("change", ["shortened", "written"])
@pytest.mark.parametrize("where", ["own", "apart"])
def test_a_file_that_changes_while_it_is_compiled_is_told_of(
    stage: str, change: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read beyond a file's end would end the process; other weights would be wrong numbers."""
    file = in_two_files(tmp_path)[where]
    module, _, name = STAGES[stage].rpartition(".")
    real = getattr(importlib.import_module(module), name)

    def changing(*arguments: object, **more: object) -> object:
        size = file.stat().st_size
        with file.open("r+b") as opened:
            opened.truncate(100) if change == "shortened" else opened.write(bytes(size))
        return real(*arguments, **more)

    monkeypatch.setattr(f"{module}.{name}", changing)
    out = tmp_path / "out"
    with pytest.raises(ModelError, match="changed while it was compiled") as caught:
        compile_model(Options(model=tmp_path / f"{where}.onnx", output=out))
    assert caught.value.where == str(file)
    assert not out.exists()
