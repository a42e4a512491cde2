from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_shared
from atc.codegen.weights import included_weights
from atc.errors import InternalError

GETTER = """\
#include <stdint.h>
extern const uint64_t net_weights_data[];
__attribute__((visibility("default"))) const void *blob(void);
const void *blob(void) { return net_weights_data; }
"""
COMPILERS = ("gcc", "clang", "clang-19")
DATA = np.random.default_rng(0).bytes(10_003)


def load(folder: Path, cc: str, sources: dict[str, bytes]) -> int:
    """Build a library of these sources; return the weights' address in this process."""
    if shutil.which(cc) is None:
        pytest.skip(f"{cc} isn't installed")
    target = get_target("c99")
    compiler = find_compiler(target, {**os.environ, "CC": cc})
    flags = (*compile_flags(compiler, target), "-Iblobs")
    for name, data in {"get.c": GETTER.encode(), **sources}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    names = ["get.c", *(name for name in sources if name.endswith((".c", ".S")))]
    for name in names:
        compile_object(compiler, flags, name, folder)
    link_shared(compiler, flags, [f"{name}.o" for name in names], "libnet.so", folder)
    blob = ctypes.CDLL(str(folder / "libnet.so")).blob
    blob.restype = ctypes.c_void_p
    return int(blob())


def rights(address: int) -> str:
    """Return what the kernel lets this process do at an address, e.g. `r--p`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, allowed = line.split()[:2]
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            return allowed
    raise LookupError(hex(address))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "cc", [pytest.param(cc, marks=pytest.mark.slow if cc == "clang" else ()) for cc in COMPILERS]
)
@pytest.mark.parametrize(
    "size", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8)), 31, 10_003]
)
def test_the_included_file_is_aligned_and_read_only(size: int, cc: str, tmp_path: Path) -> None:
    data = DATA[:size]
    text = included_weights("net", "net_weights.bin").encode()
    sources = {"src/w.S": text, "blobs/net_weights.bin": data}
    address = load(tmp_path, cc, sources)
    assert ctypes.string_at(address, size) == data
    assert address % 64 == 0
    if size:
        assert rights(address) == "r--p"


@pytest.mark.parametrize("name", ["", "a b", "1a", 'a";', "ä", "a\n"])
def test_a_name_that_is_no_identifier_never_reaches_the_text(name: str) -> None:
    with pytest.raises(InternalError):
        included_weights(name, "w.bin")


@pytest.mark.parametrize("file", ["", 'a"b', "a b", "a\\b", "a\n"])
def test_a_path_that_assembler_cannot_quote_is_refused(file: str) -> None:
    with pytest.raises(InternalError):
        included_weights("net", file)


def test_files_hold_the_constants_of_all_plans(tmp_path: Path) -> None:
    """Those of listed shapes are packed for other kernels than that of ranges has."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "first"),
        helper.make_node("Conv", ["h", "v"], ["y"], "second"),
    ]
    random = np.random.default_rng(0)
    weights = {"w": random.normal(size=(8, 3, 3, 3)), "v": random.normal(size=(16, 8, 3, 3))}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    done = atc.compile(
        tmp_path / "m.onnx", tmp_path / "net", target="x86-64-avx2", external_weight=1,
        input_shape="x:1,3,8~20,16", dynamic_dims="16;18",
    )  # fmt: skip
    files = sorted((tmp_path / "net" / "net_weights").iterdir())
    assert len(files) > len(done.emission.offsets)  # which are those of the ranges
    assert b"".join(path.read_bytes() for path in files) == done.emission.weights
