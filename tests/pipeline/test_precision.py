"""Tensors kept in 16 bits: against numpy, which rounds at the same places."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.errors import OptionError
from atc.ir.graph import Array
from atc.ir.text import op_text
from atc.lower import lower_model
from atc.pipeline.precision import (
    MODES,
    MODES_V2,
    OperatorModes,
    Policy,
    bf16_nodes,
    exact_nodes,
    own_types,
    read_operator_modes,
    read_policy,
    stored_nodes,
)
from support import Runner, compile_models

HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 5)).astype(np.float32)
W = RNG.standard_normal((5, 4)).astype(np.float32)
C = RNG.standard_normal(4).astype(np.float32)

Round = Callable[[Array], Array]


def net() -> onnx_ir.Model:
    """product = x W; sum = product + c (gray); soft = softmax(sum) (black); y = soft * c (gray)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add", ["p", "c"], ["s"], "sum"),
        helper.make_node("Softmax", ["s"], ["m"], "soft"),
        helper.make_node("Mul", ["m", "c"], ["y"], "scaled"),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "psmy"]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        infos, [numpy_helper.from_array(W, "w"), numpy_helper.from_array(C, "c")],
    )  # fmt: skip
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def rounding(kind: np.dtype) -> Round:
    return lambda a: a.astype(kind).astype(np.float32)


def plain(a: Array) -> Array:
    return a


def truth(
    product: Round = plain, sum_: Round = plain, soft: Round = plain, scaled: Round = plain,
    operands: Round | None = None, c: Round | None = None,
) -> list[Array]:  # fmt: skip
    """Return p, s, m and y with what is made of each node's results and constants."""
    read = operands or product
    p = product(read(X) @ read(W))
    s = sum_(p + sum_(C))
    e = np.exp(s - s.max(1, keepdims=True))
    m = soft(e / e.sum(1, keepdims=True))
    return [p, s, m, scaled(m * (c or scaled)(C))]


f16, bf16 = rounding(HALF), rounding(BRAIN)
MODE_TRUTHS = {
    "force_fp16": truth(f16, f16, f16, f16),
    "allow_fp32_to_fp16": truth(f16, f16, f16, f16),
    "allow_fp32_to_bf16": truth(bf16, bf16, bf16, bf16),
    "cube_fp16in_fp32out": truth(operands=f16),
    "allow_mix_precision": truth(f16, f16),
    "allow_mix_precision_fp16": truth(f16, f16),
    "allow_mix_precision_bf16": truth(),
    "must_keep_origin_dtype": truth(),
    "force_fp32": truth(),
    "": truth(),
}
FILES: dict[str, tuple[str, str, str, list[Array]]] = {
    "keep a node": ("force_fp16", "keep_dtype", "# c\nsoft\n", truth(f16, f16, plain, f16)),
    "keep a type": ("force_fp16", "keep_dtype", "OpType::Add", truth(f16, plain, f16, f16)),
    "blacken": ("allow_mix_precision", "modify_mixlist",
                '{"black-list": {"to-add": ["MatMul"]}}', truth()),
    "whiten": ("allow_mix_precision", "modify_mixlist",
               '{"black-list": {"to-remove": ["Softmax"]}, "white-list": {"to-add": ["Mul"]}}',
               truth(f16, f16, f16, f16)),
    "a node's types": ("", "customize_dtypes", "product::InputDtype:float16,fp32,OutputDtype:bf16",
                       [bf16(f16(X) @ W)]),
    "a type's results": ("", "customize_dtypes", "OpType::Softmax:OutputDtype:bfloat16",
                         truth(soft=bf16)),
}  # fmt: skip


def policy_of(mode: str, option: str, text: str, folder: Path) -> Policy:
    path = folder / "file"
    path.write_text(text)
    paths = [path if option == o else None for o in ("keep_dtype", "modify_mixlist",
                                                    "customize_dtypes")]  # fmt: skip
    return read_policy(mode, *paths)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Array]]:
    """Compile every case into one library; give the outputs of each."""
    policies = {mode: read_policy(mode, None, None, None) for mode in MODES}
    for name, (mode, option, text, _) in FILES.items():
        policies[name] = policy_of(mode, option, text, tmp_path_factory.mktemp("p"))
    graphs = [lower_model(net(), "t.onnx", precision=p.precision()) for p in policies.values()]
    runners = dict(zip(policies, compile_models(graphs), strict=True))

    def run(name: str) -> list[Array]:
        runner = runners[name]
        assert isinstance(runner, Runner), runner
        return runner([X])

    return run


