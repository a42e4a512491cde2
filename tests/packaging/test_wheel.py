"""A network as a wheel: installed by pip where there is no atc, and its tags."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from projects import affine_model, reference, require

import atc
from atc.backends.target import host_arch
from atc.backends.toolchain.compiler import Compiler
from atc.errors import OptionError
from atc.packaging.wheel import distribution_name, platform_tag

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


def wheel(folder: Path, name: str = "net", **options: object) -> Path:
    onnx.save(affine_model(), folder / "model.onnx")
    options = {"target": "c99", **options}
    done = atc.compile(folder / "model.onnx", folder / name, wheel=True, **options)  # type: ignore[arg-type]
    (file,) = (done.folder / "dist").iterdir()
    return file


def site_of(folder: Path, packages: Iterable[str]) -> str:
    """Return a folder with just these of this environment's packages."""
    folder.mkdir()
    for name in packages:
        spec = importlib.util.find_spec(name)
        assert spec
        assert spec.origin
        origin = Path(spec.origin)
        place = origin.parent if origin.name == "__init__.py" else origin
        (folder / place.name).symlink_to(place)
        for libraries in place.parent.glob(f"{name}.libs"):
            (folder / libraries.name).symlink_to(libraries)
    return str(folder)


def run_installed(folder: Path, file: Path, script: str) -> str:
    """Install a wheel with pip into an environment with numpy and cffi, and run a script there."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index",
         "--no-deps", str(file)], check=True,
    )  # fmt: skip
    path = site_of(folder / "site", ["numpy", "cffi", "_cffi_backend", "pycparser"])
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path}, cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


SCRIPT = """
import importlib.util, numpy as np
assert importlib.util.find_spec("atc") is None
import MODULE
net = MODULE.load()
y, hidden = net(np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5))
print(*y.ravel(), *hidden.ravel())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module", "options"),
    [
        ("net", "net", {}),
        ("json", "net_json", {"external_weight": 2}),
        ("Net_2", "Net_2", {"target": "x86-64-avx2,x86-64,c99"}),
    ],
)
def test_it_runs_where_there_is_no_atc(
    name: str, module: str, options: dict[str, object], tmp_path: Path
) -> None:
    if "x86" in str(options) and host_arch() != "x86_64":
        pytest.skip("needs an x86-64")
    file = wheel(tmp_path, name, **options)
    printed = run_installed(tmp_path, file, SCRIPT.replace("MODULE", module))
    wanted = np.concatenate([w.ravel() for w in reference(affine_model(), X)])
    np.testing.assert_allclose([*map(float, printed.split())], wanted, rtol=1e-5)


def test_its_record_holds_and_equal_networks_are_equal_bytes(tmp_path: Path) -> None:
    first = wheel(tmp_path)
    content = first.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert archive.testzip() is None
        (record,) = [n for n in archive.namelist() if n.endswith("/RECORD")]
        rows = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        assert {row[0] for row in rows} == set(archive.namelist())
        for path, digest, size in rows[:-1]:
            data = archive.read(path)
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={sha}", len(data))
        assert any(row[0] == "net/libnet.so" for row in rows)
    assert wheel(tmp_path).read_bytes() == content


@pytest.mark.slow
def test_a_cross_compiled_network_has_the_tag_of_its_processor(tmp_path: Path) -> None:
    require("aarch64-linux-gnu-gcc")
    file = wheel(tmp_path, target="aarch64-neon")
    assert file.name.endswith("_aarch64.whl")
    assert "py3-none-manylinux_2_" in file.name


@pytest.mark.parametrize(
    ("machine", "library", "tag"),
    [
        ("x86_64-linux-gnu", b"", "manylinux_2_17_x86_64"),
        ("x86_64-linux-gnu", b"\0GLIBC_2.2.5\0GLIBC_2.34\0", "manylinux_2_34_x86_64"),
        ("aarch64-linux-gnu", b"GLIBC_2.27\0", "manylinux_2_27_aarch64"),
        ("arm-linux-gnueabihf", b"GLIBC_2.4\0", "manylinux_2_17_armv7l"),
        ("riscv64-linux-gnu", b"GLIBC_2.29\0", "manylinux_2_29_riscv64"),
        ("x86_64-alpine-linux-musl", b"", "musllinux_1_1_x86_64"),
        ("arm64-apple-darwin23.1.0", b"", "macosx_11_0_arm64"),
        ("x86_64-w64-mingw32", b"", "win_amd64"),
        ("x86_64-linux-gnu.2.28", b"GLIBC_2.28\0", "manylinux_2_28_x86_64"),
    ],
)
def test_tags(machine: str, library: bytes, tag: str) -> None:
    assert platform_tag(Compiler(("cc",), "gcc", "", machine), library) == tag


@pytest.mark.parametrize(
    ("network", "name"),
    [("digits", "atc-digits"), ("Res_50", "atc-res-50"), ("__x__", "atc-x"), ("_", "atc-net")],
)
def test_names_are_pips(network: str, name: str) -> None:
    assert distribution_name(network) == name


@pytest.mark.parametrize(
    ("options", "reported"),
    [({"target": "cortex-m4f"}, "cortex-m4f has no Python"),
     ({"external_weight": 1}, "--external_weight=1 can't be combined")],
)  # fmt: skip
def test_what_makes_no_wheel_is_refused(
    options: dict[str, object], reported: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=reported):
        wheel(tmp_path, **options)
    assert not (tmp_path / "net").exists()


@pytest.mark.slow
def test_twine_finds_nothing_wrong(tmp_path: Path) -> None:
    pytest.importorskip("twine")
    file = wheel(tmp_path)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(file)], check=True)
