"""Modules of PyTorch as ONNX models and as libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from onnxscript import optimizer

from atc.api import compile as compile_file
from atc.errors import UnsupportedError, one_line
from atc.files.temporary import temporary_folder
from atc.pipeline.pipeline import Compilation
from atc.pytorch.axes import Axes, axes_of, with_ranges
from atc.pytorch.kept_registry import kept_registry
from atc.pytorch.training import captured, complete, is_training_norm
from atc.pytorch.translations import TRANSLATIONS
from atc.pytorch.written_out import write_out

OPSET = 20
Step = TypeVar("Step")
DynamicShapes = Mapping[str, Any] | Sequence[Any] | None
"""Which axes are open, as `torch.export` takes it."""


def export(
    module: torch.nn.Module, inputs: Sequence[Any], path: Path,
    dynamic_shapes: DynamicShapes = None, *, to_train: bool = False, of_operators: bool = False,
) -> Axes:  # fmt: skip
    """Write a module as ONNX, for inputs like these, as it is: in training or not.

    `to_train` keeps its weights as they are, and says where gradients stop. A module `of_operators`
    is a graph of ATen's, of derivatives too. Returns the inputs' axes: the exporter narrows open
    ones to what the module does the same for.

    Raises UnsupportedError, which says what the exporter can't take.
    """
    try:
        with _quiet(), torch.no_grad(), kept_registry():
            if to_train:
                program = _step(module, inputs)
            elif of_operators:
                graph = _written_out(module, inputs, dynamic_shapes)
                program = _translated(graph, inputs, dynamic_shapes)
            else:
                program = _inference(module, inputs, dynamic_shapes)
                _refuse_training(program)
            program.save(path)
            return axes_of(program)
    except UnsupportedError:
        raise
    except Exception as error:  # the exporter raises whatever its parts do
        odd = module.training and not to_train
        raise UnsupportedError(
            f"torch.onnx can't export it: {reason(error)}", where=type(module).__name__,
            hint="it is in training: call eval() before" if odd else "",
        ) from error


def _refuse_training(program: torch.onnx.ONNXProgram) -> None:
    """Raise UnsupportedError for layers that compute something else in training than in runs.

    A Dropout would keep one mask for all runs, and the exporter takes a batch norm's running
    statistics where the module takes the batch's.
    """
    assert program.exported_program is not None
    for module in program.exported_program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            what = ""
            if _is_dropout(node):
                what = "a dropout in training would drop the same elements in all runs"
            elif is_training_norm(node):
                what = "a batch norm in training takes the statistics of the batch"
            if what:
                raise UnsupportedError(what, where=node.name, hint="call eval() before; "
                                       "atc.training_step trains with it")  # fmt: skip


def _is_dropout(node: torch.fx.Node) -> bool:
    """Return whether a node draws a dropout's mask: some are made of other random numbers.

    Those between recurrent layers are drawn by an operator that no function of Python's calls.
    """
    if node.target is torch.ops.aten.native_dropout.default:
        return node.args[2] is not False
    random = isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in node.target.tags
    )
    caller = node.meta.get("torch_fn", ("", ""))[1]
    return random and ("dropout" in caller or caller.startswith("OpOverload.bernoulli"))


def _step(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.onnx.ONNXProgram:
    """Return a module to train, with its weights as they are."""
    step = captured(module, inputs)
    write_out(step)
    program = _translated(step, inputs, None, optimize=False)
    complete(program, module)
    return program


def _inference(
    module: torch.nn.Module, inputs: Sequence[Any], shapes: DynamicShapes
) -> torch.onnx.ONNXProgram:
    """Return a module, operators that the exporter spoils or can't take written out."""
    try:
        program = _translated(module, inputs, shapes)
        assert program.exported_program is not None
        if write_out(program.exported_program):
            program = _translated(program.exported_program, inputs, shapes)
        return program
    except torch.onnx.OnnxExporterError:  # what it can't take may be written out, too
        return _translated(_written_out(module, inputs, shapes), inputs, shapes)


def _translated(
    what: Any, inputs: Sequence[Any], shapes: DynamicShapes, *, optimize: bool = True
) -> torch.onnx.ONNXProgram:
    """Return what PyTorch's exporter makes of a module or a captured graph.

    Constants are folded. What else the exporter's optimizer does takes twice as long as translating
    a transformer, and `atc.passes` do it, too.
    """
    program = torch.onnx.export(
        what, tuple(inputs), dynamo=True, opset_version=OPSET, verbose=False,
        dynamic_shapes=shapes, optimize=False, custom_translation_table=TRANSLATIONS,
    )  # fmt: skip
    assert program is not None
    if optimize:
        optimizer.inline(program.model)
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
    return program


def _written_out(
    module: torch.nn.Module, inputs: Sequence[Any], shapes: DynamicShapes
) -> torch.export.ExportedProgram:
    """Return a module's graph, operators that the exporter spoils or can't take written out."""
    graph = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes, strict=False)
    write_out(graph)
    return graph


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what the exporter warns of, logs and prints."""
    disabled, output = logging.root.manager.disable, io.StringIO()
    logging.disable(max(disabled, logging.WARNING))
    try:
        with (
            warnings.catch_warnings(), contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def reason(error: BaseException) -> str:
    """Return the first line of what was raised first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0] if lines else type(error).__name__, 200)


def train_module(
    train_file: Callable[..., Step], module: torch.nn.Module, example_inputs: Sequence[Any],
    output: str | PathLike[str], **options: Any,
) -> Step:  # fmt: skip
    """Return what `train_file(file, output, **options)` makes of a module. Raises AtcError."""
    with temporary_folder("torch") as folder:
        path = Path(folder, f"{Path(output).name}.onnx")
        export(module, example_inputs, path, to_train=True)
        return train_file(path, output, **options)


def compile_module(
    module: torch.nn.Module, example_inputs: Sequence[Any], output: str | PathLike[str], *,
    dynamic_shapes: DynamicShapes = None, **options: Any,
) -> Compilation:  # fmt: skip
    """Compile a PyTorch module into the folder `output`, for inputs like the examples.

    `dynamic_shapes` are torch.export's, `options` the keywords of `atc.compile`: ranges that a
    `Dim` gives no largest extent for are given in `input_shape`. The module is exported as it is,
    so call `eval()` before. Raises AtcError.
    """
    with temporary_folder("torch") as folder:
        path = Path(folder, f"{Path(output).name}.onnx")
        axes = export(module, example_inputs, path, dynamic_shapes)
        if dynamic_shapes:
            options["input_shape"] = with_ranges(axes, options.get("input_shape", ""))
        return compile_file(path, output, **options)
