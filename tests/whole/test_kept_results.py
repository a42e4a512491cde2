"""What default runs of the tests keep of what they compile."""

from __future__ import annotations

from pathlib import Path

import c_compiler
import pytest
from c_compiler import compile_in, keep_results_in

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
    c_compiler._version.cache_clear()
    assert compiled(compiler, a="5", b="3") == "5"
    assert compiled(compiler, a="4", b="3") == "4"
    assert runs(compiler) == 6


def test_what_fails_fails_again(compiler: Path) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError):
            compiled(compiler, a="wrong")
    assert runs(compiler) == 2
    assert not list(compiler.with_name("kept").iterdir())


def test_what_is_old_goes_first(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = compiler.with_name("kept")
    for text in "123":
        compiled(compiler, a=text)
    monkeypatch.setattr(c_compiler, "_MOST", sum(f.stat().st_size for f in kept.iterdir()) - 1)
    keep_results_in(kept)
    assert len(list(kept.iterdir())) == 2
