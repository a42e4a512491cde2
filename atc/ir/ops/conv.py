"""Conv and Pool: sliding windows over any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.dims import upper_bound
from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import Epilogue, check_epilogue, require


@dataclass(frozen=True)
class Window:
    """A sliding window; one entry per spatial axis. `pads` are at the begin of each axis.

    Whatever the window reads outside the input is padding, so end pads need no mention: the output
    extents say how far the window goes.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def stays_inside(self, size: Sequence[int], out: Sequence[int]) -> bool:
        """Return whether no tap of an output of `out` reads padding: never, in any shape."""
        axes = zip(out, self.strides, self.kernel, self.dilations, size, strict=True)
        return not any(self.pads) and all(
            upper_bound((o - 1) * s + (k - 1) * d - n) < 0 for o, s, k, d, n in axes
        )


@dataclass(frozen=True)
class Conv(Op):
    """Cross-correlation: x [N, C, *in], w [M, C/group, *kernel] -> [N, M, *out].  ONNX Conv-11.

    Integer operands are summed in `accumulator`, with the zero points subtracted first (ONNX
    ConvInteger-10); zero points are operands 2 and 3 where `zero_points` says so. Epilogue views
    are over (N, M, *out).
    """

    window: Window
    group: int
    epilogue: Epilogue
    accumulator: DType = DType.FLOAT
    zero_points: bool = False

    @property
    def operands(self) -> int:
        """Number of inputs before the epilogue's."""
        return 4 if self.zero_points else 2

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Channels, group and kernel agree."""
        x, w = inputs[0], inputs[1]
        require(x is not None and w is not None, "x and w are needed")
        assert x is not None
        assert w is not None
        y = outputs[0].shape
        rank = self.window.rank
        require(len(x.shape) == len(w.shape) == len(y) == rank + 2, "ranks differ")
        require(self.group >= 1 and w.shape[0] % self.group == 0, f"group {self.group} of {w}")
        require(x.shape[1] == w.shape[1] * self.group, f"channels of {x} and {w} differ")
        require(w.shape[2:] == self.window.kernel, f"kernel of {w} is not {self.window.kernel}")
        require(y[:2] == (x.shape[0], w.shape[0]), f"output {y}")
        check_epilogue(self.epilogue, y, inputs[self.operands :], outputs[0])


@dataclass(frozen=True)
class ConvTranspose(Op):
    """Transposed convolution: x [N, C, *in], w [C, M/group, *kernel] -> [N, M, *out].

    ONNX ConvTranspose-11. `window.pads` are cropped from the begin of the full result. Integer
    operands are summed in `accumulator`, with `zero` taken off x first.
    """

    window: Window
    group: int
    epilogue: Epilogue
    accumulator: DType = DType.FLOAT
    zero: int = 0

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Channels, group and kernel agree."""
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        require(x.shape[1] == w.shape[0], f"channels of {x} and {w} differ")
        require(x.shape[1] % self.group == 0, f"group {self.group} of {x}")
        require(outputs[0].shape[1] == w.shape[1] * self.group, f"output {outputs[0]}")
        require(self.accumulator is DType.INT32 or not self.zero, f"zero point {self.zero}")
        check_epilogue(self.epilogue, outputs[0].shape, inputs[2:], outputs[0])


@dataclass(frozen=True)
class ConvFilterGradient(Op):
    """Gradient of a Conv's filters: x [N, C, *in], g [N, M, *out] -> [M, C/group, *kernel].

    `window` and `group` are the Conv's: a filter's number is the sum, over images and pixels, of g
    times the x that it meets there. g may be blocked, [N, ceil(M / b), *out, b], and x as well.
    """

    window: Window
    group: int

    def blocked(self, type_: TensorType) -> bool:
        """Return whether an operand has its channels in blocks."""
        return len(type_.shape) > self.window.rank + 2

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Images, channels, group and kernel agree."""
        x, g = inputs
        require(x is not None and g is not None, "x and g are needed")
        assert x is not None
        assert g is not None
        y = outputs[0].shape
        require(x.dtype is g.dtype is outputs[0].dtype, f"types of {x} and {g}")
        require(y[2:] == self.window.kernel, f"result {y} of {self.window.kernel}")
        require(x.shape[0] == g.shape[0] and y[0] % self.group == 0, f"{x} and {g}")
        for type_, channels in ((x, y[1] * self.group), (g, y[0])):
            block = type_.shape[-1] if self.blocked(type_) else 1
            require(type_.shape[1] == -(-channels // block), f"{channels} channels of {type_}")
        require(self.blocked(g) or not self.blocked(x), "only x is blocked")


@dataclass(frozen=True)
class Pool(Op):
    """Pooling over windows of x [N, C, *in] -> [N, C, *out].

    `how` is Max, Average or Lp (with `p`). ONNX MaxPool-12, AveragePool-19, LpPool-18. Average
    divides by the elements inside the input, or with `count_include_pad` by those inside the padded
    input (`end_pads` say where that ends). A second output of MaxPool holds the flat indices
    (`storage_order` 1: column-major).
    """

    how: str
    window: Window
    end_pads: tuple[int, ...]
    count_include_pad: bool = False
    p: int = 2
    storage_order: int = 0

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Batch and channels are kept."""
        x = inputs[0]
        assert x is not None
        require(x.shape[:2] == outputs[0].shape[:2], f"{x} -> {outputs[0]}")
        require(all(prod((o.size,)) == outputs[0].size for o in outputs), "outputs differ in size")
