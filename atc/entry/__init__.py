"""`atc.compile` and `atc.training_step`: of a model file, a model in memory or a PyTorch module.

Any of these in, a compilation out. May import `tracing`, `pytorch` and what is below them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, overload

from atc.api import Name
from atc.api import compile as compile_file
from atc.errors import OptionError, one_line
from atc.files.temporary import temporary_folder
from atc.pipeline.pipeline import Compilation
from atc.tracing.step import TrainingStep
from atc.tracing.training import training_step as train_file

if TYPE_CHECKING:
    import onnx
    import torch

P = ParamSpec("P")


class Compile(Protocol[P]):
    """A function that compiles files, with the keywords `P`, and modules."""

    @overload
    def __call__(self, *arguments: P.args, **options: P.kwargs) -> Compilation: ...

    @overload
    def __call__(
        self, model: onnx.ModelProto | bytes, output: Name, **options: Any
    ) -> Compilation: ...

    @overload
    def __call__(
        self, module: torch.nn.Module, example_inputs: Sequence[Any], output: Name, *,
        dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None, **options: Any,
    ) -> Compilation: ...  # fmt: skip


def taking_modules(function: Callable[P, Compilation]) -> Compile[P]:
    """Let a function that compiles files compile models in memory and PyTorch modules too."""

    @wraps(function)
    def compile(model: Any = None, *arguments: Any, **options: Any) -> Compilation:
        options = _with_output(options)
        if model is None:
            return function(*arguments, **options)
        if not _is_module(model):
            with _as_file(model, arguments, options) as file:
                return function(file, *arguments, **options)
        _require_examples("compile", model, arguments, options)
        from atc.pytorch import compile_module  # deferred: PyTorch is large, and may be missing

        return compile_module(model, *arguments, **options)

    return compile  # type: ignore[return-value]


def training_modules(function: Callable[..., TrainingStep]) -> Callable[..., TrainingStep]:
    """Let a function that makes training steps of files take what `atc.compile` takes."""

    @wraps(function)
    def training_step(model: Any, *arguments: Any, **options: Any) -> TrainingStep:
        options = _with_output(options)
        if not _is_module(model):
            with _as_file(model, arguments, options) as file:
                return function(file, *arguments, **options)
        _require_examples("training_step", model, arguments, options)
        from atc.pytorch import train_module

        return train_module(function, model, *arguments, **options)

    return training_step


def _with_output(options: dict[str, Any]) -> dict[str, Any]:
    """Return keywords with `output` in the place of `out`, as it may be called."""
    if "out" not in options or "output" in options:
        return options
    return {("output" if name == "out" else name): value for name, value in options.items()}


@contextmanager
def _as_file(
    model: Any, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield a model's file: a temporary one, called as the network, of a model in memory."""
    model = getattr(model, "model_proto", model)  # of what torch.onnx.export returns
    if not isinstance(model, bytes) and not hasattr(model, "SerializeToString"):
        yield model
        return
    output = arguments[0] if arguments else options.get("output", "model")
    with temporary_folder("model") as folder:
        path = Path(folder, f"{Path(output).name[:200]}.onnx")
        path.write_bytes(model if isinstance(model, bytes) else _serialized(model))
        yield path


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's own, of a package that needn't be there
        raise OptionError(
            f"the model can't be serialized: {one_line(str(error), 200)}", where="model",
            hint="save more than 2 GB with onnx.save(..., save_as_external_data=True), and name "
            "that file",
        ) from None  # fmt: skip
    return data


def _require_examples(
    called: str, module: Any, arguments: Sequence[Any], options: Mapping[str, Any]
) -> None:
    examples = arguments[0] if arguments else options.get("example_inputs")
    if not isinstance(examples, (tuple, list)):
        raise OptionError(
            "a PyTorch module needs example inputs", where=type(module).__name__,
            hint=f"call atc.{called}(module, (tensor, ...), output)",
        )  # fmt: skip


def _is_module(model: object) -> bool:
    """Return whether a model is one of PyTorch's, which who made it has imported."""
    torch = sys.modules.get("torch.nn")
    return torch is not None and isinstance(model, torch.Module)


compile = taking_modules(compile_file)
compile.__doc__ = f"""{compile_file.__doc__}
    `model` is a file, or an ONNX model in memory: a `ModelProto`, or its bytes.

    Of a PyTorch module: `compile(module, example_inputs, output, dynamic_shapes=None, ...)`, with
    the same keywords, compiles it for inputs like the examples, a tuple of tensors. `out` is
    another name of `output`.
    """

training_step = training_modules(train_file)
training_step.__doc__ = f"""{train_file.__doc__}
    Of a PyTorch module: `training_step(module, example_inputs, output, ...)`, with the same
    keywords. The module is taken as it is: `train()` lets its Dropout and BatchNorm train. `out` is
    another name of `output`.
    """
