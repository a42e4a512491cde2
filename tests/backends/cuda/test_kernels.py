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
    rounding,
)
from cuda_networks import joined_model
from joined_sources import compile_joined
from onnx import TensorProto, helper
from projects import make_model, reference

from atc.onnx_backend import AtcBackendRep, compile_networks
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
        np.testing.assert_allclose(one, wanted, **rounding(wanted))
        for other in others:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_the_device_computes_it(name: str) -> None:
    chosen = [*calls(program_of(lowered(CASES[name]).graph).steps)]
    assert CASES[name].kernel in {c.choice.candidate.kernel.name for c in chosen}
    assert all(c.source.launch for c in chosen)


@pytest.mark.few(1)
@pytest.mark.parametrize(("first", "inside"), [(3, 0), (8, 16)])
def test_tiles_are_copied_from_where_copies_may_begin(first: int, inside: int) -> None:
    """A product that is joined to others lies behind these where 16 bytes divide that."""
    model, rng = joined_model(first), np.random.default_rng(2)
    feeds = {"x": rng.normal(size=(32, 32)) / 4, "s": rng.normal(size=first)}
    feeds = {name: value.astype(np.float16) for name, value in feeds.items()}
    graph = AtcBackendRep(model, TARGET.name).lower(feeds)
    program = program_of(graph)
    products = [c.node.outputs[0] for c in calls(program.steps) if c.node.op.kind == "MatMul"]
    assert max(map(program.byte_offset, products)) == inside
    (network,) = compile_networks([graph], TARGET, "O0", compile_all=compile_joined)
    right = dict(zip("yz", reference(model, *feeds.values()), strict=True))
    for name, found in network.run(feeds).items():
        np.testing.assert_allclose(found, right[name], atol=4e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(3, 5), (33, 63), (2, 40, 40)])
def test_functions_of_bytes_are_looked_up(shape: tuple[int, ...]) -> None:
    """16 bytes at a time where there are many; every byte is among these."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["d"]),
        helper.make_node("Transpose", ["d"], ["y"]),
    ]
    model = make_model(
        nodes, [("x", TensorProto.INT8, shape)], [("y", TensorProto.INT8, shape[::-1])],
        {"s": np.float32(0.05), "t": np.float32(0.06), "z": np.int8(-7)},
    )
    x = np.resize(np.arange(-128, 128, dtype=np.int8), shape)
    graph = AtcBackendRep(model, TARGET.name).lower({"x": x})
    (network,) = compile_networks([graph], TARGET, "O0", compile_all=compile_joined)
    np.testing.assert_array_equal(network.run({"x": x})["y"], reference(model, x)[0])
