"""Constant masks of attention as positions: what is read so, and that results stay."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from joined_sources import compile_joined
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.backends.kernel import workload_of
from atc.backends.render.key_range import key_range
from atc.backends.targets import get_target
from atc.ir.graph import Graph, Node
from atc.ir.ops import Attention
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes

QUERIES, KEYS, DEPTH = 40, 48, 16
DTYPES = (np.float32, np.float16)
ROWS, COLUMNS = np.arange(QUERIES)[:, None], np.arange(KEYS)[None]
CAUSAL = COLUMNS <= ROWS
READ = {
    "causal": CAUSAL,
    "behind a cache": COLUMNS <= ROWS + 8,
    "window": CAUSAL & (COLUMNS > ROWS - 7),
    "length": np.broadcast_to(COLUMNS < 31, (QUERIES, KEYS)),
    "all": np.ones((QUERIES, KEYS), bool),
}
KEPT = {
    "earlier ones only": (COLUMNS <= ROWS - 3) | (COLUMNS < 1),
    "holes": CAUSAL & (COLUMNS % 5 != 1) | (COLUMNS == ROWS),
    "a row without any": CAUSAL & (ROWS != 4),
    "blocks": COLUMNS // 8 <= ROWS // 8,
    "other steps": COLUMNS <= 2 * ROWS,
}
FORMS = ("where", "fill", "add", "add -inf")


def model(mask: NDArray[Any], form: str, dtype: Any = np.float32) -> onnx.ModelProto:
    """Return attention as exporters write it, with a table that hides keys."""
    lowest, element = dtype(np.finfo(dtype).min), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    scores, nodes = "scaled", [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Mul", ["scores", "quarter"], ["scaled"]),
    ]  # fmt: skip
    table = mask[None, None]
    constants: dict[str, Any] = {"quarter": dtype(0.25), "low": lowest}
    if form.startswith("add"):
        low = dtype(-np.inf) if form.endswith("inf") else lowest
        constants["table"] = np.where(table, dtype(0), low)
        nodes.append(helper.make_node("Add", [scores, "table"], ["masked"]))
    elif form == "where":
        constants["table"] = table
        nodes.append(helper.make_node("Where", ["table", scores, "low"], ["masked"]))
    else:
        constants["table"] = ~table
        nodes.append(helper.make_node("Where", ["table", "low", scores], ["masked"]))
    nodes += [
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    shapes = {"q": (1, 2, QUERIES, DEPTH), "k": (1, 2, DEPTH, KEYS), "v": (1, 2, KEYS, DEPTH)}
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(n, element, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", element, (1, 2, QUERIES, DEPTH))],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def feeds(dtype: Any = np.float32) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(5)
    shapes = {"q": (QUERIES, DEPTH), "k": (DEPTH, KEYS), "v": (KEYS, DEPTH)}
    return {n: rng.normal(size=(1, 2, *s)).astype(dtype) for n, s in shapes.items()}


def lowered(mask: NDArray[Any], form: str, dtype: Any = np.float32) -> Graph:
    return AtcBackendRep(model(mask, form, dtype), "cuda-emulated").lower(feeds(dtype))


def attention(graph: Graph) -> Node:
    (node,) = (n for n in graph.nodes if isinstance(n.op, Attention))
    return node


def bounded(graph: Graph) -> tuple[str, ...]:
    """Return the C that bounds the keys of some queries."""
    w = workload_of(graph, attention(graph), graph.constants)
    return key_range(w, [f"b{d}" for d in range(len(w.op.batch))], "first", "last").lines


@pytest.mark.few(20)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READ)
def test_tables_of_positions_are_read(name: str, form: str, dtype: Any) -> None:
    graph = run_passes(lowered(READ[name], form, dtype), device=True)
    assert not any(name in graph.constants for name in attention(graph).inputs[3:])
    assert bool(bounded(graph)) == (name != "all")


@pytest.mark.few(20)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KEPT)
def test_other_tables_stay(name: str, form: str, dtype: Any) -> None:
    graph = run_passes(lowered(KEPT[name], form, dtype), device=True)
    assert any(name in graph.constants for name in attention(graph).inputs[3:])
    assert not bounded(graph)


def test_numbers_that_are_added_stay() -> None:
    """A bias of visible keys, or one that hides no key for sure."""
    for low in (-1e4, 1.0, np.nan):
        given = model(CAUSAL, "add")
        (table,) = (t for t in given.graph.initializer if t.name == "table")
        table.CopyFrom(numpy_helper.from_array(
            np.where(CAUSAL, np.float32(0), np.float32(low))[None, None], "table"))  # fmt: skip
        graph = run_passes(AtcBackendRep(given, "cuda-emulated").lower(feeds()), device=True)
        assert any(name in graph.constants for name in attention(graph).inputs[3:])


def test_kernels_of_a_cpu_keep_the_table() -> None:
    graph = run_passes(lowered(CAUSAL, "add"))
    assert attention(graph).inputs[3] in graph.constants


@cache
def results() -> dict[tuple[str, str, Any], NDArray[Any]]:
    """Return what an imitated GPU computes with each mask, all in one library."""
    asked = [
        (n, FORMS[(k + d) % len(FORMS)], dtype)
        for d, dtype in enumerate(DTYPES) for k, n in enumerate(READ)
    ]  # fmt: skip
    target = get_target("cuda-emulated")
    graphs = [lowered(READ[name], form, dtype) for name, form, dtype in asked]
    networks = compile_networks(graphs, target, "O0", compile_all=compile_joined)
    return {
        key: next(iter(net.run(feeds(key[2])).values()))
        for key, net in zip(asked, networks, strict=True)
    }


@pytest.mark.slow
def test_results_are_those_of_the_table() -> None:
    for (name, form, dtype), found in results().items():
        given = {n: a.astype(np.float32) for n, a in feeds(dtype).items()}
        (right,) = ReferenceEvaluator(model(READ[name], form)).run(None, given)
        rounding = 4e-3 if dtype is np.float16 else 1e-5
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=rounding, err_msg=name)
