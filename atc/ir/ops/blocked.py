"""Channel-blocked tensors: [N, ceil(C / b), *spatial, b], an ordinary tensor to everything else.

Channel c lies in block c / b, lane c % b. The lanes past the last channel hold anything: nothing
mixes lanes but the ops below, which read real channels only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.conv import Window
from atc.ir.ops.elementwise import Epilogue, check_epilogue, require

BYTES = frozenset({DType.UINT8, DType.INT8})
"""Types of quantized activations."""
FLOATS = frozenset({DType.FLOAT, DType.BFLOAT16, DType.FLOAT16})
"""Types of others."""


def blocked_shape(shape: Sequence[int], block: int) -> tuple[int, ...]:
    """Return the blocked form of the shape [N, C, *spatial]."""
    return (shape[0], -(-shape[1] // block), *shape[2:], block)


@dataclass(frozen=True)
class Block(Op):
    """Relayout: x [N, C, *spatial] -> y [N, ceil(C / block), *spatial, block]."""

    block: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the result is the blocked form of the operand."""
        x = inputs[0]
        require(x is not None and len(x.shape) >= 2, f"{x} has no channels")
        assert x is not None
        require(outputs[0].shape == blocked_shape(x.shape, self.block), f"{x} -> {outputs[0]}")
        require(outputs[0].dtype is x.dtype, "the type changes")


@dataclass(frozen=True)
class Unblock(Op):
    """Relayout: x [N, ceil(C / b), *spatial, b] -> y [N, C, *spatial]."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the operand is the blocked form of the result."""
        x = inputs[0]
        require(x is not None and len(x.shape) >= 3, f"{x} is not blocked")
        assert x is not None
        require(x.shape == blocked_shape(outputs[0].shape, x.shape[-1]), f"{x} -> {outputs[0]}")
        require(outputs[0].dtype is x.dtype, "the type changes")


@dataclass(frozen=True)
class ConvBlocked(Op):
    """Conv with a blocked result: y [N, ceil(M / b), *out, b] from w [M, C / group, *kernel].

    x is blocked, [N, ceil(C / b), *in, b], or for a network's first layer plain, [N, C, *in]. Where
    all filters are one block, so may all of x's channels be, which are as many as there are.
    Epilogue views are over the shape of y. Beside floats x and w may be floats of 16 bits.
    Integers, x of one byte and w of int8, are summed in `accumulator`, INT32; `zero` is taken off x
    first. Where each channel has a filter of its own, w may also be int16 of no more than 9 bits,
    or of bytes known to be `ones`: windows are summed. With `rounds`, x are floats that are rounded
    to that type of 16 bits first.
    """

    window: Window
    group: int
    epilogue: Epilogue
    accumulator: DType = DType.FLOAT
    zero: int = 0
    ones: bool = False
    rounds: DType | None = None

    @property
    def plain(self) -> int:
        """The rank of a plain x; a blocked one has one axis more."""
        return self.window.rank + 2

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Channels, group, block and kernel agree."""
        x, w, y = inputs[0], inputs[1], outputs[0].shape
        require(x is not None and w is not None, "x and w are needed")
        assert x is not None
        assert w is not None
        types = (x.dtype, w.dtype, self.accumulator)
        floats = types[0] in FLOATS and types[2] is DType.FLOAT
        floats = floats and (types[1] is DType.FLOAT or types[1].is_half)
        alone = w.shape[:2] == (self.group, 1)
        small = w.dtype is DType.INT8 or alone and w.dtype is DType.INT16
        bytes_ = types[0] in BYTES and small and self.accumulator is DType.INT32
        require(floats or bytes_, f"{x} and {w} are not summed in {self.accumulator.label}")
        require(not self.ones or bytes_ and alone, f"{w} is not ones")
        rounded = self.rounds is None or self.rounds.is_half and x.dtype is DType.FLOAT
        require(rounded, f"{x} isn't rounded to 16 bits")
        block = y[-1]
        channels = w.shape[1] * self.group
        plain = (x.shape[0], channels, *x.shape[2 : self.plain])
        last = [blocked_shape(plain, channels)] * (y[1] == 1)
        forms = (plain, blocked_shape(plain, block), *last)
        require(x.shape in forms, f"channels of {x} and {w} differ")
        require(w.shape[0] % self.group == 0, f"group {self.group} of {w}")
        require(w.shape[2:] == self.window.kernel, f"kernel of {w} is not {self.window.kernel}")
        filters = (x.shape[0], w.shape[0], *y[2:-1])
        require(y == blocked_shape(filters, block), f"output {y}")
        check_epilogue(self.epilogue, y, inputs[2:], outputs[0])


@dataclass(frozen=True)
class NormalizeBlocked(Op):
    """Normalize in channel blocks: y = epilogue((x - centre) * scale), x as y [N, B, *spatial, b].

    Statistics, `how` as Normalize has it, are those of every `group` of `channels` that follow each
    other and of all their pixels; with `single`, those of each pixel's channels. Epilogue views are
    over the shape of y.
    """

    how: str
    channels: int
    group: int
    single: bool
    epsilon: float
    epilogue: Epilogue

    @property
    def count(self) -> int:
        """The channels that have statistics in common, counted at one pixel."""
        return self.channels if self.single else self.group

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """x and y have the same blocks, which hold the channels, and groups fill these."""
        x, y = inputs[0], outputs[0]
        require(x is not None and x.dtype in FLOATS, f"{x} is not computed in")
        assert x is not None
        require(x.shape == y.shape and len(y.shape) >= 4, f"{x} -> {y}")
        blocks, block = y.shape[1], y.shape[-1]
        require(-(-self.channels // block) == blocks, f"{self.channels} channels in {x}")
        require(self.channels % self.group == 0, f"groups of {self.group} of {self.channels}")
        require(self.how in ("Variance", "MeanSquare"), f"unknown statistic {self.how}")
        check_epilogue(self.epilogue, y.shape, inputs[1:], y)
