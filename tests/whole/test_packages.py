"""What installs atc: its wheel and sdist outside of the checkout, the image, the hook."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

from atc.backends.toolchain.find_compiler import PACKAGES
from atc.backends.toolchain.probe import EMULATORS

ROOT = Path(__file__).parents[2]
PARTS = ("atc", "backends", "cache", "templates", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist, and the wheel that was made of it."""
    pytest.importorskip("build")
    source = tmp_path_factory.mktemp("source") / "atc"
    for name in PARTS:
        source.mkdir(exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        copy = shutil.copy if (ROOT / name).is_file() else shutil.copytree
        more = {} if (ROOT / name).is_file() else {"ignore": ignored}
        copy(ROOT / name, source / name, **more)  # type: ignore[operator]
    out = tmp_path_factory.mktemp("dist")
    quick = ["--installer=uv"] if shutil.which("uv") else []
    command = [sys.executable, "-m", "build", *quick, "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.mark.slow
def test_twine_finds_nothing_wrong(built: Path) -> None:
    pytest.importorskip("twine")
    files = [str(file) for file in built.iterdir()]
    assert {Path(f).suffix for f in files} == {".whl", ".gz"}
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)


@pytest.mark.slow
def test_an_installed_wheel_passes_the_smoke_tests(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {"atc/templates/packaging/js/index.mjs.j2", "atc/docs/doctor.md"} <= held
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q",
                    "--no-deps", "--no-index", str(wheel)], check=True)  # fmt: skip
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    others = Path(numpy.__file__).parents[1]  # where the packages lie that atc needs; read after
    (site / "others.pth").write_text(f"{others}\n")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    run = [str(python), "-c", "import atc; print(atc.__file__)"]
    reported = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert reported.stdout.startswith(str(site)), reported.stderr
    done = subprocess.run(
        [str(python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "--pyargs", "atc.smoke"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\b[6-9] passed", done.stdout)


def test_the_checkout_itself_can_be_imported() -> None:
    code = "import atc.backends, atc.cache.mode; print(atc.backends.__file__)"
    line = [sys.executable, "-S", "-c", code]  # without what is installed: its finders, too
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{ROOT / 'backends/__init__.py'}\n", "")


def test_the_image_has_the_tools_that_targets_name() -> None:
    text = (ROOT / "samples/docker/Dockerfile").read_text()
    installed = re.findall(r"apt-get install(.*?)&&", text, re.S)[0].replace("\\", "").split()
    wanted = {word for words in PACKAGES.values() for word in words.split()}
    assert wanted | set(EMULATORS.values()) <= set(installed)
    assert re.search(r"atc doctor --target=\S*cortex-m4f", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "status"), [(None, 0), pytest.param(b"nonsense", 1, marks=pytest.mark.slow)]
)
def test_the_hook_checks_each_model(content: bytes | None, status: int, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    model = tmp_path / "a model.onnx"
    model.write_bytes(content or (ROOT / "samples/digits.onnx").read_bytes())
    assert re.search(hook["files"], model.name)
    program = tmp_path / "bin/atc"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m atc "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    words = [*shlex.split(hook["entry"]), str(model)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
