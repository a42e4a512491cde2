"""The command line."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from atc.errors import AtcError, InternalError, OptionError, reason_of, way_out
from atc.options.environment import config_environment
from atc.options.help import help_text
from atc.options.modes import TRAIN, needed_by_mode
from atc.options.options import make_options
from atc.options.parse import parse_arguments
from atc.options.resolve import Resolved, resolve
from atc.options.table import read_values
from atc.tools.commands import COMMANDS as ANSWERS
from atc.tools.commands import run_command

if TYPE_CHECKING:
    from atc.accuracy.compare import Verification
    from atc.cli.terminal import Terminal
    from atc.load_and_run.console import Console
    from atc.pipeline.pipeline import Compilation

START = "ATC start working now, please wait for a moment."
SUCCESS = "ATC run success, welcome to the next use."
FAILURE = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"
"""Without a full stop, as scripts know it."""

COMPILE = "compile"
"""The command of a line that names none."""
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it

Command: TypeAlias = "Callable[[list[str], Terminal], int]"
"""What a command does with its words, and the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    named = bool(arguments) and (arguments[0] in COMMANDS or arguments[0] in MEGENGINE)
    name = arguments.pop(0) if named else COMPILE
    try:
        status = MEGENGINE[name](arguments) if name in MEGENGINE else _run(name, arguments)
        sys.stdout.flush()
        return status
    except (OptionError, KeyboardInterrupt) as error:  # of the help: commands report their own
        status, text = _failure(error)
        print(text, file=sys.stderr)
        return status
    except OSError as error:  # of what is printed
        with suppress(OSError, ValueError):  # or the interpreter complains at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # nobody reads any more: `atc --help | head -1`
            with suppress(OSError):
                print(f"can't write to the standard output: {reason_of(error)}", file=sys.stderr)
        return 1


def _run(name: str, argv: list[str]) -> int:
    """Run a command, or print its help; ATC's lines stand around a compilation."""
    if _asks(argv, name):
        return 0
    if name == COMPILE:
        print(START, flush=True)
    terminal = _terminal(argv)
    command = COMMANDS.get(name, _compile)
    status = _guarded(lambda: command(argv, terminal), terminal)
    if name == COMPILE:
        print("...")
        print(FAILURE if status else SUCCESS)
    return status


# ------------------------------------------------------------------------------------ commands


def _compile(argv: list[str], terminal: Terminal) -> int:
    """`atc --model=... --output=...`."""
    given = parse_arguments(argv, "compile").given
    resolved = resolve(needed_by_mode(given), "compile")
    values = resolved.values
    if values["mode"] == TRAIN:
        with terminal:  # deferred, as all is that takes long to load
            from atc.tracing.training import train

            terminal.finished(train(values, resolved.environ, terminal.diagnostics()))
    elif values["mode"]:
        options = make_options(values)
        with terminal:
            from atc.tools.modes import run_mode

            outcome = run_mode(options, resolved, terminal.diagnostics())
        print(outcome.text, end="")
        if outcome.error is not None:
            raise outcome.error
    elif values["singleop"] is not None:
        _compile_single_ops(resolved, terminal)
    else:
        _compile_network(resolved, terminal)
    return 0


def _compile_single_ops(resolved: Resolved, terminal: Terminal) -> None:
    """`atc --singleop=...`."""
    values = resolved.values
    options = make_options(values)

    def finished(done: Compilation) -> None:
        terminal.finished(done)
        if values["verify"]:
            result = compare(done.request, done.folder, terminal.diagnostics())
            with terminal.aside():
                _show_verification(result)

    with terminal:
        from atc.tools.modes import compile_single_ops
        from atc.tools.verify import compare

        diagnostics = terminal.diagnostics()
        compile_single_ops(options, values["singleop"], resolved.environ, diagnostics, finished)


