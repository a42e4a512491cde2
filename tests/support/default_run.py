"""What the default run of the tests is: a share of many cases, compiled without optimisation."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from atc.templates import verbatim

_VARIABLE = "ATC_TESTS_LEVEL"

SHARE = 8
"""One of so many of the standard's tests of single nodes is run by default; `-m suite` runs all."""


SELECTED: set[str] = set()
"""What the tests that this run selects are called by, as far as their parameters say."""


def select_cases(parameters: Iterable[Mapping[str, object]]) -> None:
    """Note the selected tests' parameters: each, and all in the order that a name has them in."""
    for values in parameters:
        words = [str(getattr(v, "label", v)) for v in values.values()]
        SELECTED.update(words, [" ".join(words)])


def repeats(name: str) -> bool:
    """Whether a case of many isn't run by default."""
    return zlib.crc32(name.encode()) % SHARE != 0


_QUICK = """\
#!/bin/sh
# Compiles at -O0, as the last of several levels counts. What kernels include first is parsed once
# for all that have the same flags: that takes longer than most kernels themselves.
here=${0%/*} source= header=kernel
case " $* " in
  *" -include "*) ;;
  *" -c src/kernels/"*".c "*) source=${*##* -c } source=${source%% *} ;;
esac
[ -n "$source" ] || exec cc "$@" -O0
case " $* " in
  *" -mavx"*) if grep -q '"../simd.h"' "$source"; then header=vectors; fi ;;
esac
place=$here/parsed/$header count=0
for each; do
  case $each in
    -c) break ;;
    -I* | -ffile-prefix-map=*) ;;
    *) place=$place/$each ;;
  esac
  count=$((count + 1))
done
parsed() (
  rest=$(($# - count))
  while [ $count -gt 0 ]; do
    each=$1 count=$((count - 1))
    shift
    set -- "$@" "$each"
  done
  shift $rest
  echo "#include \\"$here/$header.h\\"" >"$place/all.h"
  cc "$@" -O0 -x c-header "$place/all.h" -o "$place/making/it" >"$place/log" 2>&1 &&
    mv "$place/making/it" "$place/all.h.gch"
)
if [ ! -d "$place/making" ] && mkdir -p "$place" && mkdir "$place/making" 2>"$place/log"; then
  parsed "$@"
fi
[ ! -f "$place/all.h.gch" ] || set -- -include "$place/all.h" "$@"
exec cc "$@" -O0
"""


def level() -> str:
    """Return the optimisation level of the models that tests compile."""
    return os.environ.get(_VARIABLE, "-O1")


def compile_quickly(folder: Path) -> None:
    """Let this process and its children compile models without optimisation, each kernel once.

    The configuration in `folder` gives `atc` a cache of kernels that the whole run shares.
    """
    os.environ.setdefault(_VARIABLE, "-O0")
    kernel = verbatim("cpu/kernel.h")
    (folder / "kernel.h").write_text(kernel)
    (folder / "vectors.h").write_text(f"{kernel}\n#include <immintrin.h>\n")
    compiler = folder / "quick-cc"
    compiler.write_text(_QUICK)
    compiler.chmod(0o755)
    os.environ["CC"] = str(compiler)
    file = folder / "atc.cfg"
    file.write_text("".join(f"{line}\n" for line in _shared(folder)))
    os.environ["ATC_CONFIG"] = str(file)


def _shared(folder: Path) -> tuple[str, ...]:
    return ("op_compiler_cache_mode=enable", f"op_compiler_cache_dir={folder / 'kernels'}")


@contextmanager
def plain_c(folder: Path) -> Iterator[None]:
    """Let `atc` compile for plain C where no target is asked for, in default runs.

    By a configuration file in `folder`; the slow tests compile as users do.
    """
    with pytest.MonkeyPatch.context() as patch:
        if level() == "-O0":
            shared = Path(os.environ["ATC_CONFIG"]).read_text("utf-8")
            file = folder / "atc.cfg"
            file.write_text(f"{shared}target=c99\n")
            patch.setenv("ATC_CONFIG", str(file))
        yield
