"""`load_and_run MODEL_OR_LIBRARY [options]` and `compare_binary_iodump DUMP DUMP`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from atc import __version__
from atc.build.output_folder import check_folder
from atc.errors import ModelError, OptionError, not_written, one_line
from atc.files.temporary import temporary_folder
from atc.ir.graph import Array
from atc.load_and_run.arguments import RunArguments, read_arguments
from atc.load_and_run.binary_dump import compare_dumps
from atc.load_and_run.cases import Case, check_outputs, stored_cases
from atc.load_and_run.console import Console
from atc.load_and_run.engine import Engine, open_engine
from atc.load_and_run.failure import CheckError
from atc.load_and_run.inputs import Given, Signature, fit_inputs, read_inputs
from atc.load_and_run.memory import Memory, external_memory
from atc.load_and_run.plugins import make_plugins
from atc.load_and_run.profile import profile_json
from atc.load_and_run.rules import check_rules, notes, strategy
from atc.load_and_run.runner import Timing, run_test
from atc.load_and_run.static_memory import write_static_memory
from atc.runtime.custom_ops import ExternalLibrary

ReadLine = Callable[[], object]
"""Waits for the return key."""


def load_and_run(argv: Sequence[str], console: Console, wait: ReadLine) -> int:
    """Run a command line and return the exit status; raises AtcError for what goes wrong."""
    environ = dict(os.environ)
    arguments = read_arguments(argv, environ)
    console.quiet, console.verbose = arguments["json"], arguments["verbose"]
    check_rules(arguments)
    given = read_inputs(arguments["input"])
    compiles = not _is_library(arguments.subject)
    for text in notes(arguments, compiles):
        console.warn(text)
    if arguments["wait_gdb"]:
        console.line(f"wait for gdb attach (pid={os.getpid()}): press return to go on")
        wait()
    with ExitStack() as stack:
        if arguments["fitting"] and compiles:
            with console.terminal:
                from atc.load_and_run.fitting import fit

            folder = fit(arguments, given, stack, console, run_library)
        else:
            made = _compiled(arguments, given, stack, console) if compiles else arguments.subject
            if made is None:
                return 0
            folder = made
        cases = () if given or not compiles else stored_cases(arguments.subject)
        run_library(folder, arguments, cases or (Case(given),), console, environ)
    return 0


def _is_library(subject: Path) -> bool:
    """Return whether a path names something compiled; raises ModelError if there is nothing."""
    if not subject.exists():
        raise ModelError("no such file or folder", where=str(subject), code="E10041")
    return subject.is_dir() or re.search(r"\.so(\.\d+)*$", subject.name) is not None


def _compiled(
    arguments: RunArguments, given: Sequence[Given], stack: ExitStack, console: Console
) -> Path | None:
    """Compile a model into a folder that goes at the end, or the one of --model_dump.

    Returns None where what was made is for another machine.
    """
    folder = arguments["model_dump"]
    if folder is None:
        place = stack.enter_context(temporary_folder("load_and_run"))
        folder = Path(place, arguments.subject.stem or "net")
    else:
        check_folder(folder, "--model_dump")
    with console.terminal:
        # Late: a library needs no compiler.
        from atc.load_and_run.compilation import compile_subject, runs_natively

        begin = time.perf_counter()
        done = compile_subject(arguments, given, folder, console)
    milliseconds = 1e3 * (time.perf_counter() - begin)
    console.line(
        f"compile model: {milliseconds:.3f} ms, {done.build.compiled} objects compiled, "
        f"{done.build.cached} from the cache, strategy {'|'.join(strategy(arguments))}"
    )
    console.result["compile"] = {
        "ms": milliseconds, "compiled": done.build.compiled, "cached": done.build.cached,
        "strategy": list(strategy(arguments)), "kernel_calls": len(done.report["nodes"]),
        "arena_bytes": done.arena.plan.size, "weights_bytes": done.emission.blob.size,
    }  # fmt: skip
    if not runs_natively(done.options.target):
        console.line(f"{done.folder} is for {done.target.name}: nothing is run on this machine")
        return None
    return done.folder


# ---- running ------------------------------------------------------------------------------------


def run_library(
    path: Path, arguments: RunArguments, cases: Sequence[Case], console: Console,
    environ: Mapping[str, str],
) -> list[Timing]:  # fmt: skip
    """Load a library, run it as the options say, and report all of it; returns the times."""
    external = arguments["c_opr_lib"]
    # Before the network, which calls its functions; it must stay until the end.
    operators = external and ExternalLibrary(external, arguments["c_opr_init_interface"])
    begin = time.perf_counter()
    engine = open_engine(path)
    if arguments["cuda"] and "target=cuda" not in engine.build_info:
        raise OptionError("the library is for a CPU", where="--cuda", hint="leave it out")
    loaded = 1e3 * (time.perf_counter() - begin)
    console.line(f"load_and_run of atc {__version__}: {one_line(engine.build_info)}")
    console.line(f"load model: {loaded:.3f} ms")
    console.result |= {"load_ms": loaded, "build_info": engine.build_info}
    if engine.is_checked and arguments["no_sanity_check"]:
        console.warn("--no_sanity_check: the library's own checks are compiled in")
    if arguments["get_static_mem_info"] is not None:
        write_static_memory(path, arguments["get_static_mem_info"])
    if arguments["model_info"]:
        _show_model(engine, console)
    own = arguments["c_opr_lib_with_param"]
    memory = external_memory(external) if own else Memory()
    try:
        timings = _run_tests(engine, arguments, cases, memory, console, environ)
    finally:
        memory.close()
    if arguments["model_info"]:
        _show_model(engine, console)
    del engine, operators
    return timings


def _run_tests(
    engine: Engine, arguments: RunArguments, cases: Sequence[Case], memory: Memory,
    console: Console, environ: Mapping[str, str],
) -> list[Timing]:  # fmt: skip
    signature: Signature = {t.name: (t.shape, t.stored) for t in engine.inputs}
    lowest = {t.name: t.lowest for t in engine.inputs if t.lowest}
    dump_inputs = environ.get("MGB_DUMP_INPUT", "") not in ("", "0")
    plugins = make_plugins(engine, arguments, dump_inputs)
    if arguments["profile"] is not None or arguments["profile_host"] is not None:
        _need_profile(engine, arguments)
    begin = time.perf_counter()
    timings, outputs = list[Timing](), list[Array]()
    for number, case in enumerate(cases):
        inputs = fit_inputs(case.given, signature, arguments["batch_size"], lowest)
        more, outputs = run_test(engine, inputs, arguments, plugins, memory, console, number)
        timings += more
        goes_on = arguments["disable_assert_throw"]
        check_outputs(case, engine.outputs, outputs, goes_on, console, number)
    total = 1e3 * (time.perf_counter() - begin)
    plugins.finish(arguments, console)
    waits_alone = environ.get("MGB_PROFILE_ONLY_WAIT", "") not in ("", "0")
    _write_profiles(engine, arguments, timings[0], waits_alone)
    console.line(f"=== total time: {total:.3f} ms")
    console.result |= {
        "iterations": arguments["iter"], "threads": arguments["thread"], "total_ms": total,
        "pool_cores": plugins.cores, "tests": [_timing_json(timing) for timing in timings],
        "outputs": {
            t.name: {"shape": list(a.shape), "dtype": a.dtype.name, "mean": _mean(a)}
            for t, a in zip(engine.outputs, outputs, strict=True)
        },
    }  # fmt: skip
    return timings


def _timing_json(timing: Timing) -> dict[str, object]:
    found = timing.statistics
    return {
        "warmup_ms": timing.warmup, "e2e_ms": timing.e2e, "host_ms": timing.host,
        "statistics": found.as_dict() if found else None,
    }  # fmt: skip


def _mean(array: Array) -> float | None:
    if not array.size or array.dtype.kind == "S":
        return None
    value = float(array.astype(np.float64).mean())
    return value if np.isfinite(value) else None


def _show_model(engine: Engine, console: Console) -> None:
    rows = [("type", "name", "shape", "dtype")]
    for side, tensors in (("input", engine.inputs), ("output", engine.outputs)):
        for t in tensors:
            shape = "{" + ",".join(t.extents) + "}"
            rows.append((side, one_line(t.name, 60), shape, t.stored.name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        console.line("  ".join(cells).rstrip())
    console.result["model_info"] = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def _need_profile(engine: Engine, arguments: RunArguments) -> None:
    option = "profile" if arguments["profile"] is not None else "profile_host"
    if not engine.is_profiled:
        raise OptionError(
            "the library was compiled without times of its kernel calls", where=f"--{option}",
            hint="compile it with --profile, or give the model file",
        )  # fmt: skip
    if not arguments["iter"]:
        raise OptionError("there are no runs to profile", where=f"--{option}", hint="raise --iter")


def _write_profiles(
    engine: Engine, arguments: RunArguments, timing: Timing, waits_alone: bool
) -> None:
    for option in ("profile", "profile_host"):
        path: Path | None = arguments[option]
        if path is None:
            continue
        text = profile_json(engine, timing.profile, option == "profile", waits_alone)
        try:
            path.write_text(text, "utf-8")
        except OSError as error:
            raise not_written(path, error, f"--{option}") from None


# ---- comparing dumps ----------------------------------------------------------------------------

COMPARE_HELP = """\
usage: compare_binary_iodump DUMP DUMP [-e MAX_ERR] [-s]

