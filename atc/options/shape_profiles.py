"""Shape profiles: the shapes that one library is compiled for (ATC's gears), as options list them.

--dynamic_batch_size, --dynamic_image_size and --dynamic_dims say what the -1s of --input_shape
stand for, or shapes inside its ranges. Each profile is a compilation of its own; the pipeline puts
them in one library, with ranges beside a plan for any other shape of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from atc.dims import InputShape, Named, Range
from atc.errors import OptionError
from atc.options.options import Options

MOST = 100
_LISTS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
_NO_PLACE = {"dynamic_batch_size": "E10012", "dynamic_image_size": "E10019",
             "dynamic_dims": "E10040"}  # fmt: skip


def shape_profiles_of(options: Options) -> tuple[Options, ...]:
    """Return the options of each shape profile, whose shapes have no -1; nothing without any.

    Where --input_shape has ranges they take the place of -1s.

    Raises OptionError: E10009 for two lists, E10035, E10036 and E10039 for too few, too many and
    equal ones, E10037 for rows of unlike length, E10045 and E10046 for too few and too many
    values, E10012, E10019 and E10040 for a list of batches, images and dims without a -1, E10018
    and E10031 for a -1 that is not or not only at the batch, E10020 for one that no image has.
    """
    given = [name for name in _LISTS if getattr(options, name)]
    if not given:
        return ()
    if len(given) > 1:
        raise OptionError(
            f"--{given[0]} and --{given[1]} exclude each other", where=f"--{given[1]}",
            hint="--dynamic_dims can list every kind of shape", code="E10009",
        )  # fmt: skip
    (name,) = given
    for other in ("profile", "hooks", "runtime_log", "sanity_check"):
        if getattr(options, other):
            raise OptionError(
                f"--{other} and --{name} can't be combined", where=f"--{other}", code="E10047",
                hint="look at one shape at a time",
            )  # fmt: skip
    _check_place(options, name)
    rows = _rows(options, name)
    open_axes = [
        (i, a, _own(n)) for i, shape in _tensors(options) for a, n in enumerate(shape)
        if _is_open(n)
    ]  # fmt: skip
    _check_rows(name, rows, len(open_axes), ranges=_has_ranges(options))
    _check_ranges(name, rows, [n for _, _, n in open_axes])
    none: dict[str, tuple[tuple[int, ...], ...]] = dict.fromkeys(_LISTS, ())
    return tuple(
        replace(options, input_shape=_pinned(options, open_axes, row), **none)  # type: ignore[arg-type]
        for row in rows
    )


def fallback_of(options: Options) -> Options | None:
    """Return the options of the plan for all other shapes, None where there is none."""
    if not any(getattr(options, name) for name in _LISTS) or not _has_ranges(options):
        return None
    none: dict[str, tuple[tuple[int, ...], ...]] = dict.fromkeys(_LISTS, ())
    return replace(options, **none)  # type: ignore[arg-type]


def _has_ranges(options: Options) -> bool:
    return any(isinstance(_own(n), Range) for _, shape in _tensors(options) for n in shape)


def _is_open(extent: object) -> bool:
    return _own(extent) == -1 or isinstance(_own(extent), Range)


def _own(extent: object) -> object:
    """Return an extent without its name."""
    return extent.extent if isinstance(extent, Named) else extent


def _check_ranges(name: str, rows: Sequence[tuple[int, ...]], extents: Sequence[object]) -> None:
    """Raise OptionError for -1s beside ranges, and for values outside the ranges."""
    ranges = [n for n in extents if isinstance(n, Range)]
    if ranges and len(ranges) < len(extents):
        raise OptionError(
            "--input_shape has -1s beside ranges", where="--input_shape", code="E10002",
            hint=f"write ranges for all, or list every value with --{name} and write -1s",
        )  # fmt: skip
    for row in rows:
        for value, given in zip(row, ranges, strict=False):
            if not given.low <= value <= given.high:
                raise OptionError(
                    f"'{','.join(map(str, row))}' lies outside the range {given}",
                    where=f"--{name}", hint="widen the range in --input_shape", code="E10014",
                )  # fmt: skip


def _tensors(options: Options) -> Iterator[tuple[str, Sequence[object]]]:
    for name, shape in options.input_shape.items():
        if isinstance(shape, tuple):
            yield name, shape


def _check_place(options: Options, name: str) -> None:
    """Raise OptionError unless the -1s of --input_shape are where the list's values belong."""
    found = [(i, [a for a, n in enumerate(s) if _is_open(n)], len(s)) for i, s in _tensors(options)]
    held = [each for each in found if each[1]]
    if not held:
        raise OptionError(
            f"--{name} says what -1 stands for, but --input_shape has none", where=f"--{name}",
            hint='write -1 for an extent that the list gives, e.g. --input_shape="x:-1,3,8,8"',
            code=_NO_PLACE[name],
        )  # fmt: skip
    images = {(1, 2), (2, 3)} if options.input_format in ("", "ND") else (
        {(1, 2)} if options.input_format == "NHWC" else {(2, 3)}
    )  # fmt: skip
    what = "a range" if _has_ranges(options) else "-1"
    for tensor, axes, rank in held:
        where = f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))} of '{tensor}'"
        if name == "dynamic_batch_size" and axes != [0]:
            raise OptionError(
                f"{what} is at {where}, a batch is the first axis", where="--input_shape",
                hint="use --dynamic_dims", code="E10031" if 0 in axes else "E10018",
            )  # fmt: skip
        if name == "dynamic_image_size" and (rank != 4 or tuple(axes) not in images):
            raise OptionError(
                f"{what} is at {where}, an image's are its height and width",
                where="--input_shape", hint="use --dynamic_dims", code="E10020",
            )  # fmt: skip


