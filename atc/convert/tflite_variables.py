"""TensorFlow Lite models with variables, which tf2onnx can't read, as models with states.

A variable becomes an input `state_NAME`, and what is last assigned to it an output
`new_state_NAME`, which `--state=auto` takes for a state. Imported by the converter's
process alone, beside tensorflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tensorflow.lite.python import schema_py_generated as schema

from atc.convert.tflite_sparse import code_of, write

_OPERATOR = schema.BuiltinOperator


class _Variables:
    """The variables of a graph, by name: the tensors that hold them before and after a run."""

    def __init__(self, model: Any, graph: Any) -> None:
        self.model, self.graph = model, graph
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self._handles: dict[int, str] = {}
        self._same: dict[int, int] = {}
        """Results of reads, and the tensors that they are."""

    def take(self) -> None:
        """Remove the operators that read and assign variables."""
        kept = [op for op in self.graph.operators if not self._taken(op)]
        self.graph.operators = kept
        self.graph.outputs = [self._same.get(int(t), int(t)) for t in _listed(self.graph.outputs)]

    def _taken(self, op: Any) -> bool:
        op.inputs = [self._same.get(int(t), int(t)) for t in _listed(op.inputs)]
        code = code_of(self.model, op)
        if code == _OPERATOR.CALL_ONCE:
            _check_zeros(self.model, self.model.subgraphs[op.builtinOptions.initSubgraphIndex])
        elif code == _OPERATOR.VAR_HANDLE:
            name = _text(op.builtinOptions.sharedName) or f"variable{op.outputs[0]}"
            self._handles[op.outputs[0]] = f"state_{name}"
        elif code == _OPERATOR.READ_VARIABLE:
            self._read(self._handles[op.inputs[0]], op.outputs[0])
        elif code == _OPERATOR.ASSIGN_VARIABLE:
            self.after[self._handles[op.inputs[0]]] = op.inputs[1]
        else:
            return False
        return True

    def _read(self, name: str, result: int) -> None:
        held = self.after.get(name, self.before.get(name))
        if held is None:
            held = self.before[name] = result
            self.graph.tensors[result].name = name.encode()
        else:
            self._same[result] = held


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model: so many are its `own`, then come those for variables.

    `states` are the names of variables, each with the number of the output that it is.
    """

    own: int
    states: Sequence[tuple[str, int]]


def without_variables(path: str, result: str) -> tuple[str, Outputs | None]:
    """Write a model whose variables are inputs and outputs as `result`, if it has variables.

    Returns the path to read, and what the outputs are then. Raises ValueError for variables that
    aren't zero at first.
    """
    model = schema.ModelT.InitFromPackedBuf(Path(path).read_bytes(), 0)
    graph = model.subgraphs[0]
    if not any(code_of(model, op) == _OPERATOR.VAR_HANDLE for op in graph.operators):
        return path, None
    found = _Variables(model, graph)
    found.take()
    changed = {name: found.after[name] for name in found.before if name in found.after}
    graph.inputs = [*_listed(graph.inputs), *found.before.values()]
    outputs = _listed(graph.outputs)
    own = len(outputs)
    outputs += dict.fromkeys(t for t in changed.values() if t not in outputs)
    graph.outputs = outputs
    model.signatureDefs = None
    write(model, result)
    return result, Outputs(own, [(name, outputs.index(t)) for name, t in changed.items()])


def name_states(path: str, outputs: Outputs) -> None:
    """Call what variables are after a run `new_` and their names, in the ONNX model at a path."""
    model = onnx.load(path)
    made = [*model.graph.output]
    for name, at in outputs.states:
        output = onnx.ValueInfoProto()
        output.CopyFrom(made[at])
        output.name = f"new_{name}"
        model.graph.node.append(onnx.helper.make_node("Identity", [made[at].name], [output.name]))
        model.graph.output.append(output)
    del model.graph.output[outputs.own : len(made)]
    onnx.save(model, path)


def _check_zeros(model: Any, graph: Any) -> None:
    """Raise unless a graph that begins a model's life does nothing but make variables zero."""
    for op in graph.operators:
        if code_of(model, op) != _OPERATOR.ASSIGN_VARIABLE:
            continue
        tensor = graph.tensors[op.inputs[1]]
        data = model.buffers[tensor.buffer].data
        if data is None or np.any(np.asarray(data)):
            raise ValueError(f"a variable is not zero at first ('{_text(tensor.name)}')")
    graph.operators, graph.outputs = [], []


def _text(name: bytes | str | None) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name or ""


def _listed(indices: Any) -> list[int]:
    return [] if indices is None else [int(k) for k in indices]