Compares two binary dumps of load_and_run, files or folders, by |a - b| / max(1, |a|, |b|).

  -e, --max-err=X       the largest error that passes (default: 0.001)
  -s, --stop-on-error   stop at the first difference

Exit status 0: equal; 5: different; 1: what was named can't be compared.
"""


def compare_binary_iodump(argv: Sequence[str], console: Console) -> int:
    """Compare two dumps; raises CheckError where they differ."""
    paths, max_error, stop = _compare_arguments(list(argv))
    found = compare_dumps(paths[0], paths[1], max_error, stop)
    for difference in found:
        console.line(f"{difference.file}: {one_line(difference.text)}")
    if found:
        raise CheckError(f"{len(found)} values differ", where=f"{paths[0]}, {paths[1]}")
    console.line("the dumps are equal")
    return 0


def _compare_arguments(words: list[str]) -> tuple[list[Path], float, bool]:
    paths: list[Path] = []
    error, stop = "1e-3", False
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-s", "--stop-on-error"):
            stop = True
        elif name in ("-e", "--max-err") and (equals or words):
            error = value if equals else words.pop(0)
        elif word.startswith("-"):
            raise OptionError(f"unknown option {one_line(word, 60)}", hint="see --help")
        else:
            paths.append(Path(word))
    try:
        limit = float(error)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise OptionError(f"'{one_line(error, 60)}' is not an error", where="--max-err")
    if len(paths) != 2:
        raise OptionError(f"{len(paths)} dumps are named, two are compared", hint="see --help")
    return paths, limit, stop
