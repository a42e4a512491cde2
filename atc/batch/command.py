"""The command `atc batch`: from a file and options to outcomes, libraries and a page."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from atc import __version__
from atc.backends.find_compiler import find_compiler
from atc.backends.targets import get_target
from atc.batch.journal import Journal, Outcome, changes
from atc.batch.matrix import Matrix, Row, read_matrix
from atc.batch.run import Event, run_matrix
from atc.batch.sdk import Sdk, make_sdk
from atc.cache import open_cache
from atc.errors import OptionError, not_written
from atc.options.options import make_options
from atc.options.resolve import resolve
from atc.templates import FOLDER

PAGE = "batch.html"


@dataclass(frozen=True)
class Batch:
    """What became of a batch: all rows' outcomes, the libraries of several, and the page."""

    matrix: Matrix
    outcomes: tuple[Outcome, ...]
    sdks: tuple[Sdk, ...]
    page: Path

    @property
    def text(self) -> str:
        """Return the last lines that the user sees."""
        good = sum(outcome.ok for outcome in self.outcomes)
        lines = [f"{good} of {len(self.outcomes)} rows are compiled, {self.page} tells more"]
        lines += [
            f"{sdk.folder}: {len(sdk.networks)} networks, {sdk.distinct} kernels instead of "
            f"{sdk.kernels}" for sdk in self.sdks
        ]  # fmt: skip
        return "".join(f"{line}\n" for line in lines)

    @property
    def exit_status(self) -> int:
        """0 if all rows are compiled."""
        return 0 if all(outcome.ok for outcome in self.outcomes) else 1


def run_batch(
    path: Path, values: Mapping[str, Any], tell: Callable[[Event], None],
    begin: Callable[[Matrix], None] = lambda matrix: None,
) -> Batch:  # fmt: skip
    """Compile a matrix; `values` are the command's options. Raises AtcError."""
    matrix = read_matrix(path)
    begin(matrix)
    journal = Journal(matrix.output)
    before = dict(journal.last)
    workers = values["jobs"] or os.cpu_count() or 1
    outcomes = run_matrix(matrix, journal, workers, tell, again=values["again"])
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
    told = {
        "rows": [asdict(outcome) for outcome in batch.outcomes],
        "sdks": [{**asdict(sdk), "folder": str(sdk.folder)} for sdk in batch.sdks],
        "page": str(batch.page),
    }
    return json.dumps(told, indent=1) + "\n"


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
                hint="mend it, and run the batch again: what is done isn't done again",
            )  # fmt: skip
        yield _sdk([row for row, _ in rows], name)


def _sdk(rows: Sequence[Row], name: str) -> Sdk:
    first = rows[0]
    given = {"model": first.model, "output": first.output, "target": first.target, **first.options}
    settled = resolve(given, "compile", program=True)
    values: dict[str, Any] = settled.values
    options = make_options(values)
    target = get_target(options.target, "target", options.machine)
    compiler = find_compiler(
        target, settled.environ, options.compiler_words, timeout=options.compiler_timeout
    )
    versions = {"atc_version": __version__, "ops_version": __version__}
    with open_cache(
        options.op_compiler_cache_mode, options.op_compiler_cache_dir, target.name,
        versions=versions, environ=settled.environ, warn=lambda text: None,
    ) as cache:  # fmt: skip
        folder = first.output.parent / name
        return make_sdk(
            folder, [row.output for row in rows], target, compiler, cache, options.compiler_flags
        )
