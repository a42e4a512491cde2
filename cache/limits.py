"""Size limits of a target's folder, and what eviction leaves of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from atc.cache.ini import RATIO_KEY, SIZE_KEY
from atc.errors import one_line

SIZE_VARIABLE = "ASCEND_MAX_OP_CACHE_SIZE"
RATIO_VARIABLE = "ASCEND_REMAIN_CACHE_SIZE_RATIO"
MEBIBYTE = 1 << 20

_DEFAULT_SIZE = 500
_DEFAULT_RATIO = 50
_MAX_SIZE = 2**31 - 1
_SIZE_RANGE = f"-1 or 1...{_MAX_SIZE} (MB)"
_RATIO_RANGE = "1...100 (percent)"


@dataclass(frozen=True)
class Limits:
    """The limits of one target's folder and where they come from."""

    megabytes: int = _DEFAULT_SIZE
    remain_percent: int = _DEFAULT_RATIO
    ages: bool = True  # False: size -1 was asked for, nothing is touched or deleted
    source: str = "default"

    @property
    def max_bytes(self) -> int:
        """The size at which eviction starts."""
        return self.megabytes * MEBIBYTE

    @property
    def remain_bytes(self) -> int:
        """The size that eviction aims at, rounded down."""
        return self.max_bytes * self.remain_percent // 100


def read_limits(
    inis: Iterable[tuple[str, Mapping[str, str]]],
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> Limits:
    """Return the limits of the first ini (name, values) that sets them, else the environment's.

    An ini counts only with both keys valid; a wrong value is a warning with the valid range.
    """
    for name, values in inis:
        if SIZE_KEY in values or RATIO_KEY in values:
            limits = _from_ini(name, values, warn)
            return limits or _from_environment(environ, warn)
    return _from_environment(environ, warn)


def _from_ini(name: str, values: Mapping[str, str], warn: Callable[[str], None]) -> Limits | None:
    size = _size(values.get(SIZE_KEY, ""))
    ratio = _ratio(values.get(RATIO_KEY, ""))
    if size is not None and ratio is not None:
        return _limits(size, ratio, name)
    for key, number, allowed in ((SIZE_KEY, size, _SIZE_RANGE), (RATIO_KEY, ratio, _RATIO_RANGE)):
        if number is None:
            what = f"is '{one_line(values[key], 40)}'" if key in values else "is missing"
            warn(f"{name}: {key} {what}, not {allowed}; both of the file's limits are ignored")
    return None


def _from_environment(environ: Mapping[str, str], warn: Callable[[str], None]) -> Limits:
    size_text, ratio_text = environ.get(SIZE_VARIABLE, ""), environ.get(RATIO_VARIABLE, "")
    size, ratio = _size(size_text), _ratio(ratio_text)
    if size is None and size_text.strip():
        warn(_wrong_variable(SIZE_VARIABLE, size_text, _SIZE_RANGE, _DEFAULT_SIZE))
    if ratio is None and ratio_text.strip():
        warn(_wrong_variable(RATIO_VARIABLE, ratio_text, _RATIO_RANGE, _DEFAULT_RATIO))
    source = "default" if size is None and ratio is None else "environment"
    return _limits(
        _DEFAULT_SIZE if size is None else size, _DEFAULT_RATIO if ratio is None else ratio, source
    )


def _limits(size: int, ratio: int, source: str) -> Limits:
    return Limits(_DEFAULT_SIZE if size == -1 else size, ratio, size != -1, source)


def _wrong_variable(name: str, value: str, allowed: str, default: int) -> str:
    return f"{name} is '{one_line(value, 40)}', not {allowed}; {default} is used"


def _size(text: str) -> int | None:
    number = _integer(text)
    return number if number == -1 or (number is not None and 1 <= number <= _MAX_SIZE) else None


def _ratio(text: str) -> int | None:
    number = _integer(text)
    return number if number is not None and 1 <= number <= 100 else None


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", text) else None
