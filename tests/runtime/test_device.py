"""On which stream a network runs that is given tensors of other libraries."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from atc.runtime.device import current_stream


def tensor_of(library: str, kind: int) -> Any:
    """Return what says that it is a library's tensor; kind 2 is on a GPU, 1 isn't."""
    made = type("Tensor", (), {"__module__": f"{library}.own", "device": "cuda:3"})
    made.__dlpack_device__ = lambda self: (kind, 3)  # type: ignore[attr-defined]
    return made()


def test_the_librarys_current_stream_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"cuda:3": SimpleNamespace(cuda_stream=70)}
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=streams.__getitem__))
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=80)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert current_stream(tensor_of("torch", 2)) == 70
    assert current_stream(tensor_of("cupy", 2)) == 80
    assert current_stream(tensor_of("jax", 2)) == 0
    assert current_stream(tensor_of("torch", 1)) == 0
