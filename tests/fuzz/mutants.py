"""Damages models, by bytes and by structure: each must give a result or one clear line."""

from __future__ import annotations

import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
from fuzz.draw import Draw
from onnx import AttributeProto, helper, numpy_helper

from atc.errors import InternalError, OptionError
from atc.lower import LOWERINGS
from atc.options.options import Options
from atc.pipeline.request import resolve_request
from atc.tools.check import check_model

SECONDS = 60
BYTES = 2 << 30
WILD = (-(2**63), -(2**31), -100, -2, -1, 0, 1, 2, 3, 7, 1000, 2**31, 2**40, 2**62, 2**63 - 1)
_ROOT = Path(__file__).parents[2]


@cache
def real_models() -> tuple[bytes, ...]:
    """Return the samples, and small real models where they lie beside the repository."""
    paths = sorted((_ROOT / "samples").glob("*.onnx"))
    beside = sorted((_ROOT / "../shared/models").glob("*/model.onnx"))
    paths += [p for p in beside if p.stat().st_size < 300_000]
    return tuple(p.read_bytes() for p in paths)


def mutant(seed: int, base: Callable[[int], onnx.ModelProto]) -> bytes:
    """Return the file of a damaged model; `base` draws valid ones."""
    d = Draw(np.random.default_rng((77, seed)))
    data = d.pick(real_models()) if d.chance(0.25) else base(seed).SerializeToString()
    if d.chance(0.3):
        return damaged(d, data)
    model = onnx.ModelProto.FromString(data)
    for _ in range(d.int(1, 3)):
        d.pick(STRUCTURAL)(d, model)
    return model.SerializeToString()


def damaged(d: Draw, data: bytes) -> bytes:
    """Change, insert, remove and cut bytes."""
    content = bytearray(data)
    for _ in range(d.int(1, 8)):
        at = d.int(0, max(0, min(len(content), 4000) - 1) if d.chance(0.7) else len(content) - 1)
        match d.int(0, 3):
            case 0:
                content[at] = d.int(0, 255)
            case 1:
                content[at] ^= 1 << d.int(0, 7)
            case 2:
                del content[at : at + d.int(1, 8)]
            case _:
                content[at:at] = bytes(d.ints(d.int(1, 8), 0, 255))
        if not content:
            break
    return bytes(content[: d.int(0, len(content))] if d.chance(0.1) else content)


# ---- structure ----------------------------------------------------------------------------------


def _node(d: Draw, model: onnx.ModelProto) -> onnx.NodeProto:
    return d.pick(model.graph.node) if model.graph.node else model.graph.node.add()


def _value(d: Draw, model: onnx.ModelProto) -> str:
    names = [v.name for v in (*model.graph.input, *model.graph.initializer)]
    names += [o for n in model.graph.node for o in n.output]
    return d.pick([*names, "", "nowhere"])


def drop_node(d: Draw, model: onnx.ModelProto) -> None:
    if model.graph.node:
        del model.graph.node[d.int(0, len(model.graph.node) - 1)]


def repeat_node(d: Draw, model: onnx.ModelProto) -> None:
    model.graph.node.add().CopyFrom(_node(d, model))


