"""The IR's text form: `dump` prints a graph, `parse` reads the same graph back.

A graph is a line of inputs, then a line each for run-time extents (dim, guard), composite values,
warnings, constants, aliases and nodes, then what it returns; a node's graphs stand indented below:

    graph net(x: f32[1,4])
      const w: f32[4] = (0.5, 1.0, -1.0, 2.0)
      y: f32[1,4] = Map(shape=(4), expr=Mul(x0, x1), views=(<1>, <1>)) x, w  # scale
      return y

`# scale` are the model's nodes. A view is <strides@offset>, an epilogue its expression with the
views of its operands behind it; what is not f32 in an expression says its type: x0:i64. Attributes
that have their defaults are left out, absent operands are `-`, names of other than plain letters
are quoted as in JSON. Constants of more than `INLINE` elements are known by a digest: their data
goes beside the text. May import the rest of `ir`.
"""

from atc.ir.text.data import INLINE, digest_of, large_constants
from atc.ir.text.parser import parse
from atc.ir.text.printer import dump, node_text, op_key, op_text

__all__ = [
    "INLINE", "digest_of", "dump", "large_constants", "node_text", "op_key", "op_text", "parse",
]  # fmt: skip
