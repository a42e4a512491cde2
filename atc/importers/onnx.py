"""Read ONNX files into `onnx_ir` models; damaged, unsafe or too new ones are refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx_ir.passes.common import InlinePass

from atc.dims import Extent, InputShape, Named, Sum
from atc.errors import AtcError, ModelError, UnsupportedError, one_line, reason_of
from atc.importers.axes import Names, names_of, resolve, resolve_by_names
from atc.importers.domains import STANDARD, resolve_domains
from atc.importers.mapped import DataFiles, mapped_tensor, read_mapped
from atc.importers.maps import is_map, mark_maps, pin_map, without_maps
from atc.importers.nchwc import lay_out_plainly
from atc.importers.sequences import is_composite, pin_nothing, pin_sequence, pin_value
from atc.importers.tensors import check_tensor, prepare_tensors

logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # errors are reported in our words

OLDEST_OPSET = 1
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()

MOST_NODES = 1 << 20
"""The most nodes of a model after its functions are inlined."""

_LEAST_SCALE = {"QuantizeLinear": 0.0, "DequantizeLinear": -np.inf}
"""What a scale must be above, to divide by it; of zeros some have the scale 0."""
_FLOATS = frozenset(
    {onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16}
)


def load_onnx(path: Path, mapped: bool = False) -> onnx_ir.Model:
    """Read an ONNX file, with external data from its own folder and functions inlined.

    If `mapped`, large tensors stay in the file, which then must not change while they are used.
    Raises ModelError for a damaged or unsafe file, UnsupportedError for an opset newer than the
    installed `onnx` package knows.
    """
    try:
        proto, file = read_mapped(path) if mapped else (_read(path), None)
        _check_names(proto.graph, path)
        prepare_tensors(proto.graph, str(path))
        maps = without_maps(proto.graph, str(path))
        model = onnx_ir.from_proto(proto)
        if file is not None:
            _replace_tensors(model, partial(mapped_tensor, file=file))
        _check_model(proto, path)
        for tensor in tensors_of(model):
            check_tensor(tensor, path)
            if isinstance(tensor, onnx_ir.ExternalTensor):
                tensor.base_dir = path.parent
        _replace_tensors(model, DataFiles(path.parent).mapped)
        model = inlined(model, str(path))
        _sort(model)
        _replace_tensors(model, _own)
        texts = [text for text in (lay_out_plainly(model), _wrong_scales(model)) if text]
        mark_maps(model, maps)
        if texts:
            model.metadata_props["atc.warnings"] = "\n".join(texts)
    except AtcError as error:
        error.where = error.where or str(path)
        raise
    except RecursionError:
        raise ModelError("is nested too deeply", where=str(path)) from None
    except Exception as error:  # protobuf, onnx and onnx_ir raise many kinds for a damaged file
        cause = _first_cause(error)
        reason = f"nothing is called {cause}" if isinstance(cause, KeyError) else reason_of(cause)
        raise ModelError(
            f"is not a readable ONNX model: {one_line(reason, 200)}", where=str(path),
            hint="export it again, or look at it with onnx.checker",
        ) from error  # fmt: skip
    return model


def _read(path: Path) -> onnx.ModelProto:
    return onnx.load_model(path, format="protobuf", load_external_data=False)


def _first_cause(error: BaseException) -> BaseException:
    """Return the first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def inlined(model: onnx_ir.Model, file: str) -> onnx_ir.Model:
    """Return the model with its functions inlined.

    A function may import other opsets than the model: its nodes then carry the version. Raises
    ModelError if a domain has no opset.
    """
    resolve_domains(model, file)
    if not len(model.functions):
        return model
    _check_calls(model)
    for function in model.functions.values():
        for domain, version in [*function.opset_imports.items()]:
            if model.opset_imports.setdefault(domain, version) == version:
                continue
            for node in function.all_nodes():
                if node.domain == domain:
                    node.version = version
            function.opset_imports[domain] = model.opset_imports[domain]
    return InlinePass()(model).model


def _wrong_scales(model: onnx_ir.Model) -> str:
    """Return a line if there are scales that aren't positive numbers, as calibration leaves some.
    """
    wrong: dict[str, float] = {}
    for node in model.graph.all_nodes():
        if node.op_type not in _LEAST_SCALE or len(node.inputs) < 2:
            continue
        scale, least = node.inputs[1], _LEAST_SCALE[node.op_type]
        if scale is not None and scale.const_value is not None and scale.dtype in _FLOATS:
            numbers = scale.const_value.numpy().astype(np.float64).reshape(-1)
            found = numbers[~((numbers > least) & (numbers < np.inf))]
            if found.size:
                wrong[scale.name or ""] = float(found[0])
    if not wrong:
        return ""
    first = ", ".join(f"'{one_line(n, 60)}' ({x:g})" for n, x in [*wrong.items()][:3])
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"scales must be positive numbers, these aren't: {first}{more}; calibrate again"


