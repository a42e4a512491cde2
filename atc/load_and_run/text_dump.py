"""Results of every kernel call as text, in the format of MegEngine's text io dump."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from atc.errors import one_line
from atc.ir.graph import Array
from atc.load_and_run.engine import Engine, Step
from atc.runtime.values import Tensor

SHOWN = 5
"""Values of a tensor that are printed."""
_LAZY = "<see lazy value>"
_STORAGE = "s"  # all memory is planned when compiling
_NAMES = {"bool": "Bool", "uint8": "Uint8", "bfloat16": "BFloat16"}


@dataclass
class TextDump:
    """An observer that writes blocks of lines; in `recorded` mode the values stand at the end."""

    engine: Engine
    recorded: bool = False
    lines: list[str] = field(default_factory=list)
    _known: dict[int, str] = field(default_factory=dict)
    _deferred: list[str] = field(default_factory=list)

    def __call__(self, step: Step, done: bool, arrays: Sequence[Array]) -> None:
        """Look at the operands before the call (they may be overwritten), at results after it."""
        if not done:
            for number, array in zip(step.reads, arrays, strict=False):
                self._known.setdefault(number, _prefix(array))
            return
        for number, array in zip(step.writes, arrays[len(step.reads) :], strict=True):
            self._known[number] = _prefix(array)
            self.lines += self._block(step, number, array)

    def text(self) -> str:
        """Return all that was written."""
        end = ["==== recorded values", *self._deferred] if self._deferred else []
        return "".join(f"{line}\n" for line in (*self.lines, *end))

    def _block(self, step: Step, number: int, array: Array) -> list[str]:
        tensor = self.engine.values[number].tensor
        value = f"{_prefix(array)}{summary(array)} {_STORAGE}"
        shown = value
        if self.recorded:
            self._deferred.append(f"var{number}: {value}")
            shown = _LAZY
        return [
            f"var{number} produced: name={one_line(tensor.name)} layout={_layout(tensor)} "
            f"owner_opr={one_line(step.nodes)}{{{step.op}}} opr{step.number}",
            " deps:",
            *(
                f"  [i{k}]var{dep}: {_LAZY if self.recorded else self._known[dep]} {_STORAGE}"
                for k, dep in enumerate(step.reads)
            ),
            f" val: {shown}",
        ]


def _prefix(array: Array) -> str:
    values = [_number(v) for v in array.reshape(-1)[:SHOWN]]
    more = ["..."] if array.size > SHOWN else []
    return f"[{', '.join(values + more)}]"


def _number(value: np.generic) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace"))
    return f"{float(value):.4g}"


def summary(array: Array) -> str:
    """Return least, largest and mean value, root of the mean square, standard deviation."""
    if array.size == 0 or array.dtype.kind == "S":
        return "strings" if array.size else "empty"
    with np.errstate(all="ignore"):
        x = array.astype(np.float64).reshape(-1)
        sd = f"{x.std(ddof=1):.3g}" if x.size > 1 else "N/A"
        return (
            f"min={x.min():.3g} max={x.max():.3g} mean={x.mean():.3g} "
            f"l2={np.sqrt(np.mean(x * x)):.3g} sd={sd}"
        )


def _layout(tensor: Tensor) -> str:
    steps = np.cumprod([1, *reversed(tensor.shape[1:])])[::-1] if tensor.shape else ()
    dims = ",".join(f"{d}({s})" for d, s in zip(tensor.shape, steps, strict=True))
    name = tensor.dtype.name
    return f"{{{dims}}} {_NAMES.get(name, name.capitalize())}"
