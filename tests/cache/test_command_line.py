"""The op compiler cache at the command line; numbers are those of the specification's statements.

What is compiled is counted by a `$CC` that writes down each source.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import networks
import pytest
from networks import CountingCompiler, counting_compiler, pooled_net
from waiting import happens

from atc.cli.main import main
from atc.options.help import help_text

KERNELS = 2  # of the model: conv1 with relu1, and pool
README = Path(__file__).parents[2] / "cache/README.md"


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a cache but the counts of its use."""
    found = networks.content(folder)
    return {path: data for path, data in found.items() if not path.endswith("_counts.json")}


@dataclass(frozen=True)
class Bench:
    """A model, a cache and a compiler that counts."""

    folder: Path
    model: Path
    cache: Path
    compiler: CountingCompiler
    capsys: pytest.CaptureFixture[str]

    def line(self, mode: str, *more: str, output: str = "net") -> list[str]:
        return [
            f"--model={self.model}", f"--output={self.folder / output}", "--target=c99",
            f"--op_compiler_cache_mode={mode}", f"--op_compiler_cache_dir={self.cache}",
            "--log=info", *more,
        ]  # fmt: skip

    def compile(self, mode: str, *more: str, output: str = "net") -> list[str]:
        """Run a compilation and return the sources that were compiled."""
        assert main(self.line(mode, *more, output=output)) == 0, self.capsys.readouterr().err
        return self.compiler.compiled()

    def said(self) -> str:
        """Return what was printed since the last call, standard error last."""
        return "".join(self.capsys.readouterr())

    @property
    def entries(self) -> dict[str, bytes]:
        """The objects stored for the target."""
        return {name: data for name, data in self.stored.items() if name not in self.networks}

    @property
    def networks(self) -> dict[str, bytes]:
        """The output folders stored for the target."""
        return {name: data for name, data in self.stored.items() if data.startswith(b"{")}

    @property
    def stored(self) -> dict[str, bytes]:
        """All data stored for the target."""
        found = content(self.cache / "kernel_cache/c99") if self.cache.exists() else {}
        return {name: data for name, data in found.items() if name.endswith(".o")}

    def tool(self, *arguments: str) -> int:
        return main(["cache", *arguments, f"--op_compiler_cache_dir={self.cache}"])


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    compiler = counting_compiler(tmp_path)
    monkeypatch.setenv("CC", compiler.command)
    model = pooled_net(tmp_path / "model.onnx")
    return Bench(tmp_path, model, tmp_path / "cache", compiler, capsys)


def config(bench: Bench, text: str) -> str:
    path = bench.folder / "debug.cfg"
    path.write_text(text)
    return f"--op_debug_config={path}"


# ------------------------------------------------------------------------------------------ modes


def result(folder: Path) -> dict[str, bytes]:
    """Return every file of an output, less what the report says about the cache."""
    files = content(folder)
    report = json.loads(files["net.report.json"])
    report.pop("cache", None)
    return {**files, "net.report.json": json.dumps(report).encode()}


def test_enable_compiles_once(bench: Bench) -> None:  # 1, 2, 5
    first = bench.compile("enable")
    made = result(bench.folder / "net")
    assert len(first) > KERNELS
    assert len(bench.entries) == len(first)
    assert bench.compile("enable") == []
    assert result(bench.folder / "net") == made
    assert bench.compile("disable") == first
    assert result(bench.folder / "net") == made


@pytest.mark.slow
def test_kernels_are_shared_by_models_that_have_them_in_common(bench: Bench) -> None:  # 1
    bench.compile("enable")
    assert bench.compile("enable", output="other") == ["src/other.c"]
    pooled_net(bench.model, seed=1)  # other weights, the same kernels
    assert bench.compile("enable", output="other") == ["src/other.c"]


def test_force_compiles_everything_and_enable_profits(bench: Bench) -> None:  # 3, 5
    first = bench.compile("force")
    made = result(bench.folder / "net")
    assert bench.compile("force") == first
    assert bench.compile("enable") == []
    assert result(bench.folder / "net") == made


