"""What the default run of the tests is: a share of many cases, compiled without optimisation."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path

import pytest

from atc.cache.private import open_private
from atc.cache.proved import ERRORS
from atc.cache.secret import KEY_FILE, find_secret
from atc.templates import verbatim

_VARIABLE, _OFFERED, _TCC = "ATC_TESTS_LEVEL", "ATC_TESTS_QUICK", "ATC_TESTS_TCC"

SHARE = 8
"""One of so many of the standard's tests of single nodes is run by default; `-m suite` runs all."""


_ROOM = 4 << 30
"""Bytes that a default run's files fit into, several times."""

SELECTED: set[str] = set()
"""What the tests that this run selects are called by, as far as their parameters say."""


def select_cases(parameters: Iterable[Mapping[str, object]]) -> None:
    """Note the selected tests' parameters: each, and all in the order that a name has them in."""
    for values in parameters:
        words = [_word(v) for v in values.values()]
        SELECTED.update(words, [" ".join(words)])


def _word(value: object) -> str:
    """Return what a parameter calls a case; arrays, and values that hold some, call none."""
    named = getattr(value, "label", value)
    bare = is_dataclass(named) and type(named).__str__ is object.__str__
    array = hasattr(named, "__array__") and not isinstance(named, type)  # numpy isn't imported yet
    return "" if bare or array else str(named)


def repeats(name: str) -> bool:
    """Whether a case of many isn't run by default."""
    return zlib.crc32(name.encode()) % SHARE != 0


_QUICK = """\
#!/bin/sh
# Compiles at -O0, as the last of several levels counts. What kernels include first is parsed once
# for all that have the same flags: that takes longer than most kernels themselves.
# Portable C goes to tcc, if there is one, in a fifth of the time, also beside kernels in vectors;
# what tcc has anything to say of, and an eighth of the kernels, by their names' digests, go to cc,
# whose warnings are errors.
# Objects of the ONNX backend, which meet no cache of atc's, are kept for equal words, sources and
# headers; this file's last line names the compiler.
if [ -n "$ATC_TESTS_TCC" ]; then
  case " $* " in
    *" -m32 "* | *" -x "* | *" -g "* | *" -fs"* | *" -pthread "*) ;;
    *" src/kernels/"*[08].c" "*) ;;
    *" -std=c99 "*" -c src/"*".c "*)
      portable=${*##* -c } portable=${portable%% *}
      for object; do :; done
      ! grep -q 'simd\\|intrin' "$portable" && said=$(
        for each; do
          shift
          case $each in -m*) ;; *) set -- "$@" "$each" ;; esac
        done
        exec "$ATC_TESTS_TCC" "$@" 2>&1
      ) && [ -z "$said" ] &&
        ! grep -q '__fix\\|__float' "$object" && exit  # functions of its own library
      ;;
  esac
fi
here=${0%/*} source= header=kernel unit= kept=
case $PWD in
  */atc-tmp-backend-*)
    case " $* " in
      *" -c src/"*".c "* | *" -c src/"*".cu "*) unit=" $*" unit=${unit##* -c } unit=${unit%% *} ;;
    esac
    ;;
esac
if [ -n "$unit" ] && [ -d "$ATC_TESTS_RESULTS" ]; then
  kept=$({
    for each; do
      case $each in -ffile-prefix-map=*) ;; *) echo "$each" ;; esac
    done
    sha256sum <"$0"
    sha256sum "$unit" src/*.h include/*.h
  } 2>/dev/null | sha256sum)
  kept=$ATC_TESTS_RESULTS/${kept%% *}
  cp "$kept" "$unit.o" 2>/dev/null && exit
fi
compile() {
  [ -n "$kept" ] || exec cc "$@" -O0
  cc "$@" -O0
  status=$?
  [ $status -ne 0 ] || { cp "$unit.o" "$kept.$$" && mv "$kept.$$" "$kept"; } 2>/dev/null
  exit $status
}
case " $* " in
  *" -include "*) ;;
  *" -c src/kernels/"*".c "*) source=${*##* -c } source=${source%% *} ;;
esac
[ -n "$source" ] || compile "$@"
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
compile "$@"
"""


def folder_in_memory() -> str | None:
    """Return a folder in memory that has room for all that a default run writes, if there is one.

    A disk's file system takes a tenth of a run's time to make and remove so many small files.
    """
    place = "/dev/shm"
    with suppress(OSError):
        said = os.statvfs(place)
        free, barred = said.f_bavail * said.f_frsize, said.f_flag & os.ST_NOEXEC
        return place if free >= _ROOM and not barred and os.access(place, os.W_OK) else None
    return None


