"""Commands of `--singleop` and the values of `--mode` above 0: look at models and networks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atc.backends.toolchain.compiler import library_in
from atc.cache import Session
from atc.compile import compile_model, compile_resolved
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, ModelError, OptionError, UnsupportedError, not_written, one_line
from atc.files.temporary import temporary_folder
from atc.options.options import Options
from atc.options.resolve import Resolved
from atc.pipeline.kept import KeptNetwork
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Decisions, Request, resolve_request
from atc.tools.check import check_json, check_model
from atc.tools.explain import read_report
from atc.tools.export_json import text_graph
from atc.tools.single_op import read_single_ops
from atc.tools.translate import write_translation

CHECK_REPORT = Path("check_result.json")
"""Where `--mode=3` writes its report, unless `--check_report` says."""


@dataclass(frozen=True)
class Outcome:
    """The text to print, and the error that the run ends with, if any."""

    text: str = ""
    error: AtcError | None = None


def run_mode(options: Options, resolved: Resolved, diagnostics: Diagnostics) -> Outcome:
    """Run the mode that a command line asks for."""
    values = resolved.values
    match values["mode"]:
        case 1:
            return _translate(options, values["om"], values["json"])
        case 3:
            request = resolve_request(options, resolved.environ)
            return check_report(request, values["check_report"] or CHECK_REPORT, diagnostics)
        case 5:
            _write_json(values["json"], text_graph(values["om"]))
            return Outcome()
        case _:
            return Outcome(network_info(values["om"]))


def _translate(options: Options, om: Path | None, path: Path) -> Outcome:
    """Write a model as ONNX or JSON; of a compiled network its report."""
    if om is not None and om.is_dir():
        _write_json(path, dict(read_report(om)))
    else:
        write_translation(options, path)
    return Outcome()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", "utf-8")
    except OSError as error:
        raise not_written(path, error, "--json") from None


# ----------------------------------------------------------------------------------------- check


def check_report(request: Request, path: Path, diagnostics: Diagnostics) -> Outcome:
    """Write what a dry run finds; the outcome's error is the first that compiling would meet."""
    result = check_model(request, diagnostics)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(check_json(result), "utf-8")
    except OSError as error:
        raise not_written(path, error, "--check_report") from None
    failed, count = len(result.errors), len(result.findings)
    text = f"nodes checked: {count}, reasons against compiling: {failed}; see {path}\n"
    return Outcome(text, result.errors[0] if result.errors else None)


def compile_or_report(
    options: Options, environ: Mapping[str, str], diagnostics: Diagnostics, report: Path | None,
    decisions: Decisions | None = None, session: Session | None = None,
    kept: KeptNetwork | None = None,
) -> Compilation:  # fmt: skip
    """Compile; where the model is refused and a report is asked for, write that first."""
    request = resolve_request(options, environ, decisions)
    try:
        return compile_resolved(request, diagnostics, session, kept)
    except (ModelError, UnsupportedError):
        if report is not None:
            check_report(request, report, Diagnostics())
        raise


# ---------------------------------------------------------------------------------- single ops


def compile_single_ops(
    options: Options, path: Path, environ: Mapping[str, str], diagnostics: Diagnostics,
    show: Callable[[Compilation], None],
) -> None:  # fmt: skip
    """Compile each operator of a file into a folder of its own under `--output`."""
    singles = read_single_ops(path)
    with temporary_folder("singleop") as folder:
        for single in singles:
            file = Path(folder, f"{single.name}.onnx")
            file.write_bytes(single.model.SerializeToString(deterministic=True))
            own = replace(options, model=file, output=options.output / single.name)
            show(compile_model(own, environ, diagnostics))


# ------------------------------------------------------------------------------ compiled networks


def network_info(path: Path) -> str:
    """Return what a compiled network's folder (or a library in one) says of itself."""
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise OptionError(f"{path} doesn't exist", where="--om", hint="name a compiled folder")
    lines = [*_info(read_report(folder), folder)]
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:<{width}}  {one_line(text)}\n" for name, text in lines)


def _info(report: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    yield "network", f"{report['name']} in {folder}"
    yield from (("input", f"{name}: {type_}") for name, type_ in report["inputs"].items())
    yield from (("output", f"{name}: {type_}") for name, type_ in report["outputs"].items())
    memory = report["memory"]
    yield "arena", f"{memory['arena_bytes']} bytes, lower bound {memory['lower_bound_bytes']}"
    yield "weights", f"{memory['weights_bytes']} bytes"
    tiers = [node["tier"] for node in report["nodes"]]
    yield "kernels", ", ".join(f"{tiers.count(t)} {t}" for t in ("tuned", "portable"))
    yield "target", str(report["target"])
    yield from (("build", part) for part in _build_info(folder, str(report["name"])))


def _build_info(folder: Path, name: str) -> list[str]:
    """Return what the library says of its making; it isn't loaded, so any target's can be read."""
    library = library_in(folder, name)
    data = library.read_bytes() if library else b""
    found = re.search(rb"atc=[ -~]{1,200}?; target=[ -~]{1,2000}", data)
    return found[0].decode().split("; ") if found else []
