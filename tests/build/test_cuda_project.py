"""The CMake project of a network for GPUs, whose kernels nvcc compiles again."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from cuda_cases import texts_of
from cuda_networks import compiled, image_model, mixed_model
from projects import cmake, require

from atc.codegen.cubins import pack_cubins

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc isn't there"),
]

PTX, ELF = 1, 2


def kernels_in(folder: Path) -> list[str]:
    """Return the kernels of a project in the order of the table in the network's source."""
    (source,) = folder.glob("src/net*.c")
    table = source.read_text().partition("kernel_table[] = {")[2].partition("};")[0]
    return [line.split('"')[1] for line in table.strip().splitlines()]


def ready(folder: Path) -> list[bytes]:
    """Return the cubins of a project as it was written."""
    (file,) = folder.glob("*_cubins.bin")
    data, count = file.read_bytes(), len(kernels_in(folder))
    begins = struct.unpack_from(f"<{count}Q", data)
    return [data[begin:end] for begin, end in pairwise((*begins, len(data)))]


def rebuilt(folder: Path, build: Path, library: Path) -> list[bytes]:
    """Return the cubins that a build has made, which a library holds behind their table."""
    cubins = [(build / f"kernels/{k}.cubin").read_bytes() for k in kernels_in(folder)]
    assert pack_cubins(cubins).rstrip(b"\0") in library.read_bytes()
    return cubins


def codes(fat: bytes) -> Iterator[tuple[int, int]]:
    """Yield kind and architecture of each entry of a file of code for several GPUs."""
    magic, _, at, size = struct.unpack_from("<IHHQ", fat)
    assert magic == 0xBA55ED50
    end = at + size
    while at < end:
        kind, _, head, length = struct.unpack_from("<HHIQ", fat, at)
        yield kind, *struct.unpack_from("<I", fat, at + 28)
        at += head + length


@pytest.mark.parametrize(
    "model", [mixed_model, image_model], ids=["kernels of host and GPU", "tensor cores"]
)
def test_kernels_are_compiled_again_as_they_were(
    model: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    compiled(model(), tmp_path, target="cuda-sm90")
    folder = tmp_path / "net"
    build = cmake(folder, "-DNET_BUILD_KERNELS=ON")
    again, before = rebuilt(folder, build, build / "libnet.so"), ready(folder)
    assert [*map(texts_of, again)] == [*map(texts_of, before)]
    assert [[*texts_of(cubin)] for cubin in again] == [[k] for k in kernels_in(folder)]


def test_a_kernel_that_was_edited_is_what_the_library_holds(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path, target="cuda-sm80")
    folder = tmp_path / "net"
    build = cmake(folder, "-DNET_BUILD_KERNELS=ON")
    before = rebuilt(folder, build, build / "libnet.so")
    edited = folder / f"src/kernels/{kernels_in(folder)[0]}.cu"
    head, brace, body = edited.read_text().partition(")\n{\n")
    edited.write_text(f"{head}{brace}  __trap();\n{body}")
    os.utime(edited, (2e9, 2e9))
    subprocess.run([require("cmake"), "--build", build], check=True, capture_output=True)
    after = rebuilt(folder, build, build / "libnet.so")
    assert [one == other for one, other in zip(before, after, strict=True)] == [
        False, *[True] * (len(before) - 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("cuda-sm80", ["-DCMAKE_CUDA_ARCHITECTURES=80;90-real;120-virtual"],
         {(PTX, 80), (ELF, 80), (ELF, 90), (PTX, 120)}),
        ("cuda", [], {(PTX, 80), (ELF, 80)}),
    ],
    ids=["given", "portable"],
)  # fmt: skip
def test_kernels_are_compiled_for_several_gpus(
    target: str, options: list[str], expected: set[tuple[int, int]], tmp_path: Path
) -> None:
    compiled(mixed_model(), tmp_path, target=target)
    folder = tmp_path / "net"
    build = cmake(folder, "-DNET_BUILD_KERNELS=ON", *options)
    found = [set(codes(cubin)) for cubin in rebuilt(folder, build, build / "libnet.so")]
    if target == "cuda":  # for the GPU of this machine, where there is one
        expected = next(map(set, map(codes, ready(folder))))
    assert found == [expected] * len(kernels_in(folder))


def test_each_part_of_a_library_keeps_its_own_gpus(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path, target="cuda-sm90,cuda-sm80,c99")
    build = cmake(tmp_path / "net", "-DNET_BUILD_KERNELS=ON")
    for name in ("net_cuda_sm90", "net_cuda_sm80"):
        folder, own = tmp_path / "net/targets" / name, build / "targets" / name
        again = rebuilt(folder, own, build / "libnet.so")
        assert [*map(texts_of, again)] == [*map(texts_of, ready(folder))]


def test_a_machine_without_nvcc_takes_the_ready_kernels(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path, target="cuda-sm80")
    folder = tmp_path / "net"
    hidden = [*os.environ["PATH"].split(os.pathsep), "/usr/local/bin", "/usr/local/cuda/bin"]
    hidden = [place for place in hidden if Path(place, "nvcc").exists()]
    without = [f"-DCMAKE_IGNORE_PATH={';'.join(hidden)}", f"-DCMAKE_C_COMPILER={require('gcc')}"]
    build = cmake(folder, *without)
    (cubins,) = folder.glob("*_cubins.bin")
    assert cubins.read_bytes().rstrip(b"\0") in (build / "libnet.so").read_bytes()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CUDA")}
    done = subprocess.run(
        [require("cmake"), "-S", folder, "-B", build, "-DNET_BUILD_KERNELS=ON"],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "NET_BUILD_KERNELS needs a CUDA compiler, and nvcc isn't there" in said
    assert said.count("CMake Error") == 1


@pytest.mark.parametrize("way", ["option", "environment"])
@pytest.mark.parametrize("other", ["g++", "nowhere"])
def test_another_compiler_is_refused_in_one_line(way: str, other: str, tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path, target="cuda-sm80")
    given = [f"-DCMAKE_CUDA_COMPILER={other}"] if way == "option" else []
    environ = {**os.environ, "CUDACXX": f"{other} -O2"} if way == "environment" else {**os.environ}
    done = subprocess.run(
        [require("cmake"), "-S", tmp_path / "net", "-B", tmp_path / "build",
         "-DNET_BUILD_KERNELS=ON", *given],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert f"NET_BUILD_KERNELS needs nvcc, which {other} isn't" in said
    assert said.count("CMake Error") == 1
