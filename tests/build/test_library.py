from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from small_builds import Memory, kernels_of_vectors

from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.compiler import Compiler, compile_flags
from atc.backends.toolchain.compiling import Job
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.processes import Log
from atc.build.library import BuildResult, build_library, work_folder
from atc.build.objects import BuildContext, ObjectCache, RemoteJob, Unit, compile_units
from atc.build.output_folder import MANIFEST, Content, check_folder, write_tree
from atc.cache import open_cache
from atc.codegen.weights import included_weights
from atc.errors import InternalError, OptionError, ToolchainError
from atc.files.blob import Blob
from atc.files.locked import locked
from atc.files.temporary import temporary_folder

FILES = {"README.md": b"one", "src/a.c": b"a", "src/kernels/k.c": b"k", "libnet.so": b"\x7fELF"}


def content(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def ours(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in content(folder).items() if path != MANIFEST}


# -------------------------------------------------------------------------- the output folder


def test_a_tree_is_written_with_folders_above_it(tmp_path: Path) -> None:
    write_tree(FILES, tmp_path / "x/y/net")
    assert ours(tmp_path / "x/y/net") == FILES
    assert os.listdir(tmp_path / "x/y") == ["net"]


def test_a_relative_folder_and_the_working_folder_itself_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tree(FILES, Path("net"))
    assert ours(tmp_path / "net") == FILES
    monkeypatch.chdir(tmp_path / "net")
    write_tree({"new": b"1"}, Path("."))
    assert ours(tmp_path / "net") == {"new": b"1"}
    assert Path.cwd() == tmp_path / "net"


def test_a_second_output_replaces_the_first_and_keeps_foreign_files(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    write_tree(FILES, folder)
    foreign = {"notes.txt": b"mine", "src/mine.c": b"mine", "build/x": b"mine"}
    for path, data in foreign.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
    new = {"README.md": b"two", "src/b.c": b"b"}
    write_tree(new, folder)
    assert ours(folder) == {**new, **foreign}
    assert not (folder / "src/kernels").exists()
    write_tree({}, folder)
    assert ours(folder) == foreign


def test_the_same_files_are_the_same_bytes_again(tmp_path: Path) -> None:
    write_tree(FILES, tmp_path / "one")
    write_tree({"other": b""}, tmp_path / "two")
    write_tree(dict(reversed(FILES.items())), tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.parametrize("place", ["file", "file/net", "link"])
def test_a_folder_that_cannot_be_made_is_reported_beforehand(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OptionError, match=r"is a file \[--output\]"):
        check_folder(tmp_path / place, "--output")
    check_folder(tmp_path / "new/folder", "--output")
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.getcwd", Path("nowhere").stat)  # raises FileNotFoundError
    with pytest.raises(OptionError, match=r"net: the current folder is gone \[--output\]"):
        check_folder(Path("net"), "--output")
    check_folder(tmp_path / "net", "--output")


def test_a_file_that_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.c").write_bytes(b"precious")
    with pytest.raises(OptionError, match=r"src/a\.c exists and was not written by atc"):
        write_tree(FILES, tmp_path)
    assert content(tmp_path) == {"src/a.c": b"precious"}


@pytest.mark.parametrize("there", [False, True])
def test_writers_of_one_folder_take_turns(tmp_path: Path, there: bool) -> None:
    """Whoever is last, the folder is one's as a whole, and none is refused for another's files."""
    folder = tmp_path / "net"
    trees = [
        {name: f"{k}".encode() for name in ("net.h", f"own{k}.c", *(f"f{n}" for n in range(20)))}
        for k in range(6)
    ]
    if there:
        write_tree(trees[0], folder)

    def write(k: int) -> None:
        for _ in range(5):
            write_tree(trees[k], folder)

    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(write, range(len(trees))))
    left = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != MANIFEST}
    assert left in trees
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


def test_a_writers_own_temporary_folder_is_no_other_process() -> None:
    with temporary_folder("test") as place:
        for _ in range(2):
            write_tree(FILES, place / "net", patience=0.05)


def test_a_folder_that_another_process_keeps_is_waited_for_in_vain(tmp_path: Path) -> None:
    write_tree(FILES, tmp_path / "net")
    with locked(tmp_path / "net"), pytest.raises(OptionError, match="another process is writing"):
        write_tree(FILES, tmp_path / "net", patience=0.05)
    write_tree(FILES, tmp_path / "net")


def test_a_folder_in_the_place_of_a_former_output_file_is_kept(tmp_path: Path) -> None:
    write_tree({"old": b"", "a": b""}, tmp_path)
    for name in ("old", "a"):
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_bytes(b"!")
    with pytest.raises(OptionError, match="a exists and was not written"):
        write_tree({"a": b"new"}, tmp_path)
    write_tree({"b": b"new"}, tmp_path)
    assert ours(tmp_path) == {"b": b"new", "old/precious": b"!", "a/precious": b"!"}


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "{}", '{"files": 3}', '{"files": [3]}', '{"files": ["../precious"]}', "\xff"],
)
def test_a_damaged_manifest_deletes_nothing(manifest: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"!")
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "kept").write_bytes(b"!")
    (folder / MANIFEST).write_text(manifest, "latin-1")
    write_tree(FILES, folder)
    assert ours(folder) == {**FILES, "kept": b"!"}
    assert (tmp_path / "precious").read_bytes() == b"!"


