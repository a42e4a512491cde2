"""A small LeNet, compiled once with hooks and times and once without, and the tool to run it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a command line gave."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.out)
        return content


class Run(Protocol):
    def __call__(self, *words: object, status: int = 0, command: str = ...) -> Result: ...


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs load_and_run in this process and checks its exit status."""

    def call(*words: object, status: int = 0, command: str = "load_and_run") -> Result:
        capsys.readouterr()
        found = main([command, *map(str, words)])
        captured = capsys.readouterr()
        assert found == status, captured.err
        return Result(found, captured.out, captured.err)

    return call


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        yield


def lenet() -> onnx.ModelProto:
    """Return a LeNet for one picture of 28 x 28 and a bias for the scores."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)

    def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), [output], name=output, **attributes)

    pooling = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", "data w1 b1", "conv1"), node("Relu", "conv1", "relu1"),
        node("MaxPool", "relu1", "pool1", **pooling),
        node("Conv", "pool1 w2 b2", "conv2", pads=[1, 1, 1, 1]), node("Relu", "conv2", "relu2"),
        node("Flatten", "relu2", "flat"), node("MatMul", "flat w3", "dense"),
        node("Add", "dense bias", "scores"), node("Softmax", "scores", "prob"),
    ]  # fmt: skip
    known = [weights("w1", 4, 1, 3, 3), weights("b1", 4), weights("w2", 8, 4, 3, 3),
             weights("b2", 8), weights("w3", 1352, 10)]  # fmt: skip
    graph = helper.make_graph(
        nodes, "lenet",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, (1, 1, 28, 28)),
         helper.make_tensor_value_info("bias", TensorProto.FLOAT, (1, 10))],
        [helper.make_tensor_value_info("prob", TensorProto.FLOAT, (1, 10))], known,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "lenet.onnx"
    onnx.save(lenet(), path)
    return path


def _compiled(model: Path, folder: Path, **options: Any) -> Path:
    atc.compile(model, folder, target="c99", op_compiler_cache_mode="enable", **options)
    return folder


@pytest.fixture(scope="session")
def library(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a library with hooks and times."""
    return _compiled(model, tmp_path_factory.mktemp("out") / "lenet", hooks=True, profile=True)


@pytest.fixture(scope="session")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a library without."""
    return _compiled(model, tmp_path_factory.mktemp("plain") / "lenet")


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of the picture."""
    path = tmp_path_factory.mktemp("inputs") / "picture.npy"
    np.save(path, np.random.default_rng(1).standard_normal((1, 1, 28, 28)).astype(np.float32))
    return path
