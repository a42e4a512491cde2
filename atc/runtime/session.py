"""One context of a loaded library, and the functions that only special builds have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atc.errors import OptionError
from atc.ir.graph import Array
from atc.runtime.network import Bound, Network
from atc.runtime.values import dtype_of


class Session:
    """A context on given inputs. `run` computes the outputs once more, into the same arrays."""

    def __init__(self, net: Network, feeds: Mapping[str, Array]) -> None:
        """Take inputs by name."""
        library = net._open()  # the package's own loader: no second one for special builds
        inputs = [np.ascontiguousarray(feeds[t.name]) for t in net.inputs]
        self._bound = Bound(library, inputs, [None] * len(net.outputs), net.results)
        self.outputs = [*self._bound.outputs]
        for array in self.outputs:
            array.fill(np.zeros((), array.dtype))
        self.prefix, self.ffi, self._library = library.prefix, library.ffi, library
        self.context = self._bound._context.arguments[0]

    def has(self, function: str) -> bool:
        """Return whether the library was built with a function."""
        try:
            self._library.function(function)
        except AttributeError:
            return False
        return True

    def call(self, function: str, *arguments: Any) -> Any:
        """Call `<network>_<function>`."""
        return self._library.function(function)(*arguments)

    def text(self, pointer: Any) -> str:
        """Return the text that a C string holds."""
        data: bytes = self.ffi.string(pointer)
        return data.decode("utf-8", "replace")

    def dtype(self, code: int) -> np.dtype[Any]:
        """Return the numpy type of an ONNX code."""
        return dtype_of(code)

    def start(self) -> int:
        """Run the network and return its status."""
        return int(self._library.run_tensors(*self._bound._context.arguments))

    def run(self) -> None:
        """Run the network; raises RuntimeError with the library's words where it fails."""
        status = self.start()
        if status:
            raise self._library.error(status, self._bound._context.arguments[0])


def need(session: Session, function: str, option: str, where: str) -> None:
    """Raise OptionError where a library lacks a function that `option` compiles in."""
    if not session.has(function):
        raise OptionError(
            f"the library wasn't compiled with --{option}", where=where,
            hint=f"compile the model again with --{option}",
        )  # fmt: skip
