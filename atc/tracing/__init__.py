"""Trace functions of tensors: Python in, an ONNX model and its compiled library out.

`tensor` has the objects whose operations are recorded, `tape` the recorder, `recording` the ONNX
nodes, `networks` the compiled libraries, `segments` those of a function that runs partly in
Python; `array_api` and `functional` are the functions, `gradient` and `optim` are for training,
`traced` has the decorator, `exclude` leaves parts of a function to Python; `training` compiles a
training step of an existing model, which `inline` records; `step` runs it, `step_files` writes
its files. Nothing is computed in Python. May import `api` and all below it.
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
