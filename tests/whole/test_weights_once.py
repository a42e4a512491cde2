"""Large weights stand in the shared library alone: all that is made of its folder still works."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from projects import STRICT, affine_model, cmake, reference, require, run_example

import atc
from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.build.objects import BuildContext
from atc.build.place_in import place_in
from atc.build.sdk import make_sdk, weights_of
from atc.cli.main import main
from atc.errors import InternalError
from atc.files.blob import Blob

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


@pytest.fixture(params=["whole", "stand-in"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any weights count as large; also for the tools, which then get a stand-in."""
    if not find_compiler(host_target(), {}).elf:
        pytest.skip("no ELF here")
    monkeypatch.setattr("atc.pipeline.writing.ONCE", 64)
    if request.param == "stand-in":
        monkeypatch.setattr("atc.build.library.LARGE", 64)


def compiled(folder: Path, name: str = "net", seed: int = 0, **options: Any) -> Path:
    onnx.save(affine_model(seed=seed), folder / f"{name}.onnx")
    return atc.compile(folder / f"{name}.onnx", folder / name, **options).folder


def copies(folder: Path, weights: bytes) -> list[str]:
    """Return the files that hold some weights."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return sorted(p.name for p in files if weights in p.read_bytes())


def assert_right(printed: dict[str, list[float]], seed: int = 0) -> None:
    for name, wanted in zip(("y", "hidden"), reference(affine_model(seed=seed), X), strict=True):
        np.testing.assert_allclose(printed[name], wanted.ravel(), rtol=1e-4)


def test_one_file_holds_the_weights(large: None, tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    weights = weights_of(folder)
    assert len(weights) >= 64
    assert copies(folder, weights) == ["libnet.so"]
    y, hidden = atc.load(folder)(X)
    assert_right({"y": y.ravel(), "hidden": hidden.ravel()})
    assert main(["verify", str(folder), f"--model={tmp_path / 'net.onnx'}"]) == 0


def test_small_weights_stay_beside_their_sources(tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    assert copies(folder, weights_of(folder)) == ["libnet.a", "libnet.so", "net_weights.bin"]


def test_a_program_takes_the_static_library_and_the_assembler_file(
    large: None, tmp_path: Path
) -> None:
    """In a folder where another library of that name lies, and which alone is enough at last."""
    folder = compiled(tmp_path)
    (tmp_path / "user").mkdir()
    (tmp_path / "user/libnet.so").write_bytes(bytes(100_000))
    command = [
        require("cc"), *STRICT, f"-I{folder}", f"-I{folder}/include",
        str(folder / "example/main.c"), str(folder / "net_weights.S"), str(folder / "libnet.a"),
        "-lm", "-static", "-o", "main",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path / "user", check=True)
    folder.rename(tmp_path / "gone")
    X.tofile(tmp_path / "x.bin")
    assert_right(run_example(tmp_path / "user/main", tmp_path / "x.bin"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("-DNET_WEIGHTS_AS_TEXT=ON",), marks=pytest.mark.slow)],
)
def test_the_project_takes_them_from_the_library(
    options: tuple[str, ...], large: None, tmp_path: Path
) -> None:
    folder = compiled(tmp_path)
    weights = weights_of(folder)
    X.tofile(tmp_path / "x.bin")
    build = cmake(folder, *options, f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'there'}")
    assert_right(run_example(build / "net_example", tmp_path / "x.bin"))
    # A second time its own library, in the folder that the assembler works in, is there too.
    (folder / "net_weights.S").touch()
    assert_right(run_example(cmake(folder, *options) / "net_example", tmp_path / "x.bin"))
    subprocess.run([require("cmake"), "--install", build], check=True, capture_output=True)
    assert "libnet.a" in copies(tmp_path / "there", weights)


def test_it_is_not_built_over_the_library_that_it_reads(large: None, tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    before = (folder / "libnet.so").read_bytes()
    done = subprocess.run([require("cmake"), "-S", folder, "-B", folder], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode != 0
    assert "holds the weights" in done.stderr
    assert (folder / "libnet.so").read_bytes() == before


def test_a_wheel_and_a_kept_build_hold_what_they_need(large: None, tmp_path: Path) -> None:
    folder = compiled(tmp_path, wheel=True, keep_build=True, build_dir=tmp_path / "build")
    with zipfile.ZipFile(next(folder.glob("dist/*.whl"))) as archive:
        assert {"net/__init__.py", "net/libnet.so"} <= set(archive.namelist())
    assert not list(folder.glob("*_weights.bin"))
    assert atc.load(folder)(X)[0].shape == (2, 3)


@pytest.mark.slow
def test_networks_of_an_sdk_and_of_several_targets(large: None, tmp_path: Path) -> None:
    folders = [compiled(tmp_path, f"net{k}", k, target="c99") for k in (0, 1)]
    target = get_target("c99")
    compiler = find_compiler(target, {})

    class NoCache:
        prefetch = get = put = staticmethod(lambda *_, **__: None)

    context = BuildContext(target, compiler, (), NoCache(), 1)
    sdk = make_sdk(tmp_path / "all", folders, context)
    for k, folder in enumerate(folders):
        weights = weights_of(folder)
        assert weights in (sdk.folder / "liball.so").read_bytes()
        assert weights in (sdk.folder / f"net{k}_weights.bin").read_bytes()
    joined = compiled(tmp_path, target=f"{host_target().name},c99")
    y, hidden = atc.load(joined)(X)
    assert_right({"y": y.ravel(), "hidden": hidden.ravel()})


@pytest.mark.parametrize("more", [{"wrappers": ("rust",)}, {"external_weight": 2}])
def test_what_others_link_stays_whole(more: dict[str, Any], large: None, tmp_path: Path) -> None:
    folder = compiled(tmp_path, **more)
    assert (folder / "net_weights.bin").is_file()


@pytest.mark.slow
def test_an_emulated_processor_runs_it(large: None, tmp_path: Path) -> None:
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"):
        require(tool)
    folder = compiled(tmp_path, target="aarch64-neon")
    assert not list(folder.glob("*_weights.bin"))
    assert main(["verify", str(folder), f"--model={tmp_path / 'net.onnx'}"]) == 0


def test_the_place_of_a_blob_is_where_all_of_it_lies(tmp_path: Path) -> None:
    parts = (bytes(64), b"a" * 5000, b"b" * 100)
    file = tmp_path / "file"
    file.write_bytes(bytes(640) + b"a" * 5000 + bytes(77) + b"".join(parts) + b"rest")
    assert place_in(file, Blob(parts)) == 640 + 5000 + 77
    assert place_in(file, Blob((b"rest",))) == file.stat().st_size - 4
    with pytest.raises(InternalError, match="doesn't hold"):
        place_in(file, Blob((*parts, b"other")))
