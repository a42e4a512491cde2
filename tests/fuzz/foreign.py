"""Damages files of other packages: what their converters make of them must not harm either.

Each is converted in a process of its own, forked where the converter is already imported.
"""

from __future__ import annotations

import importlib
import io
import os
import resource
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from fuzz.draw import Draw
from fuzz.mutants import damaged

SECONDS = 60
BYTES = 4 << 30
OPSET = 18


@cache
def tflite_files() -> tuple[bytes, ...]:
    """Return a small network as TensorFlow Lite has it: in float, float16, bytes, and hybrid."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    net = tf.keras.Sequential([
        layers.Input((8, 9, 3), batch_size=1), layers.Conv2D(4, 3, padding="same"), layers.ReLU(),
        layers.DepthwiseConv2D(3), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(5, activation="softmax"),
    ])  # fmt: skip

    def written(**given: object) -> bytes:
        converter = tf.lite.TFLiteConverter.from_keras_model(net)
        types = given.pop("types", None)
        for name, value in given.items():
            setattr(converter, name, value)
        if types:
            converter.target_spec.supported_types = types
        return bytes(converter.convert())

    def images() -> list[list[np.ndarray]]:
        rng = np.random.default_rng(0)
        return [[rng.standard_normal((1, 8, 9, 3)).astype(np.float32)] for _ in range(4)]

    small = [tf.lite.Optimize.DEFAULT]
    return (
        written(), written(optimizations=small),
        written(optimizations=small, types=[tf.float16]),
        written(optimizations=small, representative_dataset=images),
    )  # fmt: skip


@cache
def torch_files() -> tuple[bytes, ...]:
    """Return two small programs of torch.export."""
    import torch

    torch.set_num_threads(1)  # a forked process has no other threads to wait for
    torch.manual_seed(0)
    image = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(36, 5),
    )  # fmt: skip
    word = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    files = []
    for module, x in ((image, torch.randn(1, 3, 8, 8)), (word, torch.arange(4)[None])):
        file = io.BytesIO()
        torch.export.save(torch.export.export(module.eval(), (x,)), file)
        files.append(file.getvalue())
    return tuple(files)


FILES: Mapping[str, Callable[[], tuple[bytes, ...]]] = {
    "tflite": tflite_files, "torch": torch_files,
}  # fmt: skip


def foreign_mutant(framework: str, seed: int) -> bytes:
    """Return a damaged file; of an archive mostly one of its members is.

    In TensorFlow Lite's files offsets say where all lies: bytes mostly stay in their places.
    """
    d = Draw(np.random.default_rng((78, seed)))
    data = d.pick(FILES[framework]())
    if d.chance(0.1):
        return damaged(d, data)
    if not zipfile.is_zipfile(io.BytesIO(data)):
        content = bytearray(data)
        for _ in range(d.int(1, 3)):
            content[d.int(0, len(content) - 1)] = d.pick((0, 1, 2, 3, 4, 127, 255, d.int(0, 255)))
        return bytes(content)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = d.pick([*members, *(n for n in members if n.endswith(".json"))])
    members[name] = damaged(d, members[name])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def converted(framework: str, data: bytes) -> bytes:
    """Return what the converter makes of a file, b"" where it refuses it, ends badly or hangs."""
    child = importlib.import_module(f"atc.convert.{framework}_child")
    if framework == "tflite":
        importlib.import_module("tf2onnx.convert")
    with tempfile.TemporaryDirectory(prefix="atc-fuzz-") as name:
        path, result = Path(name, "model"), Path(name, "model.onnx")
        path.write_bytes(data)
        pid = os.fork()
        if not pid:
            _convert(child.convert, path, result)
        ended = _wait(pid)
        return result.read_bytes() if ended == 0 and result.is_file() else b""


def _convert(convert: Callable[[str, str, int], None], path: Path, result: Path) -> None:
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = size + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        convert(str(path), str(result), OPSET)
        status = 0
    finally:
        os._exit(status)


def _wait(pid: int) -> int:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(pid, 9)
    return os.waitpid(pid, 0)[1]