def _sort(model: onnx_ir.Model) -> None:
    """Put nodes behind those whose results they read, as converters to float16 don't.

    Whoever closes a circle stays, and is reported when it is lowered.
    """
    ahead: set[onnx_ir.Node] = set()
    for node in model.graph.all_nodes():
        producers = {v.producer() for v in node.inputs if v is not None}
        if any(p is not None and p not in ahead for p in producers):
            with suppress(ValueError):
                model.graph.sort()
            return
        ahead.add(node)


def _check_calls(model: onnx_ir.Model) -> None:
    """Refuse functions whose nested calls would expand to more nodes than MOST_NODES."""
    sizes: dict[object, int] = {}

    def size(nodes: Iterable[onnx_ir.Node]) -> int:
        total = 0
        for node in nodes:
            key = node.op_identifier()
            function = model.functions.get(key)
            if function is not None and key not in sizes:
                sizes[key] = 0  # where it calls itself, which the inliner reports
                sizes[key] = size(function.all_nodes())
            total += 1 if function is None else sizes[key]
        return total

    count = size(model.graph.all_nodes())
    if count > MOST_NODES:
        raise UnsupportedError(f"its functions expand to {count} nodes; {MOST_NODES} are possible")


def _check_model(proto: onnx.ModelProto, path: Path) -> None:
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError("is not an ONNX model: it has no graph with outputs", where=str(path))
    _check_once("output", (v.name for v in proto.graph.output), str(path))
    for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
        for opset in imports:
            if opset.domain in ("", STANDARD):
                _check_opset(opset.version, path)


def _check_opset(opset: int, path: Path) -> None:
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise UnsupportedError(
            f"uses opset {opset}; {OLDEST_OPSET} to {NEWEST_OPSET} are known", where=str(path),
            hint="install a newer onnx package, or convert the model with onnx.version_converter",
        )  # fmt: skip


def _check_names(graph: onnx.GraphProto, path: Path) -> None:
    """Refuse names that aren't UTF-8, which protobuf gives as bytes, and duplicate names."""
    values = (*graph.input, *graph.output, *graph.initializer)
    _check_once("input", (v.name for v in graph.input), str(path))
    _check_once("initializer", (t.name for t in graph.initializer), str(path))
    names = [graph.name, *(v.name for v in values)]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        place = f"{path}, node '{node.name}' ({node.op_type})"
        _check_once("attribute", (a.name for a in node.attribute), place)
        for attribute in node.attribute:
            names.append(attribute.name)
            if attribute.type == onnx.AttributeProto.UNDEFINED:
                raise ModelError(f"attribute '{attribute.name}' has no type", where=place)
            if attribute.ref_attr_name:
                raise ModelError(
                    f"attribute '{attribute.name}' is that of a function, but none is around it",
                    where=place,
                )
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    _check_names(inner, path)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the name {bytes(name)!r} is not UTF-8", where=str(path))
    made = {v.name for v in (*graph.input, *graph.initializer)}
    for node in graph.node:
        for name in node.output:
            if name in made:
                place = f"{path}, node '{node.name or name}' ({node.op_type})"
                raise ModelError(f"'{name}' is computed twice", where=place)
            made.update([name] if name else [])


