"""The commands that give a text and an exit status: from a command line to an answer.

What they need is imported when they run, so that a command loads no more than that.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atc.errors import AtcError, OptionError, not_written, one_line
from atc.files.temporary import temporary_folder
from atc.options.options import Options, make_options
from atc.options.parse import parse_arguments
from atc.options.resolve import Resolved, resolve

if TYPE_CHECKING:
    from atc.diagnostics import Diagnostics
    from atc.tools.profile import Profile

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """The text that a command prints, and its exit status."""

    text: str
    status: int = 0


@dataclass(frozen=True)
class CommandLine:
    """The words and options that a command is given, and the diagnostics that it reports to."""

    command: str
    words: tuple[str, ...]
    given: Mapping[str, str]
    diagnostics: Diagnostics

    @cached_property
    def resolved(self) -> Resolved:
        """The values of all of the command's options, with what the environment says."""
        return resolve(self.given, self.command)

    @property
    def values(self) -> dict[str, Any]:
        """The values alone."""
        return self.resolved.values

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that goes with them."""
        return self.resolved.environ

    def answer(
        self, result: T, json: Callable[[T], str], text: Callable[[T], str], status: int = 0
    ) -> Answer:
        """Return a result as --json asks for it."""
        return Answer((json if self.values["json"] else text)(result), status)


@dataclass(frozen=True)
class Command:
    """A command: what it does, how many words it takes, and the error where one is missing."""

    run: Callable[[CommandLine], Answer]
    words: int = 0
    needed: str = ""


def run_command(command: str, argv: Sequence[str], diagnostics: Diagnostics) -> Answer:
    """Run one of COMMANDS; raises AtcError."""
    known = COMMANDS[command]
    arguments = parse_arguments(argv, command, known.words)
    if known.needed and len(arguments.words) != known.words:
        raise OptionError(known.needed, hint=f"see atc {command} --help")
    return known.run(CommandLine(command, arguments.words, arguments.given, diagnostics))


def _check(line: CommandLine) -> Answer:
    from atc.pipeline.request import resolve_request
    from atc.tools.check import check_json, check_model, check_text

    options = make_options({**line.values, "output": Path("net")})
    result = check_model(resolve_request(options, line.environ), line.diagnostics)
    return line.answer(result, check_json, check_text, result.exit_status)


def _explain(line: CommandLine) -> Answer:
    from atc.tools.explain import explain, read_report

    folder, node = line.words
    return Answer(explain(read_report(Path(folder)), node))


def _completion(line: CommandLine) -> Answer:
    from atc.options.completion import completion

    return Answer(completion(*line.words or ("",)))


def _cache(line: CommandLine) -> Answer:
    from atc.tools.cache import cache_command

    return Answer(*cache_command(line.words, line.values, line.environ))


def _diff(line: CommandLine) -> Answer:
    from atc.accuracy.check_feeds import check_given
    from atc.accuracy.diff import diff_json, diff_model, diff_text, with_hooks
    from atc.compile import compile_resolved
    from atc.pipeline.request import resolve_request

    values = line.values
    with temporary_folder("diff") as folder:
        options = make_options({**values, "output": Path(folder, "net")})
        request = resolve_request(with_hooks(options), line.environ)
        check_given(request, values["input"])
        done = compile_resolved(request, line.diagnostics)
        result = diff_model(done, values["input"], values["seed"], values["tolerance"])
    return line.answer(result, diff_json, diff_text, 1 if result.first else 0)


def _bisect(line: CommandLine) -> Answer:
    from atc.tools.bisect import bisect, bisection_json, bisection_text

    values = line.values
    with temporary_folder("bisect") as folder:
        first, second = (
            _option_set(values[end], line.given, end, Path(folder, "net"))
            for end in ("first", "second")
        )
        result = bisect(
            first, second, line.environ, values["input"], values["seed"], values["tolerance"],
            line.diagnostics.stage,
        )  # fmt: skip
    return line.answer(result, bisection_json, bisection_text, 0 if result.found is None else 1)


def _option_set(text: str, given: Mapping[str, str], name: str, output: Path) -> Options:
    """Return the options of one side: those of the command line, then its own."""
    if text and Path(text).is_file():
        own = {"fast_run_algo_policy": text}
    else:
        try:
            own = dict(parse_arguments(shlex.split(text), "bisect").given)
        except (ValueError, AtcError) as error:
            reason = one_line(getattr(error, "message", str(error)), 120)
            raise OptionError(
                f"no options and no file: {reason}", where=f"--{name}",
                hint=f'give --{name}="--option=value ..." or the name of a policy file',
            ) from None  # fmt: skip
    return make_options({**resolve({**given, **own}, "bisect").values, "output": output})


def _profile(line: CommandLine) -> Answer:
    from atc.tools.profile import profile_json, profile_text, trace_json

    result = _measured(Path(line.words[0]), line.values)
    if line.values["trace"]:
        _write(line.values["trace"], trace_json(result), "--trace")
    return line.answer(result, profile_json, profile_text)


def _quantize(line: CommandLine) -> Answer:
    from atc.compile import compile_request
    from atc.quantize.quantize import Job, quantize_model
    from atc.quantize.report import quantised_json, quantised_text
    from atc.quantize.weights import quantize_weights, weights_json, weights_text

    job = Job(**{f.name: line.values[f.name] for f in fields(Job)})
    if job.weights == "int4":
        return line.answer(quantize_weights(job), weights_json, weights_text)
    return line.answer(quantize_model(job, compile_request), quantised_json, quantised_text)


def _report(line: CommandLine) -> Answer:
    from atc.tools.profile import read_profile
    from atc.tools.report_page import report_page

    values, folder = line.values, Path(line.words[0])
    profile = None
    if values["profile"]:
        profile = read_profile(values["profile"])
    elif _times_calls(folder):
        profile = _measured(folder, values)
    name = folder.resolve().name
    target = values["output"] or folder / f"{name}.html"
    _write(target, report_page(folder, profile), "--output")
    return Answer(f"{target}\n")


def _measured(folder: Path, values: Mapping[str, Any]) -> Profile:
    """Run a library and return its profile, with the core's peak for its target."""
    from atc.accuracy.feeds import read_feeds
    from atc.backends.targets import get_target
    from atc.fast_run.peak_flops import measured_peak
    from atc.runtime.load import open_network
    from atc.tools.explain import read_report
    from atc.tools.profile import profile_run

    net = open_network(folder)
    feeds, _ = read_feeds(net, values["input"], values["seed"], of_any_shape=True)
    profile = profile_run(net, feeds, values["runs"], str(folder))
    target = get_target(read_report(folder)["target"]) if folder.is_dir() else None
    peak = measured_peak(target, os.environ) if target else 0.0
    return replace(profile, gflops_peak=peak)


