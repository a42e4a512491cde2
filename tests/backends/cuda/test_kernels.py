"""CUDA kernels on a GPU that the host imitates, with threads in several orders."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cuda_cases import (
    CASES,
    DEFAULT,
    ORDERS,
    TARGET,
    Lowered,
    choose_exact,
    expected,
    lowered,
    program_of,
)
from joined_sources import compile_joined

from atc.onnx_backend import compile_networks
from atc.program.steps import calls
from atc.runtime.network import Network


@cache
def compiled(quick: bool) -> dict[str, tuple[Lowered, Network]]:
    """Return cases in one library, which takes a fraction of the time of many."""
    found = {name: lowered(case) for name, case in CASES.items() if (name in DEFAULT) == quick}
    networks = compile_networks(
        [each.graph for each in found.values()], TARGET, "O0", choose=choose_exact,
        compile_all=compile_joined,
    )  # fmt: skip
    return {n: (f, w) for (n, f), w in zip(found.items(), networks, strict=True)}


@pytest.mark.parametrize(
    "name", [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_kernels_give_what_the_standard_defines(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, network = compiled(name in DEFAULT)[name]
    right = expected(name, own.model, own.feeds)
    found = []
    for order in ORDERS:
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        found.append(network.run(own.feeds))
    for one, *others, wanted in zip(*(each.values() for each in found), right, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-5, atol=2e-6)
        for other in others:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_the_device_computes_it(name: str) -> None:
    chosen = [*calls(program_of(lowered(CASES[name]).graph).steps)]
    assert CASES[name].kernel in {c.choice.candidate.kernel.name for c in chosen}
    assert all(c.source.launch for c in chosen)
