"""Extents that are known at run time: what an `int` of a shape may be instead.

Polynomials over symbols with bounds: arithmetic, proofs, text. May import `errors`.
"""

from atc.dims.bounds import lower_bound, upper_bound
from atc.dims.dim import Dim, dim, equals, maximum, minimum, not_equal, written
from atc.dims.extents import (
    broadcast_extents,
    broadcast_guard,
    broadcast_guards,
    broadcast_shapes,
    ceiling,
    concrete,
    evaluate,
    is_data_dependent,
    is_dynamic,
    max_value,
    reach,
    same_unrounded,
    symbols_of,
)
from atc.dims.names import (
    RANGES,
    Extent,
    InputShape,
    Multiple,
    Named,
    Range,
    Sum,
    collected,
    is_name,
    named,
    read_multiple,
    read_sum,
    within,
)
from atc.dims.nonempty import at_least_one, divides_by_zero, substituted
from atc.dims.opened import opened
from atc.dims.parse import parse_extent
from atc.dims.polynomial import Function, Symbol
from atc.dims.text import bind_tokens, functions_in, is_open, plain
from atc.dims.undecided import NARROWER, RELATED, Undecided, decided

__all__ = [
    "NARROWER", "RANGES", "RELATED", "Dim", "Extent", "Function", "InputShape", "Multiple",
    "Named", "Range", "Sum", "Symbol", "Undecided", "at_least_one", "bind_tokens",
    "broadcast_extents", "broadcast_guard", "broadcast_guards", "broadcast_shapes", "ceiling",
    "collected", "concrete", "decided", "dim", "divides_by_zero", "equals", "evaluate",
    "functions_in", "is_data_dependent", "is_dynamic", "is_name", "is_open", "lower_bound",
    "max_value", "maximum", "minimum", "named", "not_equal", "opened",
    "parse_extent", "plain", "reach", "read_multiple",
    "read_sum", "same_unrounded", "substituted", "symbols_of", "upper_bound", "within", "written",
]