def _times_calls(folder: Path) -> bool:
    """Return whether a folder's library was compiled with --profile and runs here."""
    files = folder.glob("lib*.so") if folder.is_dir() else ()
    return any(b"_profile_reset\0" in file.read_bytes() for file in files)


def _write(path: Path, text: str, where: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise not_written(path, error, where) from None


def _machine(line: CommandLine) -> Answer:
    from atc.backends.machine import machine_json
    from atc.tools.machine import machine_text, shown_machine

    wanted, measure = line.values["machine"], line.values["measure"]
    shown = shown_machine(wanted, measure, line.environ, line.diagnostics)
    return line.answer(shown, lambda each: machine_json(each.machine), machine_text)


def _doctor(line: CommandLine) -> Answer:
    from atc.tools.doctor import diagnose, doctor_json, doctor_text

    found = diagnose(line.environ, [name for name in line.values["target"].split(",") if name])
    return line.answer(found, doctor_json, doctor_text, found.exit_status)


def _targets(line: CommandLine) -> Answer:
    from atc.tools.targets import target_rows, targets_json, targets_text

    rows = target_rows(line.environ, line.diagnostics.process)
    return line.answer(rows, targets_json, targets_text)


_FOLDER = "the folder of a compiled network is needed"

COMMANDS: Mapping[str, Command] = {
    "diff": Command(_diff), "bisect": Command(_bisect), "profile": Command(_profile, 1, _FOLDER),
    "quantize": Command(_quantize), "report": Command(_report, 1, _FOLDER),
    "machine": Command(_machine), "doctor": Command(_doctor), "targets": Command(_targets),
    "check": Command(_check), "explain": Command(_explain, 2, "a folder and a node are needed"),
    "completion": Command(_completion, 1), "cache": Command(_cache, 2),
}  # fmt: skip
