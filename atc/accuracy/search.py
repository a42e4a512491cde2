"""Search for products that may be computed in a lower precision within an error of the outputs.

Each node gets a weight: how far outputs move when noise of the same relative size is added to what
it computes, in the network that computes all of them in the higher precision. What several nodes
add is taken for the root of the sum of squares. Nodes are taken in the order of the time that they
gain for the square they add; how many of them is found by compiling and measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from atc.accuracy.inputs import random_inputs
from atc.ir.graph import Array
from atc.pipeline.pipeline import Compilation
from atc.program.steps import Call, calls
from atc.runtime.load import open_network
from atc.runtime.session import Session

NOISE = 2.0**-9
"""The noise that is added, as a part of the root mean square."""
TRIES = 5
"""Networks that are compiled to find how many nodes may be in the lower precision."""
MARGIN = 0.9
"""The part of the error that is aimed at."""


@dataclass(frozen=True)
class Group:
    """Nodes that calls compute together, with the time that the lower precision gains there."""

    nodes: frozenset[str]
    gain: float


def lowered(fast: Compilation, precision: str) -> frozenset[str]:
    """Return the nodes that calls of a network multiply in a precision."""
    found = (
        call.node.origin
        for call in calls(fast.program.steps)
        if call.choice.candidate.kernel.precision == precision
    )
    return frozenset(name for origin in found for name in origin)


def groups(fast: Compilation, plain: Compilation, precision: str) -> list[Group]:
    """Return what a network has in a precision that another one has in a higher one."""
    costs = [(frozenset(c.node.origin), _cost(c)) for c in calls(plain.program.steps)]
    found = []
    for call in calls(fast.program.steps):
        nodes = frozenset(call.node.origin)
        if call.choice.candidate.kernel.precision == precision and nodes:
            before = sum(cost for origin, cost in costs if origin & nodes)
            found.append(Group(nodes, max(before - _cost(call), 1e-3 * before, 1e-9)))
    return found


def _cost(call: Call) -> float:
    """Return the time of a call as it was chosen by: measured, else estimated."""
    choice, label = call.choice, call.choice.candidate.label
    times = {m.label: m.time_ns for m in choice.measurements if m.time_ns is not None}
    return times.get(label, dict(choice.estimates).get(label, 0.0))


def sensitivities(plain: Compilation, found: Sequence[Group], seed: int) -> list[float]:
    """Return how far noise in what each group computes moves the outputs, of their scale.

    The network is one with hooks; all of it is run once for each group.
    """
    net = open_network(plain.folder)
    types = {t.name: (tuple(t.shape), np.dtype(t.dtype)) for t in net.inputs}
    session = Session(net, random_inputs(types, seed))
    session.run()
    still = [array.copy() for array in session.outputs]
    steps = [frozenset(c.node.origin) for c in calls(plain.program.steps)]
    moved = []
    for group in found:
        last = max((k for k, origin in enumerate(steps) if origin & group.nodes), default=-1)
        _run_with_noise(session, last, seed)
        pairs = zip(session.outputs, still, strict=True)
        moved.append(max((_relative_change(a, b) for a, b in pairs), default=0.0))
    return moved


def _run_with_noise(session: Session, at: int, seed: int) -> None:
    """Run a network with noise on the floats that a step writes."""
    rng = np.random.default_rng(seed)

    def disturb(user: Any, step: int, done: int, pointers: Any) -> None:
        if done and step == at:
            info = session.call("step_info", step)
            for k in range(info.reads, info.reads + info.writes):
                tensor = session.call("value_info", info.values[k]).tensor
                if session.dtype(tensor.dtype) == np.float32 and tensor.size:
                    _add_noise(np.frombuffer(
                        session.ffi.buffer(pointers[k], tensor.size), np.float32
                    ), rng)  # fmt: skip

    callback = session.ffi.callback("observer", disturb)
    session.call("set_observer", session.context, callback, session.ffi.NULL)
    try:
        session.run()
    finally:
        session.call("set_observer", session.context, session.ffi.NULL, session.ffi.NULL)


def _add_noise(values: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
    """Add noise to numbers; those that an activation made zero stay it."""
    scale = NOISE * sqrt(float(np.mean(np.square(values, dtype=np.float64))))
    values += np.float32(scale) * rng.standard_normal(values.shape, np.float32) * (values != 0)


def _relative_change(a: Array, b: Array) -> float:
    if a.dtype.kind != "f" or not a.size:
        return 0.0
    scale = float(np.abs(b).max())
    with np.errstate(invalid="ignore"):
        change = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.nan_to_num(change).max()) / (scale or 1.0)


def most_within(
    error: float, found: Sequence[Group], moved: Sequence[float], every: float,
    measure: Callable[[Sequence[Group]], float],
) -> tuple[Sequence[Group], Mapping[int, float]]:  # fmt: skip
    """Return groups for the lower precision, of most gain, and what was measured by their number.

    None of them is known to keep the error, all together err by `every`. `measure` compiles a
    network with the lower precision for some groups and returns its error.
    """
    squares = [max(m, 1e-12) ** 2 for m in moved]
    order = sorted(range(len(found)), key=lambda k: found[k].gain / squares[k], reverse=True)
    ordered = [found[k] for k in order]
    sums = np.sqrt(np.concatenate(([0.0], np.cumsum([squares[k] for k in order]))))
    good, bad, measured = 0, len(ordered), dict[int, float]()
    factor = every / sums[-1]
    for _ in range(TRIES):
        if bad - good <= 1:
            break
        wanted = int(np.searchsorted(factor * sums, MARGIN * error, "right")) - 1
        number = min(max(wanted, good + 1), bad - 1)
        measured[number] = measure(ordered[:number])
        factor = measured[number] / sums[number]
        if measured[number] <= error:
            good = number
            if measured[number] >= MARGIN**2 * error:
                break
        else:
            bad = number
    return ordered[:good], measured
