"""Functions of tensors become networks: Python in, an ONNX model and its compiled library out.

`tensor` has the objects that operations are recorded with, `tape` what records, `recording` the
ONNX nodes, `networks` the libraries that compute, `segments` those of a function that Python runs a
part of; `array_api` and `functional` are the functions, `gradient` and `optim` what trains, `trace`
the decorator, `exclude` what it leaves to Python; `training` compiles a training step of a model
that there is, which `inline` records; `step` runs it, `step_files` are its files. Nothing is
computed in Python.
"""

from atc.tracing import array_api, functional, optim
from atc.tracing.configs import DTRConfig, SublinearMemoryConfig
from atc.tracing.differences import gradcheck
from atc.tracing.errors import ArgumentError, OperandError, TracingError
from atc.tracing.exclude import exclude_from_trace, is_tracing
from atc.tracing.gradient import GradManager
from atc.tracing.parameter import Parameter
from atc.tracing.step import TrainingStep
from atc.tracing.tensor import Tensor
from atc.tracing.traced import trace
from atc.tracing.training import training_step

__all__ = [
    "ArgumentError", "DTRConfig", "GradManager", "OperandError", "Parameter",
    "SublinearMemoryConfig", "Tensor", "TracingError", "TrainingStep", "array_api",
    "exclude_from_trace", "functional", "gradcheck", "is_tracing", "optim", "trace",
    "training_step",
]  # fmt: skip
