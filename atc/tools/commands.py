"""The commands diff, bisect, profile, quantize, report, machine, targets, doctor: from arguments
to an answer."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from atc.backends.machine import machine_json
from atc.backends.targets import get_target
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, OptionError, not_written, one_line
from atc.files.temporary import temporary_folder
from atc.options.options import Options, make_options
from atc.options.parse import parse_arguments
from atc.options.resolve import resolve
from atc.runtime.load import open_network
from atc.tools.profile import Profile


@dataclass(frozen=True)
class Answer:
    """The text that a command prints, and its exit status."""

    text: str
    status: int = 0


def run_tool(command: str, argv: Sequence[str], diagnostics: Diagnostics) -> Answer:
    """Run one of these commands; raises AtcError."""
    match command:
        case "diff":
            return _diff(argv, diagnostics)
        case "bisect":
            return _bisect(argv, diagnostics)
        case "profile":
            return _profile(argv)
        case "quantize":
            return _quantize(argv)
        case "machine":
            return _machine(argv, diagnostics)
        case "doctor":
            return _doctor(argv)
        case "targets":
            return _targets(argv, diagnostics)
        case _:
            return _report(argv)


def _diff(argv: Sequence[str], diagnostics: Diagnostics) -> Answer:
    from atc.accuracy.check_feeds import check_given
    from atc.accuracy.diff import diff_json, diff_model, diff_text, with_hooks
    from atc.compile import compile_resolved
    from atc.pipeline.request import resolve_request

    resolved = resolve(parse_arguments(argv, "diff").given, "diff")
    values: dict[str, Any] = resolved.values
    with temporary_folder("diff") as folder:
        options = make_options({**values, "output": Path(folder, "net")})
        request = resolve_request(with_hooks(options), resolved.environ)
        check_given(request, values["input"])
        done = compile_resolved(request, diagnostics)
        result = diff_model(done, values["input"], values["seed"], values["tolerance"])
    text = (diff_json if values["json"] else diff_text)(result)
    return Answer(text, 1 if result.first else 0)


def _bisect(argv: Sequence[str], diagnostics: Diagnostics) -> Answer:
    from atc.tools.bisect import bisect, bisection_json, bisection_text

    given = parse_arguments(argv, "bisect").given
    resolved = resolve(given, "bisect")
    values: dict[str, Any] = resolved.values
    with temporary_folder("bisect") as folder:
        first, second = (
            _option_set(values[end], given, end, Path(folder, "net")) for end in ("first", "second")
        )
        result = bisect(
            first, second, resolved.environ, values["input"], values["seed"], values["tolerance"],
            diagnostics.stage,
        )  # fmt: skip
    text = (bisection_json if values["json"] else bisection_text)(result)
    return Answer(text, 0 if result.found is None else 1)


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
    values: dict[str, Any] = resolve({**given, **own}, "bisect").values
    return make_options({**values, "output": output})


def _profile(argv: Sequence[str]) -> Answer:
    from atc.tools.profile import profile_json, profile_text, trace_json

    arguments = parse_arguments(argv, "profile", words=1)
    values: dict[str, Any] = resolve(arguments.given, "profile").values
    folder = _folder(arguments.words, "profile")
    result = _measured(folder, values)
    if values["trace"]:
        _write(values["trace"], trace_json(result), "--trace")
    return Answer((profile_json if values["json"] else profile_text)(result))


def _quantize(argv: Sequence[str]) -> Answer:
    from atc.compile import compile_request
    from atc.quantize.quantize import Job, quantize_model
    from atc.quantize.report import quantised_json, quantised_text
    from atc.quantize.weights import quantize_weights, weights_json, weights_text

    values: dict[str, Any] = resolve(parse_arguments(argv, "quantize").given, "quantize").values
    job = Job(**{f.name: values[f.name] for f in fields(Job)})
    if job.weights == "int4":
        packed = quantize_weights(job)
        return Answer((weights_json if values["json"] else weights_text)(packed))
    result = quantize_model(job, compile_request)
    return Answer((quantised_json if values["json"] else quantised_text)(result))


def _report(argv: Sequence[str]) -> Answer:
    from atc.tools.profile import read_profile
    from atc.tools.report_page import report_page

    arguments = parse_arguments(argv, "report", words=1)
    values: dict[str, Any] = resolve(arguments.given, "report").values
    folder = _folder(arguments.words, "report")
    profile = None
    if values["profile"]:
        profile = read_profile(values["profile"])
    elif _times_calls(folder):
        profile = _measured(folder, values)
    name = folder.resolve().name
    target = values["output"] or folder / f"{name}.html"
    _write(target, report_page(folder, profile), "--output")
    return Answer(f"{target}\n")


def _folder(words: Sequence[str], command: str) -> Path:
    if len(words) != 1:
        raise OptionError("the folder of a compiled network is needed",
                          hint=f"see atc {command} --help")  # fmt: skip
    return Path(words[0])


def _measured(folder: Path, values: Mapping[str, Any]) -> Profile:
    """Run a library and return its profile, with the core's peak for its target."""
    from atc.accuracy.feeds import read_feeds
    from atc.fast_run.peak_flops import measured_peak
    from atc.tools.explain import read_report
    from atc.tools.profile import profile_run

    net = open_network(folder)
    feeds, _ = read_feeds(net, values["input"], values["seed"])
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


def _machine(argv: Sequence[str], diagnostics: Diagnostics) -> Answer:
    from atc.tools.machine import machine_text, shown_machine

    resolved = resolve(parse_arguments(argv, "machine").given, "machine")
    values: dict[str, Any] = resolved.values
    shown = shown_machine(values["machine"], values["measure"], resolved.environ, diagnostics)
    return Answer(machine_json(shown.machine) if values["json"] else machine_text(shown))


def _doctor(argv: Sequence[str]) -> Answer:
    from atc.tools.doctor import diagnose, doctor_json, doctor_text

    resolved = resolve(parse_arguments(argv, "doctor").given, "doctor")
    values: dict[str, Any] = resolved.values
    found = diagnose(resolved.environ, [name for name in values["target"].split(",") if name])
    return Answer((doctor_json if values["json"] else doctor_text)(found), found.exit_status)


def _targets(argv: Sequence[str], diagnostics: Diagnostics) -> Answer:
    from atc.tools.targets import target_rows, targets_json, targets_text

    resolved = resolve(parse_arguments(argv, "targets").given, "targets")
    rows = target_rows(resolved.environ, diagnostics.process)
    return Answer((targets_json if resolved.values["json"] else targets_text)(rows))
