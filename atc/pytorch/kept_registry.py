"""Reads once for all exports, or once for each, what PyTorch's exporter reads again and again.

It parses the sources of its own translations to ONNX for each graph, half a second for what is the
same each time; most graphs take less. And it lists all operators sixty times while it exports one,
a tenth of a second.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
from torch._export import utils
from torch.onnx._internal.exporter import _registration

_Registry: Any = _registration.ONNXRegistry
_METHOD = "from_torchlib"
_reads: Any = vars(_Registry).get(_METHOD)
_LISTS = "_materialize_cpp_cia_ops"


@contextmanager
def kept_registry() -> Iterator[None]:
    """Let an export copy the translations that an earlier one has read, and list operators once.

    Where PyTorch has no such functions any more, it reads as it does.
    """
    with ExitStack() as stack:
        if isinstance(_reads, classmethod):
            stack.enter_context(_replaced(_Registry, _METHOD, classmethod(_copied)))
        if _LISTS in vars(utils):
            stack.enter_context(_replaced(utils, _LISTS, cache(vars(utils)[_LISTS])))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


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
