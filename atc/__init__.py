"""Ahead-of-time compiler from neural network graphs to standalone C and CUDA."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from atc.lazy_imports import defer_imports

if TYPE_CHECKING:
    from atc.entry import compile, training_step
    from atc.errors import AtcError
    from atc.pytorch import compile_module
    from atc.runtime.load import load
    from atc.tracing import (
        DTRConfig,
        GradManager,
        Parameter,
        SublinearMemoryConfig,
        Tensor,
        array_api,
        exclude_from_trace,
        functional,
        gradcheck,
        is_tracing,
        optim,
        trace,
    )

__version__ = "0.1.0"

__all__ = [
    "AtcError", "DTRConfig", "GradManager", "Parameter", "SublinearMemoryConfig", "Tensor",
    "__version__", "array_api", "compile", "compile_module", "exclude_from_trace", "functional",
    "gradcheck", "is_tracing", "load", "optim", "trace", "training_step",
]  # fmt: skip

_FOLDER = Path(__file__).parent
if not (_FOLDER / "backends").is_dir():  # a checkout: Python started in it finds this folder first
    __path__ = [str(_FOLDER), str(_FOLDER.parent)]  # the sibling folders are subpackages

defer_imports()  # here, as it must come before the first import of onnx_ir

_TRACING = (
    "DTRConfig", "GradManager", "Parameter", "SublinearMemoryConfig", "Tensor", "array_api",
    "exclude_from_trace", "functional", "gradcheck", "is_tracing", "optim", "trace",
)  # fmt: skip
_LAZY = {  # importing atc alone stays cheap
    "AtcError": "atc.errors", "compile": "atc.entry", "training_step": "atc.entry",
    "load": "atc.runtime.load", "compile_module": "atc.pytorch",
    **dict.fromkeys(_TRACING, "atc.tracing"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'atc' has no attribute '{name}'")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


class _Package(ModuleType):
    """This package: `atc.compile` stays the function when the module atc.compile is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