def _rows(options: Options, name: str) -> tuple[tuple[int, ...], ...]:
    """Return the values of all -1s, in their order, of each shape profile."""
    count = sum(1 for _, shape in _tensors(options) for n in shape if _is_open(n))
    rows: tuple[tuple[int, ...], ...] = getattr(options, name)
    if name == "dynamic_dims":
        return rows
    for row in rows:
        wanted = 1 if name == "dynamic_batch_size" else 2
        if len(row) != wanted:
            what = "a batch size" if wanted == 1 else "height,width"
            raise OptionError(
                f"'{','.join(map(str, row))}' is not {what}", where=f"--{name}", code="E10014"
            )
    return tuple(row * (count // len(row)) for row in rows)


def _check_rows(name: str, rows: Sequence[tuple[int, ...]], count: int, ranges: bool) -> None:
    least = 1 if ranges else 2
    places, place = (f"{count} ranges", "range") if ranges else (f"{count} times -1", "-1")
    if not least <= len(rows) <= MOST:
        code, what = ("E10035", "few") if len(rows) < least else ("E10036", "many")
        raise OptionError(
            f"{len(rows)} shape profiles are too {what}", where=f"--{name}",
            hint=f"list {least} to {MOST}",
            code=code,
        )  # fmt: skip
    for row in rows:
        if len(row) != len(rows[0]) or len(row) != count:
            code = "E10045" if len(row) < count else "E10046"
            code = "E10037" if len(row) != len(rows[0]) else code
            raise OptionError(
                f"'{','.join(map(str, row))}' has {len(row)} values, --input_shape has {places}",
                where=f"--{name}", hint=f"give each profile one value per {place}", code=code,
            )  # fmt: skip
        if rows.count(row) > 1:
            raise OptionError(
                f"duplicate profile '{','.join(map(str, row))}'", where=f"--{name}", code="E10039"
            )


def _pinned(
    options: Options, axes: Sequence[tuple[str, int, object]], row: Sequence[int]
) -> Mapping[str, InputShape]:
    shapes = {name: shape for name, shape in options.input_shape.items()}
    for (name, axis, _), value in zip(axes, row, strict=True):
        shape = shapes[name]
        assert isinstance(shape, tuple)
        given = shape[axis]
        pinned = Named(given.name, value) if isinstance(given, Named) else value
        shapes[name] = (*shape[:axis], pinned, *shape[axis + 1 :])
    return shapes
