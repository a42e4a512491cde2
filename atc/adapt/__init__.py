"""Changes of a model that options ask for, before it is lowered: ONNX in, ONNX out.

AIPP preprocessing, layouts and types of inputs and outputs, states. May import `dims` and `errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir

from atc.adapt.aipp import add_aipp
from atc.adapt.aipp_config import Aipp, read_aipp
from atc.adapt.interface import (
    FORMATS,
    TYPES,
    keep_outputs,
    set_half_inputs,
    set_input_format,
    set_output_types,
    set_quantized_inputs,
)
from atc.adapt.states import keep_states, states_of

__all__ = ["FORMATS", "TYPES", "Adaptation", "adapt", "read_aipp", "states_of"]


@dataclass(frozen=True)
class Adaptation:
    """The changes that options ask of a model's inputs and outputs.

    `output_types` are pairs of an output ("" for all, its name, or `node:number`) and a word of
    TYPES.
    """

    images: Sequence[Aipp] = ()
    input_format: str = ""
    half_inputs: Sequence[str] = ()
    output_types: Sequence[tuple[str, str]] = field(default=())
    states: Sequence[str] = ()
    """Pairs `input:output` that the network carries from run to run, or `auto` alone."""
    input_type: str = ""
    """The word of TYPES that quantized inputs come in, INT8 or UINT8."""

    @property
    def adds_nodes(self) -> bool:
        """Whether the model's graph is changed at all."""
        return bool(self.half_inputs or self.output_types or self.input_type) or self.reshapes

    @property
    def reshapes(self) -> bool:
        """Whether inputs may come in another shape than the model's."""
        return bool(self.images) or self.input_format.endswith("HWC")


def adapt(model: onnx_ir.Model, how: Adaptation, outputs: Sequence[str] = ()) -> list[str]:
    """Change a model in place; `outputs`, if any, become its outputs. Returns warnings."""
    keep_outputs(model, outputs)
    notices = keep_states(model, how.states)  # what they are is nobody's interface
    states = frozenset(name for pair in states_of(model) for name in pair)
    images = add_aipp(model, how.images)
    count = set_input_format(model, how.input_format, images | states)
    set_half_inputs(model, how.half_inputs, images)
    set_quantized_inputs(model, how.input_type, states)
    set_output_types(model, how.output_types, states)
    if how.input_format.endswith("HWC") and not count:
        axes = len(how.input_format)
        notices.append(f"--input_format={how.input_format}: no input has {axes} axes")
    return notices
