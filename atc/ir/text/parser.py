"""Graphs read back from their text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from atc.dims import Symbol
from atc.ir.graph import (
    Alias,
    Array,
    Composite,
    Dequantization,
    Graph,
    Node,
    Op,
    Slide,
    TensorType,
    reads,
)
from atc.ir.text.data import elements
from atc.ir.text.printer import KEYWORDS
from atc.ir.text.scanner import SPACES
from atc.ir.text.values import NUMBER, QUOTED, ValueReader, hints

_DIGEST = re.compile(r"[0-9a-f]{16}\b")
_REST = re.compile(r"[^\n]*")
_ABSENT = re.compile(r"-(?=[,\s]|$)")
_STATE = re.compile(r"(\d{1,6}) -> (\d{1,6})")
_LENGTH = re.compile(r"(\d{1,6}): ")
_KEYWORD = re.compile(rf"({'|'.join(KEYWORDS)})(?: |(?=\n|$))")

Large = Callable[[str, TensorType], Array]
"""Gives the constant that has a digest, and this type."""


def _none_given(digest: str, type_: TensorType) -> Array:
    raise ValueError(f"the constant {digest} {type_} is not given")


def parse(text: str, large: Large = _none_given) -> Graph:
    """Return the graph that `dump` printed, not verified; `large` gives constants of digests.

    Raises ValueError with the line that is not one of a graph.
    """
    parser = _Parser(text, large)
    try:
        graph = parser.graph({}, {})
        parser.blank_lines()
        if parser.position < len(text):
            raise ValueError("there is more behind the graph")
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        line = text.count("\n", 0, parser.begin) + 1
        raise ValueError(f"line {line}: {error}") from None
    return graph


class _Parser(ValueReader):
    """Reads graphs, constants and nodes."""

    def __init__(self, text: str, large: Large) -> None:
        super().__init__(text)
        self.large = large

    def graph(self, outer: Mapping[str, TensorType], symbols: Mapping[int, Symbol]) -> Graph:
        """Read a graph; what it reads of `outer` values, and their types, is known around it."""
        self.blank_lines()
        self.expect("graph ")
        name = self.name()
        head = self.position  # the types of inputs may need dims, which stand below them
        self.match(_REST)
        self.end_line()
        self.symbols = dict(symbols)
        dims = self.dims()
        here, self.position = self.position, head
        own: dict[str, TensorType] = {}
        self.expect("(")
        inputs = tuple(self.listed(lambda: self.typed_name(own), ")"))
        self.end_line()
        self.position = self.begin = here
        guards, composites, warnings, states, lengths = [], [], [], [], []
        slides: dict[str, Slide] = {}
        constants: dict[str, Array] = {}
        quantization: dict[str, Dequantization] = {}
        aliases: dict[str, Alias] = {}
        nodes: list[Node] = []
        while (keyword := self.keyword()) != "return":
            match keyword:
                case "guard":
                    guards.append(self.extent())
                case "composite":
                    composites.append(self.record((Composite,)))
                case "warning":
                    warnings.append(self.quoted())
                case "state":
                    states.append(self.state())
                case "slide":
                    state = self.name()
                    self.expect(": ")
                    slides[state] = self.record((Slide,))
                case "length":
                    lengths.append(self.length())
                case "const":
                    constant = self.typed_name(own)
                    constants[constant] = self.array(own[constant])
                case "alias":
                    aliases.update([self.alias()])
                case "dequantized":
                    constant = self.name()
                    quantization[constant] = self.dequantization()
                case "":
                    nodes.append(self.node(own, outer))
                    continue
                case _:
                    raise ValueError(f"'{keyword}' is not expected")
            self.end_line()
        self.match(SPACES)
        outputs = tuple(self.names())
        self.end_line()
        types_ = {**outer, **own}
        used = {*own, *outputs, *(i for n in nodes for i in reads(n))}
        return Graph(
            name, inputs, outputs, tuple(nodes), {n: types_[n] for n in types_ if n in used},
            constants, tuple(composites), dims, tuple(guards), quantization, tuple(warnings),
            aliases, tuple(states), slides, tuple(lengths),
        )  # fmt: skip

    def state(self) -> tuple[int, int]:
        """Read the numbers of a state's input and output."""
        found = self.match(_STATE)
        if found is None:
            raise self.unexpected("a state as in `0 -> 1`")
        return int(found[1]), int(found[2])

    def length(self) -> tuple[int, int]:
        """Read the number of an extent and what it is in the next run."""
        found = self.match(_LENGTH)
        if found is None:
            raise self.unexpected("a length as in `1: d[0] + d[1]`")
        return int(found[1]), self.extent()

    def keyword(self) -> str:
        """Go over the keyword that begins a line; '' before a node."""
        if self.at_end():
            raise ValueError("the graph has no end")
        found = _KEYWORD.match(self.text, self.position)
        self.position += len(found[0]) if found else 0
        return found[1] if found else ""

    def dims(self) -> tuple[Symbol, ...]:
        found: list[Symbol] = []
        while self.skip("dim "):
            found.append(self.record((Symbol,)))
            self.symbols = {**self.symbols, found[-1].index: found[-1]}
            self.end_line()
        return tuple(found)

    def node(self, own: dict[str, TensorType], outer: Mapping[str, TensorType]) -> Node:
        outputs = tuple(self.listed(lambda: self.typed_name(own), " = "))
        op, fields = self.called(_OPS)
        self.match(SPACES)
        inputs = tuple(self.names())
        origin = tuple(self.origin())
        self.end_line()
        symbols = self.symbols
        for f in dataclasses.fields(op):
            if hints(op)[f.name] is Graph:
                fields[f.name] = self.graph({**outer, **own}, symbols)
                self.symbols = symbols
        return Node(op(**fields), inputs, outputs, origin)

    def names(self) -> Iterator[str]:
        """Yield names, '' for `-`, up to a line's end or comment."""
        while not self.at_end() and self.text[self.position] not in "\n#":
            yield "" if self.match(_ABSENT) else self.name()
            if not self.skip(", "):
                break
        self.match(SPACES)

    def origin(self) -> Iterator[str]:
        if self.skip("# "):
            yield self.name()
            while self.skip("; "):
                yield self.name()

    def typed_name(self, types: dict[str, TensorType]) -> str:
        name = self.name()
        self.expect(": ")
        types[name] = self.tensor_type()
        return name

    def array(self, type_: TensorType) -> Array:
        self.expect(" = ")
        found = self.match(_DIGEST)
        if found is not None:
            return self.large(found[0], type_)
        self.expect("(")
        return elements(tuple(self.listed(self.element, ")")), type_)

    def element(self) -> str:
        found = self.match(QUOTED)
        return found[0] if found else self.word(NUMBER, "a number")

    def alias(self) -> tuple[str, Alias]:
        name = self.name()
        self.expect(": ")
        for kind in get_args(hints(Alias)["kind"]):
            if self.skip(f"{kind} "):
                return name, Alias(kind, self.name())
        raise self.unexpected("a kind of alias")

    def dequantization(self) -> Dequantization:
        self.expect(": ")
        integers = self.array(self.tensor_type())
        self.expect(" * ")
        return Dequantization(integers, self.array(self.tensor_type()))


def _subclasses(found: type[Any]) -> Iterator[type[Any]]:
    for inner in found.__subclasses__():
        yield from (inner, *_subclasses(inner))


_OPS = {c.__name__: c for c in _subclasses(Op) if dataclasses.is_dataclass(c)}
