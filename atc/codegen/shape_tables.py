"""Run-time tables of a network with dynamic shapes, as the templates write them.

The inputs' extents are checked and stored as a table of dims `d`; every other extent is computed
from it. The memory plan holds for the largest shape. For smaller ones the buffers move down, in the
plan's order, as far as those below them shrink: what never shared a byte in the plan never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from math import prod
from textwrap import wrap

from atc.codegen.schedule import Plan
from atc.codegen.uses import Uses
from atc.dims import (
    Dim,
    Function,
    Symbol,
    ceiling,
    dim,
    evaluate,
    functions_in,
    is_data_dependent,
    is_dynamic,
    lower_bound,
    plain,
    symbols_of,
    upper_bound,
    written,
)
from atc.ir.graph import TensorType
from atc.memory.arena import ALIGNMENT, Arena
from atc.program.steps import Program


@dataclass(frozen=True)
class Check:
    """An axis of an input: C text of its extent, where it's stored, and what it may be."""

    place: str
    symbol: int
    """The entry of `d` that is set here, -1 if there is none."""
    low: int
    high: int
    factor: int = 1
    constant: int = 0
    """The extent is `factor` times the entry and a constant."""
    equals: str = ""
    """C text of what it must equal, if it isn't the first of its symbol."""
    meaning: str = ""
    """The same over the axes of inputs, for people."""

    @property
    def entry(self) -> str:
        """C text of the entry of `d` that follows from the extent."""
        return self._multiple if self.factor == 1 else f"{self._multiple} / {self.factor}"

    @property
    def remainder(self) -> str:
        """C text of what the extent has above a multiple, if it must be one."""
        return "" if self.factor == 1 else f"{self._multiple} % {self.factor}"

    @property
    def _multiple(self) -> str:
        return f"({self.place} - {self.constant})" if self.constant else self.place


@dataclass(frozen=True)
class Length:
    """An extent of states: an entry of `d`, C text of the most that it may be before a run, and of
    its value in the next one.
    """

    symbol: int
    most: str
    next: str
    limit: int
    """The most that it may ever be."""


@dataclass(frozen=True)
class Shapes:
    """The extents of all inputs, or of all outputs, as C."""

    extents: tuple[tuple[str, ...], ...]
    bounds: tuple[tuple[str, ...], ...]
    """The most that each may be before a run: where counts are at their most."""
    varying: bool
    """Whether any of them is read from `d`."""


@dataclass(frozen=True)
class Dynamic:
    """The values of the templates for run-time extents."""

    count: int
    """Entries of `d`."""
    checks: tuple[Check, ...]
    ranks: tuple[int, ...]
    """Of the inputs."""
    limits: tuple[tuple[int, str], ...]
    """Entries of `d` that kernels write, with the most that each may be."""
    guards: tuple[str, ...]
    """Expressions of the inputs' extents that must be 0."""
    functions: tuple[str, ...]
    """Helper functions that the extents call."""
    sizes: tuple[str, ...]
    """Bytes of each buffer."""
    starts: tuple[int, ...]
    below: tuple[int, ...]
    """below[starts[k]:starts[k + 1]] are the buffers that must end before buffer k begins."""
    moves: bool
    """Whether the size of a buffer depends on the inputs' extents."""
    inputs: Shapes
    outputs: Shapes
    lowest: tuple[tuple[int, ...], ...]
    """The smallest extents of each input."""
    fixed: bool
    """Whether the inputs have one shape, and only values or states decide the rest."""
    lengths: tuple[Length, ...] = ()
    """The extents of states."""
    follows: bool = False
    """Whether an input's extents depend on one of those lengths."""
    first: tuple[tuple[int, ...], ...] = ()
    """The largest extents of each input in a first run, when the states hold nothing."""

    def first_size(self, index: int) -> int:
        """Return the elements of an input in its `first` shape."""
        return prod(self.first[index])

    @property
    def agreements(self) -> tuple[str, ...]:
        """Lines of C for the inputs' extents that follow from others."""
        alike: dict[str, list[str]] = {}
        multiples = []
        for check in self.checks:
            if check.equals:
                alike.setdefault(check.meaning, []).append(check.place)
            elif check.factor > 1:
                left = check.constant % check.factor
                multiples.append(f"{check.place} % {check.factor} == {left}")
        every = [*multiples, *(" == ".join([*own, source]) for source, own in alike.items())]
        return tuple(line for text in every for line in wrap(text, 90, subsequent_indent="  "))

    @property
    def changes(self) -> bool:
        """Whether an output's extent before a run differs from the one after it."""
        return self.outputs.bounds != self.outputs.extents


def make_dynamic(program: Program, arena: Arena, uses: Uses) -> Dynamic | None:
    """Return the tables for a program's run-time extents, None if it has none.

    The extents that the run function `uses` may call helper functions.
    """
    if not program.dims:
        return None
    types = [[program.types[v] for v in side] for side in (program.inputs, program.outputs)]
    inputs, outputs = _shapes(types[0]), _shapes(types[1], _most)
    limits = tuple(
        (s.index, plain(ceiling(s.high))) for s in program.dims if not s.given
    )  # fmt: skip
    largest = [ceiling(size) for size in arena.sizes]
    sizes = tuple(map(plain, largest))
    starts = [0]
    for below in arena.below:
        starts.append(starts[-1] + len(below))
    guards = tuple(
        plain(f) for f in program.guards if all(s.given for s in symbols_of(f))
    )  # fmt: skip
    own = (n for side in (inputs.extents, outputs.extents, outputs.bounds) for s in side for n in s)
    symbols = {s.index: s for s in program.dims}
    held = {k for k, _ in program.lengths}
    start = {s: 0 if s.index in held else upper_bound(s.high) for s in program.dims}
    lengths = tuple(
        Length(k, plain(symbols[k].high), plain(following), upper_bound(following))
        for k, following in program.lengths
    )
    ends = (text for length in lengths for text in (length.most, length.next))
    texts = (*uses.extents, *sizes, *(limit for _, limit in limits), *guards, *own, *ends)
    return Dynamic(
        1 + max(s.index for s in program.dims), _checks(types[0], held),
        tuple(len(t.shape) for t in types[0]), limits, guards, functions_in(texts), sizes,
        tuple(starts), tuple(k for below in arena.below for k in below),
        any(isinstance(size, Dim) for size in largest), inputs, outputs,
        tuple(tuple(lower_bound(n) for n in t.shape) for t in types[0]),
        not any(s.given and s.index not in held for s in program.dims), lengths,
        any(s.index in held for t in types[0] for s in symbols_of(t.shape)),
        tuple(tuple(evaluate(n, start) for n in t.shape) for t in types[0]) if held else (),
    )  # fmt: skip


