"""The operators of ai.onnx.ml against onnxruntime and numpy."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from ort_cases import Case, compiled, noise

from atc.errors import AtcError
from support import assert_close, node_model, run_model

ML = "ai.onnx.ml"


def case(
    op: str, *inputs: Any, outputs: tuple[Any, ...] = (np.float32,), **attributes: Any
) -> Case:
    return Case(op, list(inputs), (), attributes, domain=ML, outputs=outputs, domain_version=3)


BOTH = (np.int64, np.float32)


def _simple() -> dict[str, Case]:
    x, whole = noise(5, 4), np.arange(12).reshape(3, 4)
    holes = x.copy()
    holes[::2, 1] = np.nan
    weights, bias = noise(12, seed=1).tolist(), noise(3, seed=2).tolist()
    keys = np.array([7, 3, 9, -1])
    return {
        "Binarizer": case("Binarizer", x, threshold=0.3),
        "Scaler": case("Scaler", x, offset=[0.1, 0.2, 0.3, 0.4], scale=[1.0, 2.0, 3.0, 4.0]),
        "Scaler of integers": case("Scaler", whole, offset=[2.0], scale=[0.5]),
        **{f"Normalizer {n}": case("Normalizer", np.abs(x), norm=n) for n in ("MAX", "L1", "L2")},
        "Imputer": case(
            "Imputer",
            holes,
            imputed_value_floats=[1.0, 2.0, 3.0, 4.0],
            replaced_value_float=float("nan"),
        ),
        "Imputer of integers": case(
            "Imputer", whole, imputed_value_int64s=[50], outputs=(np.int64,), replaced_value_int64=5
        ),
        "FeatureVectorizer": case(
            "FeatureVectorizer", x, noise(5, 3, seed=3), inputdimensions=[4, 2]
        ),
        "ArrayFeatureExtractor": case("ArrayFeatureExtractor", x, np.array([3, 0, 3])),
        "LabelEncoder": case(
            "LabelEncoder",
            keys,
            keys_int64s=[3, 7, 8],
            values_floats=[0.5, 1.5, 2.5],
            default_float=-4.0,
        ),
        "LabelEncoder of floats": replace(
            case(
                "LabelEncoder",
                np.array([1.5, np.nan, 2.0], np.float32),
                keys_floats=[2.0, float("nan")],
                values_int64s=[20, 99],
                outputs=(np.int64,),
            ),
            domain_version=4,
        ),
        "OneHotEncoder": case("OneHotEncoder", keys, cats_int64s=[9, 7, 4], zeros=1),
        **{
            f"LinearRegressor {how}": case(
                "LinearRegressor",
                x,
                coefficients=weights,
                intercepts=bias,
                targets=3,
                post_transform=how,
            )
            for how in ("NONE", "LOGISTIC", "SOFTMAX")
        },
        **{
            f"LinearClassifier {how}": case(
                "LinearClassifier",
                x,
                coefficients=weights,
                intercepts=bias,
                outputs=BOTH,
                classlabels_ints=[4, 2, 8],
                post_transform=how,
            )
            for how in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
        },
        **{
            f"LinearClassifier of two {how}": case(
                "LinearClassifier",
                x,
                coefficients=weights[:4],
                intercepts=bias[:1],
                outputs=BOTH,
                classlabels_ints=[0, 1],
                post_transform=how,
            )
            for how in ("NONE", "LOGISTIC")
        },
    }


def forest(kind: str, targets: int, modes: tuple[str, ...], shift: float = 0.0) -> dict[str, Any]:
    """Return the attributes of three random trees of depth 3 over 4 features."""
    rng = np.random.default_rng(5)
    nodes: dict[str, list[Any]] = {
        k: []
        for k in (
            "treeids",
            "nodeids",
            "modes",
            "featureids",
            "values",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
    }
    leaves: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(3):
        for node in range(15):
            leaf = node >= 7 or (tree == 1 and node == 2)
            values = (
                tree,
                node,
                "LEAF" if leaf else modes[node % len(modes)],
                int(rng.integers(4)),
                float(np.float32(rng.standard_normal())),
                0 if leaf else 2 * node + 1,
                0 if leaf else 2 * node + 2,
                int(rng.integers(2)),
            )
            if tree == 1 and node in (5, 6, 11, 12, 13, 14):
                continue  # below the early leaf
            for key, value in zip(nodes, values, strict=True):
                nodes[key].append(value)
            for _ in range(2 if leaf else 0):
                entry = (
                    tree,
                    node,
                    int(rng.integers(targets)),
                    float(np.float32(rng.uniform() - shift)),
                )
                for key, value in zip(leaves, entry, strict=True):
                    leaves[key].append(value)
    return {
        **{f"nodes_{k}": v for k, v in nodes.items()},
        **{f"{kind}_{k}": v for k, v in leaves.items()},
    }


def classifier(
    how: str, number: int | None = None, scale: float = 1.0, shift: float = 0.0, **more: Any
) -> Case:
    """Return a tree classifier whose leaves speak of three classes, or of one of two."""
    given = forest("class", 3 if number is None else 1, ("BRANCH_LEQ",), shift)
    given["class_weights"] = [w * scale for w in given["class_weights"]]
    if number is not None:
        given["class_ids"] = [number] * len(given["class_ids"])
    labels = [5, 1, 7] if number is None else [5, 1]
    return case("TreeEnsembleClassifier", noise(40, 4), classlabels_int64s=labels,
                post_transform=how, outputs=BOTH, **given, **more)  # fmt: skip


def _labels() -> dict[str, Case]:
    """Return classifiers whose scores alone don't tell the label, or not those of all classes."""
    weights, bias = (noise(12, seed=1) * 40).tolist(), noise(3, seed=2).tolist()
    cases = {}
    for how in ("LOGISTIC", "PROBIT"):  # which make large scores equal, or NaN
        cases[f"LinearClassifier of large scores {how}"] = case(
            "LinearClassifier", noise(40, 4), outputs=BOTH, coefficients=weights, intercepts=bias,
            classlabels_ints=[5, 1, 7], post_transform=how,
        )  # fmt: skip
        cases[f"classifier of large scores {how}"] = classifier(how, scale=40)
    for how in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"):
        cases[f"second class {how}"] = classifier(how, 1, 1 / 6)
        cases[f"second class, any sign {how}"] = classifier(how, 1, 1 / 6, 0.5)
    return cases


