"""States: inputs and outputs that a network carries from run to run itself.

A state is a pair: what a run computes in the output is what the next run reads in the input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from atc.adapt.state_names import pairs_of
from atc.dims import RANGES, Range
from atc.errors import OptionError

STATES = "atc.states"
"""The model's property that holds its states, as `states_of` reads them."""


def keep_states(model: ir.Model, wanted: Sequence[str]) -> list[str]:
    """Let the model carry the states that `--state` names, or those it finds if that is "auto".

    Returns what to report: which were found, or, without the option, which look like states.
    Raises OptionError for what is no pair of an input and an output of one type.
    """
    if tuple(wanted) == ("auto",):
        pairs = likely_states(model)
        if not pairs:
            raise _none_found(model)
        held = {given for given, _ in pairs}
        left = [f"'{v.name}'" for v in _inputs(model) if v.name not in held]
        notices = [
            f"--state=auto took {_listed(pairs)}; inputs are " + (_some(left) or "none")
        ]
    elif wanted:
        pairs, notices = list(_named(model, wanted)), []
    else:
        pairs, likely = [], likely_states(model)
        notices = [
            f"{_listed(likely)} look like states; --state=auto lets the library carry them from "
            "run to run"
        ] if likely else []  # fmt: skip
    for side in zip(*pairs, strict=True):
        for name in side:
            if side.count(name) > 1:
                raise OptionError(f"'{name}' belongs to two states", where="--state")
    for pair in pairs:
        _keep_as_computed(model, *pair)
    if pairs:
        model.metadata_props[STATES] = json.dumps(pairs)
    return notices


def _none_found(model: ir.Model) -> OptionError:
    """Return the error for a model without states, or whose states have open shapes."""
    inputs = {v.name or "": v for v in _inputs(model)}
    for name, _ in pairs_of([*inputs], _pairs(model, lambda *_: True)):
        dims = [str(n) for n in inputs[name].shape or ()]
        if all(n.isdigit() for n in dims):
            continue
        shown = ",".join(n if n.isdigit() else "..." for n in dims)
        return OptionError(
            f"input '{name}' looks like a state, but its shape [{', '.join(dims)}] is open",
            where="--state=auto",
            hint=f'give it one, with a range where it grows: --input_shape="{name}:{shown}"',
        )
    alike: dict[str, str] = {}
    for given, computed in _pairs(model, _alike):
        if given not in alike and computed not in alike.values():
            alike[given] = computed
    return OptionError(
        "no input and output look like a state", where="--state=auto",
        hint="name them: --state=\"input:output;...\""
        + (f". Those of one type are {_listed([*alike.items()])}" if alike else ""),
    )  # fmt: skip


def _keep_as_computed(model: ir.Model, given: str, computed: str) -> None:
    """Keep a state that is cast at both ends in the type between, as float16's converters have it.

    What is read of it is the same.
    """
    value = next(v for v in _inputs(model) if v.name == given)
    output = next(v for v in model.graph.outputs if v.name == computed)
    maker, readers = output.producer(), value.consumers()
    types = {_cast_to(node) for node in readers}
    between = types.pop() if len(types) == 1 else None
    if maker is None or between is None or _cast_to(maker) is not value.dtype or output.uses():
        return
    if value.is_graph_output() or value.dtype is None:
        return
    maker.attributes["to"] = ir.AttrInt64("to", between.value)
    value.dtype = output.dtype = between


def _cast_to(node: ir.Node) -> ir.DataType | None:
    """Return the type that a Cast makes, None of another node."""
    to = node.attributes.get("to") if node.op_type == "Cast" and not node.domain else None
    return None if to is None else ir.DataType(to.as_int())


def states_of(model: ir.Model) -> tuple[tuple[str, str], ...]:
    """Return the states that a model carries: the names of an input and of an output each."""
    found = json.loads(model.metadata_props.get(STATES, "[]"))
    return tuple((given, computed) for given, computed in found)


def initial_states(model: ir.Model) -> dict[str, npt.NDArray[np.generic]]:
    """Return what the first run finds in the states, by the names of their inputs: zeros.

    Those that grow are empty.
    """
    inputs = {v.name: v for v in _inputs(model)}
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name, _ in states_of(model):
        dtype, shape = inputs[name].dtype, inputs[name].shape or ()
        assert dtype is not None, "the importer gives inputs types"
        found[name] = np.zeros([n if isinstance(n, int) else 0 for n in shape], dtype.numpy())
    return found


def likely_states(model: ir.Model) -> list[tuple[str, str]]:
    """Return pairs of inputs and outputs whose names and types are those of states."""
    return pairs_of([v.name or "" for v in _inputs(model)], _pairs(model, _alike))


def _pairs(
    model: ir.Model, fit: Callable[[ir.Value, ir.Value], bool]
) -> Iterator[tuple[str, str]]:
    for value in _inputs(model):
        for output in model.graph.outputs:
            if fit(value, output):
                yield value.name or "", output.name or ""


def _alike(given: ir.Value, computed: ir.Value) -> bool:
    """Return whether an output may be what an input is in the next run, as far as is declared.

    Axes may have ranges: along one the state grows.
    """
    a, b = given.shape, computed.shape
    if given.dtype is None or computed.dtype not in (None, given.dtype) or a is None:
        return False
    ranges = given.meta.get(RANGES) or [None] * len(a)
    grows = [k for k, ends in enumerate(ranges) if isinstance(ends, Range)]
    known = b is None or (
        len(a) == len(b)
        and all(x == y for x, y in zip(a, b, strict=True) if isinstance(y, int))
    )  # what lowering finds is compared once more
    return known and all(
        isinstance(n, int) for k, n in enumerate(a) if k not in grows
    )


def _named(model: ir.Model, parts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that are written as `input:output`; the names may hold colons, too."""
    inputs = [v.name or "" for v in _inputs(model)]
    outputs = [v.name or "" for v in model.graph.outputs]
    for part in parts:
        cuts = [m.start() for m in re.finditer(":", part)]
        found = [(part[:k], part[k + 1 :]) for k in cuts]
        pair = next(((a, b) for a, b in found if a in inputs and b in outputs), None)
        if pair is None:
            raise _unknown(part, found, inputs, outputs)
        yield pair


def _unknown(
    part: str, found: Sequence[tuple[str, str]], inputs: Sequence[str], outputs: Sequence[str]
) -> OptionError:
    if not found:
        return OptionError(
            f"'{part}' is not a pair of an input and an output", where="--state",
            hint='as in --state="h_in:h_out;c_in:c_out", or auto',
        )  # fmt: skip
    given, computed = next(((a, b) for a, b in found if a in inputs), found[0])
    side, name, known = (
        ("output", computed, outputs) if given in inputs else ("input", given, inputs)
    )
    near = get_close_matches(name, known, n=1)
    return OptionError(
        f"'{name}' is not an {side} of the model; the {side}s are "
        + ", ".join(f"'{n}'" for n in known[:8]) + (", ..." if len(known) > 8 else ""),
        where="--state", hint=f"did you mean '{near[0]}'?" if near else "", code="E10016",
    )  # fmt: skip


def _inputs(model: ir.Model) -> list[ir.Value]:
    return [v for v in model.graph.inputs if v.name not in model.graph.initializers]


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    return _some([f"{a} -> {b}" for a, b in pairs])


def _some(texts: Sequence[str]) -> str:
    """Return the first four of some texts, and how many there are more."""
    shown = ", ".join(texts[:4])
    return shown if len(texts) <= 4 else f"{shown} and {len(texts) - 4} more"