@pytest.mark.parametrize(
    "path", ["/etc/x", "../x", "a/../../x", "a//b", "./a", "", ".", "a\\b", "a\0b", "c:x", MANIFEST]
)
def test_no_path_leads_out_of_the_folder(path: str, tmp_path: Path) -> None:
    with pytest.raises(InternalError):
        write_tree({"fine": b"", path: b"x"}, tmp_path / "net")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["file", "file/net", "file/a/net", "nul\0", "long" * 100, "dangling"]
)
def test_a_folder_that_cannot_be_is_a_wrong_option(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"!")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OptionError) as caught:
        write_tree(FILES, tmp_path / name)
    assert name.split("\0")[0] in str(caught.value)
    assert content(tmp_path) == {"file": b"!"}
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_closed_to_us_is_a_wrong_option(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError, match="Permission denied"):
        write_tree(FILES, tmp_path / "net")
    with pytest.raises(OptionError, match="Permission denied"):
        write_tree(FILES, tmp_path)
    tmp_path.chmod(0o700)


NEW = {"README.md": b"two", "src/a.c": b"a2", "src/kernels/k2.c": b"k2"}


class Trap:
    """Stands in for a method of Path and raises `error` in its n-th call."""

    def __init__(self, method: Callable[..., object], nth: int, error: BaseException) -> None:
        self.method, self.left, self.error = method, nth, error

    def __get__(self, path: Path, owner: object) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            self.left -= 1
            if self.left == 0:
                raise self.error
            return self.method(path, *arguments, **keywords)

        return call


@pytest.mark.parametrize("method", ["write_bytes", "rename", "mkdir"])
@pytest.mark.parametrize("before", [None, FILES], ids=["no folder", "former output"])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), OptionError),
    ],
    ids=["interrupt", "disk full"],
)
def test_whatever_goes_wrong_all_is_as_it_was(
    method: str,
    before: dict[str, bytes] | None,
    error: BaseException,
    seen: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "a/net"
    if before is not None:
        write_tree(before, folder)
        (folder / "mine").write_bytes(b"mine")
    old = content(tmp_path)
    failures = 0
    for nth in range(1, 50):
        trap = Trap(getattr(Path, method), nth, error)
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, trap)
            try:
                write_tree(NEW, folder)
                break
            except seen:
                failures += 1
        assert content(tmp_path) == old
        assert os.listdir(tmp_path) == (["a"] if before is not None else [])
    assert trap.left > 0, "never got past the trap"
    assert failures >= (1 if before is None else 2)
    assert ours(folder) == {**NEW, **({"mine": b"mine"} if before is not None else {})}


