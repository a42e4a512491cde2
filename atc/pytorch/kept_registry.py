"""PyTorch's own translations to ONNX, read once: its exporter would read them for each graph.

It parses their sources, half a second for what is the same each time; most graphs take less.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch.onnx._internal.exporter import _registration

_Registry: Any = _registration.ONNXRegistry
_METHOD = "from_torchlib"
_reads: Any = vars(_Registry).get(_METHOD)


@contextmanager
def kept_registry() -> Iterator[None]:
    """Let `torch.onnx.export` copy the registry of translations that an earlier call has read.

    Where PyTorch has no such function any more, it reads as it does.
    """
    if not isinstance(_reads, classmethod):
        yield
        return
    setattr(_Registry, _METHOD, classmethod(_copied))
    try:
        yield
    finally:
        setattr(_Registry, _METHOD, _reads)


def _copied(cls: Any, *versions: Any, **named: Any) -> Any:
    """Return a registry to which an export may add its own translations."""
    kept = _registry(cls, versions, tuple(named.items()), _operators())
    registry = copy.copy(kept)
    registry.functions = {name: [*found] for name, found in kept.functions.items()}
    return registry


def _operators() -> frozenset[str]:
    """Return the names of PyTorch's operators: packages add some while they are imported."""
    return frozenset(torch._C._dispatch_get_all_op_names())


@lru_cache(2)
def _registry(cls: Any, versions: Any, named: Any, operators: frozenset[str]) -> Any:
    """Read the translations of the operators that there are."""
    return _reads.__func__(cls, *versions, **dict(named))
