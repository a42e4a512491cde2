"""Turn a dump into an ONNX model: inputs, constants, operators in order, outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from atc.errors import ModelError, OptionError, UnsupportedError
from atc.importers.megengine import (
    ops_attention,
    ops_conv,
    ops_create,
    ops_elemwise,
    ops_image,
    ops_index,
    ops_matmul,
    ops_norm,
    ops_pool,
    ops_reduce,
    ops_rnn,
    ops_shape,
)
from atc.importers.megengine.asserts import without_asserts
from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Dump, Operator, StoredTensor
from atc.importers.megengine.tidy import tidy
from atc.importers.megengine.translation import Rule
from atc.importers.onnx_builder import IR_VERSION, OPSET, initializers

RULES: Mapping[str, Rule] = {
    **ops_attention.RULES,
    **ops_conv.RULES,
    **ops_create.RULES,
    **ops_elemwise.RULES,
    **ops_image.RULES,
    **ops_index.RULES,
    **ops_matmul.RULES,
    **ops_norm.RULES,
    **ops_pool.RULES,
    **ops_reduce.RULES,
    **ops_rnn.RULES,
    **ops_shape.RULES,
}

STORED = (
    "ImmutableTensor",
    "MultipleDeviceTensorHolder",
    "MultipleDeviceTensorWithFormatHolder",
    "SharedDeviceTensor",
    "SharedDeviceTensorWithFormat",
    "VolatileSharedDeviceTensor",
)

Shapes = Mapping[str, tuple[int, ...]]


def translate(dump: Dump, input_shapes: Shapes) -> ir.Model:
    """Translate a dump; `input_shapes` replaces the shapes of inputs by name."""
    dump, expected = without_asserts(dump)
    inputs = [_only(op) for op in dump.operators if op.kind == "Host2DeviceCopy"]
    _check_inputs(dump, [tensor.name for tensor in inputs], input_shapes)
    names = Names()
    labels = {tensor.name: names.unique(tensor.name) for tensor in inputs}
    outputs = [names.unique(name) for name in dump.output_names]
    promised = dict(zip(reversed(dump.outputs), reversed(outputs), strict=True))
    state = _State(dump, names, labels, promised)
    for operator in dump.operators:
        state.builder.place = operator.where
        state.builder.scope = operator.name
        if operator.kind == "Host2DeviceCopy":
            state.add_input(operator, input_shapes)
        elif operator.kind in STORED:
            state.add_constants(operator)
        else:
            state.add_operator(operator)
    model = state.model(outputs)
    tidy(model, {labels[name] for name in expected})
    return model


def _only(operator: Operator) -> StoredTensor:
    if len(operator.tensors) != 1:
        raise ModelError(
            f"{len(operator.tensors)} stored tensors where one is expected", where=operator.where
        )
    return operator.tensors[0]


def _check_inputs(dump: Dump, names: Sequence[str], input_shapes: Shapes) -> None:
    if len(set(names)) != len(names) or "" in names:
        raise ModelError(f"the inputs' names are not unique: {names}", where=dump.file)
    if not dump.outputs:
        raise ModelError("the dump names no outputs", where=dump.file)
    for name in input_shapes:
        if name not in names:
            raise OptionError(
                f"input_shape names {name}, the model's inputs are {', '.join(names) or 'none'}",
                where=dump.file,
            )


@dataclass
class Names:
    """Gives out names, each once."""

    taken: set[str] = field(default_factory=set)
    _counts: dict[str, int] = field(default_factory=dict)

    def unique(self, wanted: str) -> str:
        """Return `wanted`, made printable, with a number behind it where it is taken."""
        base = "".join(c if c.isprintable() else "_" for c in wanted) or "unnamed"
        name = base
        while name in self.taken:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}.{self._counts[base]}"
        self.taken.add(name)
        return name


@dataclass
class _State:
    """The translation under way.

    `labels` names the inputs, `promised` the variables that are outputs.
    """

    dump: Dump
    names: Names
    labels: Mapping[str, str]
    promised: Mapping[int, str]
    builder: Builder = field(default_factory=Builder)
    inputs: list[ir.Value] = field(default_factory=list)
    variables: dict[int, Var | None] = field(default_factory=dict)
    named: set[ir.Value] = field(default_factory=set)

    def add_input(self, operator: Operator, input_shapes: Shapes) -> None:
        """Add a graph input from a Host2DeviceCopy."""
        tensor = _only(operator)
        shape = input_shapes.get(tensor.name, tensor.shape)
        if len(shape) != len(tensor.shape):
            raise OptionError(
                f"input {tensor.name} has shape {list(tensor.shape)}, input_shape gives "
                f"{list(shape)}",
                where=self.dump.file,
            )
        value = self.builder.input(self.labels[tensor.name], tensor.dtype, shape)
        self.named.add(value)
        self.inputs.append(value)
        self._define(operator, [Var(value, tensor.dtype)])

    def add_constants(self, operator: Operator) -> None:
        """Add the tensors of an operator that holds values."""
        found: list[Var | None] = []
        for tensor in operator.tensors:
            if tensor.data is None:
                raise ModelError("a constant has no data", where=operator.where)
            found.append(Var(self.builder.constant(tensor.data), tensor.dtype))
        self._define(operator, found)

    def add_operator(self, operator: Operator) -> None:
        """Translate an operator."""
        rule = RULES.get(operator.kind)
        if rule is None:
            raise UnsupportedError(
                f"operator {operator.kind} is not covered",
                where=operator.where,
                hint="leave it out of the traced function, or write it with other operators",
            )
        if not rule.fits(len(operator.inputs)):
            raise ModelError(
                f"{len(operator.inputs)} inputs do not fit operator {operator.kind}",
                where=operator.where,
            )
        inputs = [self._variable(number, operator.where) for number in operator.inputs]
        self._define(operator, rule.translate(self.builder, operator, inputs))

    def _variable(self, number: int, where: str) -> Var:
        if number not in self.variables:
            raise ModelError(f"variable {number} is read before it is computed", where=where)
        variable = self.variables[number]
        if variable is None:
            raise UnsupportedError(
                f"variable {number}, a by-product of an operator, is not computed", where=where
            )
        return variable

    def _define(self, operator: Operator, found: Sequence[Var | None]) -> None:
        """Bind the outputs' numbers, and name values after the dump's variables."""
        if len(found) < len(operator.outputs):
            raise ModelError(
                f"{len(operator.outputs)} outputs do not fit operator {operator.kind}",
                where=operator.where,
            )
        for number, variable in zip(operator.outputs, found, strict=False):
            if number in self.variables:
                raise ModelError(f"variable {number} is computed twice", where=operator.where)
            self.variables[number] = variable
            if variable is not None and variable.value not in self.named:
                self._name(variable.value, number, self.dump.names.get(number) or operator.name)

    def _name(self, value: ir.Value, number: int, wanted: str) -> None:
        """Name a variable; a constant, which a translation may replace, only in the end."""
        if value.const_value is not None:
            value.name = self.builder.temporary(wanted)
            return
        self.named.add(value)
        value.name = self.promised.get(number) or self.names.unique(wanted)

    def model(self, outputs: Sequence[str]) -> ir.Model:
        """Return the model of all that has been added."""
        self.builder.place = self.dump.file
        results = [
            self._output(number, name)
            for number, name in zip(self.dump.outputs, outputs, strict=True)
        ]
        nodes = self.builder.nodes
        constants = initializers(nodes)
        self._name_the_rest(constants)
        graph = ir.Graph(
            self.inputs,
            results,
            nodes=nodes,
            initializers=constants,
            opset_imports={"": OPSET},
            name="megengine",
        )
        return ir.Model(
            graph,
            ir_version=IR_VERSION,
            producer_name="MegEngine",
            producer_version=self.dump.version,
            metadata_props=self._metadata(),
        )

    def _metadata(self) -> dict[str, str]:
        lines = self.builder.warnings
        return {"atc.warnings": "\n".join(lines)} if lines else {}

    def _output(self, number: int, name: str) -> ir.Value:
        """Return a graph output; inputs, constants and repeated outputs pass through a node."""
        self.builder.scope = name
        where = f"{self.dump.file}: output {name}"
        value = self._variable(number, where).value
        if value.shape is None:
            raise UnsupportedError("the rank of an output depends on data", where=where)
        if value.producer() is None or value.name != name:
            value = self.builder.copy(value)
            value.name = name
            self.named.add(value)
        return value

    def _name_the_rest(self, constants: Sequence[ir.Value]) -> None:
        """Give the inner values and the nodes their final names."""
        nodes = self.builder.nodes
        for value in [*constants, *(v for node in nodes for v in node.outputs)]:
            if value not in self.named:
                value.name = self.names.unique(self.builder.label(value))
        node_names = Names()
        for node in nodes:
            node.name = node_names.unique(node.outputs[0].name or "")
        for value in constants:
            if value.const_value is not None:
                value.const_value.name = value.name
