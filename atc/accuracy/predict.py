"""Predicted errors of a network's products where the machine can't run it, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from atc.accuracy.bf16x3 import relative_error
from atc.accuracy.float64 import run_in_double
from atc.accuracy.inputs import model_types, random_inputs
from atc.diagnostics import Diagnostics
from atc.lower.context import node_name
from atc.pipeline.lowering import read_model
from atc.pipeline.pipeline import Compilation
from atc.pipeline.precision import HEAVY
from atc.program.steps import calls


def predicted_error(
    done: Compilation, seed: int, wanted: dict[int, tuple[str, list[Any]]]
) -> float:
    """Return the error of the outputs, as a part of their scale, if only products are rounded.

    Their operands are, to what the chosen kernels multiply. What float64 gives is taken from
    `wanted`, by seed, and kept there. Raises UnsupportedError where the model can't be evaluated.
    """
    model = read_model(done.request, Diagnostics())
    outputs = [str(value.name) for value in model.graph.outputs]
    types = model_types(done.graph, model)
    shown = {name: (tuple(t.shape), np.dtype(t.dtype.numpy)) for name, t in types.items()}
    feeds = random_inputs(shown, seed)
    if seed not in wanted:
        wanted[seed] = run_in_double(model, outputs, feeds)
    heavy = {node_name(n) for n in model.graph if n.op_type in HEAVY}
    low: dict[str, set[str]] = {"bf16x3": set(), "bf16": set()}
    for call in calls(done.program.steps):
        names = low.get(call.choice.candidate.kernel.precision)
        if names is not None:
            names.update(heavy.intersection(call.node.origin))
    _, got = run_in_double(model, outputs, feeds, low["bf16x3"], low["bf16"])
    pairs = zip(got, wanted[seed][1], strict=True)
    return max((relative_error(a, b) for a, b in pairs), default=0.0)
