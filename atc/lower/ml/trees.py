"""Lowerings of ai.onnx.ml tree ensembles: every dialect becomes one table of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from atc.ir.expr import Expr, call
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops.trees import MISSING, TreeEnsemble
from atc.lower.context import LoweringContext
from atc.lower.elementwise import like
from atc.lower.ml.features import (
    ML,
    class_labels,
    either,
    predicted,
    rest_of_one,
    transformed,
    two_columns,
)
from atc.lower.registry import lowers

NUMBERS = {"BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4,
           "BRANCH_NEQ": 5}  # fmt: skip
EQUAL, MEMBER = 4, 6


@dataclass
class Forest:
    """The tables of a TreeEnsemble op, growing."""

    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)

    def add(self, feature: int, threshold: float, mode: int, missing: bool = False) -> int:
        """Add a node whose children are set later; return its number.

        A NaN goes where the comparison fails, unless it is `missing`.
        """
        self.feature.append(feature + MISSING * missing)
        self.threshold.append(threshold)
        self.modes.append(mode)
        self.children.append([0, 0])
        return len(self.feature) - 1

    def add_leaf(self, entries: Sequence[tuple[int, float]]) -> int:
        """Add a leaf that adds weights to targets."""
        node = self.add(-1, 0.0, 0)
        self.children[node] = [len(self.target), len(self.target) + len(entries)]
        self.target += [t for t, _ in entries]
        self.weight += [w for _, w in entries]
        return node


def _check(ctx: LoweringContext, forest: Forest, features: int, targets: int) -> None:
    """Require that nothing points outside and that every walk ends."""
    nodes = len(forest.feature)
    ctx.require(all(0 <= t < targets for t in forest.target), f"a target is not below {targets}")
    inside = all(f < 0 or f % MISSING < features for f in forest.feature)
    ctx.require(inside, f"a feature is not below {features}")
    done = [f < 0 for f in forest.feature]
    open_: set[int] = set()
    stack = list(forest.roots)
    while stack:
        node = stack[-1]
        if done[node]:
            stack.pop()
            continue
        waiting = [c for c in forest.children[node] if not done[c]]
        open_.add(node)
        ctx.require(not any(c in open_ for c in waiting), "the nodes go round in a circle")
        if waiting:
            stack.append(waiting[0])
        else:
            stack.pop()
            open_.discard(node)
            done[node] = True
    ctx.require(nodes < 2**31, "there are too many nodes")


def _emit(ctx: LoweringContext, forest: Forest, targets: int, aggregate: str, result: DType) -> str:
    """Emit the op; x is [rows, features] of float or double."""
    b = ctx.b
    x = ctx.input(0)
    if not b.type(x).dtype.is_float:
        x = b.cast(x, DType.FLOAT)
    ctx.require(len(b.shape(x)) == 2, f"x is {b.type(x)}, not a matrix")
    rows, features = b.shape(x)
    _check(ctx, forest, features, targets)
    tables = [
        np.asarray(forest.feature, np.int32), np.asarray(forest.threshold, b.type(x).dtype.numpy),
        np.asarray(forest.children, np.int32), np.asarray(forest.modes, np.uint8),
        np.asarray(forest.roots, np.int32), np.asarray(forest.target, np.int32),
        np.asarray(forest.weight, result.numpy),
    ]  # fmt: skip
    inner = {m for m, f in zip(forest.modes, forest.feature, strict=True) if f >= 0}
    modes = tuple(sorted(inner)) or (0,)
    missing = any(f >= MISSING for f in forest.feature)
    op = TreeEnsemble(rows, features, targets, aggregate, modes, missing)
    return b.emit1(op, [x, *map(b.constant, tables)], TensorType(result, (rows, targets)))


# ---- TreeEnsemble-5 -----------------------------------------------------------------------------


@lowers("TreeEnsemble", domain=ML)
def tree_ensemble(ctx: LoweringContext) -> str:
    """ai.onnx.ml TreeEnsemble-5; membership in a set is a chain of equalities."""
    aggregate = ("AVERAGE", "SUM", "MIN", "MAX")[ctx.int("aggregate_function", 1)]
    how = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[ctx.int("post_transform", 0)]
    forest = _modern(ctx)
    targets, dtype = ctx.int("n_targets", 1), ctx.type(0).dtype
    y = _aggregated(ctx, forest, targets, aggregate, dtype)
    return transformed(ctx, y, how)


def _aggregated(
    ctx: LoweringContext, forest: Forest, targets: int, aggregate: str, dtype: DType
) -> str:
    if aggregate != "AVERAGE":
        ctx.require(aggregate in ("SUM", "MIN", "MAX"), f"aggregate_function is '{aggregate}'")
        return _emit(ctx, forest, targets, aggregate, dtype)
    total = _emit(ctx, forest, targets, "SUM", dtype)
    return ctx.b.map(lambda s: call("Div", s, like(s, len(forest.roots))), total)


def _modern(ctx: LoweringContext) -> Forest:
    """Return the tables of a TreeEnsemble-5 node."""
    arrays = {n: ctx.tensor(n) for n in ("leaf_weights", "nodes_splits", "nodes_modes")}
    modes, splits, weights = (
        [] if arrays[n] is None else np.asarray(arrays[n]).reshape(-1).tolist()
        for n in ("nodes_modes", "nodes_splits", "leaf_weights")
    )
    lists = {n: ctx.ints(n) or [] for n in (
        "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
        "nodes_falseleafs", "leaf_targetids", "tree_roots", "nodes_missing_value_tracks_true",
    )}  # fmt: skip
    count = len(modes)
    for name in ("nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
                 "nodes_falseleafs"):  # fmt: skip
        ctx.require(len(lists[name]) == count, f"{len(lists[name])} {name} for {count} nodes")
    missing = lists["nodes_missing_value_tracks_true"] or [0] * count
    members = _members(ctx, modes)
    forest = Forest()
    heads: list[int] = []
    chains: list[list[int]] = []
    for i in range(count):
        values = members.get(i, [float(splits[i])])
        mode = EQUAL if modes[i] == MEMBER else int(modes[i])
        feature, absent = int(lists["nodes_featureids"][i]), bool(missing[i])
        chain = [forest.add(feature, v, mode, absent) for v in values]
        chains.append(chain)
        heads.append(chain[0])
    leaves = [
        forest.add_leaf([(t, w)]) for t, w in zip(lists["leaf_targetids"], weights, strict=True)
    ]

    def child(i: int, side: str) -> int:
        table = leaves if lists[f"nodes_{side}leafs"][i] else heads
        target = lists[f"nodes_{side}nodeids"][i]
        ctx.require(0 <= target < len(table), f"node {i} points to {target}")
        return table[target]

    for i, chain in enumerate(chains):
        for node, after in zip(chain, [*chain[1:], child(i, "false")], strict=True):
            forest.children[node] = [child(i, "true"), after]
    for root in lists["tree_roots"]:
        ctx.require(0 <= root < count, f"the root {root} is not a node")
        forest.roots.append(heads[root])
    return forest


def _members(ctx: LoweringContext, modes: Sequence[int]) -> dict[int, list[float]]:
    """Return the set of each node that asks for membership; NaN ends a set."""
    tensor = ctx.tensor("membership_values")
    values = [] if tensor is None else np.asarray(tensor, np.float64).reshape(-1).tolist()
    sets: list[list[float]] = [[]]
    for v in values:
        if v != v:
            sets.append([])
        else:
            sets[-1].append(v)
    nodes = [i for i, m in enumerate(modes) if m == MEMBER]
    ctx.require(len(sets) > len(nodes) or not nodes, f"{len(nodes)} nodes need a set")
    found = dict(zip(nodes, sets, strict=False))
    ctx.require(all(found.values()), "a set of members is empty")
    return found


# ---- the older operators ------------------------------------------------------------------------


def _floats(ctx: LoweringContext, name: str) -> list[float]:
    """Return an attribute that may be a list or, under another name, a tensor."""
    tensor = ctx.tensor(f"{name}_as_tensor")
    if tensor is not None:
        return [float(v) for v in np.asarray(tensor).reshape(-1)]
    return ctx.floats(name) or []


def _classic(ctx: LoweringContext, kind: str) -> Forest:
    """Return the tables of a TreeEnsembleRegressor (kind 'target') or -Classifier ('class')."""
    trees, ids = ctx.ints("nodes_treeids") or [], ctx.ints("nodes_nodeids") or []
    modes = ctx.strs("nodes_modes") or []
    features, values = ctx.ints("nodes_featureids") or [], _floats(ctx, "nodes_values")
    yes, no = ctx.ints("nodes_truenodeids") or [], ctx.ints("nodes_falsenodeids") or []
    missing = ctx.ints("nodes_missing_value_tracks_true") or [0] * len(ids)
    lengths = {len(a) for a in (trees, ids, features, yes, no, missing)}
    same = lengths == {len(modes)} == {len(values)}
    ctx.require(same, "the lists of nodes differ in length")
    entries = _entries(ctx, kind)
    forest, number = Forest(), {}
    for k, (key, mode) in enumerate(zip(zip(trees, ids, strict=True), modes, strict=True)):
        ctx.require(key not in number, f"tree {key[0]} has two nodes {key[1]}")
        if mode == "LEAF":
            number[key] = forest.add_leaf(entries.get(key, []))
            continue
        ctx.require(mode in NUMBERS, f"the mode '{mode}'")
        number[key] = forest.add(features[k], values[k], NUMBERS[mode], bool(missing[k]))
    pointed: set[int] = set()
    for k, key in enumerate(zip(trees, ids, strict=True)):
        if modes[k] != "LEAF":
            sides = [(key[0], yes[k]), (key[0], no[k])]
            ctx.require(all(s in number for s in sides), f"tree {key[0]}, node {key[1]}: no child")
            forest.children[number[key]] = [number[s] for s in sides]
            pointed.update(number[s] for s in sides)
    forest.roots = [n for n in number.values() if n not in pointed]
    rooted = {tree for (tree, _), n in number.items() if n not in pointed}
    for tree in dict.fromkeys(trees):
        ctx.require(tree in rooted, f"tree {tree} is a circle")
    return forest


def _entries(ctx: LoweringContext, kind: str) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Return (target, weight) of every leaf by tree and node."""
    lists = [ctx.ints(f"{kind}_{n}") or [] for n in ("treeids", "nodeids", "ids")]
    weights = _floats(ctx, f"{kind}_weights")
    same = {len(a) for a in lists} == {len(weights)}
    ctx.require(same, f"the {kind} lists differ in length")
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for tree, node, target, weight in zip(*lists, weights, strict=True):
        found.setdefault((tree, node), []).append((target, weight))
    return found


