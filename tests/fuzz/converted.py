"""Models that others train and convert: scikit-learn, LightGBM, XGBoost, on random data.

Needs the packages of the extra `converters`; a test skips without them.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from fuzz.compare import Case
from fuzz.draw import Array

PACKAGES = ("skl2onnx", "onnxmltools", "lightgbm", "xgboost")
OPSETS = {"": 18, "ai.onnx.ml": 3}
"""What the models are converted to; LightGBM's and XGBoost's converters know no newer ones."""

CLASSIFIERS: Mapping[str, Mapping[str, Any]] = {
    "linear_model.LogisticRegression": {}, "linear_model.RidgeClassifier": {},
    "linear_model.SGDClassifier": {}, "linear_model.Perceptron": {},
    "svm.SVC": {}, "svm.NuSVC": {"nu": 0.1},
    "neighbors.KNeighborsClassifier": {"n_neighbors": 3},
    "tree.DecisionTreeClassifier": {"max_depth": 4},
    "tree.ExtraTreeClassifier": {"max_depth": 4},
    "ensemble.RandomForestClassifier": {"n_estimators": 5},
    "ensemble.ExtraTreesClassifier": {"n_estimators": 5},
    "ensemble.GradientBoostingClassifier": {"n_estimators": 4},
    "ensemble.AdaBoostClassifier": {"n_estimators": 4},
    "ensemble.BaggingClassifier": {"n_estimators": 3},
    "naive_bayes.GaussianNB": {}, "naive_bayes.BernoulliNB": {},
    "neural_network.MLPClassifier": {"hidden_layer_sizes": (9,), "max_iter": 20},
    "discriminant_analysis.LinearDiscriminantAnalysis": {},
    "discriminant_analysis.QuadraticDiscriminantAnalysis": {"reg_param": 0.5},
}
REGRESSORS: Mapping[str, Mapping[str, Any]] = {
    "linear_model.LinearRegression": {}, "linear_model.BayesianRidge": {},
    "svm.SVR": {}, "svm.LinearSVR": {},
    "neighbors.KNeighborsRegressor": {"n_neighbors": 3},
    "tree.DecisionTreeRegressor": {"max_depth": 4},
    "ensemble.RandomForestRegressor": {"n_estimators": 5},
    "ensemble.GradientBoostingRegressor": {"n_estimators": 4},
    "ensemble.AdaBoostRegressor": {"n_estimators": 3},
    "neural_network.MLPRegressor": {"hidden_layer_sizes": (9,), "max_iter": 20},
    "gaussian_process.GaussianProcessRegressor": {},
    "cross_decomposition.PLSRegression": {},
}
TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "preprocessing.StandardScaler": {}, "preprocessing.MinMaxScaler": {},
    "preprocessing.MaxAbsScaler": {}, "preprocessing.RobustScaler": {},
    "preprocessing.Normalizer": {}, "preprocessing.Binarizer": {},
    "preprocessing.PolynomialFeatures": {}, "preprocessing.PowerTransformer": {},
    "preprocessing.KBinsDiscretizer": {"n_bins": 3, "encode": "onehot-dense"},
    "decomposition.PCA": {"n_components": 2}, "decomposition.TruncatedSVD": {},
    "impute.SimpleImputer": {}, "cluster.KMeans": {"n_clusters": 3},
    "mixture.GaussianMixture": {"n_components": 2},
    "ensemble.IsolationForest": {"n_estimators": 4},
}
BOOSTED = {
    "lightgbm.LGBMClassifier": {"n_estimators": 4, "min_child_samples": 3, "verbose": -1},
    "lightgbm.LGBMRegressor": {"n_estimators": 4, "min_child_samples": 3, "verbose": -1},
    "xgboost.XGBClassifier": {"n_estimators": 4, "max_depth": 3},
    "xgboost.XGBRegressor": {"n_estimators": 4, "max_depth": 3},
}
MODELS = (*CLASSIFIERS, *REGRESSORS, *TRANSFORMERS, *BOOSTED)


def draw_converted(seed: int) -> Case:
    """Return a model of a seed: the kinds alternate."""
    name = MODELS[seed % len(MODELS)]
    rng = np.random.default_rng(seed)
    rows, width, batch = int(rng.integers(40, 90)), int(rng.integers(2, 9)), int(rng.integers(1, 9))
    data = rng.standard_normal((rows, width)).astype(np.float32)
    classes = int(rng.integers(2, 5))
    labels = (data[:, 0] * 2 + rng.standard_normal(rows) * 0.3).astype(np.float32)
    if "Classifier" in name or name in CLASSIFIERS:
        cuts = np.quantile(labels, np.linspace(0, 1, classes + 1)[1:-1])
        labels = np.digitize(labels, cuts).astype(np.int64)
    x = rng.standard_normal((batch, width)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boosted = name in BOOSTED
        model = (_boosted if boosted else _learned)(name, rng, data, labels, batch)
    return Case(f"{name} {seed}", model, {model.graph.input[0].name: x})


def _made(module: str, name: str, attributes: Mapping[str, Any], rng: np.random.Generator) -> Any:
    kind: Callable[..., Any] = getattr(importlib.import_module(module), name)
    seeded = "random_state" in kind().get_params()
    return kind(**attributes, **({"random_state": int(rng.integers(99))} if seeded else {}))


def _learned(
    name: str, rng: np.random.Generator, data: Array, labels: Array, batch: int
) -> onnx.ModelProto:
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    attributes = {**CLASSIFIERS, **REGRESSORS, **TRANSFORMERS}[name]
    last = _made(f"sklearn.{name.rpartition('.')[0]}", name.rpartition(".")[2], attributes, rng)
    whole = make_pipeline(StandardScaler(), last) if rng.random() < 0.4 else last
    whole.fit(data, labels)
    scored = name in CLASSIFIERS and name != "linear_model.RidgeClassifier"
    options = {id(whole): {"zipmap": False}} if scored else None
    made: onnx.ModelProto = convert_sklearn(
        whole, initial_types=[("x", FloatTensorType([batch, data.shape[1]]))],
        target_opset=OPSETS, options=options,
    )  # fmt: skip
    return made


def _boosted(
    name: str, rng: np.random.Generator, data: Array, labels: Array, batch: int
) -> onnx.ModelProto:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    module, _, kind = name.partition(".")
    model = _made(module, kind, BOOSTED[name], rng)
    model.fit(data, labels)
    given = [("x", FloatTensorType([batch, data.shape[1]]))]
    if module == "xgboost":
        made: onnx.ModelProto = onnxmltools.convert_xgboost(model, initial_types=given)
    else:
        made = onnxmltools.convert_lightgbm(model, initial_types=given, zipmap=False)
    return made
