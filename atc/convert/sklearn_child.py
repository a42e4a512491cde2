"""Converts a pickled model of scikit-learn, XGBoost or LightGBM to ONNX.

FILE, RESULT and opset are the arguments. Reading the file runs what the pickle says.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

ML_OPSET = 3
"""Of ai.onnx.ml: what the converters of boosted trees write."""
_BOOSTED_OPSET = 15
"""The newest standard opset that these know."""


def convert(file: str, result: str, opset: int) -> None:
    """Write a model that takes a batch of rows of floats, `X`, as ONNX."""
    model = _read(file)
    module = type(model).__module__.partition(".")[0]
    made = _boosted(model, module) if module in ("xgboost", "lightgbm") else _learned(model, opset)
    Path(result).write_bytes(made.SerializeToString())


def _read(file: str) -> Any:
    try:
        import joblib  # scikit-learn's own: reads plain pickles, too
    except ImportError:
        return pickle.loads(Path(file).read_bytes())
    return joblib.load(file)


def _learned(model: Any, opset: int) -> Any:
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    opsets = {"": opset, "ai.onnx.ml": ML_OPSET}
    given = [("X", FloatTensorType([None, int(model.n_features_in_)]))]
    try:  # probabilities as a tensor
        plain = {id(model): {"zipmap": False}}
        return convert_sklearn(model, initial_types=given, target_opset=opsets, options=plain)
    except Exception:  # those without probabilities don't know the option
        return convert_sklearn(model, initial_types=given, target_opset=opsets)


def _boosted(model: Any, module: str) -> Any:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    given = [("X", FloatTensorType([None, _width(model)]))]
    if module == "xgboost":
        return onnxmltools.convert_xgboost(
            model, initial_types=given, target_opset=_BOOSTED_OPSET
        )
    return onnxmltools.convert_lightgbm(
        model, initial_types=given, target_opset=_BOOSTED_OPSET, zipmap=False
    )


def _width(model: Any) -> int:
    """Return how many numbers a row has; the packages' own classes have methods for it."""
    for name in ("n_features_in_", "num_features", "num_feature"):
        found = getattr(model, name, None)
        if found is not None:
            return int(found() if callable(found) else found)
    raise TypeError(f"{type(model).__name__} doesn't say how many features it takes")


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2], int(sys.argv[3]))