@pytest.mark.slow
def test_force_deletes_what_was_there(bench: Bench) -> None:  # 3
    bench.compile("enable", output="other")
    before = set(bench.entries)
    bench.compile("force")
    assert len(before - set(bench.entries)) == 1  # the schedule of the other network
    assert len(bench.entries) == len(before)


@pytest.mark.usefixtures("unconfigured")
def test_disable_is_the_default_and_touches_nothing(bench: Bench) -> None:  # 4
    line = [word for word in bench.line("disable") if "cache_mode" not in word]
    for arguments in (bench.line("disable"), line):
        assert main(arguments) == 0
        assert len(bench.compiler.compiled()) > KERNELS
        assert not bench.cache.exists()
    bench.compile("enable")
    before = content(bench.cache)
    assert len(bench.compile("disable")) > KERNELS
    assert content(bench.cache) == before


@pytest.mark.parametrize("mode", ["Enable", "on", "1", ""])
def test_any_other_mode_is_an_error(mode: str, bench: Bench) -> None:  # 10
    assert main(bench.line(mode)) == 1
    assert "E10001" in bench.said()
    assert bench.compiler.compiled() == []
    assert not (bench.folder / "net").exists()
    assert not bench.cache.exists()


def test_the_advice_is_in_help_and_documentation() -> None:  # 7, 8, 9, 16, 45
    shown = " ".join(help_text("compile").split())
    written = " ".join(README.read_text().split())
    assert "For a final release build disable or force is recommended" in shown
    assert "compile logs would be incomplete on hits" in shown
    assert "may be deleted when the tool is upgraded" in shown
    assert "never while other compilations run" in shown
    assert "For a final release build use `disable` or `force`" in written
    assert "the compile logs would be incomplete, and debug objects are not worth" in written
    assert "a directory given by option is never deleted by an installer" in written
    assert "Use `force` never while other compilations run" in written


# -------------------------------------------------------------------------------------- debugging


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("level", "mode"),
    [
        pytest.param(n, mode, marks=() if n + mode in ("1enable", "4force") else pytest.mark.slow)
        for n in "1234"
        for mode in ("enable", "force")
    ],
)
def test_a_debug_level_leaves_the_cache_alone(mode: str, level: str, bench: Bench) -> None:  # 11
    everything = bench.compile("enable")
    before = content(bench.cache)
    debug = f"--op_debug_level={level}", f"--debug_dir={bench.folder}"
    assert bench.compile(mode, *debug) == everything
    assert content(bench.cache) == before


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["enable", pytest.param("force", marks=pytest.mark.slow)])
def test_debug_switches_for_all_leave_the_cache_alone(mode: str, bench: Bench) -> None:  # 12
    everything = bench.compile("enable")
    before = content(bench.cache)
    switches = config(bench, "op_debug_config=ccec_g\n")
    assert bench.compile(mode, switches) == everything
    assert content(bench.cache) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "listed", [pytest.param("conv1", marks=pytest.mark.slow), "OpType::GlobalAveragePool"]
)
def test_listed_operators_pass_the_cache_by(listed: str, bench: Bench) -> None:  # 13
    everything = bench.compile("enable")
    before = content(bench.cache)
    some = config(bench, f"op_debug_config=ccec_g\nop_debug_list={listed}\n")
    for _ in range(2):
        (source,) = bench.compile("enable", some)
        assert source.startswith("src/kernels/")
        assert content(bench.cache) == before
        assert "1 bypassed, 0 stored" in bench.said()
    assert bench.compile("disable", some) == everything


def test_listed_operators_are_not_stored(bench: Bench) -> None:  # 13
    some = config(bench, "op_debug_config=dump_bin\nop_debug_list=conv1\n")
    everything = bench.compile("enable", some, f"--debug_dir={bench.folder}")
    assert len(bench.entries) == len(everything) - 1
    assert len(bench.compile("enable")) == 1


@pytest.mark.slow
def test_force_with_a_list_deletes_the_rest(bench: Bench) -> None:  # 14
    everything = bench.compile("enable", output="other")
    some = config(bench, "op_debug_config=ccec_g\nop_debug_list=conv1\n")
    assert len(bench.compile("force", some)) == len(everything)
    assert len(bench.entries) == len(everything) - 1


