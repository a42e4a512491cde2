"""What default runs of the tests keep of what they compile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import c_compiler
import default_run
import pytest
from c_compiler import compile_in, keep_results_in
from default_run import compile_quickly

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "$0"; exit; fi
echo run >>"${0%/*}/runs"
! grep -q wrong "$2" && cat "$2" >"$1"
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a compiler that copies, and notes that it ran; results are kept beside it."""
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv(c_compiler._RESULTS, "")
    keep_results_in(tmp_path / "kept")
    path = tmp_path / "cc"
    path.write_text(COMPILER)
    path.chmod(0o755)
    return path


def compiled(compiler: Path, *words: str, **files: str) -> str:
    folder = compiler.with_name("sources")
    folder.mkdir(exist_ok=True)
    (folder / "lib.so").unlink(missing_ok=True)
    for name, text in files.items():
        (folder / f"{name}.c").write_text(text)
    compile_in(folder, [str(compiler), "lib.so", "a.c", *words], "lib.so")
    return (folder / "lib.so").read_text()


def runs(compiler: Path) -> int:
    return len(compiler.with_name("runs").read_text().split())


def test_a_result_is_kept_for_equal_files_words_and_compilers(compiler: Path) -> None:
    assert compiled(compiler, a="1", b="2") == compiled(compiler, a="1", b="2") == "1"
    assert runs(compiler) == 1
    assert compiled(compiler, a="1", b="3") == "1"
    assert compiled(compiler, "-O1", a="1", b="3") == "1"
    assert compiled(compiler, a="4", b="3") == "4"
    assert runs(compiler) == 4
    compiler.write_text(COMPILER.replace("cat", "tac"))
    c_compiler.compiler_version.cache_clear()
    assert compiled(compiler, a="5", b="3") == "5"
    assert compiled(compiler, a="4", b="3") == "4"
    assert runs(compiler) == 6


def test_what_fails_fails_again(compiler: Path) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError):
            compiled(compiler, a="wrong")
    assert runs(compiler) == 2
    assert not list(compiler.with_name("kept").iterdir())


def test_the_folder_may_go_meanwhile(compiler: Path) -> None:
    compiler.with_name("kept").rmdir()
    assert compiled(compiler, a="1") == compiled(compiler, a="1") == "1"
    assert runs(compiler) == 1


def test_what_is_old_goes_first(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = compiler.with_name("kept")
    for text in "123":
        compiled(compiler, a=text)
    monkeypatch.setattr(c_compiler, "_MOST", sum(f.stat().st_size for f in kept.iterdir()) - 1)
    keep_results_in(kept)
    assert len(list(kept.iterdir())) == 2


QUICK = """#!/bin/sh
echo run >>"{runs}"
! grep -q wrong src/a.c && cat src/a.c src/a.h >src/a.c.o
"""


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of a run; what a run sets in the environment is set back later."""
    for name in ("CC", "ATC_CONFIG", default_run._VARIABLE, default_run._TCC):
        monkeypatch.setenv(name, "")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_objects_of_the_onnx_backend_are_kept(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, tools, project = (tmp_path / n for n in ("kept", "tools", "atc-tmp-backend-a"))
    for folder in (kept, tools, project / "src"):
        folder.mkdir(parents=True)
    (tools / "cc").write_text(QUICK.format(runs=tmp_path / "runs"))
    (tools / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("PWD", str(project))
    monkeypatch.setenv(c_compiler._RESULTS, str(kept))

    def run(version: bytes, source: str, header: str, *words: str) -> tuple[int, int]:
        """Compile; return the status and how often the compiler ran so far."""
        compile_quickly(run_folder, None, version)
        (project / "src/a.c").write_text(source)
        (project / "src/a.h").write_text(header)
        (project / "src/a.c.o").unlink(missing_ok=True)
        command = [os.environ["CC"], *words, "-c", "src/a.c", "-o", "src/a.c.o"]
        status = subprocess.run(command, cwd=project, check=False).returncode
        assert status or (project / "src/a.c.o").read_text() == source + header
        return status, len((tmp_path / "runs").read_text().split())

    assert run(b"1", "a", "b") == run(b"1", "a", "b", f"-ffile-prefix-map={project}=.") == (0, 1)
    assert run(b"1", "a", "c") == run(b"1", "a", "c") == (0, 2)
    assert run(b"1", "b", "c") == (0, 3)
    assert run(b"1", "a", "b", "-DX") == (0, 4)
    assert run(b"2", "a", "b") == (0, 5)
    assert [run(b"2", "wrong", "b")[1] for _ in range(2)] == [6, 7]


@pytest.mark.parametrize(("mode", "used"), [(0o755, True), (0o777, False)])
def test_kernels_are_kept_where_nobody_else_may_write(
    mode: int, used: bool, run_folder: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kernels"
    kept.mkdir()
    kept.chmod(mode)
    times = kept / "algo_cache/times.json"
    times.parent.mkdir()
    times.write_text("{}")
    compile_quickly(run_folder, kept, b"")
    named = (run_folder / "atc.cfg").read_text().split("op_compiler_cache_dir=")[1].strip()
    assert (named == str(kept)) is used
    assert (run_folder / "atc/cache.key").exists() is used
    assert not times.exists()  # what was measured is measured again


FAKE = """#!/bin/sh
printf '{said}'
while [ "$1" != -o ]; do shift; done
echo '{content}' >"$2"
"""


@pytest.mark.parametrize(
    ("said", "content", "words", "used"),
    [
        ("", "of tcc", "-std=c99 -O2 -c src/a.c", "of tcc"),
        ("", "of tcc", "-std=c99 -O2 -c src/kernels/a_01.c", "of tcc"),
        ("", "of tcc", "-std=c99 -O2 -c src/kernels/a_10.c", "of cc"),  # of those that cc checks
        ("warning", "of tcc", "-std=c99 -O2 -c src/a.c", "of cc"),
        ("", "__floatundisf", "-std=c99 -O2 -c src/a.c", "of cc"),
        ("", "of tcc", "-std=c99 -mavx2 -c src/a.c", "of tcc"),
        ("", "of tcc", "-std=c99 -mavx2 -c src/vectors.c", "of cc"),
        ("", "of tcc", "-std=c99 -fsanitize=address -c src/a.c", "of cc"),
        ("", "of tcc", "-x c++ -c src/a.cu", "of cc"),
    ],
)
def test_portable_c_goes_to_tcc(
    said: str, content: str, words: str, used: str, run_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (
        ("tcc", FAKE.format(said=said, content=content)),
        ("cc", FAKE.format(said="", content="of cc")),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/vectors.c").write_text('#include "simd.h"\n')
    monkeypatch.setenv(default_run._TCC, str(tools / "tcc"))
    compile_quickly(run_folder, None, b"")
    command = [os.environ["CC"], *words.split(), "-o", "a.o"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "a.o").read_text().strip() == used
