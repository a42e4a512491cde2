"""Objects: compiled once, by compilers that may begin before all of them are known."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_builds import Memory, kernels_of_vectors
from small_libraries import are_gone, environ, hanging_compiler
from waiting import happens

from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.compiler import compile_flags
from atc.backends.toolchain.find_compiler import find_compiler
from atc.build import objects
from atc.build.objects import BuildContext, Unit, compile_units, compiling, object_key
from atc.build.output_folder import Content
from atc.errors import ToolchainError

TREE = {
    "src/a.c": b"int a(void);\nint a(void) { return 1; }\n",
    "src/b.c": b"int b(void);\nint b(void) { return 2; }\n",
    "src/bad.c": b"nonsense here;\n",
}
A, B, BAD = (Unit(path, Path(path).stem) for path in TREE)


class Compilers:
    """A context whose commands are remembered."""

    def __init__(self, target: str = "c99", workers: int = 2) -> None:
        wanted = get_target(target)
        compiler = find_compiler(wanted, os.environ)
        self.commands: list[tuple[str, ...]] = []
        self.cache = Memory()
        self.context = BuildContext(
            wanted, compiler, compile_flags(compiler, wanted), self.cache, workers,
            self.commands.append,
        )  # fmt: skip

    def compiled(self) -> list[str]:
        return [c[c.index("-c") + 1] for c in self.commands if "-c" in c]


def test_what_was_begun_is_not_compiled_again(tmp_path: Path) -> None:
    compilers = Compilers()
    with compiling(tmp_path, compilers.context) as begun:
        begun.begin(A, TREE)
        begun.begin(A, TREE)
        count, made = compile_units(tmp_path, TREE, [A, B], compilers.context, begun=begun)
    assert sorted(compilers.compiled()) == ["src/a.c", "src/b.c"]
    assert (count, sorted(made)) == (2, ["src/a.c", "src/b.c"])
    again = Compilers()
    (tmp_path / "other").mkdir()
    assert compile_units(tmp_path / "other", TREE, [A, B], again.context)[1] == made


def test_what_has_other_text_now_is_compiled_again(tmp_path: Path) -> None:
    compilers, other = Compilers(), Compilers()
    changed = {**TREE, "src/a.c": TREE["src/a.c"].replace(b"1", b"7")}
    with compiling(tmp_path, compilers.context) as begun:
        begun.begin(A, TREE)
        _, made = compile_units(tmp_path, changed, [A], compilers.context, begun=begun)
    (tmp_path / "other").mkdir()
    assert compile_units(tmp_path / "other", changed, [A], other.context)[1] == made


def test_what_another_process_stored_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler that began writes no object over it."""
    compilers, whole = Compilers(), objects.compile_job

    def slow(*given: object, **more: object) -> Path:
        time.sleep(0.3)
        return whole(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "compile_job", slow)
    key = object_key(TREE, A, compilers.context)
    with compiling(tmp_path, compilers.context) as begun:
        begun.begin(A, TREE)
        compilers.cache.put(key, A.name, b"another's")
        count, made = compile_units(tmp_path, TREE, [A], compilers.context, begun=begun)
    assert (count, made) == (0, {})
    assert (tmp_path / "src/a.c.o").read_bytes() == b"another's"


def test_a_mistake_in_what_is_not_wanted_after_all_is_nobodys(tmp_path: Path) -> None:
    compilers = Compilers(workers=1)
    with compiling(tmp_path, compilers.context) as begun:
        begun.begin(BAD, TREE)
        assert compile_units(tmp_path, TREE, [A], compilers.context, begun=begun)[0] == 1
    assert compilers.compiled() == ["src/bad.c", "src/a.c"]


def test_a_mistake_is_reported_by_whoever_needs_the_object(tmp_path: Path) -> None:
    compilers = Compilers()
    with compiling(tmp_path, compilers.context) as begun:
        begun.begin(BAD, TREE)
        with pytest.raises(ToolchainError, match=r"bad\.c:1:1: error"):
            compile_units(tmp_path, TREE, [A, BAD], compilers.context, begun=begun)
    assert compilers.cache.objects == {}


def test_what_has_not_begun_at_the_end_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers, hold, started = Compilers(workers=1), threading.Event(), threading.Event()
    whole = objects.compile_job

    def held(*given: object, **more: object) -> Path:
        started.set()
        hold.wait(60)
        return whole(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "compile_job", held)
    with compiling(tmp_path, compilers.context) as begun:
        begun.begin(A, TREE)
        begun.begin(B, TREE)
        started.wait(60)
        threading.Timer(0.05, hold.set).start()
    assert compilers.compiled() == ["src/a.c"]


def test_an_interrupt_waits_for_no_compiler(tmp_path: Path) -> None:
    compilers = Compilers()
    hanging = find_compiler(get_target("c99"), environ(CC=hanging_compiler(tmp_path, "-c")))
    context = replace(compilers.context, compiler=hanging)
    begin: list[float] = []

    def interrupted() -> None:
        with compiling(tmp_path, context) as begun:
            begun.begin(A, TREE)
            assert happens((tmp_path / "children").exists)
            begin.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begin[0] < 60
    assert are_gone(tmp_path / "children")


def vectors(count: int) -> tuple[dict[str, bytes], list[Unit]]:
    tree: dict[str, Content]
    tree, units = kernels_of_vectors(count)
    return {p: t for p, t in tree.items() if isinstance(t, bytes)}, [*units[:count]]


@pytest.mark.skipif(host_target().arch != "x86_64", reason="the vectors here are AVX2's")
def test_headers_that_need_all_of_the_rest_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = Compilers("x86-64-avx2")
    if compilers.context.compiler.kind != "gcc":
        pytest.skip("other compilers read their headers whole")
    tree, units = vectors(1)
    without = ("-D_AVXINTRIN_H_INCLUDED",)  # AVX2's header needs the types of this one
    monkeypatch.setattr(objects, "without_unused_headers", lambda *given: without)
    _, made = compile_units(tmp_path, tree, units, compilers.context)
    first, second = (command for command in compilers.commands if "-c" in command)
    assert without[0] in first
    assert without[0] not in second
    monkeypatch.setattr(objects, "without_unused_headers", lambda *given: ())
    assert compile_units(tmp_path, tree, units, Compilers("x86-64-avx2").context)[1] == made


@pytest.mark.skipif(host_target().arch != "x86_64", reason="the vectors here are AVX2's")
def test_a_mistake_in_a_kernel_of_vectors_is_the_compilers_word(tmp_path: Path) -> None:
    tree, units = vectors(1)
    tree[units[0].path] += b"nonsense here;\n"
    with pytest.raises(ToolchainError, match=r"k0\.c:\d+:1: error"):
        compile_units(tmp_path, tree, units, Compilers("x86-64-avx2").context)