@pytest.mark.parametrize(
    ("text", "words"),
    [("op_debug_config\n", "line 1"), ("# a\n\nop_debug_list = \n", "line 3"),
     ("op_debug_config=a\nop_debug_config=b\n", "line 2"), (None, "can't be read")],
)  # fmt: skip
def test_a_wrong_debug_file_is_an_error(text: str | None, words: str, bench: Bench) -> None:  # 15
    option = config(bench, text or "")
    if text is None:
        (bench.folder / "debug.cfg").unlink()
    assert main(bench.line("enable", option)) == 1
    assert words in bench.said()
    assert bench.compiler.compiled() == []
    assert not bench.cache.exists()


@pytest.mark.slow
def test_a_list_without_switches_has_no_effect(bench: Bench) -> None:  # 15
    bench.compile("enable")
    assert bench.compile("enable", config(bench, "op_debug_list=conv1\n")) == []


# -------------------------------------------------------------------------------------- the place


@pytest.mark.slow
def test_the_option_beats_the_variable_and_that_the_home(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, variable = bench.folder / "home", bench.folder / "variable"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ASCEND_CACHE_PATH", raising=False)
    plain = [word for word in bench.line("enable") if "cache_dir" not in word]
    assert main(plain) == 0
    assert (home / "atc_data/kernel_cache/c99").is_dir()
    monkeypatch.setenv("ASCEND_CACHE_PATH", str(variable))
    assert main(plain) == 0
    assert (variable / "op_cache.ini").is_file()
    assert not bench.cache.exists()
    bench.compile("enable")
    assert bench.entries


def test_a_wrong_character_in_the_path_is_an_error(bench: Bench) -> None:  # 43
    arguments = bench.line("enable", f"--op_compiler_cache_dir={bench.folder}/a b")
    assert main(arguments) == 1
    assert "E10001: the cache path" in bench.said()
    assert not (bench.folder / "net").exists()


def test_a_cache_that_cannot_be_made_is_a_warning(bench: Bench) -> None:  # 42
    bench.cache.write_text("a file")
    assert len(bench.compile("enable")) > KERNELS
    assert "W10001: the op compiler cache is off" in bench.said()
    assert bench.cache.read_text() == "a file"


def test_a_cache_that_others_may_change_is_off_with_one_line(bench: Bench) -> None:
    bench.compile("enable")
    bench.said()
    bench.cache.chmod(0o777)
    bank = bench.folder / "bank"
    bank.mkdir()
    assert len(bench.compile("enable", f"--op_bank_path={bank}")) > KERNELS  # opens it twice
    said = bench.said()
    assert said.count("W10001: ") == 1
    assert f"is off: others may write to '{bench.cache}' (mode 0777); run: chmod go-w" in said
    assert bench.tool("verify") == 1
    assert "the cache is off: others may write" in bench.said()


# ------------------------------------------------------------------------- integrity, concurrency


def test_a_damaged_entry_is_compiled_again(bench: Bench) -> None:  # 39
    bench.compile("enable")
    made = result(bench.folder / "net")
    for name in (next(iter(bench.entries)), *bench.networks):
        victim = bench.cache / "kernel_cache/c99" / name
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
    assert bench.tool("verify") == 1
    assert "2 damaged" in bench.said()
    assert len(bench.compile("enable")) == 1
    assert "1 misses, 0 bypassed, 1 stored, 0 aged, 1 damaged" in bench.said()
    assert result(bench.folder / "net") == made
    assert bench.tool("verify") == 0


def test_the_log_counts_hits_and_misses_with_reasons(bench: Bench) -> None:  # 44
    count = len(bench.compile("enable"))
    said = bench.said()
    assert f"op compiler cache (enable): 0 hits, {count} misses, 0 bypassed, {count} stored" in said
    assert said.count("[INFO]   miss ") == count
    bench.compile("enable", "--memory_tries=11")
    assert f"{count} hits, 0 misses, 0 bypassed, 0 stored, 0 aged, 0 damaged" in bench.said()
    bench.compile("enable")
    said = bench.said()
    assert f"0 objects compiled, {count} from the cache" in said
    assert "1 hits, 0 misses, 0 bypassed, 0 stored, 0 aged, 0 damaged" in said


def start(bench: Bench, output: str, *more: str, seed: str = "0") -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "atc", *bench.line("enable", *more, output=output)]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONHASHSEED": seed}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_parallel_runs_agree(bench: Bench) -> None:  # 41
    runs = [start(bench, f"{number}/net", f"-j{number}", seed=str(number)) for number in (1, 2)]
    for process in runs:
        err = process.communicate(timeout=300)[1]
        assert process.returncode == 0, err
        assert "W10001" not in err
    bench.compiler.compiled()
    one, two = (result(bench.folder / f"{number}/net") for number in (1, 2))
    assert one == two
    assert bench.compile("enable") == []
    assert result(bench.folder / "net") == one
    assert bench.tool("verify") == 0
    assert f"{len(bench.stored)} entries checked, 0 damaged" in bench.said()


