"""Output folders that the op compiler cache keeps whole: the next build of a network is a copy.

An entry like an object's holds all files of an output folder, as a build writes it that finds every
object in the cache. Its key is all that such a build depends on: the model, options and the
files that they name, this compiler and the packages it computes with, the C compiler, and what the
linker takes in. What this can't see, such as measured times, isn't kept: `_UNKEPT`.

Imports little, since that takes longer than the copy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atc.backends.cuda.targets import EMULATED
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.linking import link_inputs
from atc.backends.toolchain.nvcc import find_nvcc
from atc.build.caches import operator_cache
from atc.build.compilers import compiler_of
from atc.build.output_folder import Content, check_folder, network_name, write_tree
from atc.build.place_in import found_in
from atc.cache import CacheStats, Key, Session, make_key
from atc.diagnostics import Diagnostics
from atc.errors import AtcError
from atc.files.blob import Blob
from atc.files.regular import regular
from atc.options.files import file_digest
from atc.options.options import Options

if TYPE_CHECKING:
    from atc.pipeline.pipeline import Compilation

LARGEST = 1 << 28
"""Bytes of an output folder that is kept."""
SHARE = 3
"""It is no more than this part of what a target's folder of the cache may hold."""
_CHUNK = 1 << 20
_ONNX, _OUTSIDE = b"\x08", b"location"  # ONNX's first byte, and the name of a file with data

_UNKEPT = (
    "cal_conf", "c_opr_lib", "max_error", "fast_run", "full_run", "fast_run_import",
    "fast_run_algo_policy", "op_bank_path", "dump", "op_debug_level", "op_debug_config",
    "keep_build", "scheduler",
)  # fmt: skip
"""Options with which nothing is kept: they measure, or do more than to write the folder."""
_ELSEWHERE = {
    "model", "output", "target", "target_option", "jobs", "compiler_timeout", "build_dir",
    "debug_dir", "runner", "sources", "op_compiler_cache_mode", "op_compiler_cache_dir",
    "op_compiler_cache_remote", "op_compiler_cache_remote_access", "op_compiler_cache_trust",
    "fast_run_cache_type", "fast_run_cache_dir", "fast_run_timeout",
}  # fmt: skip
"""Options that the output doesn't depend on, or that the key has in another form."""
_MORE = ("verify", "display_model_info", "explain", "mode", "singleop")
"""Settings of a command that wants more of a compilation than its output folder."""
_VARIABLES = (
    "COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "LD_RUN_PATH",
    "SOURCE_DATE_EPOCH", "LDEMULATION", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
)  # fmt: skip
"""Variables that compilers and linkers read."""
_PACKAGES = ("numpy", "onnx", "onnx_ir", "ml_dtypes", "jinja2", "sympy")
"""Packages that a compilation computes or writes with."""