# ------------------------------------------------------------------------------- the library

TREE = {
    "src/simd.h": b"#define FACTOR 2\n",
    "src/net.c": b"int twice(int x);\n"
    b'__attribute__((visibility("default"))) int net_run(int x);\n'
    b"int net_run(int x) { return twice(x); }\n",
    "src/kernels/twice.c": b'#include "../simd.h"\n'
    b"int twice(int x);\nint twice(int x) { return x * FACTOR; }\n",
    "src/net_weights.S": included_weights("net", "net_weights.bin").encode(),
    "net_weights.bin": bytes(range(256)),
    "README.md": b"not compiled",
}
UNITS = (
    Unit("src/net.c", "schedule"),
    Unit("src/kernels/twice.c", "twice", ("src/simd.h",)),
    Unit("src/net_weights.S", "weights", ("net_weights.bin",), cacheable=False),
)


class Build:
    """A build that counts the compilations, with whatever differs from the plain one."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.commands: list[tuple[str, ...]] = []
        self.seen: list[tuple[int, int]] = []

    def __call__(
        self,
        cache: ObjectCache,
        tree: Mapping[str, Content] = TREE,
        units: tuple[Unit, ...] = UNITS,
        level: str = "O2",
        workers: int = 2,
        target: str = "c99",
        parse_from: int = 6,
    ) -> tuple[dict[str, bytes], BuildResult]:
        self.commands.clear()
        self.seen.clear()
        wanted = get_target(target)
        flags = compile_flags(self.compiler, wanted, level)
        context = BuildContext(
            wanted, self.compiler, flags, cache, workers, self.commands.append,
            parse_from=parse_from,
        )  # fmt: skip
        with work_folder() as cwd:
            libraries, result = build_library(
                cwd,
                tree,
                units,
                "net",
                context,
                lambda done, total: self.seen.append((done, total)),
            )
            return {path: file.read_bytes() for path, file in libraries.items()}, result

    def compiled(self) -> list[str]:
        started = [command for command in self.commands if "-c" in command]
        sources = (command[command.index("-c") + 1] for command in started)
        return sorted(source for source in sources if source.endswith(".c"))


@pytest.fixture
def build() -> Build:
    return Build(find_compiler(host_target(), os.environ))


def test_large_data_makes_the_same_libraries(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    source = b"extern const unsigned char net_weights_data[];\n" + TREE["src/net.c"].replace(
        b"twice(x);", b"twice(x) + net_weights_data[x];"
    )
    parts = (bytes(range(256)), bytes(64), b"w" * 128)
    tree = {**TREE, "src/net.c": source, "net_weights.bin": Blob(parts)}
    ordinary, _ = build(Memory(), tree)
    assert b"".join(parts) in ordinary["libnet.so"]
    monkeypatch.setattr("atc.build.library.LARGE", 64)
    assert build(Memory(), tree)[0] == ordinary
    joined = " ".join(word for command in build.commands for word in command)
    assert not build.compiler.elf or "stand_in/src/net_weights.S.o" in joined


def test_the_library_works_and_the_archive_is_one(build: Build, tmp_path: Path) -> None:
    files, result = build(Memory())
    assert sorted(files) == ["libnet.a", "libnet.so"]
    (tmp_path / "libnet.so").write_bytes(files["libnet.so"])
    assert ctypes.CDLL(str(tmp_path / "libnet.so")).net_run(21) == 42
    assert files["libnet.a"].startswith(b"!<arch>\n")
    assert TREE["net_weights.bin"] in files["libnet.so"]
    assert (result.compiled, result.cached) == (2, 0)
    assert sorted(result.objects) == ["src/kernels/twice.c", "src/net.c"]
    assert build.seen == [(0, 2), (1, 2), (2, 2)]


def test_what_is_cached_is_not_compiled(build: Build) -> None:
    cache = Memory()
    first, _ = build(cache)
    second, result = build(cache)
    assert build.compiled() == []
    assert (result.compiled, result.cached) == (0, 2)
    assert second == first


@pytest.mark.parametrize("repeatable", [False, True])
def test_sources_are_written_where_they_are_compiled_or_kept(
    build: Build, tmp_path: Path, repeatable: bool
) -> None:
    cache = Memory()
    build(cache, units=UNITS[1:])
    target = get_target("c99")
    flags = compile_flags(build.compiler, target)
    context = BuildContext(target, build.compiler, flags, cache, 1)
    build_library(tmp_path, TREE, UNITS, "net", context, repeatable=repeatable)
    written = content(tmp_path)
    assert {"src/net.c", "src/kernels/twice.c.o"} <= {*written}
    assert ("src/kernels/twice.c" in written, "src/simd.h" in written) == (repeatable, repeatable)


class Elsewhere:
    """A farm that notes what it is asked for and leaves all of it."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def compile(
        self, jobs: Sequence[RemoteJob], progress: Callable[[int], None]
    ) -> list[bytes | None]:
        self.sources += [job.source for job in jobs]
        return [None] * len(jobs)


