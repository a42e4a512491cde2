"""Attributes read back from their text: names, types, views, records, expressions."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

from atc.dims import Symbol, parse_extent
from atc.ir.expr import (
    BINARY,
    TERNARY,
    UNARY,
    Call,
    Const,
    Expr,
    Extent,
    Input,
    const,
    type_of_call,
)
from atc.ir.graph import DType, Graph, TensorType
from atc.ir.ops import Epilogue
from atc.ir.text.printer import KEYWORDS, NAME
from atc.ir.text.scanner import Scanner
from atc.ir.view import View

_LABELS = {d.label: d for d in DType}
_ARITY = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_WORD = re.compile(r"\w+")
NUMBER = re.compile(r"[-+\w.]+")
_INPUT = re.compile(r"x(\d+)\b")
_SHARED = re.compile(r"v(\d+)\b(?: = )?")
_NONE = re.compile(r"None\b")
_CALLED = re.compile(r"\w+(?:<\w+>)?\(")


class ValueReader(Scanner):
    """Reads values by the types that they are annotated with, over run-time extents `symbols`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.symbols: Mapping[int, Symbol] = {}

    def name(self) -> str:
        """Read a name, quoted or plain."""
        if self.text.startswith('"', self.position):
            return self.quoted()
        name = self.word(NAME, "a name")
        if name in KEYWORDS:
            raise ValueError(f"the name {name} needs quotes")
        return name

    def quoted(self) -> str:
        """Read a text in quotes."""
        return str(json.loads(self.word(QUOTED, "a quoted text")))

    def dtype(self) -> DType:
        """Read an element type by its label."""
        label = self.word(_WORD, "an element type")
        if label not in _LABELS:
            raise ValueError(f"'{label}' is not an element type")
        return _LABELS[label]

    def tensor_type(self) -> TensorType:
        """Read `f32[2,3]`."""
        dtype = self.dtype()
        self.expect("[")
        return TensorType(dtype, tuple(self.listed(self.extent, "]")))

    def record(self, classes: tuple[type[Any], ...]) -> Any:
        """Read `Class(field=value, ...)` of one of these classes."""
        made, fields = self.called({c.__name__: c for c in classes})
        return made(**fields)

    def called(self, classes: Mapping[str, type[Any]]) -> tuple[Any, dict[str, Any]]:
        """Read `Class(field=value, ...)`; returns the class and its fields but for graphs."""
        name = self.word(_WORD, "an op")
        if name not in classes:
            raise ValueError(f"there is no {name}")
        made: Any = classes[name]
        fields: dict[str, Any] = {}

        def field() -> None:
            key = self.word(_WORD, "an attribute")
            if key not in hints(made):
                raise ValueError(f"{name} has no attribute {key}")
            self.expect("=")
            fields[key] = self.value(hints(made)[key])

        self.expect("(")
        for _ in self.listed(field, ")"):
            pass
        for f in dataclasses.fields(made):
            given = f.name in fields or f.default is not dataclasses.MISSING
            if not given and hints(made)[f.name] is not Graph:
                raise ValueError(f"{name} needs the attribute {f.name}")
        return made, fields

    def value(self, hint: Any) -> Any:
        """Read a value of an annotated type."""
        if hint in self.readers:
            return self.readers[hint]()
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple:
            self.expect("(")
            if args[1:] == (...,):
                return tuple(self.listed(lambda: self.value(args[0]), ")"))
            each = iter(args)
            return tuple(self.listed(lambda: self.value(next(each, None)), ")"))
        if origin is types.UnionType and args[1:] == (type(None),):
            return None if self.match(_NONE) else self.value(args[0])
        if origin is types.UnionType and all(dataclasses.is_dataclass(each) for each in args):
            return self.record(args)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.record((hint,))
        raise self.unexpected("nothing more")

    @cached_property
    def readers(self) -> Mapping[Any, Callable[[], Any]]:
        """The readers of values by their annotated types."""
        return {
            int: self.extent, bool: self.boolean, float: self.number, str: self.name,
            bytes: lambda: self.quoted().encode("latin-1"), DType: self.dtype, View: self.view,
            Expr: self.expression, Epilogue: self.epilogue,
        }  # fmt: skip

    def extent(self) -> int:
        """Read an integer, or a run-time extent up to what ends it."""
        depth, start = 0, self.position
        while not self.at_end():
            c = self.text[self.position]
            if depth == 0 and c in ",)]>@\n":
                break
            depth += (c in "([") - (c in ")]")
            self.position += 1
        return parse_extent(self.text[start : self.position].strip(), self.symbols)

    def boolean(self) -> bool:
        """Read True or False."""
        found = self.word(_WORD, "True or False")
        if found not in ("True", "False"):
            raise ValueError(f"'{found}' is neither True nor False")
        return found == "True"

    def number(self) -> float:
        """Read a real number."""
        return float(self.word(NUMBER, "a number"))

    def view(self) -> View:
        """Read `<strides@offset>`."""
        self.expect("<")
        strides: list[int] = []
        while not self.skip(">"):
            if self.skip("@"):
                offset = self.extent()
                self.expect(">")
                return View(tuple(strides), offset)
            if strides:
                self.expect(",")
            strides.append(self.extent())
        return View(tuple(strides))

    def epilogue(self) -> Epilogue:
        """Read an expression and the views of its operands."""
        expression = self.expression()
        views: list[View] = []
        while self.text.startswith("<", self.position):
            views.append(self.view())
        return Epilogue(expression, tuple(views))

    # ---- expressions ----------------------------------------------------------------------------

    def expression(self) -> Expr:
        """Read `v0 = ...; ` for what is shared, then the expression."""
        shared: list[Expr] = []
        while (found := _SHARED.match(self.text, self.position)) and found[0].endswith(" = "):
            self.position = found.end()
            shared.append(self.one_expression(shared))
            self.expect("; ")
        return self.one_expression(shared)

    def one_expression(self, shared: list[Expr]) -> Expr:
        """Read an expression with a stack of open calls: it may nest deeper than Python does."""
        calls: list[tuple[str, DType | None, list[Expr]]] = []
        while True:
            done = self.leaf(shared)
            if done is None:
                calls.append((*self.function(), []))
                continue
            while calls:
                fn, dtype, args = calls[-1]
                args.append(done)
                if self.skip(", "):
                    break
                self.expect(")")
                calls.pop()
                done = _call(fn, dtype, tuple(args))
            else:
                return done

    def function(self) -> tuple[str, DType | None]:
        """Read a function's name and the type of its result, if given, up to the arguments."""
        name = self.word(_WORD, "an expression")
        dtype = None
        if self.skip("<"):
            dtype = self.dtype()
            self.expect(">")
        self.expect("(")
        return name, dtype

    def leaf(self, shared: list[Expr]) -> Expr | None:
        """Read what is no call; None before a call."""
        if found := self.match(_INPUT):
            return Input(self.leaf_type(), int(found[1]))
        if found := self.match(_SHARED):
            return shared[int(found[1])]
        if self.skip("["):
            extent = self.extent()
            self.expect("]")
            return Extent(self.leaf_type(), extent)
        if _CALLED.match(self.text, self.position):
            return None
        number = self.word(NUMBER, "an expression")
        dtype = self.leaf_type()
        made = Const(dtype, number)
        if const(made.value, dtype) != made:
            raise ValueError(f"'{number}' is not a number of type {dtype.label}")
        return made

    def leaf_type(self) -> DType:
        """Read a leaf's type; f32 is the default."""
        return self.dtype() if self.skip(":") else DType.FLOAT


def _call(fn: str, dtype: DType | None, args: tuple[Expr, ...]) -> Expr:
    if _ARITY.get(fn) != len(args):
        raise ValueError(f"{fn} of {len(args)} arguments is not a function")
    return Call(dtype or type_of_call(fn, args), fn, args)


@cache
def hints(made: Any) -> Mapping[str, Any]:
    """Return the annotated types of a record's fields."""
    known = {f.name for f in dataclasses.fields(made)}
    return {name: hint for name, hint in typing.get_type_hints(made).items() if name in known}
