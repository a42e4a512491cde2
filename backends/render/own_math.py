"""Float functions without the C library: kernels call those of `simd_math.h` and
`simd_scalar_math.h`, whose results are bit-identical everywhere."""

from __future__ import annotations

import re

from atc.backends.render.code import changed

HEADER = "scalar_math"
"""The header that has them, as kernels name theirs: `simd_<name>.h`."""

ONE_LANE = "scalar"
"""The vector table of one lane, as a header beside that of more lanes; a file has only one."""

_VOCABULARY = (
    "floor", "ceil", "trunc", "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf",
)  # fmt: skip
_SCALAR = (
    "fmax", "fmin", "fmod", "pow", "tan", "atan", "asin", "acos", "sinh", "cosh", "asinh", "acosh",
    "atanh",
)  # fmt: skip

OWN = {
    **{f"{name}f": f"v_{name}" for name in _VOCABULARY},
    **{f"{name}f": f"k_{name}_f32" for name in _SCALAR},
    "rintf": "v_round", "k_sigmoid_f32": "v_sigmoid", "k_softplus_f32": "v_softplus",
    "k_mod_f32": "k_floormod_f32",
}  # fmt: skip
"""The replacement of each function of <math.h>, and of those that `kernel.h` builds on them.

`fabsf`, `copysignf`, `isnan` and `isinf` are instructions that every compiler has.
"""

ADD = "k_add_f32"
"""The function that adds to a sum and keeps the rounding error (compensated summation)."""

_CALL = re.compile(rf"\b({'|'.join(sorted(OWN, key=len, reverse=True))})\(")
_INCLUDES = re.compile(r'(?:#include "[^"]+"\n)+')


def with_own_math(text: str, lanes: int = 1) -> tuple[str, tuple[str, ...]]:
    """Return a kernel's text with our functions for the C library's, and the headers they are in.

    They have one lane. Where vectors have more, a table of one lane replaces theirs.
    """
    own = changed(text, lambda code: _CALL.sub(lambda call: f"{OWN[call[1]]}(", code))
    if own == text and f"{ADD}(" not in text:
        return text, ()
    headers = (HEADER,) if lanes == 1 else (ONE_LANE, HEADER)
    includes = "".join(f'#include "../simd_{header}.h"\n' for header in headers)
    return _INCLUDES.sub(lambda lines: lines[0] + includes, own, count=1), headers
