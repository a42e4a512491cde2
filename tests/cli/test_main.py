"""The command line: ATC's lines and exit statuses, one line for every error."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import CountingCompiler, content, conv_net, counting_compiler, save
from onnx import helper, numpy_helper
from waiting import PATIENCE, happens

import atc
from atc.accuracy.compare import run_reference
from atc.cli.main import main
from atc.pipeline import planning, writing

START = "ATC start working now, please wait for a moment."
FAILED = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return conv_net(tmp_path / "net.onnx")


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingCompiler:
    compiler = counting_compiler(tmp_path)
    monkeypatch.setenv("CC", compiler.command)
    return compiler


def line(model: Path, output: Path, *more: str) -> list[str]:
    return [f"--model={model}", f"--output={output}", "--target=c99", *more]


def again(model: Path, output: Path, *more: str) -> list[str]:
    """Return the line for tests that don't look at how kernels are compiled: once is enough."""
    return line(model, output, "--op_compiler_cache_mode=enable", *more)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        yield


# ------------------------------------------------------------------------------------ protocol


def test_success(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(model, tmp_path / "out/net")) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [START, "...", "ATC run success, welcome to the next use."]
    assert err == ""
    made = content(tmp_path / "out/net")
    assert {"libnet.so", "libnet.a", "include/net.h", "src/net.c", "net.report.json"} <= set(made)


def test_warnings_are_reported_once_and_before_the_status(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--num_threads=2", "--hooks", "--log=warning")
    assert main(again(model, tmp_path / "net", *options)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [START, "...", "ATC run success, welcome to the next use."]
    (warning,) = err.splitlines()
    assert warning.startswith("W10001: --num_threads=2")


def test_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--model={tmp_path / 'none.onnx'}", f"--output={tmp_path / 'net'}"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [START, "...", FAILED]
    assert err.startswith("E10041: ")
    assert "none.onnx" in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], "E10007"), (["--output=x"], "E10007"), (["--model=x"], "E10007"), (["--nope"], "E10001"),
     (["--model=x", "--output=.."], "E10022"), (["--model=x", "--output=/"], "E10022"),
     (["--model=x", "--output=..", "--target=x86-64-amx"], "E10022"),
     (["--model=x", "--output=y", "--log=loud"], "E10010"),
     (["--model=x", "--output=y", "--target=z80"], "E10001"),
     (["--model=x", "--output=y", "--dynamic_dims=1,2;2,3"], "E10040"),
     (["--model=x", "--output=y", "--op_compiler_cache_mode=on"], "E10001")],
)  # fmt: skip
def test_wrong_options_are_one_coded_line(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == START
    assert out.splitlines()[-1] == FAILED
    assert err.startswith(f"{code}: ")
    assert err.count("\n") == 1


def test_an_unknown_target_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model=x", "--output=y", "--soc_version=x86-64-avx3"]) == 1
    assert "x86-64-avx2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "usage: atc --model=FILE"),
        (["-h", "--nonsense"], "usage: atc --model=FILE"),
        (["--version"], f"atc {atc.__version__}\n"),
        (["verify", "--help"], "usage: atc verify"),
        (["cache", "--help"], "usage: atc cache"),
        (["explain", "--help"], "usage: atc explain"),
    ],
)
def test_help_and_version_are_all_that_is_printed(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith(words)
    assert "ATC start" not in out
    assert err == ""


def test_a_mistake_of_the_compiler_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **keywords: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(planning, "plan_memory", broken)
    assert main(line(model, tmp_path / "out")) == 4
    out, err = capsys.readouterr()
    assert err.startswith("E19999: ZeroDivisionError: by\\nzero")
    assert err.count("\n") == 1
    assert FAILED in out
    assert main(line(model, tmp_path / "out", "--log=debug")) == 4
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["net.onnx"]


def test_an_interrupt_leaves_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "build_library", interrupted)
    assert main(line(model, tmp_path / "out/net", "--op_compiler_cache_mode=disable")) == 130
    out, err = capsys.readouterr()
    assert err == "interrupted\n"
    assert out.splitlines()[-1] == FAILED
    assert os.listdir(tmp_path) == ["net.onnx"]