def level() -> str:
    """Return the optimisation level of the models that tests compile."""
    return os.environ.get(_VARIABLE, "-O1")


def find_tcc() -> str:
    """Return the path of the compiler that is tried first for portable C at -O0, or ''."""
    return os.environ.get(_TCC, "")


def unoptimised() -> str:
    """Return the build configuration that compiles at -O0, as default runs do anyway."""
    return f"{os.environ.get('CC') or 'cc'} -O0"


def compile_quickly(folder: Path, kept: Path | None, version: bytes) -> None:
    """Let this process and its children compile models without optimisation, each kernel once."""
    settings = _quick_settings(folder, kept, version)
    os.environ.setdefault(_VARIABLE, settings.pop(_VARIABLE))
    os.environ.update(settings)


def offer_quick_compiling(folder: Path, version: bytes) -> None:
    """Let `quickly` compile without optimisation, in this process and its children."""
    os.environ[_OFFERED] = json.dumps(_quick_settings(folder, None, version))


@contextmanager
def quickly() -> Iterator[None]:
    """Compile without optimisation, each kernel once; default runs do anyway."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in json.loads(os.environ.get(_OFFERED, "{}")).items():
            patch.setenv(name, value)
        yield


def _quick_settings(folder: Path, kept: Path | None, version: bytes) -> dict[str, str]:
    """Return the variables of an environment that compiles without optimisation.

    The configuration in `folder` gives `atc` a cache of kernels that the whole run shares. In
    `kept`, if it is given, later runs find it again: keys hold all that an object depends on.
    What was measured isn't kept.
    `version` tells the compiler from others.
    """
    kernel = verbatim("cpu/kernel.h")
    (folder / "kernel.h").write_text(kernel)
    (folder / "vectors.h").write_text(f"{kernel}\n#include <immintrin.h>\n")
    compiler = folder / "quick-cc"
    compiler.write_text(f"{_QUICK}# {version.hex()}\n")
    compiler.chmod(0o755)
    file = folder / "atc.cfg"
    for measured in ("algo_cache", ERRORS) if kept else ():
        shutil.rmtree(kept / measured, ignore_errors=True)
    kernels = kept if kept is not None and _signed_by(kept, folder) else folder / "kernels"
    file.write_text(f"op_compiler_cache_mode=enable\nop_compiler_cache_dir={kernels}\n")
    tcc = os.environ.get(_TCC, (shutil.which("tcc") if sys.platform == "linux" else None) or "")
    return {_VARIABLE: "-O0", _TCC: tcc, "CC": str(compiler), "ATC_CONFIG": str(file)}


@dataclass(frozen=True)
class TemplateFolder:
    """Keeps compiled templates in a folder, a file each that begins with its key."""

    folder: Path

    def get(self, name: str, key: bytes) -> bytes | None:
        with suppress(FileNotFoundError):
            head, _, data = (self.folder / name).read_bytes().partition(b"\0")
            return data if head == key else None
        return None

    def put(self, name: str, key: bytes, data: bytes) -> None:
        own = self.folder / f"{name}.{os.getpid()}"
        with suppress(FileNotFoundError):  # --cache-clear: each worker removes the folder once more
            own.write_bytes(key + b"\0" + data)
            own.replace(self.folder / name)


def _signed_by(kept: Path, folder: Path) -> bool:
    """Copy the key that signs a kept cache to a run's folder; False where `atc` can't use it."""
    if not re.fullmatch(r"[\w./-]+", str(kept), re.ASCII):
        return False
    try:
        open_private(kept, shared=False).close()
        find_secret({"XDG_CONFIG_HOME": str(kept)})
    except OSError:
        return False
    (folder / "atc").mkdir(mode=0o700)
    shutil.copy(kept / "atc" / KEY_FILE, folder / "atc" / KEY_FILE)
    return True


@contextmanager
def plain_c(folder: Path) -> Iterator[None]:
    """Let `atc` compile for plain C where no target is asked for and nothing is optimised.

    By a configuration file in `folder`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if level() == "-O0":
            shared = Path(os.environ["ATC_CONFIG"]).read_text("utf-8")
            file = folder / "plain.cfg"
            file.write_text(f"{shared}target=c99\n")
            patch.setenv("ATC_CONFIG", str(file))
        yield