def shuffle_nodes(d: Draw, model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    d.rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def rewire(d: Draw, model: onnx.ModelProto) -> None:
    node = _node(d, model)
    if node.input:
        node.input[d.int(0, len(node.input) - 1)] = _value(d, model)


def change_arity(d: Draw, model: onnx.ModelProto) -> None:
    node = _node(d, model)
    names = d.pick((node.input, node.output))
    if names and d.chance():
        del names[d.int(0, len(names) - 1)]
    else:
        names.append(_value(d, model))


def other_operator(d: Draw, model: onnx.ModelProto) -> None:
    node = _node(d, model)
    node.domain, node.op_type = d.pick([*LOWERINGS, ("", "Nothing"), ("acme", "Relu")])


def other_attribute(d: Draw, model: onnx.ModelProto) -> None:
    node = _node(d, model)
    known = sorted({a.name for n in model.graph.node for a in n.attribute})
    name = d.pick([*known, "axis", "axes", "pads", "strides", "to", "kernel_shape", "perm"])
    for k, attribute in enumerate(node.attribute):
        if attribute.name == name or d.chance(0.3):
            name = attribute.name
            del node.attribute[k]
            break
    if d.chance(0.85):
        node.attribute.append(_attribute(d, name))


def _attribute(d: Draw, name: str) -> AttributeProto:
    graph = helper.make_graph([], "g", [], [])
    values: tuple[object, ...] = (
        d.pick(WILD), d.pick((0.0, float("nan"), 1e30)), "text", [d.pick(WILD) for _ in range(3)],
        [1.5, float("inf")], numpy_helper.from_array(np.arange(4.0)), graph, ["a", "b"],
    )  # fmt: skip
    value = values[d.int(0, len(values) - 1)] if d.chance(0.5) else values[d.pick((0, 3))]
    return helper.make_attribute(name, value)


def other_dim(d: Draw, model: onnx.ModelProto) -> None:
    if d.chance() and model.graph.input:
        shape = d.pick(model.graph.input).type.tensor_type.shape
        if shape.dim:
            d.pick(shape.dim).dim_value = d.pick(WILD)
    elif model.graph.initializer:
        tensor = d.pick(model.graph.initializer)
        if tensor.dims:
            tensor.dims[d.int(0, len(tensor.dims) - 1)] = d.pick(WILD)


def other_type(d: Draw, model: onnx.ModelProto) -> None:
    code = d.pick([*range(24), 99])
    if d.chance() and model.graph.input:
        d.pick(model.graph.input).type.tensor_type.elem_type = code
    elif model.graph.initializer:
        d.pick(model.graph.initializer).data_type = code


def other_numbers(d: Draw, model: onnx.ModelProto) -> None:
    if not model.graph.initializer:
        return
    tensor = d.pick(model.graph.initializer)
    try:
        array = numpy_helper.to_array(tensor).copy()
        if array.size and array.dtype.kind in "iuf":
            with np.errstate(all="ignore"):
                wild = np.array(WILD, np.float64).astype(array.dtype)
                array.flat[d.int(0, array.size - 1)] = d.pick(list(wild))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    except (ValueError, TypeError, KeyError):  # already damaged
        return


def cut_data(d: Draw, model: onnx.ModelProto) -> None:
    if model.graph.initializer:
        tensor = d.pick(model.graph.initializer)
        tensor.raw_data = tensor.raw_data[: d.int(0, len(tensor.raw_data))]


def other_opset(d: Draw, model: onnx.ModelProto) -> None:
    if model.opset_import:
        d.pick(model.opset_import).version = d.pick((*WILD, *range(1, 30)))


def other_names(d: Draw, model: onnx.ModelProto) -> None:
    node = _node(d, model)
    for k in range(len(node.output)):
        if d.chance():
            node.output[k] = _value(d, model)
    if model.graph.output and d.chance(0.3):
        d.pick(model.graph.output).name = _value(d, model)


STRUCTURAL: tuple[Callable[[Draw, onnx.ModelProto], None], ...] = (
    drop_node, repeat_node, shuffle_nodes, rewire, rewire, change_arity, other_operator,
    other_operator, other_attribute, other_attribute, other_attribute, other_dim, other_type,
    other_numbers, other_numbers, cut_data, other_opset, other_names,
)  # fmt: skip


# ---- what must come of it -----------------------------------------------------------------------


class TooSlow(BaseException):
    """A compilation took more time than any may."""


@contextmanager
def bounded() -> Iterator[None]:
    """Bound time and memory of what is done inside."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    limits = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (_size() + BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _size() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def outcome(data: bytes, target: str) -> str:
    """Compile up to the C text; return what is wrong with how it ended, '' where nothing is."""
    with tempfile.TemporaryDirectory(prefix="atc-fuzz-") as name:
        folder = Path(name)
        path = folder / "mutant.onnx"
        path.write_bytes(data)
        try:
            with bounded():
                result = check_model(resolve_request(Options(path, folder / "net", target=target)))
        except OptionError as error:
            return "" if "\n" not in str(error) else f"not one line: {error}"
        except TooSlow:
            return f"takes more than {SECONDS} s"
        except MemoryError:
            return f"takes more than {BYTES} bytes"
        except Exception as error:  # anything else is the failure that is looked for
            return f"{type(error).__name__}: {error}"
        for error in result.errors:
            if isinstance(error, InternalError) or "\n" in str(error):
                return str(error)
        if sorted(p.name for p in folder.iterdir()) != ["mutant.onnx"]:
            return "leaves files behind"
    return ""