def test_no_c_compiler_says_so(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert main(line(model, tmp_path / "out")) == 3
    assert "no-such-compiler" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ((), "CC"), (("--max_error=1e-3",), "CC"), (("--target=x86-64,c99",), "CC"),
        (("--cal_conf={calibration}",), "CC"), (("--build_config=no-such-compiler -O1",),
                                                "--build_config"),
    ],
)  # fmt: skip
def test_no_c_compiler_is_reported_before_anything_long(
    more: tuple[str, ...], named: str, model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "calibration").write_text(f"calibration={tmp_path}\n")
    words = [word.format(calibration=tmp_path / "calibration") for word in more]
    monkeypatch.setenv("CC", "no-such-compiler" if named == "CC" else "")
    assert main([*line(model, tmp_path / "out"), "--log=info", *words]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[:-1] == ["[INFO] starting"]
    assert lines[-1].startswith(f"E19010: {named} names a program that isn't there: no-such-comp")


@pytest.mark.parametrize("option", ["--target", "--soc_version"])
@pytest.mark.parametrize(
    "words",
    ["--model={model} --output={out}", "--model={model} --output={out} --host_env_cpu=aarch64",
     "check --model={model}", "diff --model={model}", "cache stats"],
)  # fmt: skip
def test_a_wrong_target_names_the_option_that_gave_it(
    words: str, option: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words.format(model=model, out=tmp_path / "out").split()
    for wrong in ("z80", "c99,z80"):
        assert main([*given, f"{option}={wrong}"]) == 1
        assert f"[{option}]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "diff", "bisect"])
def test_wrong_inputs_are_reported_before_compiling(
    command: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def built(*arguments: object, **keywords: object) -> None:
        raise AssertionError("the compiler was called")

    monkeypatch.setattr(writing, "build_library", built)
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 3, 8, 8)))
    more = ["--first=", "--second=--oo_level=O0"] if command == "bisect" else []
    assert main([command, f"--model={model}", f"--input={tmp_path / 'in.npz'}", *more]) == 1
    assert "'x' is float64 [1, 3, 8, 8]" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- processes