def _trees() -> dict[str, Case]:
    x = noise(40, 4)
    x[3, :] = np.nan
    less, mixed = ("BRANCH_LEQ",), ("BRANCH_LEQ", "BRANCH_GT", "BRANCH_LT", "BRANCH_GTE")
    cases = {}
    for name, modes in (("one mode", less), ("many modes", mixed)):
        grown = forest("target", 2, modes)
        for how in ("SUM", "AVERAGE", "MIN", "MAX"):
            cases[f"regressor {name} {how}"] = case(
                "TreeEnsembleRegressor",
                x,
                n_targets=2,
                aggregate_function=how,
                base_values=[0.5, -1.0] if how == "SUM" else [0.0, 0.0],
                **grown,
            )
        for how in ("NONE", "SOFTMAX", "LOGISTIC"):
            cases[f"classifier {name} {how}"] = case(
                "TreeEnsembleClassifier",
                x,
                classlabels_int64s=[5, 1, 7],
                post_transform=how,
                outputs=BOTH,
                **forest("class", 3, modes),
            )
            for shift in (0.0, 0.5):
                cases[f"binary {name} {how} {shift}"] = case(
                    "TreeEnsembleClassifier",
                    x,
                    classlabels_int64s=[0, 1],
                    post_transform=how,
                    base_values=[0.3],
                    outputs=BOTH,
                    **forest("class", 1, modes, shift),
                )
    return cases


