"""The parts into which `exclude_from_trace` cuts a function: networks of one library."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

import onnx

from atc.backends.toolchain.compiler import Compiler, shared_library
from atc.build.objects import BuildContext
from atc.build.sdk import make_sdk
from atc.errors import AtcError, one_line
from atc.files.blob import NO_WEIGHTS
from atc.files.temporary import temporary_folder
from atc.names import LIMIT, network_identifier
from atc.pipeline.caches import cache_of
from atc.pipeline.held import Held
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Request
from atc.runtime.load import open_network
from atc.runtime.network import Network
from atc.tracing.networks import Options, network_of, write_library


class Segments:
    """The networks of a function that runs partly in Python.

    Each is compiled when a call reaches it, as Python waits for its results. After the call, `join`
    makes them functions of one library, with one copy of equal kernels and constants: NAME_0,
    NAME_1, ... of a function NAME. On GPUs, for several targets and beyond the `most` in a library
    (a function may need new ones in each call) they stay separate libraries.
    """

    def __init__(self, name: str, options: Options, most: int = 32) -> None:
        self._name = network_identifier(name)
        self._most = most
        self._options = options
        self._networks: dict[tuple[bytes, Held], Network] = {}
        self._folders: list[Path] = []
        """Of the networks, in their order."""
        self._before = NO_WEIGHTS
        self._made_with: tuple[Request, Compiler] | None = None
        self._joined = 0
        self._separate = False
        self._place: Path | None = None
        self._lock = Lock()

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks, `most` at most, in the order in which calls first reached them."""
        return tuple(self._networks.values())

    def network(self, model: onnx.ModelProto, held: Held = Held()) -> Network:  # noqa: B008
        """Compile a model, or return the network of an equal one. Raises AtcError."""
        key = (model.SerializeToString(deterministic=True), held)
        with self._lock:
            if key not in self._networks and len(self._networks) < self._most:
                self._networks[key] = (
                    network_of(model, self._options, held) if self._separate
                    else self._compiled(*key)
                )  # fmt: skip
            found = self._networks.get(key)
        return network_of(model, self._options, held) if found is None else found

    def _compiled(self, model: bytes, held: Held) -> Network:
        folder = self._folder() / f"{self._name[: LIMIT - 4].rstrip('_')}_{len(self._folders)}"
        done = write_library(model, folder, self._options, held, self._before)
        network = open_network(folder)
        self._folders.append(folder)
        self._before, self._separate = done.emission.blob, not _can_be_joined(done)
        self._made_with = done.request, done.compiler
        return network

    def _folder(self) -> Path:
        """Return the folder of the networks' projects, which is removed with the function."""
        if self._place is None:
            stack = ExitStack()
            self._place = stack.enter_context(temporary_folder("segments"))
            weakref.finalize(self, stack.close)
        return self._place

    def join(self) -> None:
        """Make one library of all networks, and load it, if any are new.

        If that fails, a warning says why, and each stays a separate library.
        """
        with self._lock:
            if self._separate or self._joined == len(self._folders) or len(self._folders) == 1:
                return
            try:
                networks = self._loaded_at_once()
            except (AtcError, OSError) as error:
                self._separate = True
                warnings.warn(
                    one_line(f"{self._name}: its segments stay libraries of their own: {error}"),
                    stacklevel=4,
                )
                return
            self._networks = dict(zip(self._networks, networks, strict=True))
            self._joined = len(networks)

    def _loaded_at_once(self) -> list[Network]:
        assert self._made_with is not None
        request, compiler = self._made_with
        with (
            temporary_folder("trace") as place,
            cache_of(request, lambda text: None) as cache,
        ):
            own = request.options.compiler_flags
            context = BuildContext(request.target, compiler, own, cache, os.cpu_count() or 1)
            sdk = make_sdk(
                place / self._name, self._folders, context, strip=request.options.strip
            )
            library = sdk.folder / shared_library(compiler, self._name)
            return [Network(library, name) for name in sdk.networks]


def _can_be_joined(done: Compilation) -> bool:
    """Return whether a library of several networks supports all that this network's has."""
    options = done.options
    own = options.c_opr_lib or options.op_debug_level or options.external_weight
    one_cpu = len(done.request.targets) == 1 and not done.target.device and not done.target.bare
    return one_cpu and done.compiler.elf and not own
