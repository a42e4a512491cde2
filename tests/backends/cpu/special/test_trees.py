"""Tree ensembles in vectors against onnxruntime: rows and trees around the width of a vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ort_cases import Case, compiled, noise

import atc
from atc.backends.targets import get_target
from atc.passes import run_passes
from atc.select.select import select
from support import Batch, compile_graph, pinned, runnable

ML = "ai.onnx.ml"
TARGETS = ["x86-64-avx2", "x86-64-avx512"]
FEATURES = 5


def forest(trees: int, targets: int, mode: str, missing: float = 0) -> dict[str, Any]:
    """Return the attributes of trees that grow at random down to depth 7; some are only a leaf.

    As large a part of the nodes as `missing` send a NaN to the true branch.
    """
    rng = np.random.default_rng(trees)
    nodes: dict[str, list[Any]] = {
        f"nodes_{k}": [] for k in ("treeids", "nodeids", "modes", "featureids", "values",
                                   "truenodeids", "falsenodeids", "missing_value_tracks_true")
    }  # fmt: skip
    leaves: dict[str, list[Any]] = {
        f"target_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")
    }
    for tree in range(trees):
        open_, count = [(0, 0)], 1
        while open_:
            node, depth = open_.pop()
            leaf = tree % 7 == 3 or depth == 7 or bool(rng.uniform() < 0.1 * depth)
            children = (0, 0) if leaf else (count, count + 1)
            if not leaf:
                open_ += [(child, depth + 1) for child in children]
                count += 2
            values = (
                tree, node, "LEAF" if leaf else mode, int(rng.integers(FEATURES)),
                float(np.float32(rng.integers(-4, 4) / 4)), *children, int(rng.uniform() < missing),
            )  # fmt: skip
            for column, value in zip(nodes.values(), values, strict=True):
                column.append(value)
            for target in range(targets if leaf else 0):
                entry = (tree, node, target, float(np.float32(rng.standard_normal())))
                for column, value in zip(leaves.values(), entry, strict=True):
                    column.append(value)
    return {**nodes, **leaves, "n_targets": targets}


def ensemble(rows: int, trees: int, **given: Any) -> Case:
    """Return a case whose inputs meet thresholds exactly, with NaN and infinities among them.

    A NaN leaves by the false branch, says the standard; in onnxruntime it isn't equal to anything.
    """
    x = np.rint(noise(rows, FEATURES, seed=rows) * 4).astype(np.float32) / 4
    x[0, :3] = np.nan, np.inf, -np.inf
    if given.get("missing"):
        x[np.random.default_rng(rows).uniform(size=x.shape) < 0.4] = np.nan
    if given.get("mode") == "BRANCH_NEQ":
        x[0, 0] = 0
    aggregate = given.pop("aggregate", "SUM")
    own = forest(trees, given.pop("targets", 1), given.pop("mode", "BRANCH_LEQ"), **given)
    attributes = {"aggregate_function": aggregate, **own}
    return Case("TreeEnsembleRegressor", [x], (), attributes, domain=ML, domain_version=3)


CASES = {
    **{f"{rows} rows, {trees} trees": ensemble(rows, trees)
       for rows, trees in ((1, 4), (1, 8), (1, 37), (7, 16), (8, 3), (16, 40), (33, 9), (100, 6),
                           (129, 3), (700, 5))},
    **{mode: ensemble(19, 20, mode=f"BRANCH_{mode}") for mode in ("LT", "GT", "GTE", "EQ")},
    **{how: ensemble(19, 20, targets=2, aggregate=how) for how in ("MIN", "MAX")},
    "targets": ensemble(35, 18, targets=3),
    "missing": ensemble(19, 20, missing=1),
    "some missing": ensemble(35, 18, mode="BRANCH_LT", missing=0.5),
    "some missing, trees": ensemble(1, 41, mode="BRANCH_GT", missing=0.5),
    "some missing, plain": ensemble(3, 2, mode="BRANCH_LT", missing=0.5),
    "not equal": ensemble(19, 20, mode="BRANCH_NEQ"),
}  # fmt: skip
COMPILED = {t: compiled(CASES, t) for t in TARGETS}


@pytest.mark.few(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str, target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    (got,), (expected,) = COMPILED[target][name](CASES[name].feeds), CASES[name].onnxruntime()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "portable"),
    [("1 rows, 4 trees", False), ("1 rows, 37 trees", False), ("8 rows, 3 trees", False),
     ("GT", False), ("MIN", False), ("missing", False),
     ("some missing", False), ("some missing, plain", True), ("not equal", True)],
)  # fmt: skip
def test_vectors_are_chosen_where_they_can_decide(name: str, portable: bool) -> None:
    case = CASES[name]
    graph = run_passes(compile_graph(pinned(case.model, case.feeds)))
    chosen = select(graph, get_target("x86-64-avx2")).values()
    (found,) = (c for c in chosen if "tree" in c.candidate.label)
    assert found.candidate.kernel.portable == portable


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["16 rows, 40 trees", "33 rows, 9 trees", "targets", "some missing"]
)
def test_the_sums_are_those_of_plain_c(name: str) -> None:
    case = CASES[name]
    plain = Batch({name: pinned(case.model, case.feeds)}, target="c99")
    for target in filter(runnable, TARGETS):
        got = COMPILED[target][name](case.feeds)[0]
        np.testing.assert_array_equal(got, plain[name](case.feeds)[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", *TARGETS])
def test_the_run_may_say_how_many_rows_there_are(target: str, tmp_path: Path) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    case = ensemble(40, 20, targets=2)
    model = case.model
    (x,) = model.graph.input
    for value in (x, model.graph.output[0]):
        value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
        value.type.tensor_type.shape.dim.add().dim_param = "n"
        value.type.tensor_type.shape.dim.add().dim_value = FEATURES if value is x else 2
    onnx.save(model, tmp_path / "net.onnx")
    shapes = f"{x.name}:1~40,{FEATURES}"
    done = atc.compile(tmp_path / "net.onnx", tmp_path / "net", input_shape=shapes, target=target)
    net, (expected,) = atc.load(done.folder), case.onnxruntime()
    for rows in (1, 7, 40):
        got = net(case.feeds[0][:rows])
        np.testing.assert_allclose(got, expected[:rows], rtol=1e-5, atol=1e-5)
