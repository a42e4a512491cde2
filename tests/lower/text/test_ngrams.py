"""TfIdfVectorizer against onnxruntime, on integers and on strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from default_run import level
from joined_sources import compile_joined
from onnx import TensorProto, helper

import atc.onnx_backend as backend
from atc.errors import ModelError

WORDS = np.array(["a", "é", "c c", "d", "zz"], object)


def _case(seed: int, lengths: tuple[int, int], shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    pools = [rng.permutation(4)[:2], rng.integers(0, 4, 6), rng.integers(0, 4, 9)]
    grams = [np.unique(p.reshape(-1, n), axis=0) for n, p in enumerate(pools, 1)]
    numbers = np.concatenate([g.reshape(-1) for g in grams])
    count = sum(map(len, grams))
    begins = np.cumsum([0, *(g.size for g in grams)])[:3]
    return {
        "x": rng.integers(0, 5, shape), "pool": numbers, "min_gram_length": lengths[0],
        "max_gram_length": lengths[1], "ngram_counts": begins.tolist(),
        "ngram_indexes": rng.permutation(count).tolist(),
        "max_skip_count": int(rng.integers(0, 7)), "mode": ("TF", "IDF", "TFIDF")[seed % 3],
        "weights": rng.uniform(size=count).tolist() if seed % 4 else None,
    }  # fmt: skip


CASES = {
    (seed, strings): _case(seed, ((1, 1), (1, 3), (2, 2), (2, 3), (3, 3), (1, 2))[seed % 6], shape)
    for seed, shape in enumerate([(9,), (2, 8), (1, 1), (3, 5), (12,), (2, 3), (4, 9), (7,)])
    for strings in (False, True)
}


def model(case: dict[str, Any], strings: bool) -> tuple[onnx.ModelProto, Any]:
    given = dict(case)
    x, pool = given.pop("x"), given.pop("pool")
    x = WORDS[x] if strings else x
    pool = WORDS[pool] if strings else pool
    given["pool_strings" if strings else "pool_int64s"] = pool.tolist()
    known = {k: v for k, v in given.items() if v is not None}
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **known)
    kind = TensorProto.STRING if strings else TensorProto.INT64
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), x


@pytest.mark.slow
def test_counts_equal_onnxruntime() -> None:
    runtime = pytest.importorskip("onnxruntime")
    models = [model(case, strings) for (_, strings), case in CASES.items()]
    reps = [backend.AtcBackendRep(m, "c99", level().lstrip("-")) for m, _ in models]
    arrays = [rep.arrays([x]) for rep, (_, x) in zip(reps, models, strict=True)]
    graphs = [rep.lower(a) for rep, a in zip(reps, arrays, strict=True)]
    networks = backend.compile_networks(
        graphs, reps[0].target, level().lstrip("-"), compile_all=compile_joined
    )
    for (proto, x), network in zip(models, networks, strict=True):
        assert len(network.parameters) == 1
        session = runtime.InferenceSession(proto.SerializeToString())
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(network(x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"mode": "X"}, "mode is 'X'"), ({"ngram_counts": [0, 3]}, "tokens in 2-grams"),
     ({"ngram_counts": [1]}, "ngram_counts"), ({"ngram_indexes": [0]}, "ngram_indexes are too few"),
     ({"weights": [1.0]}, "1 weights"), ({"min_gram_length": 4}, "n-grams of 4 to 3"),
     ({"ngram_indexes": [-1] * 9}, "negative")],
)  # fmt: skip
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    case = {**_case(1, (1, 3), (5,)), "mode": "IDF", **change}
    proto, x = model(case, strings=False)
    rep = backend.AtcBackendRep(proto, "c99", "O0")
    with pytest.raises(ModelError, match=message):
        rep.lower(rep.arrays([x]))