@pytest.mark.parametrize("name", [*MODES, *FILES])
def test_results_are_rounded_where_the_mode_says(
    name: str, compiled: Callable[[str], list[Array]]
) -> None:
    expected = FILES[name][3] if name in FILES else MODE_TRUTHS[name]
    kinds = (BRAIN, HALF)
    for got, wanted in zip(compiled(name), expected, strict=False):
        assert got.dtype == np.float32
        narrow = [k for k in kinds if (wanted.astype(k).astype(np.float32) == wanted).all()]
        if narrow:  # a sum in another order may be rounded to the neighbour
            kind = narrow[0]
            assert (got.astype(kind).astype(np.float32) == got).all()
            step = 2**-7 if kind == BRAIN else 2**-10
            assert (np.abs(got - wanted) <= step * np.abs(wanted)).all()
            assert np.mean(got == wanted) > 0.6
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_model_in_half_precision_computes_in_float_throughout() -> None:
    x, w = X.astype(np.float16), W.astype(np.float16)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Cast", ["p"], ["q"], to=TensorProto.FLOAT16),
        helper.make_node("Sigmoid", ["p"], ["y"]),
        helper.make_node("Add", ["p", "q"], ["z"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, None) for n in "yz"]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT16, x.shape)], infos,
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    precision = read_policy("force_fp32", None, None, None).precision()
    lowered = lower_model(onnx_ir.from_proto(proto), "t.onnx", precision=precision)
    (net_,) = compile_models([lowered])
    assert isinstance(net_, Runner), net_
    y, z = net_([x])
    p = x.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_array_equal(y, (1 / (1 + np.exp(-p))).astype(np.float16))
    np.testing.assert_array_equal(z, (p + p.astype(np.float16)).astype(np.float16))