def _compile_network(resolved: Resolved, terminal: Terminal) -> None:
    """Compile a model, or take the folder that the cache has, and print what was asked for."""
    values = resolved.values
    options = make_options(values)
    with terminal:
        from atc.pipeline.kept import kept_network

        diagnostics = terminal.diagnostics()
        kept = kept_network(options, resolved.environ, values)
        if kept and (restored := kept.restore(diagnostics)):
            terminal.built(0, restored.cached, restored.cache)
            return
        from atc.tools.modes import compile_or_report

        if values["verify"]:
            from atc.tools.verify import check_device

            check_device(options)
        done = compile_or_report(
            options, resolved.environ, diagnostics, values["check_report"], kept=kept
        )
        terminal.finished(done)
        result = None
        if values["verify"]:
            from atc.tools.verify import compare

            result = compare(done.request, done.folder, diagnostics)
    if done.sizes is not None:
        from atc.pipeline.size_contract import limits_of
        from atc.starter.sizes import sizes_table

        print(sizes_table(done.sizes, limits_of(done.request)), end="")
    if values["display_model_info"]:
        from atc.tools.model_info import model_info

        print(model_info(done), end="")
    if values["explain"]:
        from atc.tools.explain import explain

        print(explain(done.report, values["explain"]), end="")
    if result is not None:
        _show_verification(result)


def _verify(argv: list[str], terminal: Terminal) -> int:
    """`atc verify`: compare a library with a reference; compile one if none is given."""
    arguments = parse_arguments(argv, "verify", words=1)
    folder = dict(zip(("library",), arguments.words, strict=False))
    resolved = resolve({**folder, **arguments.given}, "verify")
    with terminal:
        from atc.tools.verify import verify

        result = verify(resolved, terminal.diagnostics())
    _show_verification(result)
    return 0


def _run_command(command: str, argv: list[str], terminal: Terminal) -> int:
    """Run a command that gives a text: most of those that look inside a network do."""
    with terminal:
        answer = run_command(command, argv, terminal.diagnostics())
    print(answer.text, end="")
    return answer.status


def _batch(argv: list[str], _: Terminal) -> int:
    """`atc batch FILE`: many compilations, with a table on a terminal and lines elsewhere."""
    from atc.batch.command import batch_json, run_batch
    from atc.cli.batch_table import BatchLines, BatchTable

    arguments = parse_arguments(argv, "batch", words=1)
    values = read_values(arguments.given, "batch")
    if len(arguments.words) != 1:
        raise OptionError("a file is needed", hint="see atc batch --help")
    shown = BatchTable(sys.stderr) if sys.stderr.isatty() else BatchLines(sys.stderr)
    with shown:
        done = run_batch(Path(arguments.words[0]), values, shown.report, shown.begin)
    print(batch_json(done) if values["json"] else done.text, end="")
    return done.exit_status


def _env(argv: list[str], _: Terminal) -> int:
    """`atc env [VARIABLE...]`: all variables with their values."""
    from atc.options.docs import settings_page
    from atc.options.show import HEADINGS, current, env_json, env_text

    arguments = parse_arguments(argv, "env", words=1000)
    values = read_values(arguments.given, "env")
    if values["documentation"]:
        print(settings_page(), end="")
        return 0
    around = config_environment()
    rows = current(around, arguments.words)
    if sys.stdout.isatty() and not values["json"]:
        shown = [(row.cells, "" if row.source == "default" else "bold") for row in rows]
        _show_table(HEADINGS, shown)
    else:
        print((env_json if values["json"] else env_text)(rows, around), end="")
    return 0


def _load_and_run(argv: list[str]) -> int:
    """`atc load_and_run MODEL_OR_LIBRARY [options]`."""
    if _asks(argv, "load_and_run"):
        return 0
    terminal = _terminal([])
    console = _console(terminal)

    def run() -> int:
        with terminal:
            from atc.load_and_run.command import load_and_run

        return load_and_run(argv, console, sys.stdin.readline)

    status = _guarded(run, terminal)
    if console.quiet:
        console.result |= {"exit_status": status, "warnings": console.warnings}
        print(json.dumps(console.result, indent=1))
    return status


