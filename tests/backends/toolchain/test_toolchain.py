from __future__ import annotations

import ctypes
import shlex
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from small_libraries import are_gone, environ, hanging_compiler, network, script, write

from atc.backends.cpu.targets import TARGETS
from atc.backends.machines import MACHINES
from atc.backends.target import Target, host_arch
from atc.backends.targets import get_target, host_target
from atc.backends.toolchain.compiler import Compiler, compile_flags, machine_flags
from atc.backends.toolchain.compiling import Job, compile_many, compile_object
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import archive_static, link_program, link_shared
from atc.backends.toolchain.processes import no_log, run_binary, run_tool
from atc.errors import OptionError, ToolchainError

# ------------------------------------------------------------------------ finding a compiler


def fake_compilers(folder: Path, *names: str, machine: str = host_arch()) -> str:
    for name in names:
        body = f'[ "$1" = -dumpmachine ] && echo {machine}-linux-gnu || '
        script(folder / name, body + f'echo "{name} 1.0, Free Software Foundation"')
    return str(folder)


@pytest.mark.parametrize(
    ("present", "cc", "found"),
    [
        (("gcc", "clang", "mine"), "mine", "mine"),
        (("gcc", "clang", "mine"), "", "gcc"),
        (("clang", "mine"), "", "clang"),
    ],
)
def test_compilers_are_tried_in_order(
    present: tuple[str, ...], cc: str, found: str, tmp_path: Path
) -> None:
    path = fake_compilers(tmp_path, *present)
    compiler = find_compiler(get_target("c99"), {"PATH": path, "CC": cc})
    assert Path(compiler.argv[0]).name == found
    assert compiler.version.startswith(f"{found} 1.0")


def test_cc_may_hold_options(tmp_path: Path) -> None:
    body = 'case "$*" in "-m64 --version") echo "Free Software Foundation";;'
    script(tmp_path / "a b/mine", f'{body} "-m64 -dumpmachine") echo x86_64-linux-gnu;; esac')
    compiler = find_compiler(get_target("c99"), {"CC": f"'{tmp_path}/a b/mine' -m64"})
    assert compiler.argv == (f"{tmp_path}/a b/mine", "-m64")


@pytest.mark.slow
def test_zig_never_builds_for_this_machines_own_cpu() -> None:
    zig = pytest.importorskip("ziglang", reason="the package ziglang isn't installed")
    command = shlex.join([str(Path(zig.__file__).with_name("zig")), "cc"])
    chosen = find_compiler(get_target("c99"), environ(CC=command))
    asked = [*chosen.argv, "-dM", "-E", "-x", "c", "/dev/null"]
    assert b"__AVX2__" not in run_binary(asked, 60).stdout
    assert chosen == find_compiler(get_target("c99"), {"PATH": "/nonexistent"})


def test_a_cross_target_takes_its_own_compiler_unless_cc_builds_for_it(tmp_path: Path) -> None:
    cross = Target("cross", "sparc64", "scalar", 4, 16, MACHINES["zen3"], compiler="sparc64-cc")
    path = fake_compilers(tmp_path, "gcc", "clang")
    fake_compilers(tmp_path, "sparc64-cc", "other-cc", machine="sparc64")
    env = {"PATH": path}
    assert find_compiler(cross, env).argv[0].endswith("/sparc64-cc")
    assert find_compiler(cross, {**env, "CC": "gcc"}).argv[0].endswith("/sparc64-cc")
    assert find_compiler(cross, {**env, "CC": "other-cc"}).argv[0].endswith("/other-cc")


def test_cc_for_another_machine_is_refused_for_the_host(tmp_path: Path) -> None:
    path = fake_compilers(tmp_path, "gcc")
    fake_compilers(tmp_path, "other-cc", machine="sparc64")
    native = Target("native", host_arch(), "scalar", 4, 16, MACHINES["zen3"])
    with pytest.raises(ToolchainError, match=r"CC builds for sparc64-linux-gnu, not .* native"):
        find_compiler(native, {"PATH": path, "CC": "other-cc"})


def test_a_compiler_for_a_big_endian_processor_is_refused(tmp_path: Path) -> None:
    if shutil.which("clang"):
        env = environ(CC="clang --target=s390x-linux-gnu")
    else:
        body = """case "$1" in -dumpmachine) echo s390x-linux-gnu;;
            -E) echo '#define __BYTE_ORDER__ __ORDER_BIG_ENDIAN__';;
            *) echo 'Free Software Foundation';; esac"""
        env = {"CC": str(script(tmp_path / "s390x-linux-gnu-gcc", body))}
    with pytest.raises(ToolchainError, match=r"builds for s390x\S*, which is big-endian"):
        find_compiler(get_target("c99"), env)