@dataclass(frozen=True)
class Restored:
    """A network whose output folder came from the cache: its sizes, as `numbers_of` has them."""

    numbers: Mapping[str, int]
    cached: int
    """Objects in it."""
    cache: CacheStats
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeptNetwork:
    """The place of a network's output folder in the cache; make it with `kept_network`."""

    options: Options
    environ: Mapping[str, str]
    target: Target
    key: Key
    session: Session = field(default_factory=Session)

    def restore(self, diagnostics: Diagnostics) -> Restored | None:
        """Write the output folder if the cache has it; None where it must be compiled.

        Raises OptionError where the folder can't be written.
        """
        if self.options.op_compiler_cache_mode == "force":
            return None
        check_folder(self.options.output, "--output")
        with operator_cache(
            self.options, self.environ, self.target.name, diagnostics.warn, session=self.session
        ) as opened:
            data = opened.get(self.key, self._label, shortcut=True)
        if data is None:
            return None
        tree, head = _unpacked(data)
        for text in head["warnings"]:
            diagnostics.warn(text)
        diagnostics.stage("writing the output folder, as the cache has it")
        write_tree(tree, self.options.output)
        return Restored(
            head["numbers"], head["cached"], opened.stats, tuple(head["warnings"])
        )

    def keep(self, tree: Mapping[str, Content | Path], done: Compilation) -> None:
        """Store an output folder, as it is where all objects are found, unless there is more to it.

        A build that had trouble of its own isn't kept: the next one may have none. Trouble in
        keeping is no reason to fail.
        """
        if done.passing or done.sizes is not None or done.folder != self.options.output:
            return
        with (
            suppress(OSError),
            operator_cache(
                self.options, self.environ, self.target.name, lambda text: None, mode="enable",
                session=self.session,
            ) as opened,
        ):
            limits = opened.limits
            if limits is None:
                return
            largest = min(LARGEST, limits.max_bytes // SHARE) if limits.ages else LARGEST
            packed = _packed(tree, done)
            now = kept_network(self.options, self.environ) if packed.size <= largest else None
            if now is not None and now.key == self.key and _own_files() == _own()[0]:
                opened.put(self.key, self._label, packed)  # nothing was changed meanwhile

    @property
    def _label(self) -> str:
        return f"network {self.options.name}"


def kept_network(
    options: Options, environ: Mapping[str, str], settings: Mapping[str, Any] | None = None,
    session: Session | None = None,
) -> KeptNetwork | None:  # fmt: skip
    """Return the place of a network in the cache; None where it isn't kept as a whole.

    `settings` are those of the command, which may want more than the output folder. What is wrong
    with options or the model is left to the compilation to say.
    """
    wants_more = any((settings or {}).get(name) for name in _MORE)
    off = options.op_compiler_cache_mode == "disable" or "," in options.target
    if off or wants_more or any(getattr(options, name) for name in _UNKEPT):
        return None
    try:
        network_name(options.output)
        model = _model_digest(options)
        target = get_target(options.target, options.target_option, options.machine)
        key = model and _key(options, environ, target, model)
    except (AtcError, OSError, ValueError):  # ValueError: a NUL in a name
        return None
    if not key:
        return None
    return KeptNetwork(options, environ, target, key, session or Session())


# -------------------------------------------------------------------------------------- the key


def _key(options: Options, environ: Mapping[str, str], target: Target, model: str) -> Key | None:
    """Return the key of a network, None where what the linker takes in isn't known."""
    compiler = compiler_of(target, options, environ)
    inputs = link_inputs(compiler)
    if not inputs:
        return None
    nvcc = find_nvcc(target.device, environ) if target.device not in ("", EMULATED) else None
    ingredients: dict[str, str | bytes] = {
        "kind": "network",
        "name": options.name,
        "model": model,
        "model name": options.model.name,
        "target": _text(target),
        "compiler": compiler.version,
        "compiler_digest": compiler.identity(),
        "nvcc": b"" if nvcc is None else nvcc.version.encode() + nvcc.identity(),
        "link inputs": "".join(f"{path} {inputs[path].hex()}\n" for path in sorted(inputs)),
        "atc": _own()[1],
        "packages": "\n".join((sys.version, *_installed(tuple(sys.path)))),
    }
    for name in _VARIABLES:
        if name in os.environ:  # of this process: compilers inherit it
            ingredients[f"variable {name}"] = os.environ[name]
    for option in fields(Options):
        value = getattr(options, option.name)
        if option.name not in _ELSEWHERE:
            if isinstance(value, Path):
                value = file_digest(value)
            ingredients[f"option {option.name}"] = _text(value)
    return make_key(**ingredients)


def _text(value: object) -> str:
    """Return a value as text that is the same in every process, unlike that of a set."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


def _model_digest(options: Options) -> str:
    """Return the digest of a model that is a file of ONNX; '' where it is, or may be, more."""
    if options.framework not in ("", "5", "onnx") or options.model.is_dir():
        return ""
    digest, end = sha256(), b""
    with regular(options.model).open("rb") as file:
        while chunk := file.read(_CHUNK):
            if not end and (not chunk.startswith(_ONNX) or b"mg" in chunk[:12].lower()):
                return ""  # "mg" stands in MegEngine's
            if _OUTSIDE in chunk or _OUTSIDE in end + chunk[: len(_OUTSIDE)]:
                return ""
            digest.update(chunk)
            end = chunk[-len(_OUTSIDE) :]
    return digest.hexdigest() if end else ""


def _own_files() -> Mapping[str, tuple[int, int]]:
    """Return when each file of this compiler was changed, and its size; by path."""
    found: dict[str, tuple[int, int]] = {}
    for name in ("atc", "atc.backends", "atc.cache", "atc.templates"):
        spec = find_spec(name)
        for place in spec.submodule_search_locations or () if spec else ():
            for folder, below, names in os.walk(place):
                below[:] = sorted(each for each in below if each != "__pycache__")
                for path in (os.path.join(folder, each) for each in sorted(names)):
                    status = os.stat(path)
                    found[path] = status.st_mtime_ns, status.st_size
    return found


@cache
def _own() -> tuple[Mapping[str, tuple[int, int]], str]:
    """Return the files of this compiler, the templates' among them, and a digest of them all."""
    files, digest = _own_files(), sha256()
    for path in files:
        digest.update(sha256(Path(path).read_bytes()).digest())
    return files, digest.hexdigest()


@cache
def _installed(path: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with versions, of the installed packages that compilations use."""
    found = []
    for place in path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in sorted(names):
            package, _, rest = name.partition("-")
            if rest.endswith((".dist-info", ".egg-info")) and package.lower() in _PACKAGES:
                found.append(name)
    return tuple(found)


# ------------------------------------------------------------------------------------ the entry


def numbers_of(done: Compilation, library: Content | Path | None = None) -> dict[str, int]:
    """Return the sizes of what a compilation made; `library` is what became of it in its folder."""
    return {
        "library": _size(done.library if library is None else library),
        "weights": done.emission.blob.size,
        "arena": done.emission.interface.arena_size,
    }


@dataclass(frozen=True)
class _Chunk:
    """Bytes of an entry: all of a content, or those of a file from `begin` to `end`."""

    content: Content | Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Their number."""
        return self.end - self.begin

    def __iter__(self) -> Iterator[bytes | memoryview]:
        match self.content:
            case Path():
                with self.content.open("rb") as file:
                    file.seek(self.begin)
                    left = self.size
                    while chunk := file.read(min(left, _CHUNK)):
                        left -= len(chunk)
                        yield chunk
            case Blob():
                yield from self.content.chunks()
            case bytes():
                yield self.content


@dataclass(frozen=True)
class _Packed:
    """The data of an entry: a line of JSON that lists the files, then chunks that they are of.

    Files that hold the weights share those. Large files are read as the entry is written.
    """

    head: bytes
    chunks: tuple[_Chunk, ...]

    @property
    def size(self) -> int:
        """The number of all bytes."""
        return len(self.head) + sum(chunk.size for chunk in self.chunks)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self.head
        for chunk in self.chunks:
            yield from chunk


def _packed(tree: Mapping[str, Content | Path], done: Compilation) -> _Packed:
    blob = done.emission.blob
    weights = _Chunk(blob, 0, blob.size)
    numbers: dict[int, int] = {}  # of chunks, by identity
    chunks, files = list[_Chunk](), []
    for path, content in tree.items():
        own: Sequence[_Chunk] = [_Chunk(content, 0, _size(content))]
        if isinstance(content, Path) and blob.size:
            own = _around(content, weights, own[0].size)
        elif content is blob:
            own = [weights]
        for chunk in own:
            if numbers.setdefault(id(chunk), len(chunks)) == len(chunks):
                chunks.append(chunk)
        runs = isinstance(content, Path) and os.access(content, os.X_OK)
        listed = [numbers[id(chunk)] for chunk in own]
        files.append({"path": path, "chunks": listed, "executable": runs})
    head = {
        "sizes": [chunk.size for chunk in chunks], "files": files,
        "numbers": numbers_of(done, tree.get(done.library.name)), "cached": done.build.cached,
        "warnings": done.warnings,
    }  # fmt: skip
    return _Packed(json.dumps(head).encode() + b"\n", tuple(chunks))


def _around(file: Path, weights: _Chunk, size: int) -> Sequence[_Chunk]:
    """Return the chunks of a file: what is before the weights in it, these, what is after them."""
    assert isinstance(weights.content, Blob)
    at = found_in(file, weights.content)
    if at is None:
        return [_Chunk(file, 0, size)]
    return [_Chunk(file, 0, at), weights, _Chunk(file, at + weights.size, size)]


def _size(content: Content | Path) -> int:
    match content:
        case Path():
            return content.stat().st_size
        case Blob():
            return content.size
        case bytes():
            return len(content)


def _unpacked(data: bytes) -> tuple[dict[str, Content], dict[str, Any]]:
    """Return the files of an entry, which aren't copied, and its head: see `_packed`."""
    begin = data.index(b"\n")
    head, whole = json.loads(data[:begin]), memoryview(data)
    views, at = [], begin + 1
    for size in head["sizes"]:
        views.append(whole[at : at + size])
        at += size
    tree: dict[str, Content] = {
        file["path"]: Blob(tuple(views[k] for k in file["chunks"]), file["executable"])
        for file in head["files"]
    }
    return tree, head