def _compare_binary_iodump(argv: list[str]) -> int:
    """`atc compare_binary_iodump DUMP DUMP`."""
    from atc.load_and_run.command import COMPARE_HELP
    from atc.load_and_run.command import compare_binary_iodump as compare

    if "--help" in argv or "-h" in argv:
        print(COMPARE_HELP, end="")
        return 0
    terminal = _terminal([])
    console = _console(terminal)
    return _guarded(lambda: compare(argv, console), terminal)


def _console(terminal: Terminal) -> Console:
    from atc.load_and_run.console import Console

    def line(text: str) -> None:
        with terminal.aside():
            print(text, flush=True)

    def note(text: str) -> None:
        with terminal.aside():
            print(text, file=sys.stderr)

    return Console(line, note, terminal)


COMMANDS: dict[str, Command] = {
    **{name: partial(_run_command, name) for name in ANSWERS},
    "verify": _verify, "batch": _batch, "env": _env,
}  # fmt: skip
MEGENGINE: dict[str, Callable[[list[str]], int]] = {
    "load_and_run": _load_and_run, "compare_binary_iodump": _compare_binary_iodump
}
"""Commands with MegEngine's own options and help."""


# ----------------------------------------------------------------------------------- their parts


def _asks(argv: list[str], command: str) -> bool:
    """Print what is asked for, if only the help or the version is."""
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        name, _, topic = word.partition("=")
        if name in ("-h", "--help"):
            print(help_text(command, topic or after), end="")
            return True
    if "--version" in argv:
        from atc.tools.version import version_text

        print(version_text(), end="")
        return True
    return False


def _terminal(argv: list[str]) -> Terminal:
    """Return what shows progress, at the --log level; a wrong level is reported later."""
    from atc.cli.terminal import Terminal
    from atc.options.table import LOG_LEVELS

    level = "null"
    with suppress(OptionError):
        level = str(resolve({}, "explain").values["log"])
    for before, word in zip(["", *argv], argv, strict=False):
        if word.startswith("--log="):
            level = word.removeprefix("--log=")
        elif before == "--log":
            level = word
    return Terminal(level if level in LOG_LEVELS else "null", sys.stderr)


def _guarded(run: Callable[[], int], terminal: Terminal) -> int:
    """Run a command; turn whatever goes wrong into one line and an exit status."""
    try:
        return run()
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if terminal.level == "debug":
            traceback.print_exception(error)
        status, text = _failure(error)
        print(text, file=sys.stderr)
        return status


def _failure(error: BaseException) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, OSError) and error.strerror:
        error = OptionError(reason_of(error), hint=way_out(error))
    elif not isinstance(error, AtcError):
        error = InternalError(
            f"{type(error).__name__}: {error}",
            hint="a mistake of this compiler: please report it with the output of --log=debug",
        )
    return error.exit_status, str(error)


def _show_verification(result: Verification) -> None:
    """Print the comparison; raise VerificationError if it failed."""
    from atc.accuracy.compare_text import (
        HEADINGS,
        LAYERS,
        layer_rows,
        summary,
        table_rows,
        verification_text,
    )

    if sys.stdout.isatty():
        if result.layers:
            _show_table(LAYERS, [(row, "red" if row[-1] else "") for row in layer_rows(result)])
        rows = table_rows(result.differences)
        _show_table(HEADINGS, [(row, "" if row[-1] == "ok" else "red") for row in rows])
        print(summary(result))
    else:
        print(verification_text(result))
    result.require()


def _show_table(headings: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> None:
    """Print a table on a terminal; each row comes with its style."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*headings)
    for cells, style in rows:
        table.add_row(*map(escape, cells), style=style)
    Console().print(table)
