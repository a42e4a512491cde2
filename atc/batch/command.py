"""The command `atc batch`: from a file and options to outcomes, libraries and a page."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from atc import __version__
from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.batch.journal import Journal, Outcome, changes
from atc.batch.matrix import Matrix, Row, folder_name, read_matrix
from atc.batch.run import Event, run_matrix
from atc.build.caches import operator_cache
from atc.build.objects import BuildContext
from atc.build.sdk import Sdk, have_constants_in_common, make_sdk, weights_of
from atc.compile import compile_model
from atc.errors import OptionError, not_written
from atc.files.blob import NO_WEIGHTS
from atc.files.temporary import temporary_folder
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.pipeline.request import Decisions
from atc.templates import FOLDER

PAGE = "batch.html"


@dataclass(frozen=True)
class Batch:
    """The result of a batch: all rows' outcomes, the libraries of several, and the page."""

    matrix: Matrix
    outcomes: tuple[Outcome, ...]
    sdks: tuple[Sdk, ...]
    page: Path

    @property
    def text(self) -> str:
        """Return the last lines that the user sees."""
        good = sum(outcome.ok for outcome in self.outcomes)
        lines = [f"{good} of {len(self.outcomes)} rows are compiled, details are in {self.page}"]
        lines += [
            f"{sdk.folder}: {len(sdk.networks)} networks, {sdk.distinct} kernels instead of "
            f"{sdk.kernels}, {sdk.weights:,} bytes of weights instead of {sdk.separate_weights:,}"
            for sdk in self.sdks
        ]  # fmt: skip
        return "".join(f"{line}\n" for line in lines)

    @property
    def exit_status(self) -> int:
        """0 if all rows are compiled."""
        return 0 if all(outcome.ok for outcome in self.outcomes) else 1


def run_batch(
    path: Path, values: Mapping[str, Any], report: Callable[[Event], None],
    begin: Callable[[Matrix], None] = lambda matrix: None,
) -> Batch:  # fmt: skip
    """Compile a matrix; `values` are the command's options. Raises AtcError."""
    matrix = read_matrix(path)
    if values["sdk"]:
        folder_name(values["sdk"], "--sdk")
    begin(matrix)
    journal = Journal(matrix.output)
    before = dict(journal.last)
    workers = values["jobs"] or os.cpu_count() or 1
    outcomes = run_matrix(matrix, journal, workers, report, again=values["again"])
    page = matrix.output / PAGE
    rows = [
        (outcome, changes(outcome, before.get(row.name)), before.get(row.name) is outcome)
        for row, outcome in zip(matrix.rows, outcomes, strict=True)
    ]
    _write(page, batch_page(rows, ()))  # there is one, too, where a library can't be made
    sdks = tuple(_sdks(matrix, outcomes, values["sdk"])) if values["sdk"] else ()
    if sdks:
        _write(page, batch_page(rows, sdks))
    return Batch(matrix, tuple(outcomes), sdks, page)


def _write(page: Path, text: str) -> None:
    try:
        page.write_text(text, "utf-8")
    except OSError as error:
        raise not_written(page, error, "output") from None


def batch_json(batch: Batch) -> str:
    """Return what became of a batch as JSON; sizes in bytes, times in seconds."""
    record = {
        "rows": [asdict(outcome) for outcome in batch.outcomes],
        "sdks": [{**asdict(sdk), "folder": str(sdk.folder)} for sdk in batch.sdks],
        "page": str(batch.page),
    }
    return json.dumps(record, indent=1) + "\n"


def batch_page(
    rows: Sequence[tuple[Outcome, Mapping[str, str], bool]], sdks: Sequence[Sdk]
) -> str:
    """Return the page of a batch; all text in it is escaped."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "report"), undefined=StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    good = sum(outcome.ok for outcome, _, _ in rows)
    return environment.get_template("batch.html.j2").render(
        version=__version__, when=time.strftime("%Y-%m-%d %H:%M"), rows=rows, sdks=sdks, good=good,
        failed=len(rows) - good,
    )  # fmt: skip


def _sdks(matrix: Matrix, outcomes: Sequence[Outcome], name: str) -> Iterator[Sdk]:
    """Make a library of all networks of each target and variant."""
    groups: dict[tuple[str, str], list[tuple[Row, Outcome]]] = {}
    for row, outcome in zip(matrix.rows, outcomes, strict=True):
        groups.setdefault((row.target, row.variant), []).append((row, outcome))
    for rows in groups.values():
        failed = next((row.name for row, outcome in rows if not outcome.ok), None)
        if failed is not None:
            raise OptionError(
                f"there is no library {name}: {failed} isn't compiled", where="--sdk",
                hint="correct it, and run the batch again: only what is missing is compiled",
            )  # fmt: skip
        yield _sdk([row for row, _ in rows], name)


def _sdk(rows: Sequence[Row], name: str) -> Sdk:
    folders, output = [row.output for row in rows], rows[0].output.parent / name
    separate_weights = sum(len(weights_of(folder)) for folder in folders)
    if not have_constants_in_common(folders):
        return _joined(rows[0], folders, output, separate_weights)
    with temporary_folder("sdk") as place:
        return _joined(rows[0], _chained(rows, place), output, separate_weights)


def _chained(rows: Sequence[Row], place: Path) -> list[Path]:
    """Recompile networks below a folder, each with the weights of those before it."""
    before, folders = NO_WEIGHTS, []
    for row in rows:
        folders.append(place / row.output.name)
        options, environ = _options(row, folders[-1])
        done = compile_model(options, environ, decisions=Decisions(before=before))
        before = done.emission.blob
    return folders


def _options(row: Row, output: Path) -> tuple[Options, Mapping[str, str]]:
    given = {"model": row.model, "output": output, "target": row.target, **row.options}
    resolved = resolve(given, "compile", program=True)
    return make_options(resolved.values), resolved.environ


def _joined(first: Row, folders: Sequence[Path], output: Path, separate_weights: int) -> Sdk:
    """Make a library of networks that were compiled into these folders."""
    options, environ = _options(first, first.output)
    target = get_target(options.target, "target", options.machine)
    compiler = find_compiler(
        target, environ, options.compiler_words, timeout=options.compiler_timeout
    )
    with operator_cache(
        options, environ, target.name, lambda text: None, remote=False
    ) as cache:
        context = BuildContext(
            target, compiler, options.compiler_flags, cache, os.cpu_count() or 1
        )
        sdk = make_sdk(output, folders, context, strip=options.strip)
    return replace(sdk, separate_weights=separate_weights)
