"""Shapes, sizes and ranges that options give: text, or a Python value with the same meaning.

The parsers raise OptionError without a place; the setting adds its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from atc.dims import Extent, InputShape, Named, Range, is_name, read_multiple, read_sum
from atc.errors import OptionError
from atc.options.values import listed, shown, whole

SHAPE_FORMAT = 'the form is "name:n,c,h,w;name2:n,1~8", for a scalar "name:"'
NAMES_FORMAT = 'the form is "name:n,1~8,s=1~16;name2:n,s+1"'
ELEMENTS_FORMAT = 'a sequence is "name:[2,3][4]" or "name:empty", an absent optional "name:none"'


def shapes(value: object) -> Mapping[str, InputShape]:
    """Return input shapes by name, from `name:n,c,h,w;name2:...` or a mapping.

    A dim is a number, a range `1~8`, or -1 where other options list its values. `s=1~8` gives it a
    name, `s+p`, `s-1` and `2*s` follow from names. The name of an input may hold
    colons: the last one ends it. No dims are a scalar. `[2,3][4]` are the shapes of
    a sequence's elements, `empty` is one of no elements, `none` an optional without a value; in a
    mapping, a list of shapes and None.
    """
    if isinstance(value, Mapping):
        return {str(name): _given(str(name), dims) for name, dims in value.items()}
    result: dict[str, InputShape] = {}
    for item in str(value).split(";") if value else ():
        name, colon, dims = item.rpartition(":")
        name = name.strip()
        if not colon or not name:
            raise OptionError(
                f"'{shown(item)}' is not a valid shape", hint=SHAPE_FORMAT, code="E10002"
            )
        if name in result:
            raise OptionError(f"duplicate name '{shown(name)}'", hint=SHAPE_FORMAT, code="E10002")
        result[name] = _written(name, dims.strip())
    return result


def value_ranges(value: object) -> Mapping[str, tuple[Range, ...]]:
    """Return ranges of integers by the name of a value, from `name:0~9;name2:1~8,1~64`."""
    if isinstance(value, Mapping):
        items = [
            (str(name), tuple(g.split(",") if isinstance(g, str) else map(str, listed(g))))
            for name, g in value.items()
        ]
    else:
        pairs = [item.rpartition(":") for item in str(value).split(";")] if value else []
        items = [(name.strip(), tuple(given.split(","))) for name, _, given in pairs]
    result: dict[str, tuple[Range, ...]] = {}
    for name, given in items:
        found = [re.fullmatch(r"\s*(-?\d{1,18})(?:~(-?\d{1,18}))?\s*", text) for text in given]
        ends = [(int(m[1]), int(m[2] or m[1])) for m in found if m]
        if not name or name in result or len(ends) < len(given) or any(a > b for a, b in ends):
            raise OptionError(
                f"'{shown(name)}:{shown(','.join(given))}' gives no ranges, or twice",
                hint='write e.g. "count:0~100;sizes:1~8,1~64"', code="E10002",
            )  # fmt: skip
        result[name] = tuple(Range(*each) for each in ends)
    return result


def shape_ranges(value: object) -> Mapping[str, InputShape]:
    """Return input shapes by name, from the text of --input_shape_range: `name:[1~8,c];...`."""
    if isinstance(value, Mapping):
        return shapes(value)
    return shapes(re.sub(r":\s*\[([^\[\]]*)\]\s*(?=;|$)", r":\1", str(value)))


def _given(name: str, dims: object) -> InputShape:
    if dims is None or isinstance(dims, str):
        return _written(name, dims or "none")
    if not isinstance(dims, Iterable):
        raise OptionError(
            f"{shown(name)}: {dims!r} is not a valid shape", hint=SHAPE_FORMAT, code="E10002"
        )
    items = [*dims]
    if items and all(isinstance(item, tuple | list) for item in items):
        return [_dims(name, item) for item in items]
    return _dims(name, items)


def _written(name: str, dims: str) -> InputShape:
    if dims in ("none", "empty"):
        return None if dims == "none" else []
    if not dims.startswith("["):
        return _dims(name, dims.split(",") if dims else [])
    if not re.fullmatch(r"(\[[^\[\]]*\]\s*)+", dims):
        raise OptionError(f"'{shown(dims)}' is not a sequence", hint=ELEMENTS_FORMAT, code="E10002")
    parts = re.findall(r"\[([^\]]*)\]", dims)
    return [_dims(name, part.split(",") if part.strip() else []) for part in parts]


def _dims(name: str, dims: Sequence[object]) -> tuple[Extent, ...]:
    return tuple(_dim(name, dim) for dim in dims)


def _dim(name: str, dim: object) -> Extent:
    word, equals, rest = str(dim).partition("=")
    if equals:
        if not is_name(word.strip()) and read_multiple(word) is None:
            raise OptionError(
                f"'{shown(word)}' in dimension '{shown(dim)}' of input '{shown(name)}' is not "
                "a name", hint=NAMES_FORMAT, code="E10002",
            )  # fmt: skip
        return Named(word.strip(), _number(name, rest))
    total = read_sum(str(dim))
    return total if total is not None and total.terms else _number(name, dim)


def _number(name: str, dim: object) -> int | Range:
    """Return a dim that is a number or a range of numbers."""
    whose = f"of input '{shown(name)}'"
    if isinstance(dim, Range):
        dim = str(dim)
    ends = [whole(end) for end in str(dim).split("~")] if "~" in str(dim) else [whole(dim)]
    first, last = ends[0], ends[-1]
    if first is None or last is None or len(ends) > 2:
        raise OptionError(
            f"dimension '{shown(dim)}' {whose} is not a number", hint=SHAPE_FORMAT, code="E10002"
        )
    if (first, len(ends)) == (-1, 1):
        return -1
    if last == -1:
        raise OptionError(
            f"dimension '{shown(dim)}' {whose} has no upper end",
            hint="memory is planned for the largest shape: name it", code="E10002",
        )  # fmt: skip
    if first < 0 or last < first:
        what = f"dimension {shown(dim)} {whose}"
        problem = f"{what} is negative" if first < 0 else f"the range {what} is empty"
        raise OptionError(problem, hint="use 0 or more", code="E10011")
    return first if first == last else Range(first, last)


def profiles(value: object, lowest: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the rows of `d1,d2;d1,d2`, or of a sequence of sequences, of numbers from `lowest`."""
    if isinstance(value, str):
        rows: list[Sequence[object]] = [row.split(",") for row in value.split(";")] if value else []
    else:
        rows = [listed(row) for row in listed(value)]
    found = []
    for row in rows:
        numbers = tuple(whole(n) for n in row)
        if not numbers or any(n is None or n < lowest for n in numbers):
            raise OptionError(
                f"'{shown(','.join(map(str, row)))}' are not sizes",
                hint='the form is "d1,d2;d1,d2"', code="E10014",
            )  # fmt: skip
        found.append(tuple(n for n in numbers if n is not None))
    return tuple(found)


def batches(value: object) -> tuple[tuple[int, ...], ...]:
    """Return the rows of one number each of `1,2,4`, or of a sequence of numbers."""
    if isinstance(value, str):
        return profiles(value.replace(",", ";"))
    return profiles([(n,) for n in listed(value)])
