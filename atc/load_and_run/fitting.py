"""Tries sets of options on a model, prints what each takes, and keeps the fastest library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from atc.backends.cpu.targets import TARGETS
from atc.backends.target import host_arch, host_features
from atc.errors import AtcError, OptionError, one_line
from atc.files.temporary import temporary_folder
from atc.load_and_run.arguments import RunArguments
from atc.load_and_run.cases import Case
from atc.load_and_run.compilation import compile_subject
from atc.load_and_run.console import Console
from atc.load_and_run.inputs import Given
from atc.load_and_run.runner import Timing

WARMUP, RUNS = 3, 10

PLAIN: Mapping[str, object] = {
    "iter": RUNS, "warmup_iter": WARMUP, "thread": 1, "json": True, "io_dump": None,
    "io_dump_stdout": False, "io_dump_stderr": False, "bin_io_dump": None, "bin_out_dump": None,
    "profile": None, "profile_host": None, "range": 0.0, "check_var_value": None,
    "check_dispatch": False, "model_info": False, "get_static_mem_info": None,
}  # fmt: skip
"""What a trial is run with, whatever the user asks of the last run."""


@dataclass(frozen=True)
class Trial:
    """A set of options and the median time of its library in ms."""

    options: Mapping[str, object]
    median: float

    @property
    def text(self) -> str:
        """The options as they are written."""
        return " ".join(f"--{k}={_shown(v)}" for k, v in self.options.items()) or "(defaults)"


def _shown(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def option_sets() -> Iterator[Mapping[str, object]]:
    """Yield what is tried: layouts of every vector width of this machine, each also measured."""
    layouts: list[dict[str, object]] = [{}, {"layout_transform": "cpu"}]
    for option, size in (("enable_nchw44", 16), ("enable_nchw88", 32)):
        if any(t.arch == host_arch() and t.vector_bytes == size and t.features <= host_features()
               for t in TARGETS):  # fmt: skip
            layouts.append({option: True})
    for layout in layouts:
        yield layout
        yield {**layout, "full_run": True}


Run = Callable[[Path, RunArguments, Sequence[Case], Console, Mapping[str, str]], list[Timing]]
"""Runs a library as the options say."""


def fit(
    arguments: RunArguments, given: Sequence[Given], stack: ExitStack, console: Console, run: Run
) -> Path:
    """Return the folder of the fastest library; --dump_fitting_model keeps it."""
    trials: list[tuple[Trial, Path]] = []
    for number, options in enumerate(option_sets()):
        place = stack.enter_context(temporary_folder("load_and_run"))
        folder = Path(place, arguments.subject.stem or "net")
        try:
            median = _tried(arguments, options, given, folder, console, run)
        except AtcError as error:
            if not number:  # what fails without any option fails with all of them
                raise
            console.line(f"fitting {number}: {Trial(options, 0).text}: {one_line(str(error), 200)}")
            continue
        trial = Trial(options, median)
        console.line(f"fitting {number}: median={median:.3f} ms {trial.text}")
        trials.append((trial, folder))
    if not trials:
        raise OptionError("no set of options gives a library that runs", where="--fitting")
    best = min(trials, key=lambda pair: pair[0].median)[0]
    console.line(f"=== fitting: the best is {best.text} with {best.median:.3f} ms")
    console.result["fitting"] = {
        "trials": [{"options": t.text, "median_ms": t.median} for t, _ in trials],
        "best": best.text,
    }
    kept: Path | None = arguments["dump_fitting_model"]
    if kept is None:
        place = stack.enter_context(temporary_folder("load_and_run"))
        kept = Path(place, arguments.subject.stem or "net")
    with console.terminal:
        return compile_subject(_with(arguments, best.options), given, kept, console).folder


def _tried(
    arguments: RunArguments, options: Mapping[str, object], given: Sequence[Given], folder: Path,
    console: Console, run: Run,
) -> float:  # fmt: skip
    silent = Console(
        lambda text: None, console.error, console.terminal, quiet=True, warnings=console.warnings
    )
    wanted = _with(arguments, {**PLAIN, **options})
    with console.terminal:
        done = compile_subject(wanted, given, folder, silent)
    found = run(done.folder, wanted, (Case(tuple(given)),), silent, {})[0].statistics
    assert found is not None
    return found.median


def _with(arguments: RunArguments, options: Mapping[str, object]) -> RunArguments:
    texts = {**arguments.texts, **{k: _shown(v) for k, v in options.items()}}
    return replace(arguments, values={**arguments.values, **options}, texts=texts)
