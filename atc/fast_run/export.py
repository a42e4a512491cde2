"""Measuring on a machine that nothing reaches: a C project out, the text that it prints back in.

The project has a program for each workload, as fast-run builds them here, and `measure`, which runs
them one after the other. Its output says which machine it was and what each candidate took. Kernels
of a GPU come compiled, those of one that is imitated as sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from atc.backends.cuda.targets import EMULATED
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.build.gpu import compile_cubins
from atc.codegen.sources import gpu_files
from atc.codegen.weights import included_weights
from atc.errors import OptionError, one_line
from atc.fast_run.measure import HARNESS, Bench, bench_files, unknown_tasks
from atc.fast_run.task import Task
from atc.files.temporary import temporary_folder
from atc.templates import render

OPTION = "--fast_run_import"
FOLDER = "fast_run"
"""Where in the output folder the project lies."""
FIRST = "atc fast-run 1"
CUBINS, CUBINS_DATA = "cubins.S", "cubins.bin"
_LARGEST = 1 << 26
_WORD = re.compile(r"[A-Za-z0-9_]{1,255}")


@dataclass(frozen=True)
class Imported:
    """Times from a board: its name, and ns by workload and candidate, None for failures."""

    machine: str
    times: Mapping[str, Mapping[str, float | None]]


def measuring_project(todo: Iterable[Workload], bench: Bench) -> dict[str, bytes]:
    """Return the files of a C project that measures what the algo cache doesn't know."""
    files: dict[str, bytes] = {}
    programs, built = [], []
    for number, task in enumerate(unknown_tasks(todo, bench)):
        name = f"w{number:03}"
        own = bench_files(task, bench)
        own |= _cubins(task, own, bench)
        files |= {f"{name}/{path}": data for path, data in own.items()}
        symbols = [source.symbol for source in task.sources]
        programs.append((name, task.key, symbols))
        built.append((name, _sources(task, bench.target)))
    target = bench.target
    flags = [f for f in bench.context.flags if not f.startswith("-I")]
    flags = [f for f in flags if not (target.device and f.startswith("-std="))]
    seconds = round(bench.timeout) if bench.timeout < 86400 else 0
    texts = {
        "measure.c": render("bench/measure.c.j2", {
            "programs": programs, "seconds": seconds, "device": target.name * bool(target.device),
        }),
        "CMakeLists.txt": render("bench/CMakeLists.txt.j2", {
            "programs": built, "flags": " ".join(flags), "device": bool(target.device),
            "emulated": target.device == EMULATED,
        }),
    }  # fmt: skip
    return {**files, **{path: text.encode() for path, text in texts.items()}} if programs else {}


def _sources(task: Task, target: Target) -> list[str]:
    """Return what a workload's program is built of."""
    kernels = sorted({s.path for s in task.sources})
    if not target.device:
        return [*kernels, HARNESS]
    driver = [f"src/{file}" for file in gpu_files(target) if file.endswith(".c")]
    return [*(kernels if target.device == EMULATED else [CUBINS]), *driver, HARNESS]


def _cubins(task: Task, files: Mapping[str, bytes], bench: Bench) -> dict[str, bytes]:
    """Return the compiled kernels of a GPU that isn't imitated, and what includes them."""
    if bench.nvcc is None:
        return {}
    with temporary_folder("bench") as folder:
        cwd = Path(folder).resolve()
        data = compile_cubins(cwd, files, task.sources, bench.nvcc, bench.context)
    return {CUBINS_DATA: data, CUBINS: included_weights("bench", CUBINS_DATA, "cubins").encode()}


def read_times(path: Path) -> Imported:
    """Return the times of a file that `measure` printed; raises OptionError that names the line.

    A workload whose lines end too early, as when the program was interrupted, is left out.
    """
    try:
        data = path.read_bytes()[: _LARGEST + 1]
    except OSError as error:
        raise OptionError(f"can't read {path}: {error.strerror}", where=OPTION) from None
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) > _LARGEST or lines[:1] != [FIRST] or not lines[1:2]:
        raise OptionError(
            f"{path} holds no measured times", where=OPTION,
            hint="give the file that the project of --fast_run=export printed",
        )  # fmt: skip
    times: dict[str, dict[str, float | None]] = {}
    key, symbols, alone = "", [""], -1
    row: dict[str, float | None] = {}
    for number, line in enumerate(lines[2:], 3):
        try:
            match line.split():
                case ["workload", word, *words] if all(map(_WORD.fullmatch, (word, *words))):
                    key, symbols, alone, row = word, words, -1, dict.fromkeys(words)
                case ["alone", which]:
                    alone = int(which)
                case ["done"]:
                    times[key] = row
                case ["end"]:
                    break
                case ["board", _, _]:
                    pass
                case [which, what, _]:
                    if alone in (-1, int(which)):
                        row[symbols[_index(which, symbols)]] = _ns(what)
                case _:
                    raise ValueError
        except ValueError:
            raise OptionError(
                f"line {number} of {path} is none that measure prints: '{one_line(line, 60)}'",
                where=OPTION, hint="copy the file again, or repeat the measurement",
            ) from None  # fmt: skip
    return Imported(one_line(lines[1].removeprefix("machine").strip(), 200), times)


def _index(text: str, symbols: list[str]) -> int:
    number = int(text)
    if not 0 <= number < len(symbols):
        raise ValueError
    return number


def _ns(text: str) -> float | None:
    if text == "failed":
        return None
    value = float(text)
    if not 0 <= value < 1e15:
        raise ValueError
    return value