@pytest.mark.usefixtures("without_zig")
def test_nothing_found_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"gcc, clang .*pip install 'atc\[zig\]'"):
        find_compiler(get_target("c99"), {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("cc", "error", "words"),
    [
        ("no-such-cc -O2", ToolchainError, "CC names a program that isn't there: no-such-cc"),
        ("'gcc", OptionError, "CC can't be split"),
        ("/bin/echo", ToolchainError, "not a compiler that atc knows"),
        ("/bin/false", ToolchainError, "doesn't understand --version .*use gcc, clang or zig"),
    ],
)
def test_a_wrong_cc_is_an_error_and_not_passed_over(
    cc: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        find_compiler(get_target("c99"), environ(CC=cc))


def test_the_identity_is_the_content_not_the_place(tmp_path: Path) -> None:
    env = {"PATH": fake_compilers(tmp_path / "a", "gcc")}
    first = find_compiler(get_target("c99"), env)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = find_compiler(get_target("c99"), {"PATH": str(tmp_path / "b")})
    assert copy.argv != first.argv
    assert copy.identity() == first.identity()
    with (tmp_path / "b/gcc").open("a") as file:
        file.write("# an update\n")
    assert copy.identity() != first.identity()
    option = Compiler((*first.argv, "-m32"), first.kind, first.version, first.machine)
    assert option.identity() != first.identity()


# ------------------------------------------------------------------------------- compiling


@pytest.mark.few(8)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_target_compiles_with_its_flags_and_checks(target: Target, tmp_path: Path) -> None:
    try:
        compiler = find_compiler(get_target(target.name), environ())
    except ToolchainError as error:
        pytest.skip(str(error))
    known = [n for n in target.cpu_checks if target.arch == "x86_64" and not n.startswith("amx")]
    names = [name.replace("_", "") for name in known]
    checks = "".join(f' && __builtin_cpu_supports("{name}")' for name in names)
    text = f"int supported(void);\nint supported(void) {{ return 1{checks}; }}\n"
    write(tmp_path, {"a.c": text})
    assert compile_object(compiler, compile_flags(compiler, target), "a.c", tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int f(void);\nint f(void) { return missing; }\n", "error: .*missing"),
        ("int f(int x);\nint f(int x) { return 0; }\n", "unused parameter"),
        ("int f(int n);\nint f(int n) { return ({ n; }); }\n", "error"),
    ],
    ids=["wrong", "warning", "not C99"],
)
def test_what_is_no_clean_c99_is_one_error_with_the_compilers_words(
    compiler: Compiler, text: str, words: str, tmp_path: Path
) -> None:
    write(tmp_path, {"src/bad.c": text})
    flags = compile_flags(compiler, get_target("c99"))
    with pytest.raises(ToolchainError, match=words) as caught:
        compile_object(compiler, flags, "src/bad.c", tmp_path)
    assert caught.value.where == "src/bad.c"
    assert "\n" not in str(caught.value)


def test_flags_follow_the_request(compiler: Compiler) -> None:
    for target in TARGETS:
        flags = compile_flags(compiler, target, "O3", debug=True, sanitize=("undefined",))
        own = machine_flags(compiler, target)
        assert {"-std=c99", "-O3", "-g", "-fsanitize=undefined", *own} <= set(flags)
        assert not {"-ffast-math", "-Ofast"} & set(flags)
    with pytest.raises(OptionError, match="O0, O1, O2, O3, Os"):
        compile_flags(compiler, TARGETS[0], "Ofast")
    with pytest.raises(OptionError, match="address"):
        compile_flags(compiler, TARGETS[0], sanitize=("x -o /etc/passwd",))


def test_products_and_sums_are_rounded_one_by_one(compiler: Compiler, tmp_path: Path) -> None:
    target = host_target()
    if "fma" not in target.features:
        pytest.skip("the host has no fused multiply-add")
    text = "float f(float a, float b, float c);\n"
    text += "float f(float a, float b, float c) { const float p = a * b; return p + c; }\n"
    write(tmp_path, {"a.c": text.replace("float f(f", "API float f(f", 1)})
    source = (tmp_path / "a.c").read_text()
    write(tmp_path, {"a.c": '#define API __attribute__((visibility("default")))\n' + source})
    flags = compile_flags(compiler, target)
    compile_object(compiler, flags, "a.c", tmp_path)
    link_shared(compiler, flags, ["a.c.o"], "liba.so", tmp_path)
    f = ctypes.CDLL(str(tmp_path / "liba.so")).f
    f.argtypes, f.restype = [ctypes.c_float] * 3, ctypes.c_float
    a = np.float32(1) + np.float32(2) ** -12
    product = a * a
    assert np.float64(a) * np.float64(a) != product  # fused, the difference would show
    assert f(a, a, -product) == 0.0


@pytest.mark.few(1)
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_the_bytes_depend_on_neither_the_folder_nor_the_workers(
    compiler: Compiler, debug: bool, tmp_path: Path
) -> None:
    results = []
    for folder, workers in (("one", 1), ("another/much/deeper", 2)):
        place = network(tmp_path / folder, "entry", 2)
        flags = compile_flags(compiler, get_target("c99"), debug=debug)
        jobs = [Job(compiler, flags, f"src/{name}.c", place) for name in "ab"]
        objects = [path.read_bytes() for path in compile_many(jobs, workers)]
        names = ["src/a.c.o", "src/b.c.o"]
        shared = link_shared(compiler, flags, names, "libnet.so", place).read_bytes()
        static = archive_static(compiler, names, "libnet.a", place).read_bytes()
        results.append((objects, shared, static))
    assert results[0] == results[1]
    assert str(tmp_path).encode() not in b"".join([*results[0][0], *results[0][1:]])


def test_many_objects_come_in_the_jobs_order(host: Compiler, tmp_path: Path) -> None:
    names = [f"f{i}" for i in range(9)]
    write(tmp_path, {f"{n}.c": f"int {n}(void);\nint {n}(void) {{ return 0; }}\n" for n in names})
    flags = compile_flags(host, get_target("c99"))
    commands: list[tuple[str, ...]] = []
    done: list[int] = []
    objects = compile_many(
        [Job(host, flags, f"{n}.c", tmp_path) for n in names],
        3,
        progress=done.append,
        log=commands.append,
    )
    assert [path.name for path in objects] == [f"{n}.c.o" for n in names]
    assert all(
        f"{n}\0".encode() in path.read_bytes() for n, path in zip(names, objects, strict=True)
    )
    assert done == list(range(1, 10))
    assert len(commands) == 9
    assert compile_many([], 2) == ()


def test_the_first_failing_job_is_reported(host: Compiler, tmp_path: Path) -> None:
    write(tmp_path, {"a.c": "typedef int a;\n", "b.c": "wrong b;\n", "c.c": "wrong c;\n"})
    flags = compile_flags(host, get_target("c99"))
    for workers in (1, 3):
        with pytest.raises(ToolchainError) as caught:
            compile_many([Job(host, flags, f"{n}.c", tmp_path) for n in "abc"], workers)
        assert caught.value.where == "b.c"


def test_a_sanitizer_is_compiled_and_linked_in(host: Compiler, tmp_path: Path) -> None:
    text = "int main(int n, char **v) { (void)v; return 2147483647 + n == 0; }\n"
    write(tmp_path, {"a.c": text})
    for sanitize, failed in (((), False), (("undefined",), True)):
        flags = compile_flags(host, get_target("c99"), "O1", sanitize=sanitize)
        compile_object(host, flags, "a.c", tmp_path)
        try:
            program = link_program(host, flags, ["a.c.o"], "a", tmp_path)
        except ToolchainError as error:
            pytest.skip(f"the sanitizer's runtime isn't installed: {error}")
        done = run_binary([str(program)], 60)
        assert (done.status != 0, b"signed integer overflow" in done.stderr) == (failed, failed)


def test_a_foreign_program_runs_under_the_targets_emulator(tmp_path: Path) -> None:
    target = get_target("aarch64-neon")
    if target.runner and (not shutil.which(target.compiler) or not shutil.which(target.runner[0])):
        pytest.skip(f"needs {target.compiler} and {target.runner[0]}")
    compiler = find_compiler(target, environ())
    flags = compile_flags(compiler, target)
    text = "#include <arm_neon.h>\nint main(void) { return (int)vaddvq_f32(vdupq_n_f32(3)); }\n"
    write(tmp_path, {"a.c": text})
    compile_object(compiler, flags, "a.c", tmp_path)
    program = link_program(compiler, flags, ["a.c.o"], "a", tmp_path, static=True)
    assert run_binary([*target.runner, str(program)], 60).status == 12


# ----------------------------------------------------------------------------- processes


def test_a_program_is_given_input_and_a_c_locale() -> None:
    done = run_binary(["sh", "-c", "cat; echo $LC_ALL >&2; exit 7"], 60, stdin=b"in\0put")
    assert (done.status, done.stdout, done.stderr) == (7, b"in\0put", b"C\n")


def test_a_program_that_is_not_there_is_a_toolchain_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"no program")
    for path in (tmp_path / "missing", tmp_path / "data", Path("a\0b")):
        with pytest.raises(ToolchainError, match="can't start"):
            run_binary([str(path)], 60)


