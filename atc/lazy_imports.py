"""Imports of onnx_ir that wait until somebody needs them: sympy takes longer than a warm build."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

OWNER = "onnx_ir"
DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
"""Modules that only arithmetic on named extents needs."""


class DeferringFinder:
    """Finds the modules above while onnx_ir is imported; they load at the first use of a name.

    Other importers of them aren't concerned, and an onnx_ir that doesn't import them isn't either.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module to defer, None for all others."""
        if name not in DEFERRED or not _is_initializing(OWNER):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def _is_initializing(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def defer_imports() -> None:
    """Let imports of onnx_ir from now on defer what they rarely need."""
    if DeferringFinder not in sys.meta_path:
        sys.meta_path.insert(0, DeferringFinder)
