"""States: inputs and outputs that a network carries from run to run itself.

A state is a pair: what a run computes in the output is what the next run reads in the input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from atc.dims import RANGES, Range
from atc.errors import OptionError

STATES = "atc.states"
"""The model's property that holds its states, as `states_of` reads them."""

_NAMES = (
    (r"past_key_values\.((?!.*encoder).+)", (r"present.\1", r"present_key_values.\1")),
    (r"past([._].+|)", (r"present\1",)),
    (r"(.+)_in", (r"\1_out",)),
    (r"(.+)_in([._]?\d+)", (r"\1_out\2",)),
    (r"in_(.+)", (r"out_\1",)),
    (r"([hc])_?0?", (r"\1n", r"\1_n", r"\1_out", r"\1_new", r"new_\1")),
    (r"(.*(?:state|cache|hidden|memory|hx|cx).*|[hc]\d*)",
     (r"\1N", r"\1n", r"\1_n", r"\1_out", r"\1_new", r"\1_next", r"new_\1", r"next_\1", r"out_\1",
      r"\1_output", r"output_\1", r"updated_\1")),
)  # fmt: skip
"""Patterns of exporters: an input's name, and what the output that belongs to it may be called.

Keys and values of an encoder are computed once.
"""


def keep_states(model: ir.Model, wanted: Sequence[str]) -> list[str]:
    """Let the model carry the states that `--state` names, or those it finds if that is "auto".

    Returns what to report: which were found, or, without the option, which look like states.
    Raises OptionError for what is no pair of an input and an output of one type.
    """
    if tuple(wanted) == ("auto",):
        pairs = likely_states(model)
        if not pairs:
            raise _none_found(model)
        notices = [f"--state=auto took {_listed(pairs)}"]
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
    outputs = {v.name for v in model.graph.outputs}
    for value in _inputs(model):
        if any(name in outputs for name in _partners(value.name or "")):
            dims = [str(n) for n in value.shape or ()]
            shown = ",".join(n if n.isdigit() else "..." for n in dims)
            return OptionError(
                f"input '{value.name}' looks like a state, but its shape [{', '.join(dims)}] is "
                "open", where="--state=auto",
                hint="give it one, with a range where it grows: "
                f'--input_shape="{value.name}:{shown}"',
            )  # fmt: skip
    return OptionError(
        "no input and output look like a state", where="--state=auto",
        hint="name them: --state=\"input:output;...\"",
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
    outputs = {v.name or "": v for v in model.graph.outputs}
    found: list[tuple[str, str]] = []
    for value in _inputs(model):
        free = [n for n in outputs if n not in {computed for _, computed in found}]
        name = next((n for n in _partners(value.name or "") if n in free), None)
        if name is not None and _alike(value, outputs[name]):
            found.append((value.name or "", name))
    return found


def _partners(name: str) -> Iterator[str]:
    for pattern, outputs in _NAMES:
        match = re.fullmatch(pattern, name)
        if match is not None:
            yield from (match.expand(output) for output in outputs)


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
    shown = ", ".join(f"{a} -> {b}" for a, b in pairs[:4])
    return shown if len(pairs) <= 4 else f"{shown} and {len(pairs) - 4} more"