def test_a_process_over_its_time_is_ended_with_its_children(tmp_path: Path) -> None:
    hang = script(tmp_path / "hang", f"sleep 300 & echo $! > {tmp_path}/child; wait")
    for patience in (0.5, 5.0, 50.0):  # where others work, it begins later
        with pytest.raises(ToolchainError, match=f"hang took longer than {patience:g} s"):
            run_binary([str(hang)], patience)
        if (tmp_path / "child").exists():
            break
    assert are_gone(tmp_path / "child")


@pytest.mark.few(1)
@pytest.mark.parametrize("when", ["--version", "-dumpmachine", "-c", "-shared", "-r"])
def test_a_compiler_that_hangs_is_ended_and_reported_with_its_command(
    tmp_path: Path, when: str
) -> None:
    target, name = get_target("c99"), hanging_compiler(tmp_path, when)
    write(tmp_path, {"a.c": "int f(void);\nint f(void) { return 1; }\n"})
    for patience in (0.3, 3.0, 30.0):  # where others work, what comes before it takes longer
        with pytest.raises(ToolchainError) as caught:
            _build_all(find_compiler(target, environ(CC=name), timeout=patience), target, tmp_path)
        if f" {when}" in caught.value.message:
            break
    assert f"hanging-cc took longer than {patience:g} s: " in caught.value.message
    assert f" {when}" in caught.value.message
    assert "--compiler_timeout" in caught.value.hint
    assert are_gone(tmp_path / "children")