def run(*arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "atc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **keywords)


@pytest.mark.slow
def test_the_module_is_the_command(model: Path, tmp_path: Path) -> None:
    done = run(*line(model, tmp_path / "net"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("ATC run success")
    failed = run(f"--model={tmp_path / 'none'}", f"--output={tmp_path / 'other'}")
    assert failed.returncode == 1
    assert failed.stderr.startswith("E10041: ")


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-P", "-m", "atc", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_output_without_room_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-P", "-m", "atc", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "can't write to the standard output: no space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str, model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "atc", *line(model, tmp_path / "net")]
    done = subprocess.run(f"{shlex.join(words)} {closed}", shell=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "net/libnet.so").is_file()


def test_starting_imports_nothing_heavy() -> None:
    code = (
        "import sys, atc.cli.main; atc.cli.main.main(['--help']); "
        "print([m for m in ('numpy', 'onnx', 'onnx_ir', 'rich', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ["", "check", "verify", "diff", "load_and_run"])
def test_a_terminal_sees_something_before_the_imports(
    command: str, model: Path, tmp_path: Path
) -> None:
    """What takes long is imported when the first line is there."""
    words = [command, f"--model={model}"] if command else [*line(model, tmp_path / "net")]
    code = f"""
import sys, atc.cli.main
class Terminal:
    def isatty(self): return True
    def write(self, text): raise SystemExit(repr((text, 'numpy' in sys.modules)))
sys.stderr = Terminal()
try: atc.cli.main.main({words if command != "load_and_run" else [command, str(model)]!r})
except SystemExit as first: print(first)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == repr(("starting\r", False)), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM,
     pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
)
def test_a_signal_in_the_middle_leaves_nothing_half_written(
    number: signal.Signals, model: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow-cc"
    real = counting_compiler(tmp_path).command
    slow.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*) touch {tmp_path}/begun; sleep 100;; esac\n'
        f'exec {real} "$@"\n'
    )
    slow.chmod(0o755)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "CC": str(slow), "TMPDIR": str(scratch)}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "atc", *line(model, tmp_path / "out/net")], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # background jobs ignore some
    ) as process:  # fmt: skip
        assert happens((tmp_path / "begun").exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_finalizer_ends_the_program(number: signal.Signals) -> None:
    """Python ignores exceptions there, also those of signals' handlers."""
    code = f"""if True:
        import os, time
        import atc.cli.main, atc.cli.start
        class Temporary:
            def __del__(self):
                os.kill(os.getpid(), {int(number)})
                time.sleep(0.05)
        def run(argv):
            try:
                Temporary()
                time.sleep(60)
            except (KeyboardInterrupt, SystemExit) as error:
                print(repr(error))
                raise
        atc.cli.main.main = run
        atc.cli.start.main()"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=PATIENCE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    expected = "KeyboardInterrupt()" if number == signal.SIGINT else f"SystemExit({128 + number})"
    assert done.stdout.strip() == expected
    assert "ignored" not in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("module", ["atc.options.help", "rich"])
def test_an_interrupt_of_an_import_shows_no_traceback(module: str, tmp_path: Path) -> None:
    code = f"""if True:
        import sys, time
        class Slow:
            @staticmethod
            def find_spec(name, *_):
                if name == {module!r}:
                    open({str(tmp_path / "begun")!r}, "w").close()
                    time.sleep(60)
        sys.meta_path.insert(0, Slow)
        sys.stdout.isatty = lambda: True
        import atc.cli.start
        sys.exit(atc.cli.start.main())"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, "env", "CC"], stderr=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert happens((tmp_path / "begun").exists)
        time.sleep(0.3)  # until it sleeps
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    early = module.startswith("atc")  # nothing has begun yet: it ends like any program
    assert (process.returncode, err) == ((-signal.SIGINT, "") if early else (130, "interrupted\n"))


# ------------------------------------------------------------------------------- log and info


@pytest.mark.slow
def test_the_log_has_stages_passes_and_commands(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = line(model, tmp_path / "net")
    assert main([*arguments, "--log=info"]) == 0
    info = capsys.readouterr().err
    assert "[INFO] compiling C\n" in info
    assert "op compiler cache (disable): 0 hits" in info
    assert "[DEBUG]" not in info
    assert main([*arguments, "--log=debug"]) == 0
    debug = capsys.readouterr().err
    assert "[DEBUG] fuse_epilogue: " in debug
    assert " nodes, 0." in debug
    assert "-std=c99" in debug
    assert main([*arguments, "--log", "error"]) == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    off = "--op_compiler_cache_mode=disable"  # what is kept whole is soon there
    assert main(again(model, tmp_path / "net", "--log=info", off)) == 0
    assert terminal.getvalue().startswith("starting\r")
    assert "━" in terminal.getvalue()
    assert "[INFO] compiling C" in terminal.getvalue()


def test_model_info(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(again(model, tmp_path / "net", "--display_model_info=1")) == 0
    out = capsys.readouterr().out
    words = ("arena", "lower bound", "weights", "tuned: ", "portable: ", "target    c99",
             "compiler", "onnx ", "numpy ", "x: f32[1,3,8,8]", "y: f32[1,4]")  # fmt: skip
    for word in words:
        assert word in out
    assert out.splitlines()[-2] == "..."


def test_dump_writes_the_graph_after_each_pass(model: Path, tmp_path: Path) -> None:
    assert main(again(model, tmp_path / "net", f"--dump={tmp_path / 'passes'}")) == 0
    names = sorted(os.listdir(tmp_path / "passes"))
    assert names[0] == "00-lowering.txt"
    assert len(names) > 5
    assert "Conv(" in (tmp_path / "passes" / names[-1]).read_text()


# ------------------------------------------------------------------------------ inputs, outputs


def test_an_open_dimension_is_pinned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = conv_net(tmp_path / "open.onnx", batch="n")
    assert main(again(model, tmp_path / "net")) == 1
    assert "dynamic dimension 'n'" in capsys.readouterr().err
    assert main(again(model, tmp_path / "net", "--input_shape=x:5,3,8,8")) == 0
    assert atc.load(tmp_path / "net").outputs[0].shape == (5, 4)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ("r1", [(1, 4, 8, 8)]),
        ("y;c2", [(1, 4), (1, 4, 6, 6)]),
        ("conv1:0", [(1, 4, 8, 8)]),
        ("softmax:0;pool:0", [(1, 4), (1, 4, 1, 1)]),
    ],
)
def test_out_nodes(given: str, shapes: list[tuple[int, ...]], model: Path, tmp_path: Path) -> None:
    assert main(again(model, tmp_path / "net", f"--out_nodes={given}", "--verify")) == 0
    net = atc.load(tmp_path / "net")
    assert [t.shape for t in net.outputs] == shapes


@pytest.mark.parametrize(
    ("given", "code"),
    [("nothing", "E10016"), ("nothing:0", "E10016"), ("conv1:1", "E10013"), ("y;conv1:0", "E10001"),
     ("y;y", "E10001")],
)  # fmt: skip
def test_wrong_out_nodes(
    given: str, code: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line(model, tmp_path / "net", f"--out_nodes={given}")) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"{code}: ")
    assert "[--out_nodes]" in err
    assert not (tmp_path / "net").exists()


def test_external_weights_lie_beside_the_library(model: Path, tmp_path: Path) -> None:
    assert main(again(model, tmp_path / "net", "--external_weight=2", "--verify")) == 0
    data = (tmp_path / "net/net_weights.bin").read_bytes()
    assert data not in (tmp_path / "net/libnet.so").read_bytes()
    assert not (tmp_path / "net/net_weights.S").exists()


def test_without_reuse_the_arena_grows(model: Path, tmp_path: Path) -> None:
    sizes = []
    for extra in ([], ["--disable_reuse_memory"]):
        assert main(again(model, tmp_path / "net", *extra)) == 0
        (size,) = (
            int(text.split()[2])
            for text in (tmp_path / "net/include/net.h").read_text().splitlines()
            if "_ARENA_SIZE " in text
        )
        sizes.append(size)
    assert sizes[1] > sizes[0]


# ------------------------------------------------------------------------------------- verify


def test_verify_after_compiling(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(again(model, tmp_path / "net", "--verify")) == 0
    out = capsys.readouterr().out
    assert "max abs" in out
    assert "1 of 1 outputs agree with onnx" in out
    assert out.splitlines()[-1].startswith("ATC run success")


def test_verify_a_library(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(again(model, tmp_path / "net")) == 0
    capsys.readouterr()
    own = ["verify", f"--model={model}", f"--library={tmp_path / 'net'}", "--seed=3"]
    assert main(own) == 0
    out = capsys.readouterr().out
    assert "1 of 1 outputs agree" in out
    assert "seed 3" in out
    assert "ATC" not in out
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 8, 8), np.float32))
    assert main([*own, f"--input={tmp_path / 'in.npz'}"]) == 0
    assert "in.npz" in capsys.readouterr().out


def test_verify_without_a_library_compiles_one(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", f"--model={model}", "--target=c99"]) == 0
    assert "1 of 1 outputs agree" in capsys.readouterr().out
    assert os.listdir(model.parent) == ["net.onnx"]


def test_a_library_of_other_weights_is_found_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = conv_net(tmp_path / "other.onnx", seed=1)
    assert main(again(model, tmp_path / "net")) == 0
    capsys.readouterr()
    assert main(["verify", f"--model={other}", f"--library={tmp_path / 'net'}"]) == 5
    out, err = capsys.readouterr()
    assert "DIFFERS" in out
    assert err.startswith("E19011: output 'y' differs from onnx")
    assert err.count("\n") == 1


def test_a_wrong_result_fails_the_compilation(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def off_by_a_little(*arguments: Any) -> Any:
        name, outputs = run_reference(*arguments)
        return name, [a + np.float32(1e-3) for a in outputs]

    monkeypatch.setattr("atc.accuracy.compare.run_reference", off_by_a_little)
    assert main(again(model, tmp_path / "net", "--verify")) == 5
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == FAILED
    assert err.startswith("E19011")


# -------------------------------------------------------------------------------------- debugging


def kept(folder: Path) -> set[str]:
    """Return what follows the kernels' names in kernel_meta."""
    names = content(folder / "kernel_meta") if folder.exists() else {}
    return {name[name.index(".") if "." in name and "_loc" not in name and "_compute" not in name
                 else name.rindex("_"):] for name in names}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        (0, set()),
        (1, {".o", ".json", ".c", "_loc.json"}),
        (2, {".o", ".json", ".c", "_loc.json"}),
        (3, {".o", ".json"}),
        (4, {".o", ".json", ".c", "_compute.json"}),
    ],
)
def test_debug_levels_keep_their_files(
    level: int, kinds: set[str], model: Path, tmp_path: Path, counting: CountingCompiler
) -> None:
    debug = tmp_path / "debug"
    arguments = line(model, tmp_path / "net", f"--op_debug_level={level}", f"--debug_dir={debug}")
    assert main(arguments) == 0
    assert kept(debug) == kinds
    if kinds:
        kernels = {Path(p).name.removesuffix(".c") for p in counting.compiled()} - {"net"}
        objects = {n.removesuffix(".o") for n in content(debug / "kernel_meta") if n.endswith(".o")}
        assert objects == kernels


@pytest.mark.slow
def test_the_kept_files_lead_back_to_the_nodes(model: Path, tmp_path: Path) -> None:
    import hashlib
    import json

    for level in (1, 4):
        arguments = line(model, tmp_path / "net", f"--op_debug_level={level}")
        assert main([*arguments, f"--debug_dir={tmp_path}"]) == 0
    meta = tmp_path / "kernel_meta"
    schedule = (tmp_path / "net/src/net.c").read_text().splitlines()
    nodes: set[str] = set()
    for path in meta.glob("*.o"):
        described = json.loads(path.with_suffix(".json").read_text())
        assert described["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert described["kernelName"] == path.stem
        assert (tmp_path / "net/src/kernels" / f"{path.stem}.c").read_bytes() == path.with_suffix(
            ".c"
        ).read_bytes()
        own, *callers = json.loads((meta / f"{path.stem}_loc.json").read_text())["lines"]
        assert own["file"] == f"src/kernels/{path.stem}.c"
        assert callers
        for caller in callers:
            assert caller["file"] == "src/net.c"
            assert f"{path.stem}(" in schedule[caller["first"] - 1]
            nodes |= set(caller["nodes"])
        computed = json.loads((meta / f"{path.stem}_compute.json").read_text())
        assert [use["nodes"] for use in computed["uses"]] == described["nodes"]
    assert {"conv1", "relu1", "conv2", "pool", "softmax"} <= nodes


def test_level_two_builds_without_optimisation_and_with_symbols(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = line(model, tmp_path / "net", "--log=debug", f"--debug_dir={tmp_path}")
    assert main([*arguments, "--op_debug_level=2"]) == 0
    commands = [text for text in capsys.readouterr().err.splitlines() if " -c src/" in text]
    assert commands
    assert all(" -O0 -g " in text for text in commands)
    assert b".debug_info" in (tmp_path / "net/libnet.so").read_bytes()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("switches", "kinds", "flags"),
    [
        ("dump_bin", {".o", ".json"}, ""),
        ("dump_cce", {".o", ".json", ".c"}, ""),
        ("dump_loc", {".c", "_loc.json"}, ""),
        ("ccec_O0,ccec_g", set(), " -O0 -g "),
        ("oom", set(), " -fsanitize=address "),
    ],
)
def test_debug_switches(
    switches: str, kinds: set[str], flags: str, model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cfg = tmp_path / "debug.cfg"
    cfg.write_text(f"# what to debug\nop_debug_config = {switches}\n")
    debug = tmp_path / "debug"
    arguments = line(model, tmp_path / "net", f"--op_debug_config={cfg}", f"--debug_dir={debug}")
    assert main([*arguments, "--log=debug"]) == 0
    assert kept(debug) == kinds
    commands = [text for text in capsys.readouterr().err.splitlines() if " -c src/" in text]
    assert all(flags in text for text in commands)


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("listed", [pytest.param("conv1", marks=pytest.mark.slow), "OpType::Relu"])
def test_switches_for_listed_operators_only(
    listed: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = tmp_path / "debug.cfg"
    cfg.write_text(f"op_debug_config=dump_cce,ccec_O0\nop_debug_list={listed}, absent\n")
    arguments = line(model, tmp_path / "net", f"--op_debug_config={cfg}", f"--debug_dir={tmp_path}")
    assert main([*arguments, "--log=debug"]) == 0
    err = capsys.readouterr().err
    plain = [text for text in err.splitlines() if " -c src/" in text and " -O0 " not in text]
    unoptimised = [text for text in err.splitlines() if " -O0 " in text]
    assert len(unoptimised) == 1  # conv1 and relu1 are one kernel
    assert len(plain) >= 3
    (source,) = (tmp_path / "kernel_meta").glob("*.c")
    assert source.stem in unoptimised[0]
    assert "W10001: 'absent' of op_debug_list is not an operator of the model" in err


@pytest.mark.slow
def test_a_checked_library_finds_a_buffer_that_is_too_small(model: Path, tmp_path: Path) -> None:
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if "/" not in runtime:
        pytest.skip("gcc's libasan.so isn't there")
    cfg = tmp_path / "debug.cfg"
    cfg.write_text("op_debug_config=oom\n")
    environment = {**os.environ, "CC": "gcc"}
    compiled = run(*line(model, tmp_path / "net", f"--op_debug_config={cfg}"), env=environment)
    assert compiled.returncode == 0, compiled.stderr
    assert "LD_PRELOAD=libasan.so" in compiled.stderr
    refused = run("verify", f"--model={model}", f"--library={tmp_path / 'net'}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "the library has AddressSanitizer in it" in refused.stderr
    code = f"""
import ctypes
net = ctypes.CDLL({str(tmp_path / "net/libnet.so")!r})
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.aligned_alloc.restype = ctypes.c_void_p
net.net_arena_size.restype = ctypes.c_size_t
size = net.net_arena_size()
arena = ctypes.c_void_p(libc.aligned_alloc(64, -(-size // 64) * 64))
context = ctypes.create_string_buffer(64)
assert net.net_init(context, arena, ctypes.c_size_t(size)) == 0
x = ctypes.c_void_p(libc.malloc(4 * 3 * 8 * 8 - MISSING))
y = ctypes.c_void_p(libc.malloc(4 * 4))
assert net.net_run(context, x, y) == 0
"""
    environment |= {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    for missing, status in ((0, 0), (4, 1)):
        command = [sys.executable, "-P", "-c", code.replace("MISSING", str(missing))]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == status, ran.stderr
        assert ("heap-buffer-overflow" in ran.stderr) is bool(missing)


@pytest.mark.parametrize(
    ("text", "words"),
    [("op_debug_config=oom,bogus\n", "unknown switch 'bogus'"), ("op_debug_config oom\n", "line 1"),
     ("\nop_debug_config=\n", "line 2")],
)  # fmt: skip
def test_a_wrong_debug_file_is_named(
    text: str, words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = tmp_path / "debug.cfg"
    cfg.write_text(text)
    assert main(line(model, tmp_path / "net", f"--op_debug_config={cfg}")) == 1
    err = capsys.readouterr().err
    assert words in err
    assert str(cfg) in err


@pytest.mark.slow
def test_a_switch_without_meaning_is_a_warning(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = tmp_path / "debug.cfg"
    cfg.write_text("op_debug_config=check_flag\n")
    assert main(line(model, tmp_path / "net", f"--op_debug_config={cfg}")) == 0
    assert "W10001: check_flag" in capsys.readouterr().err
    plain = tmp_path / "plain/net"
    assert main(line(model, plain)) == 0
    assert content(plain) == content(tmp_path / "net")


# -------------------------------------------------------------------------------- names of models


def test_names_of_a_model_reach_nothing_but_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = 'x"; */ $(touch boom) \x1b[2J\n'
    nodes = [helper.make_node("Relu", [evil], ["../y"], "../../node\n*/")]
    model = save(nodes, {evil: [2]}, {"../y": [2]}, tmp_path / "evil ; $(touch boom).onnx")
    output = tmp_path / "out dir/-net; $(touch boom) é"
    arguments = [*line(model, output, "--op_debug_level=4", "--log=debug", "--verify"),
                 f"--debug_dir={tmp_path}", "--display_model_info"]  # fmt: skip
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert sorted(os.listdir(tmp_path)) == [model.name, "kernel_meta", "out dir"]
    assert os.listdir(output.parent) == [output.name]
    net = atc.load(output)
    assert net.inputs[0].name == evil
    np.testing.assert_array_equal(net(np.array([-1, 2], np.float32)), [0, 2])


def test_a_model_of_constants_alone(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.arange(3, dtype=np.float32))
    nodes = [onnx.helper.make_node("Constant", [], ["y"], "value", value=value)]
    model = save(nodes, {}, {"y": [3]}, tmp_path / "constant.onnx")
    assert main(line(model, tmp_path / "net", "--verify", "--op_debug_level=1",
                         f"--debug_dir={tmp_path}")) == 0  # fmt: skip
