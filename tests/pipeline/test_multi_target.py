"""A library for several targets is the first one that the processor can run, and says which."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import cffi
import numpy as np
import pytest
from default_run import unoptimised
from networks import check_contexts_with_threads, check_forks_with_threads, conv_net
from projects import cmake, require, run_example

import atc
from atc.api import compile as compile_network
from atc.backends.target import host_arch
from atc.errors import OptionError
from atc.options.options import Options
from atc.pipeline.request import resolve_request
from atc.tools.check import check_model
from atc.tools.explain import read_report
from support import runnable

TARGETS = {
    "x86_64": ("x86-64-amx", "x86-64-avx2", "c99"),
    "aarch64": ("aarch64-neon-i8mm", "aarch64-neon", "c99"),
}
pytestmark = pytest.mark.skipif(host_arch() not in TARGETS, reason="no targets of this processor")


def first(names: Sequence[str]) -> str:
    """Return the target that this processor should run."""
    return next(name for name in names if name == "c99" or runnable(name))


def chosen(folder: Path, name: str) -> str:
    """Return what a library says of itself, once it has a context."""
    ffi = cffi.FFI()
    ffi.cdef(f"""
        int {name}_init(void *ctx, void *arena, size_t size); size_t {name}_context_size(void);
        size_t {name}_arena_size(void); const char *{name}_chosen_target(const void *ctx);
    """)
    library = ffi.dlopen(str(folder / f"lib{name}.so"))
    size = getattr(library, f"{name}_arena_size")()
    ctx = ffi.new("uint64_t[]", getattr(library, f"{name}_context_size")() // 8 + 1)
    memory = ffi.new("char[]", size + 64)
    at = int(ffi.cast("uintptr_t", memory)) + 63 & ~63
    chosen = getattr(library, f"{name}_chosen_target")
    assert chosen(ctx) == ffi.NULL
    assert getattr(library, f"{name}_init")(ctx, ffi.cast("void *", at), size - 1) == -2
    assert getattr(library, f"{name}_init")(ctx, ffi.cast("void *", at), size) == 0
    return ffi.string(chosen(ctx)).decode()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network for all targets, in threads, and for the best alone."""
    folder = tmp_path_factory.mktemp("fat")
    path = conv_net(folder / "net.onnx")
    names = TARGETS[host_arch()]
    for output, target in (("all", ",".join(names)), ("best", first(names))):
        compile_network(path, folder / output / "net", target=target, num_threads=2)
    return folder


@pytest.mark.slow
def test_the_first_that_runs_is_chosen(out: Path) -> None:
    names = TARGETS[host_arch()]
    assert chosen(out / "all" / "net", "net") == first(names)
    net, best = atc.load(out / "all" / "net"), atc.load(out / "best" / "net")
    assert f"target={','.join(names)};" in net.build_info
    report = read_report(out / "all" / "net")
    assert report["name"] == "net"
    assert list(report["targets"]) == list(names)
    x = np.random.default_rng(0).standard_normal(net.inputs[0].shape).astype(np.float32)
    for got, expected in zip(net.run({net.inputs[0].name: x}).values(),
                             best.run({best.inputs[0].name: x}).values(), strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
def test_a_context_is_not_prepared_again_while_its_threads_run(tmp_path: Path) -> None:
    best = first(TARGETS[host_arch()])
    compile_network(conv_net(tmp_path / "net.onnx"), tmp_path / "net", num_threads=2,
                    thread_tuning=False, target=f"{best},c99" if best != "c99" else best,
                    build_config=unoptimised())  # fmt: skip
    check_contexts_with_threads(tmp_path / "net" / "libnet.so", 2)
    check_forks_with_threads(tmp_path / "net" / "libnet.so", 2)


@pytest.mark.slow
def test_ranges_of_shapes_are_handed_on(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "net.onnx", batch="n")
    done = compile_network(path, tmp_path / "net", target=f"{first(TARGETS[host_arch()])},c99",
                           input_shape="x:1~6,3,8,8")  # fmt: skip
    net = atc.load(done.folder)
    alone = compile_network(path, tmp_path / "alone", target="c99", input_shape="x:1~6,3,8,8")
    expected = atc.load(alone.folder)
    for rows in (6, 1, 3):
        x = np.linspace(-1, 1, 192 * rows, dtype=np.float32).reshape(rows, 3, 8, 8)
        assert net(x).shape == expected(x).shape == (rows, 4)
        np.testing.assert_allclose(net(x), expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_the_project_builds_without_warnings_and_runs(cc: str, out: Path, tmp_path: Path) -> None:
    require(cc)
    folder = out / "all" / "net"
    build = cmake(folder, f"-DCMAKE_C_COMPILER={require(cc)}", "-DCMAKE_C_FLAGS=-Werror",
                  build=tmp_path / "build")  # fmt: skip
    net = atc.load(out / "best" / "net")
    x = np.random.default_rng(1).standard_normal(net.inputs[0].shape).astype(np.float32)
    x.tofile(tmp_path / "x.bin")
    printed = run_example(build / "net_example", tmp_path / "x.bin")
    for name, value in net.run({net.inputs[0].name: x}).items():
        np.testing.assert_allclose(printed[name], value.ravel(), rtol=1e-3, atol=1e-5)
    subprocess.run(["cmake", "--install", build, "--prefix", tmp_path / "there"], check=True,
                   capture_output=True)  # fmt: skip
    installed = {p.name for p in (tmp_path / "there").rglob("*") if p.is_file()}
    assert {"net.h", "libnet.a"} <= installed
    assert not any("c99" in name for name in installed)


@pytest.mark.slow
def test_c99_beside_a_foreign_target_is_that_processors(tmp_path: Path) -> None:
    require("aarch64-linux-gnu-gcc" if host_arch() == "x86_64" else "x86_64-linux-gnu-gcc")
    foreign = "aarch64-neon-dotprod" if host_arch() == "x86_64" else "x86-64-avx2"
    path = conv_net(tmp_path / "net.onnx")
    done = compile_network(path, tmp_path / "net", target=f"{foreign},c99", verify=True)
    assert (done.folder / "libnet.so").exists()


@pytest.mark.parametrize(
    ("target", "more", "message"),
    [
        ("c99,c99", {}, "listed twice"),
        ("c99,x87", {}, "unknown target 'x87'"),
        ("x86-64-avx2,aarch64-neon", {}, "several architectures"),
        ("c99,x86-64", {"profile": True}, "can't be combined"),
        ("cortex-m4f,c99", {}, "cortex-m4f has no operating system"),
    ],
)
def test_what_does_not_fit_is_refused(
    target: str, more: dict[str, bool], message: str, tmp_path: Path
) -> None:
    path = conv_net(tmp_path / "net.onnx")
    with pytest.raises(OptionError, match=message):
        compile_network(path, tmp_path / "out" / "net", target=target, **more)
    assert not (tmp_path / "out").exists()


def test_checks_are_those_of_each_target(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "net.onnx")
    options = Options(path, tmp_path / "net", target=",".join(TARGETS[host_arch()]))
    done = check_model(resolve_request(options))
    assert done.exit_status == 0
    assert done.target == TARGETS[host_arch()][0]