@pytest.mark.slow
def test_bytes_depend_on_no_folder_and_no_number_of_jobs(bench: Bench) -> None:  # 5
    outputs = []
    for jobs, mode, output in ((1, "disable", "a/net"), (2, "enable", "b/c/net")):
        bench.compile(mode, f"-j{jobs}", output=output)
        outputs.append(result(bench.folder / output))
    moved = bench.folder / "elsewhere"
    moved.mkdir()
    bench.model.rename(moved / bench.model.name)
    replace(bench, model=moved / bench.model.name).compile("disable", output="d/net")
    assert outputs[0] == outputs[1] == result(bench.folder / "d/net")


@pytest.mark.slow
def test_a_killed_run_spoils_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = bench.folder / "slow-cc"
    slow.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c src/net.c "*) touch {bench.folder}/begun; sleep 60;; '
        f'esac\nexec {bench.compiler.command} "$@"\n'
    )
    slow.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CC", str(slow))
        process = start(bench, "net", "-j1")
        assert happens((bench.folder / "begun").exists)
        process.kill()
        process.communicate()
    assert not (bench.folder / "net").exists()
    bench.compiler.compiled()
    assert bench.compile("enable")
    assert bench.compile("enable") == []
    assert bench.tool("verify") == 0


# ------------------------------------------------------------------------------------ the commands


def test_stats_and_clear(bench: Bench) -> None:
    assert bench.tool("stats") == 0
    assert "empty" in bench.said()
    count = len(bench.compile("enable"))
    bench.said()
    assert bench.tool("stats", "--target=c99") == 0
    said, kept = bench.said(), count + 1  # the network, too
    assert f"c99: {kept} entries" in said
    assert f"local: 0 hits; {count} compiled" in said
    assert bench.tool("stats", "--json") == 0
    assert json.loads(bench.said())["targets"][0]["entries"] == kept
    assert bench.tool("clear", "--target=x86-64") == 0
    assert "0 entries deleted" in bench.said()
    assert bench.tool("clear") == 0
    assert f"{kept} entries deleted" in bench.said()
    assert bench.entries == {}
    assert len(bench.compile("enable")) == count


def test_why_shows_what_a_kernel_was_made_of(bench: Bench) -> None:
    source = bench.compile("enable")[0]
    bench.said()
    assert bench.tool("why", Path(source).stem) == 0
    said = bench.said()
    assert Path(source).stem in said
    assert "-std=c99" in said
    assert bench.tool("why", "nobody") == 1
    assert re.fullmatch("E10001: no entry is named 'nobody' .*\n", bench.said())


@pytest.mark.parametrize(
    "words",
    [[], ["frob"], ["why"], ["stats", "x"], ["why", "a", "b"], ["verify", "--json"]],
)
def test_wrong_commands(words: list[str], bench: Bench) -> None:
    assert bench.tool(*words) == 1
    err = bench.said()
    assert err.startswith("E10001: ")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("unconfigured")
def test_without_any_directory_there_is_no_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("ASCEND_CACHE_PATH", raising=False)
    assert main(["cache", "stats"]) == 1
    assert "HOME is not set" in capsys.readouterr().err