def _shapes(types: Sequence[TensorType], most: Callable[[int], int] = lambda n: n) -> Shapes:
    every = (tuple(t.shape for t in types), tuple(tuple(map(most, t.shape)) for t in types))
    extents, bounds = (tuple(tuple(map(plain, shape)) for shape in shapes) for shapes in every)
    return Shapes(extents, bounds, is_dynamic(every))


def _most(extent: int) -> int:
    """Return the most that an extent may be, where counts are at their most.

    Of a sum of products of counts that is its value; a quotient may be larger for smaller counts.
    """
    atoms = [a for m, _ in extent.terms for a, _ in m] if isinstance(extent, Dim) else []
    counted = any(isinstance(a, Function) and is_data_dependent(a) for a in atoms)
    falls = (
        isinstance(extent, Dim)
        and is_data_dependent(extent)
        and any(c < 0 for _, c in extent.terms)
    )
    return ceiling(extent) if counted or falls else extent


def _checks(types: Sequence[TensorType], held: Set[int]) -> tuple[Check, ...]:
    """Return the checks of all axes, those that set entries of `d` before those that read them.

    States hold the entries `held`.
    """
    found: list[Check] = []
    equal: list[tuple[str, Dim]] = []
    seen: set[int] = set()
    for k, type_ in enumerate(types):
        for axis, extent in enumerate(type_.shape):
            place = f"shapes[{k}][{axis}]"
            own = next((s for s in symbols_of(extent) if dim(s) == extent), None)
            if not isinstance(extent, Dim):
                found.append(Check(place, -1, extent, extent))
            elif own is None or extent in seen:
                equal.append((place, extent))
            else:
                found.append(Check(place, own.index, own.low, own.high))
                seen.add(extent)
    set_ = {check.symbol for check in found} | held
    rest = []
    for place, extent in equal:
        multiple = _multiple(extent)
        if multiple is None or multiple[0].index in set_:
            rest.append((place, extent))
            continue
        symbol, factor, constant = multiple
        low, high = (factor * n + constant for n in (symbol.low, symbol.high))
        found.append(Check(place, symbol.index, low, high, factor, constant))
        set_.add(symbol.index)
    entries = {check.symbol: (check.entry, check.factor) for check in found}
    places = {k: text if factor == 1 else f"({text})" for k, (text, factor) in entries.items()}
    places |= dict.fromkeys(held, "(what the states hold)")
    more = (
        Check(
            place, -1, 0, 0, equals=plain(extent),
            meaning=written(extent, lambda s: places[s.index]),
        )
        for place, extent in rest
    )
    return (*found, *more)


def _multiple(extent: Dim) -> tuple[Symbol, int, int] | None:
    """Return the symbol that an extent is a multiple of, by how much, and what is added."""
    symbols = [*symbols_of(extent)]
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    constant = evaluate(extent, {symbol: 0})
    factor = evaluate(extent, {symbol: 1}) - constant
    same = dim(symbol) * factor + constant == extent
    return (symbol, factor, constant) if factor > 0 and same else None


@dataclass(frozen=True)
class Run:
    """One shape profile: the file and the function that run it, its arena in bytes, its extents."""

    file: str
    function: str
    text: str
    """The inputs' shapes, for people."""
    arena: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class ShapeProfiles:
    """The values of the templates for shape profiles: `inputs` and `outputs` are the ranks."""

    runs: tuple[Run, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    lowest: tuple[int, ...]
    fixed: bool = False
    """Whether the inputs have one shape: never."""

    @staticmethod
    def begins(ranks: Sequence[int]) -> list[int]:
        """Return where the extents of each tensor begin among all, and their end."""
        return [sum(ranks[:k]) for k in range(len(ranks) + 1)]


def make_shape_profiles(
    plans: Sequence[Plan], network: str, hosted: bool
) -> ShapeProfiles:
    """Return the tables for the plans of a library, which the host or a GPU computes."""
    runs = []
    for k, plan in enumerate(plans):
        program, arena = plan.program, plan.arena
        sides = [[program.types[v].shape for v in s] for s in (program.inputs, program.outputs)]
        size = (arena.plan.size or ALIGNMENT) if arena.offsets or arena.scratch else 0
        size = size if hosted else ALIGNMENT
        shown = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in sides[0])
        flat = [tuple(n for shape in side for n in shape) for side in sides]
        file = f"{network}_shape{k}"
        runs.append(Run(f"{file}.c", file, shown, size, flat[0], flat[1]))
    ranks = [tuple(map(len, side)) for side in sides]
    lowest = tuple(map(min, zip(*(run.inputs for run in runs), strict=True)))
    return ShapeProfiles(tuple(runs), ranks[0], ranks[1], lowest)