def _check_once(what: str, names: Iterable[str], where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ModelError(f"the {what} '{name}' is listed {count} times", where=where)


def tensors_of(model: onnx_ir.Model) -> Iterator[onnx_ir.TensorProtocol]:
    """Yield every tensor of the model: initializers and attributes, including subgraphs'."""
    graphs = [model.graph, *model.graph.subgraphs()]
    for graph in graphs:
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
        for node in graph:
            for attribute in node.attributes.values():
                if (tensor := _tensor_of(attribute)) is not None:
                    yield tensor


def _tensor_of(attribute: onnx_ir.Attr) -> onnx_ir.TensorProtocol | None:
    """Return an attribute's tensor, or None: its type says it, and a protocol is slow to ask."""
    return attribute.value if attribute.type is onnx_ir.AttributeType.TENSOR else None


def _own(tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """Copy a tensor of the file's message, so that this, which holds them all, can be freed.

    Each read of a message's numbers makes another copy of them.
    """
    if not isinstance(tensor, onnx_ir.TensorProtoTensor):
        return tensor
    return onnx_ir.Tensor(tensor.numpy(), tensor.dtype, name=tensor.name)


def _replace_tensors(
    model: onnx_ir.Model, made_of: Callable[[onnx_ir.TensorProtocol], onnx_ir.TensorProtocol]
) -> None:
    """Put what is made of each of the model's tensors in its place."""
    taken: dict[int, tuple[object, onnx_ir.TensorProtocol]] = {}

    def once(tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
        if id(tensor) not in taken:
            taken[id(tensor)] = tensor, made_of(tensor)  # kept, or another may get its id
        return taken[id(tensor)][1]

    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = once(value.const_value)
        for node in graph:
            for name, attribute in node.attributes.items():
                if (tensor := _tensor_of(attribute)) is not None:
                    node.attributes[name] = onnx_ir.AttrTensor(name, once(tensor))


def pin_inputs(model: onnx_ir.Model, shapes: Mapping[str, InputShape], file: str) -> onnx_ir.Model:
    """Set the inputs' shapes, also of those that aren't given but follow from names of axes.

    A list holds the shapes of a sequence's elements, which become inputs of their own; None leaves
    an optional without a value.
    Raises E10017 for a name that is no input, E10049 for another rank, E10050 for a dim that the
    model fixes to another value.
    """
    inputs = {v.name or "": v for v in model.graph.inputs}
    for name in shapes:
        if name not in inputs:
            given = [n for n in inputs if n not in model.graph.initializers]
            known = ", ".join(f"'{n}'" for n in given)
            raise ModelError(
                f"'{name}' of --input_shape is not an input; the inputs are {known}",
                where=file, code="E10017",
            )  # fmt: skip
    names = names_of(inputs.values(), shapes, file)
    for name, shape in shapes.items():
        _pin(model, inputs[name], shape, names, file)
    for name, value in inputs.items():
        plain = not is_composite(value) and not is_map(value)
        if name not in shapes and plain and name not in model.graph.initializers:
            resolve_by_names(value, names)
    return model


def _pin(
    model: onnx_ir.Model, value: onnx_ir.Value, shape: InputShape, names: Names, file: str
) -> None:
    if is_map(value):
        pin_map(model, value, shape, file)
    elif shape is None:
        pin_nothing(model, value, file)
    elif isinstance(shape, list):
        declared = value.shape
        pin_sequence(model, value, [_fixed(value, element, file) for element in shape], file)
        for element in shape:
            _check_pin(value.name or "", declared, element, file)
    else:
        declared = value.shape
        if is_composite(value):
            pin_value(value, _fixed(value, shape, file), file)
        _check_pin(value.name or "", declared, shape, file)
        resolve(value, shape, names)


def _fixed(value: onnx_ir.Value, shape: Sequence[Extent], file: str) -> tuple[int, ...]:
    if not all(isinstance(n, int) for n in shape):
        raise UnsupportedError(
            f"input '{value.name}' is a sequence or optional, whose shapes can't be ranges",
            where=file, hint="give one size per dimension",
        )  # fmt: skip
    return tuple(n for n in shape if isinstance(n, int))


def _check_pin(
    name: str, declared: onnx_ir.Shape | None, given: Sequence[Extent], file: str
) -> None:
    shape = [n.extent if isinstance(n, Named) else n for n in given]
    if -1 in shape:
        raise ModelError(
            f"--input_shape leaves axis {shape.index(-1)} of input '{name}' open", where=file,
            hint="give a range such as 1~8, or list what -1 stands for with --dynamic_dims",
            code="E10002",
        )  # fmt: skip
    if declared is None:
        return
    if len(declared) != len(shape):
        raise ModelError(
            f"input '{name}' has rank {len(declared)}, --input_shape gives {_shown(shape)}",
            where=file, code="E10049",
        )  # fmt: skip
    for axis, (dim, pinned) in enumerate(zip(declared, shape, strict=True)):
        open_axis = not isinstance(dim, int) or dim <= 0 or isinstance(pinned, Sum)
        if not open_axis and dim != pinned:
            raise ModelError(
                f"axis {axis} of input '{name}' is {dim} in the model, "
                f"--input_shape gives {_shown(given)}",
                where=file, code="E10050",
                hint=f"give {dim} there, or export the model with that axis open",
            )  # fmt: skip


def _shown(shape: Sequence[Extent]) -> str:
    return f"[{', '.join(map(str, shape))}]"
