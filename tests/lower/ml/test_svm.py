"""Support vector machines against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dynamic_models
import numpy as np
import onnxruntime
import pytest
from ort_cases import Case, compiled, noise
from whole.test_dynamic_models import network_of

from atc.errors import AtcError
from atc.ir.graph import DType
from support import assert_close, run_model

ML = "ai.onnx.ml"
KERNELS = {"RBF": [0.3, 0.0, 0.0], "POLY": [0.5, 1.0, 3.0], "SIGMOID": [0.2, 0.1, 0.0],
           "LINEAR": [0.0, 0.0, 0.0]}  # fmt: skip
X = noise(20, 4)


def classifier(classes: int, probability: bool = False, text: bool = False, **more: Any) -> Case:
    """Return one with random support vectors."""
    rng = np.random.default_rng(classes)
    counts = [2, 3, 4, 1][:classes]
    total, pairs = sum(counts), classes * (classes - 1) // 2
    given: dict[str, Any] = {
        "vectors_per_class": counts, "rho": rng.standard_normal(pairs).tolist(),
        "support_vectors": rng.standard_normal(total * 4).tolist(),
        "coefficients": rng.standard_normal((classes - 1) * total).tolist(),
    }  # fmt: skip
    names, numbers = ["b", "a", "", "c"], [7, 3, 9, 4]
    given |= {"classlabels_strings": names} if text else {"classlabels_ints": numbers}
    given = {k: v[:classes] if k.startswith("classlabels") else v for k, v in given.items()}
    if probability:
        given |= {"prob_a": (-1 - rng.uniform(size=pairs)).tolist(), "prob_b": [0.3] * pairs}
    return _case("SVMClassifier", (DType.STRING.numpy if text else np.int64, np.float32),
                 **given, **more)  # fmt: skip


def _case(op: str, outputs: tuple[Any, ...], kernel: str = "RBF", **given: Any) -> Case:
    attributes = {"kernel_type": kernel, "kernel_params": KERNELS[kernel], **given}
    return Case(op, [X], (), attributes, domain=ML, outputs=outputs)


def regressor(kernel: str, **more: Any) -> Case:
    """Return one with random support vectors."""
    vectors = noise(20, seed=2).tolist()
    return _case("SVMRegressor", (np.float32,), kernel, n_supports=5, support_vectors=vectors,
                 coefficients=noise(5, seed=3).tolist(), rho=[0.3], **more)  # fmt: skip


def linear(classes: int, sign: int = 0) -> Case:
    """Return one without support vectors."""
    weights = noise(classes * 4, seed=classes)
    given = (np.abs(weights) if sign else weights).tolist()
    return _case("SVMClassifier", (np.int64, np.float32), "LINEAR", coefficients=given, rho=[0.2],
                 classlabels_ints=[5, 6, 8][:classes])  # fmt: skip


CASES = {
    **{f"{k} of {n}, {p}": classifier(n, p, kernel=k)
       for k in KERNELS for n in (2, 3) for p in (False, True)},
    **{f"{how} of {n}, {p}": classifier(n, p, n == 3, post_transform=how)
       for how in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO") for n in (2, 3) for p in (False, True)},
    "four classes": classifier(4, True, True),
    "PROBIT": classifier(3, True, post_transform="PROBIT"),
    **{f"regressor {k} {one}": regressor(k, one_class=one) for k in KERNELS for one in (0, 1)},
    **{f"linear of {n} {sign}": linear(n, sign) for n in (2, 3) for sign in (0, 1)},
    "linear regressor": _case("SVMRegressor", (np.float32,), "LINEAR",
                              coefficients=[1.0, 2.0, -1.0, 0.5], rho=[0.25]),
}  # fmt: skip
COMPILED = compiled(CASES)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    got, expected = COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime()
    if got[0].dtype.kind == "S":
        assert [v.decode() for v in got[0].tolist()] == expected[0].tolist()
        got, expected = got[1:], expected[1:]
    assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (classifier(2, kernel="LINEAR", post_transform="PROBIT"), "PROBIT of two classes"),
        (_case("SVMRegressor", (np.float32,), rho=[1.0], coefficients=[1.0]), "1 coefficients"),
        (_case("SVMClassifier", (np.int64,), vectors_per_class=[1, 1], rho=[1.0],
               classlabels_ints=[0, 1], coefficients=[1.0, 1.0], support_vectors=[1.0] * 6),
         "has 4 features, not 3"),
    ],
)  # fmt: skip
def test_mistakes_are_named(bad: Case, message: str) -> None:
    with pytest.raises(AtcError, match=message):
        run_model(bad.model, bad.feeds)


@pytest.mark.slow
def test_probabilities_of_any_number_of_rows(tmp_path: Path) -> None:
    model = classifier(3, probability=True).model
    given = model.graph.input[0]
    given.type.tensor_type.shape.dim[0].dim_param = "n"
    case = dynamic_models.Case(model, f"{given.name}:1~9,4", ())
    network = network_of(case, tmp_path, "c99")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 4, 9):
        feed = {given.name: X[:rows]}
        labels, probabilities = network.run(feed).values()
        wanted = session.run(None, feed)
        np.testing.assert_array_equal(labels, wanted[0])
        assert_close(probabilities, wanted[1])