def test_what_only_picks_values_rounds_nothing_again() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Concat", ["r", "p"], ["y"], axis=0),
        helper.make_node("Sigmoid", ["y"], ["z"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [info("x", TensorProto.FLOAT, X.shape)], [info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    precision = read_policy("force_fp16", None, None, None).precision()
    lowered = lower_model(onnx_ir.from_proto(proto), "t.onnx", precision=precision)
    rounded = [n for n in lowered.nodes if "Cast<f16>" in op_text(n.op)]
    assert len(rounded) == 3  # x, the product and the sigmoid


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("keep_dtype", "# none", {"product"}),
        ("keep_dtype", "product", set()),
        ("modify_mixlist", '{"black-list": {"to-add": ["MatMul"]}}', set()),
        ("modify_mixlist", '{"white-list": {"to-add": ["Softmax", "Add"]}}', {"product", "soft"}),
        ("customize_dtypes", "product::InputDtype:float16", set()),
    ],
)
def test_mixed_bfloat16_allows_products(
    option: str, text: str, expected: set[str], tmp_path: Path
) -> None:
    policy = policy_of("allow_mix_precision_bf16", option, text, tmp_path)
    assert bf16_nodes(net(), policy, {}) & {"product", "soft", "scaled"} == expected


def halved(dtype: int, to: int) -> onnx_ir.Model:
    """Return a model of one type whose second product is of another: x W V, and the same of y."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "own"),
        helper.make_node("Relu", ["p"], ["r"], "relu"),
        helper.make_node("Cast", ["r"], ["c"], "cast", to=to),
        helper.make_node("MatMul", ["c", "v"], ["y"], "other"),
    ]
    info = helper.make_tensor_value_info
    weights = [
        helper.make_tensor("w", dtype, W.shape, W.ravel()),
        helper.make_tensor("v", to, (4, 4), np.eye(4).ravel()),
    ]
    graph = helper.make_graph(
        nodes, "net", [info("x", dtype, X.shape)], [info("y", to, (3, 4))], weights
    )
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("dtype", "to", "mode", "multiplied", "stored"),
    [
        (TensorProto.BFLOAT16, TensorProto.FLOAT, "", {"own"}, {"own", "relu"}),
        (TensorProto.FLOAT, TensorProto.BFLOAT16, "", {"other"}, {"cast", "other"}),
        (TensorProto.BFLOAT16, TensorProto.FLOAT, "must_keep_origin_dtype", {"own"},
         {"own", "relu"}),
        (TensorProto.BFLOAT16, TensorProto.FLOAT, "force_fp32", set(), set()),
        (TensorProto.FLOAT16, TensorProto.FLOAT, "", set(), set()),
    ],
    ids=["first", "second", "kept", "widened", "float16"],
)  # fmt: skip
def test_a_model_of_bfloat16_is_multiplied_and_stored_so(
    dtype: int, to: int, mode: str, multiplied: set[str], stored: set[str]
) -> None:
    model, policy = halved(dtype, to), read_policy(mode, None, None, None)
    own = own_types(model, policy)
    assert bf16_nodes(model, policy, own) == multiplied
    assert stored_nodes(model, policy, own) == stored


def test_the_new_spellings_are_modes() -> None:
    assert set(MODES_V2.values()) <= set(MODES)


@pytest.mark.parametrize(
    ("mode", "epsilon"), [("", 0), ("force_fp16", 2**-11), ("allow_fp32_to_bf16", 2**-8)]
)
def test_the_error_of_a_rounding(mode: str, epsilon: float) -> None:
    assert read_policy(mode, None, None, None).epsilon == epsilon


WRONG = {
    "keep_dtype": {"OpType::\n": "lacks a type.*|OpType:: lacks"},
    "modify_mixlist": {
        "{": "E10032.*not JSON.*line 1",
        '{"red-list": {}}': "'red-list' is not one of",
        '{"black-list": {"to-paint": []}}': "'to-paint'",
        '{"black-list": {"to-add": "Conv"}}': "'to-add'",
        "[]": "is not one of",
    },
    "customize_dtypes": {
        "conv1\n": "line 1.*InputDtype",
        "a::InputDtype:float8": "float8",
        "\na::Other:float16": "line 2",
    },
}


@pytest.mark.parametrize(
    ("option", "text"), [(option, text) for option, texts in WRONG.items() for text in texts]
)
def test_a_wrong_file_says_what_and_where(option: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        policy_of("allow_mix_precision", option, text, tmp_path)
    assert re.search(WRONG[option][text], str(caught.value))
    assert f"--{option}: {tmp_path / 'file'}" in str(caught.value)


def test_lists_of_mixed_precision_need_mixed_precision(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="E10057.*--modify_mixlist"):
        policy_of("force_fp16", "modify_mixlist", "{}", tmp_path)


def test_names_that_nothing_has_are_reported(tmp_path: Path) -> None:
    policy = policy_of("force_fp16", "keep_dtype", "soft\nhard\nOpType::Add\nOpType::Sub", tmp_path)
    reported = list(policy.warnings(net()))
    assert [re.search("'(.*)'", t)[1] for t in reported] == ["hard", "OpType::Sub"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("mode", "types", "text", "expected"),
    [
        ("high_performance", (), "", ""),
        ("high_precision", (), "", "product sum soft scaled"),
        ("high_precision_for_all", ("MatMul", "Mul"), "", "product scaled"),
        ("high_performance", (), "MatMul=high_precision\n", "product"),
        ("high_precision", (), "[ByNodeName]\nsum=high_performance\n", "product soft scaled"),
        ("high_performance", (), "[ByOpType]\nAdd=high_precision\n[ByNodeName]\n"
         "sum=high_performance\nsoft=enable_float_32_execution", "soft"),
    ],
)  # fmt: skip
def test_precise_kernels_for_some(
    mode: str, types: tuple[str, ...], text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "modes.ini"
    path.write_text(text)
    said = read_operator_modes(path) if text else OperatorModes()
    assert exact_nodes(net(), mode, types, said) == set(expected.split())


@pytest.mark.parametrize("text", ["[Other]\n", "Conv\n", "Conv=fast\n"])
def test_a_wrong_mode_of_an_operator(text: str, tmp_path: Path) -> None:
    path = tmp_path / "modes.ini"
    path.write_text("# modes\n" + text)
    with pytest.raises(OptionError, match="--op_precision_mode: .*modes.ini, line 2"):
        read_operator_modes(path)