def test_what_includes_data_is_compiled_here(build: Build, tmp_path: Path) -> None:
    """As for compilers whose objects aren't ELF, where it is one of the sources."""
    target, farm = get_target("c99"), Elsewhere()
    flags = (*compile_flags(build.compiler, target), "-I.")
    context = BuildContext(target, build.compiler, flags, Memory(), 1, farm=farm)
    texts = {path: data for path, data in TREE.items() if path != "net_weights.bin"}
    (tmp_path / "src").mkdir()
    (tmp_path / "net_weights.bin").write_bytes(TREE["net_weights.bin"])
    (tmp_path / "src/net_weights.S").write_bytes(TREE["src/net_weights.S"])
    compiled, _ = compile_units(tmp_path, texts, UNITS, context)
    assert compiled == 3
    assert (tmp_path / "src/net_weights.S.o").is_file()
    assert farm.sources == ["src/net.c", "src/kernels/twice.c"]


def test_an_object_is_cached_on_disk_from_one_run_to_the_next(build: Build, tmp_path: Path) -> None:
    units = UNITS[:2]
    for compiled in (["src/kernels/twice.c", "src/net.c"], []):
        with open_cache(
            "enable", tmp_path, "c99", versions={}, environ=os.environ, warn=pytest.fail
        ) as cache:
            _, result = build(cache, units=units)
            assert build.compiled() == compiled
            assert (result.compiled, result.cached) == (len(compiled), 2 - len(compiled))


@pytest.mark.parametrize(
    ("change", "compiled"),
    [
        ({"tree": {**TREE, "README.md": b"new"}}, []),
        ({"tree": {**TREE, "src/simd.h": b"#define FACTOR 3\n"}}, ["src/kernels/twice.c"]),
        ({"tree": {**TREE, "src/net.c": TREE["src/net.c"] + b"\n"}}, ["src/net.c"]),
        ({"level": "O1"}, ["src/kernels/twice.c", "src/net.c"]),
        ({"target": "x86-64"}, ["src/kernels/twice.c", "src/net.c"]),
        ({"workers": 1}, []),
    ],
    ids=["nothing", "header", "source", "flags", "target", "workers"],
)
def test_what_changed_is_compiled_again(
    change: dict[str, object], compiled: list[str], build: Build
) -> None:
    cache = Memory()
    build(cache)
    build(cache, **change)  # type: ignore[arg-type]
    assert build.compiled() == compiled


def test_another_compiler_compiles_again(build: Build) -> None:
    cache = Memory()
    build(cache)
    own = build.compiler
    build.compiler = Compiler((*own.argv, "-g0"), own.kind, own.version, own.machine)
    build(cache)
    assert len(build.compiled()) == 2