CASES = {**_simple(), **_trees(), **_labels()}
CASES_COMPILED = compiled(CASES)


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    got = CASES_COMPILED[name](CASES[name].feeds)
    assert_close(got, CASES[name].onnxruntime(), rtol=1e-5, atol=1e-6)


def test_probit_is_the_inverse_of_the_normal_distribution() -> None:
    x = np.array([[0.1], [0.5], [0.841344746]], np.float32)
    model = node_model(
        "LinearRegressor", [x], domain=ML, coefficients=[1.0], post_transform="PROBIT"
    )
    (y,) = run_model(model, [x])
    assert np.allclose(y[:, 0], [-1.2815516, 0.0, 1.0], atol=5e-3)


@pytest.mark.parametrize("how", ["NONE", "PROBIT"])
@pytest.mark.parametrize("base", [[], [0.05], [0.1, 0.2]])
def test_scores_of_the_first_class_stand_for_both(how: str, base: list[float]) -> None:
    """onnxruntime leaves one of them undefined with PROBIT, and with two base values."""
    trees = classifier(how, 0, 1 / 8, **({"base_values": base} if base else {}))
    label, scores = run_model(trees.model, trees.feeds)
    wanted = ReferenceEvaluator(trees.model).run(None, {"x0": trees.inputs[0]})
    assert_close([label, scores], wanted, rtol=1e-5, atol=1e-4 if how == "PROBIT" else 1e-6)
    assert_close([label], trees.onnxruntime()[:1])
    assert {*label} == {5, 1}


def test_probit_of_a_single_score_is_of_both_classes() -> None:
    """onnxruntime writes half of the scores only, so that just its labels are compared."""
    x = np.linspace(-0.2, 1.2, 29, dtype=np.float32)[:, None]
    linear = case("LinearClassifier", x, outputs=BOTH, coefficients=[1.0], intercepts=[0.0],
                  classlabels_ints=[5, 1], post_transform="PROBIT")  # fmt: skip
    label, scores = run_model(linear.model, linear.feeds)
    assert_close([label], linear.onnxruntime()[:1])
    inside = (x[:, 0] > 0.01) & (x[:, 0] < 0.99)
    wanted = np.vectorize(NormalDist().inv_cdf)(np.hstack([1 - x, x])[inside].astype(float))
    np.testing.assert_allclose(scores[inside], wanted, atol=5e-3)
    assert np.isnan(scores[(x[:, 0] < -0.01) | (x[:, 0] > 1.01)]).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (classifier("PROBIT", 0, shift=0.5), "PROBIT of two classes and weights below 0"),
        (classifier("NONE", 1, base_values=[0.5]), "1 base values for two classes"),
        (classifier("NONE", 2), "class 2 has no label"),
        (
            case("LabelEncoder", np.array([1]), keys_int64s=[1, 2], values_strings=["a"]),
            "2 keys, 1 values",
        ),
        (
            case("LinearRegressor", noise(2, 3), coefficients=[1.0, 2.0]),
            r"has 2 coefficients, not 1 \(scores\) x 3 \(features\)",
        ),
        (
            case("TreeEnsembleRegressor", noise(2, 3), **forest("target", 1, ("BRANCH_LEQ",))),
            "not below 3",
        ),
        (
            case(
                "TreeEnsembleRegressor",
                noise(2, 4),
                **{**forest("target", 1, ("BRANCH_LEQ",)), "nodes_truenodeids": [0] * 39},
            ),
            "circle",
        ),
        (
            case(
                "TreeEnsembleRegressor",
                noise(2, 4),
                nodes_treeids=[3],
                nodes_nodeids=[0],
                nodes_modes=["BRANCH_LEQ"],
                nodes_featureids=[0],
                nodes_values=[0.0],
                nodes_truenodeids=[0],
                nodes_falsenodeids=[0],
                target_treeids=[3],
                target_nodeids=[0],
                target_ids=[0],
                target_weights=[1.0],
            ),
            "tree 3 is a circle",
        ),
    ],
)
def test_mistakes_are_named(bad: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad.model, bad.feeds)