def _with_base(ctx: LoweringContext, scores: str) -> str:
    base = _floats(ctx, "base_values")
    if not base:
        return scores
    return ctx.b.map(
        lambda s, v: call("Add", s, v), scores, ctx.b.constant(np.asarray(base, np.float32))
    )


@lowers("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(ctx: LoweringContext) -> str:
    """ai.onnx.ml TreeEnsembleRegressor-3."""
    forest = _classic(ctx, "target")
    aggregate = ctx.str("aggregate_function", "SUM")
    y = _aggregated(ctx, forest, ctx.int("n_targets", 1), aggregate, DType.FLOAT)
    return transformed(ctx, _with_base(ctx, y), ctx.str("post_transform", "NONE"))


@lowers("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(ctx: LoweringContext) -> tuple[str, ...]:
    """ai.onnx.ml TreeEnsembleClassifier-3.

    Labels follow the scores before their transform, which may make several of them equal or NaN.
    """
    labels = class_labels(ctx, "classlabels_int64s")
    if labels is None:
        raise ctx.unsupported("a classifier without labels")
    forest, how = _classic(ctx, "class"), ctx.str("post_transform", "NONE")
    if len(set(forest.target)) == 1 and len(labels) == 2:
        return _binary(ctx, forest, labels, how)
    scores = _with_base(ctx, _emit(ctx, forest, len(labels), "SUM", DType.FLOAT))
    return (predicted(ctx, scores, labels), transformed(ctx, scores, how))


def _binary(ctx: LoweringContext, forest: Forest, labels: Array, how: str) -> tuple[str, ...]:
    """Return labels and scores where all leaves speak of one class; the rules are onnxruntime's.

    Weights that are all positive make probabilities: the other class gets what is left of 1.
    Else, and with LOGISTIC, it gets the negative score. Leaves that speak of the second class only
    leave the first one a score of 0.
    """
    positive = all(w >= 0 for w in forest.weight)
    (number,) = {*forest.target}
    ctx.require(0 <= number < 2, f"class {number} has no label")
    forest.target = [0] * len(forest.target)
    score, base = _emit(ctx, forest, 1, "SUM", DType.FLOAT), _floats(ctx, "base_values")
    threshold = 0.5 if positive else 0.0
    if number:
        ctx.require(len(base) in (0, 2), f"{len(base)} base values for two classes")
        scores = _with_base(ctx, two_columns(ctx, score, lambda s: like(s, 0)))
        chosen = (
            predicted(ctx, scores, labels) if base else either(ctx, score, labels, threshold)
        )
        return (chosen, transformed(ctx, scores, how))
    if base:
        score = ctx.b.map(lambda s: call("Add", s, like(s, base[0])), score)
    if how == "PROBIT" and not positive:
        raise ctx.unsupported("PROBIT of two classes and weights below 0")
    rest = rest_of_one if positive and how != "LOGISTIC" else _negative
    scores = two_columns(ctx, score, rest)
    applies = how in ("LOGISTIC", "PROBIT")  # others don't
    return (
        either(ctx, score, labels, threshold), transformed(ctx, scores, how) if applies else scores
    )  # fmt: skip


def _negative(s: Expr) -> Expr:
    return call("Neg", s)