def _build_all(compiler: Compiler, target: Target, folder: Path) -> None:
    flags = compile_flags(compiler, target)
    compile_many([Job(compiler, flags, "a.c", folder)], 1)
    link_shared(compiler, flags, ["a.c.o"], "liba.so", folder)
    archive_static(compiler, ["a.c.o"], "liba.a", folder)


@pytest.mark.parametrize(
    ("fault", "crashes", "runs"),
    [("kill -SEGV $$", 1, 2), ("exit 139", 1, 2), ("exit 134", 1, 2), ("exit 139", 9, 2),
     ("exit 1", 1, 1), ("kill -KILL $$", 1, 1)],
)  # fmt: skip
def test_a_compiler_that_crashes_is_run_once_more(
    fault: str, crashes: int, runs: int, tmp_path: Path
) -> None:
    count = f'echo >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -gt {crashes}'
    name = script(tmp_path / "crashing-cc", f'{count} || {fault}; touch a.c.o')
    compiler = Compiler((str(name),), "nvcc", "1", "nvptx64-nvidia-cuda")
    job = Job(compiler, (), "a.c", tmp_path)
    if crashes < runs:
        compile_many([job], 1)
    else:
        with pytest.raises(ToolchainError, match="crashing-cc failed"):
            compile_many([job], 1)
    assert len((tmp_path / "runs").read_text().splitlines()) == runs


@pytest.mark.parametrize(
    ("said", "reason", "hint"),
    [
        (("ld: warning: x", "ld: final link failed: No space left on device"),
         "ld: final link failed: No space left on device", "TMPDIR"),
        (("ld: a.o: in function `f':", "ld: undefined reference to `g'"),
         "ld: undefined reference to `g'", ""),
        (("ld: cannot find -lx",), "ld: cannot find -lx", ""),
    ],
)  # fmt: skip
def test_a_linkers_own_words_are_reported(
    said: tuple[str, ...], reason: str, hint: str, tmp_path: Path
) -> None:
    """Not those of collect2, which comes behind it."""
    lines = [*said, "collect2: error: ld returned 1 exit status"]
    body = "".join(f"echo {shlex.quote(line)} >&2; " for line in lines)
    compiler = Compiler((str(script(tmp_path / "cc", f"{body} exit 1")),), "gcc", "1", "")
    with pytest.raises(ToolchainError) as caught:
        run_tool(compiler, compiler.argv, tmp_path, "libx.so", no_log)
    assert caught.value.message == f"cc failed: {reason}"
    assert hint in caught.value.hint


def test_no_limit_is_none(tmp_path: Path) -> None:
    target = get_target("c99")
    write(tmp_path, {"a.c": "int f(void);\nint f(void) { return 1; }\n"})
    _build_all(find_compiler(target, environ(), timeout=0), target, tmp_path)


def test_an_interrupt_waits_for_no_compiler(tmp_path: Path) -> None:
    target, name = get_target("c99"), hanging_compiler(tmp_path, "-c")
    compiler = find_compiler(target, environ(CC=name))
    write(tmp_path, {f"{n}.c": "int f(void);\nint f(void) { return 1; }\n" for n in "abcd"})
    jobs = [Job(compiler, (), f"{n}.c", tmp_path) for n in "abcd"]

    begin: list[float] = []

    def interrupt(*_: object) -> None:
        if (tmp_path / "children").exists():
            begin.append(time.monotonic())
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_many(jobs, 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin[0] < 60
    assert are_gone(tmp_path / "children")