def test_flags_of_a_unit_come_last_and_count_for_its_key(build: Build) -> None:
    cache = Memory()
    build(cache)
    debugged = (UNITS[0], replace(UNITS[1], flags=("-O0",)), UNITS[2])
    build(cache, units=debugged)
    assert build.compiled() == ["src/kernels/twice.c"]
    (command,) = (c for c in build.commands if "src/kernels/twice.c" in c)
    assert command.index("-O0") > command.index("-O2")


def test_a_unit_under_debugging_is_neither_taken_nor_stored(build: Build) -> None:
    cache = Memory()
    debugged = (UNITS[0], Unit("src/kernels/twice.c", "twice", ("src/simd.h",), bypass=True))
    build(cache, units=debugged)
    assert [name.split()[0] for name in cache.objects] == ["schedule"]
    build(cache, units=debugged)
    assert build.compiled() == ["src/kernels/twice.c"]


def test_the_bytes_are_the_same_with_one_worker_and_in_any_temporary_folder(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = build(Memory(), workers=1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    second, _ = build(Memory(), workers=2)
    assert first == second
    assert os.listdir(tmp_path) == []


def test_an_undeclared_include_is_not_seen(build: Build) -> None:
    units = (UNITS[0], Unit("src/kernels/twice.c", "twice"))
    with pytest.raises(ToolchainError, match=r"simd\.h"):
        build(Memory(), units=units)


def test_a_failed_build_leaves_nothing_and_caches_nothing(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = Memory()
    with pytest.raises(ToolchainError, match=r"net\.c:1:1: error") as caught:
        build(cache, {**TREE, "src/net.c": b"nonsense here;\n"})
    assert caught.value.where == "src/net.c"
    assert cache.objects == {}
    assert os.listdir(tmp_path) == []


def test_no_room_for_temporary_files_is_one_line(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(ToolchainError, match="TMPDIR"):
        build(Memory())


@pytest.mark.parametrize("path", ["../x.c", "/x.c"])
def test_a_source_outside_the_tree_is_refused(path: str, build: Build) -> None:
    with pytest.raises(InternalError):
        build(Memory(), {**TREE, path: b"\n"}, units=(Unit(path, "x"),))
    with pytest.raises(InternalError, match="wasn't generated"):
        build(Memory(), units=(Unit("src/missing.c", "x"),))


# --------------------------------------------------------------------- headers parsed but once


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=pytest.mark.slow)])
def test_parsing_the_vocabulary_once_makes_the_same_objects(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    if host_target().arch != "x86_64":
        pytest.skip("the vocabulary here is AVX2's")
    build = Build(find_compiler(get_target("x86-64-avx2"), {"CC": compiler}))
    tree, units = kernels_of_vectors(2)
    cache = Memory()
    made = {}
    for many in (2, 1):  # times two workers
        _, result = build(
            Memory() if many == 2 else cache, tree, units, target="x86-64-avx2", parse_from=many
        )
        made[many] = result.objects
        parsed = [c for c in build.commands if "c-header" in c]
        users = [c[c.index("-c") + 1] for c in build.commands if "-include" in c]
        assert len(parsed) == (many == 1)
        assert sorted(users) == [u.path for u in units[:2] if many == 1]
    assert made[1] == made[2]
    build(cache, tree, units, target="x86-64-avx2")
    assert build.compiled() == []


def test_a_header_that_does_not_parse_alone_is_read_by_each(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host_target().arch != "x86_64" or build.compiler.kind not in ("gcc", "clang"):
        pytest.skip("the vocabulary here is AVX2's")

    def refuses(job: Job, *, log: Log) -> Path:
        raise ToolchainError("no space left on device", where=job.source)

    monkeypatch.setattr("atc.build.objects.parse_header", refuses)
    tree, units = kernels_of_vectors(2)
    _, result = build(Memory(), tree, units, target="x86-64-avx2", parse_from=1)
    assert len(result.objects) == 3
    assert not any("-include" in command for command in build.commands)
