"""What comes out for processors without an operating system, for Windows and for WebAssembly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from onnx import helper
from projects import F32, affine_model, emit_model, make_model, require

import atc
from atc.backends.targets import get_target
from atc.codegen.weights import weights_text
from atc.errors import ToolchainError
from atc.files.blob import Blob
from atc.tools.modes import network_info

ROOT = Path(__file__).parents[2]
KEYWORDS = ROOT / "samples/keywords.onnx"


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4f", "cortex-m55"])
def test_a_bare_target_gets_a_static_library_alone(target: str, tmp_path: Path) -> None:
    require("arm-none-eabi-gcc")
    done = atc.compile(KEYWORDS, tmp_path / "kws", target=target)
    assert (done.folder / "libkws.a").is_file()
    assert not [*done.folder.glob("*.so"), *done.folder.glob("*.py")]
    nm = [require("arm-none-eabi-nm"), "-g", "--defined-only", "libkws.a"]
    said = subprocess.run(nm, cwd=done.folder, capture_output=True, text=True, check=True).stdout
    assert " T kws_run\n" in said
    assert "touch" not in (done.folder / "src/kws.c").read_text()  # there are no pages


@pytest.mark.usefixtures("without_zig")
def test_a_missing_compiler_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainError, match="cortex-m4f") as caught:
        atc.compile(KEYWORDS, tmp_path / "kws", target="cortex-m4f")
    assert "apt install gcc-arm-none-eabi" in caught.value.hint
    assert not (tmp_path / "kws").exists()


@pytest.mark.slow
def test_the_bare_project_builds_with_cmake(tmp_path: Path) -> None:
    require("arm-none-eabi-gcc")
    cmake, ninja = require("cmake"), require("ninja")
    folder = atc.compile(KEYWORDS, tmp_path / "kws", target="cortex-m4f").folder
    options = [
        "-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_COMPILER=arm-none-eabi-gcc",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'there'}",
    ]  # fmt: skip
    build = ["-S", str(folder), "-B", str(tmp_path / "b"), "-G", "Ninja"]
    for words in ([*build, *options], ["--build", tmp_path / "b"], ["--install", tmp_path / "b"]):
        done = subprocess.run([cmake, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "there/lib/libkws.a").is_file()


@pytest.mark.parametrize(
    "target", ["x86-64", pytest.param("x86-64-avx2,c99", marks=pytest.mark.slow)]
)
def test_windows_libraries_are_dlls(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", require("x86_64-w64-mingw32-gcc"))
    folder = atc.compile(KEYWORDS, tmp_path / "kws", target=target).folder
    assert (folder / "kws.dll").read_bytes()[:2] == b"MZ"
    assert not [*folder.rglob("lib*.so")]
    assert "," in target or "atc=" in network_info(folder)
    assert '"kws.dll" if os.name == "nt"' in (folder / "kws.py").read_text()


def test_weights_as_text_are_the_blob_in_webassembly(tmp_path: Path) -> None:
    blob = Blob((bytes(range(256)), b"\xff" * 72))
    text = weights_text("net", blob, get_target("wasm32-simd128"))
    (tmp_path / "w.c").write_text(text.replace('"hidden"', '"default"'))
    flags = ["--target=wasm32", "-std=c99", "-Wpedantic", "-Werror", "-ffreestanding", "-nostdlib"]
    link = ["-Wl,--no-entry", "-Wl,--export=net_weights_data"]
    require("wasm-ld")
    command = [require("clang"), *flags, *link, "w.c", "-o", "w.wasm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "read.mjs").write_text(
        "import { readFileSync } from 'fs';\n"
        "const { instance } = await WebAssembly.instantiate(readFileSync('w.wasm'));\n"
        "const { memory, net_weights_data } = instance.exports;\n"
        f"const data = new Uint8Array(memory.buffer, net_weights_data.value, {blob.size});\n"
        "process.stdout.write(data);\n"
    )
    command = [require("node"), "read.mjs"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    assert said == b"".join(blob.parts)


def test_webassembly_gets_its_weights_as_text() -> None:
    files = emit_model(affine_model(), target="wasm32-simd128").files
    assert "  net_weights.c\n" in files["CMakeLists.txt"].decode()
    assert "cmake/net_weights.c.in" not in files


@pytest.mark.parametrize("target", ["c99", "cortex-m4f", "wasm32-simd128", "cuda-emulated"])
@pytest.mark.parametrize("weights", ["none", "inside", "external"])
def test_a_readme_has_no_double_blank(target: str, weights: str) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    plain = make_model([relu], [("x", F32, (3,))], [("y", F32, (3,))])
    model = plain if weights == "none" else affine_model()
    emission = emit_model(model, target=target, external=weights == "external")
    text = emission.files["README.md"].decode()
    assert "\n\n\n" not in text
    prose = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not [line for line in prose if "  " in line or line != line.rstrip()]
