"""Transforms of whole axes: the discrete Fourier transform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class Dft(Op):
    """Discrete Fourier transform along the middle of x [outer, size, inner, parts].  ONNX DFT-20.

    The result is y [outer, out, inner, 2]: the first `out` of `length` frequencies of the first
    `length` elements, or of all with zeros appended. `parts` is 1 (real) or 2 (complex). Where
    `inverse`, it is divided by the length; where `symmetric`, x holds the first half of a spectrum
    whose other half mirrors it, and y is real [outer, out, inner, 1]. Operand 1 holds the complex
    roots of unity exp(-2 pi i k / length), conjugated for the inverse, [length, 2], in the type in
    which all is computed.
    """

    outer: int
    size: int
    inner: int
    parts: int
    length: int
    out: int
    inverse: bool = False
    symmetric: bool = False

    @property
    def real_places(self) -> tuple[int, ...]:
        """The results that are exactly real because x is: the ends of the spectrum."""
        if self.parts == 2 or self.symmetric:
            return ()
        middle = () if self.length % 2 else (self.length // 2,)
        return tuple(k for k in (0, *middle) if k < self.out)

    @property
    def results(self) -> int:
        """Numbers per element of the result."""
        return 1 if self.symmetric else 2

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes fit and the types are real."""
        x, roots = inputs
        y = outputs[0]
        require(y.dtype.is_float, f"output {y}")
        require(self.parts in (1, 2) and 0 < self.out <= self.length, f"{self}")
        size = self.outer * self.size * self.inner * self.parts
        require(x is not None and x.dtype is y.dtype and x.size == size, f"operand {x}")
        require(roots is not None and roots.shape == (self.length, 2), f"roots {roots}")
        require(y.size == self.outer * self.out * self.inner * self.results, f"output {y}")
