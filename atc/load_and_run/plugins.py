"""Plugins that look at the runs of the first context: dumps and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atc.errors import OptionError, not_written, one_line
from atc.ir.graph import Array
from atc.load_and_run.arguments import RunArguments
from atc.load_and_run.binary_dump import BinaryDump, output_variables, write_dump
from atc.load_and_run.checks import DispatchCheck, RangeCheck, ValueCheck
from atc.load_and_run.console import Console
from atc.load_and_run.context import Context, Observer
from atc.load_and_run.engine import Engine, Step
from atc.load_and_run.rules import dump_kind
from atc.load_and_run.text_dump import TextDump

HOOKED = ("io_dump", "io_dump_stdout", "io_dump_stderr", "bin_io_dump", "range",
          "check_var_value", "check_dispatch")  # fmt: skip
"""Options that need a library with hooks."""


@dataclass
class Plugins:
    """The observers of every run, and of the first one only; runs are counted."""

    engine: Engine
    first: list[Observer] = field(default_factory=list)
    every: list[Observer] = field(default_factory=list)
    values: ValueCheck | None = None
    dispatch: DispatchCheck | None = None
    text: TextDump | None = None
    outputs: Path | None = None
    """Where the outputs of every run are written."""
    variables: Sequence[int] = ()
    """The number of each of them."""
    runs: int = 0
    cores: list[list[int]] = field(default_factory=list)
    """Of each thread of the pool."""

    def before(self, context: Context) -> None:
        """Set the observers of the next run."""
        observers = [*(self.first if self.runs == 0 else ()), *self.every]
        if self.values is not None:
            self.values.begin()
        if self.engine.is_hooked:
            context.observe(_all(observers) if observers else None)

    def after(self, context: Context) -> None:
        """Act after a run."""
        if self.values is not None:
            self.values.end()
        if self.outputs is not None:
            self._write_outputs(self.outputs, context)
        self.runs += 1

    def finish(self, arguments: RunArguments, console: Console) -> None:
        """Report what was seen; a text dump goes to where it is wanted."""
        for line in (*(self.values.lines if self.values else ()),
                     *(self.dispatch.lines() if self.dispatch else ())):  # fmt: skip
            console.line(line)
        if self.dispatch is not None:
            console.result["idle_calls"] = [step.number for step in self.dispatch.idle]
        if self.text is not None:
            _write_text(self.text.text(), arguments, console)

    def _write_outputs(self, folder: Path, context: Context) -> None:
        triples = zip(self.variables, self.engine.outputs, context.results(), strict=True)
        for number, tensor, array in triples:
            name = f"var={one_line(tensor.name, 200)} owner_opr_inputs= "
            write_dump(folder / f"run{self.runs}-var{number}", name, array)


def _all(observers: Sequence[Observer]) -> Observer:
    def observe(step: Step, done: bool, arrays: Sequence[Array]) -> None:
        for observer in observers:
            observer(step, done, arrays)

    return observe


def make_plugins(engine: Engine, arguments: RunArguments, dump_inputs: bool) -> Plugins:
    """Return what the options ask for; raises OptionError where the library has no hooks."""
    asked = [name for name in HOOKED if arguments[name]]
    if asked and not engine.is_hooked:
        raise OptionError(
            "the library was compiled without hooks", where=f"--{asked[0]}",
            hint="compile it with --hooks, or give the model file",
        )  # fmt: skip
    if asked and engine.is_dynamic:
        raise OptionError(
            "a network that takes several shapes can't show its values", where=f"--{asked[0]}",
            hint="compile the model for one shape, see --input_shape",
        )  # fmt: skip
    plugins = Plugins(engine)
    match dump_kind(arguments):
        case "bin_io_dump":
            if dump_inputs and _recorded(arguments):
                raise OptionError(
                    "inputs can't be dumped from a recorded sequence", where="MGB_DUMP_INPUT",
                    hint="unset it, or leave --record_comp_seq out",
                )  # fmt: skip
            plugins.first.append(BinaryDump(engine, arguments["bin_io_dump"], dump_inputs))
        case "bin_out_dump":
            plugins.outputs = arguments["bin_out_dump"]
            plugins.variables = output_variables(engine)
        case "":
            pass
        case _:
            plugins.text = TextDump(engine, _recorded(arguments))
            plugins.first.append(plugins.text)
    if arguments["check_dispatch"]:
        plugins.dispatch = DispatchCheck(engine)
        plugins.first.append(plugins.dispatch)
    if arguments["range"]:
        plugins.every.append(RangeCheck(engine, arguments["range"]))
    if arguments["check_var_value"]:
        plugins.values = ValueCheck(engine, *arguments["check_var_value"])
        plugins.every.append(plugins.values)
    return plugins


def _recorded(arguments: RunArguments) -> bool:
    return bool(arguments["record_comp_seq"] or arguments["record_comp_seq2"])


def _write_text(text: str, arguments: RunArguments, console: Console) -> None:
    write: Callable[[str], None]
    match dump_kind(arguments):
        case "io_dump_stdout":
            write = console.line
        case "io_dump_stderr":
            write = console.error
        case _:
            path = arguments["io_dump"]
            try:
                path.write_text(text, "utf-8")
            except OSError as error:
                raise not_written(path, error, "--io_dump") from None
            return
    for line in text.splitlines():
        write(line)


