"""States that `--state` names or finds, as the model holds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from networks import save
from onnx import TensorProto, helper

import atc
from atc.adapt.states import keep_states, likely_states
from atc.errors import AtcError


def halves(path: Path, to: int = TensorProto.FLOAT16) -> Path:
    """Write a cache of floats that is cast at both ends, as converters to float16 write it."""
    nodes = [
        helper.make_node("Cast", ["past"], ["past16"], to=to),
        helper.make_node("Cast", ["x"], ["x16"], to=TensorProto.FLOAT16),
        helper.make_node("Concat", ["past16", "x16"], ["both"], axis=1),
        helper.make_node("Cast", ["both"], ["present"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["both"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["wide"], ["y"], keepdims=0),
    ]
    return save(nodes, {"past": [2, "p", 4], "x": [2, "s", 4]},
                {"present": [2, "t", 4], "y": []}, path, [])  # fmt: skip


def test_a_cache_that_is_cast_at_both_ends_is_kept_as_what_it_is_between(tmp_path: Path) -> None:
    done = atc.compile(halves(tmp_path / "m.onnx"), tmp_path / "net", state="auto", target="c99",
                       input_shape="past:2,0~9,4;x:2,1~3,4")  # fmt: skip
    assert done.program.types["past"].dtype.label == "f16"
    total = np.float32(0)
    with atc.load(tmp_path / "net") as net:
        for count in (2, 1, 3):
            x = np.random.default_rng(count).standard_normal((2, count, 4)).astype(np.float32)
            total += x.astype(np.float16).astype(np.float32).sum()
            np.testing.assert_allclose(net(x), total, rtol=1e-5, atol=1e-5)


def test_other_casts_stay(tmp_path: Path) -> None:
    """A state that is read as it is, too, keeps its type."""
    model = onnx.load(halves(tmp_path / "m.onnx"))
    model.graph.node.append(helper.make_node("ReduceSum", ["past"], ["all"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("all", TensorProto.FLOAT, []))
    held = onnx_ir.from_proto(model)
    keep_states(held, ["past:present"])
    assert held.graph.inputs[0].dtype is held.graph.outputs[0].dtype is onnx_ir.DataType.FLOAT


def merged() -> onnx.ModelProto:
    """A merged decoder as optimum writes it: a flag chooses the branch with a past."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, "t", 4])
             for n in ("present.0.decoder.key", "present.0.encoder.key")]  # fmt: skip
    branches = []
    for past in (True, False):
        own = ["past_key_values.0.decoder.key", "x"] if past else ["x"]
        kept = "past_key_values.0.encoder.key" if past else "x"
        nodes = [
            helper.make_node("Concat", own, ["present.0.decoder.key"], axis=1),
            helper.make_node("Identity", [kept], ["present.0.encoder.key"]),
        ]
        branches.append(helper.make_graph(nodes, f"branch_{past}", [], infos))
    node = helper.make_node("If", ["flag"], [i.name for i in infos], then_branch=branches[0],
                            else_branch=branches[1])  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "s", 4]),
        helper.make_tensor_value_info("past_key_values.0.decoder.key", 1, [1, "p", 4]),
        helper.make_tensor_value_info("past_key_values.0.encoder.key", 1, [1, 5, 4]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, [1]),
    ]
    graph = helper.make_graph([node], "merged", inputs, infos)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("flag", ["", "flag:1"])
def test_a_merged_decoder_has_states_once_its_branch_is_said(flag: str, tmp_path: Path) -> None:
    onnx.save(merged(), tmp_path / "m.onnx")
    given = {"state": "auto", "value_range": flag, "target": "c99",
             "input_shape": "x:1,1~3,4;past_key_values.0.decoder.key:1,0~9,4"}  # fmt: skip
    if not flag:
        with pytest.raises(AtcError) as caught:
            atc.compile(tmp_path / "m.onnx", tmp_path / "net", **given)
        assert '--value_range="flag:1"' in caught.value.hint
        return
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "net", **given)
    assert [s.value for s in done.program.states] == ["past_key_values.0.decoder.key"]


def test_keys_of_an_encoder_are_computed_once() -> None:
    model = onnx_ir.from_proto(merged())
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([n if isinstance(n, int) else 1 for n in value.shape])
    assert likely_states(model) == [("past_key_values.0.decoder.key", "present.0.decoder.key")]


def test_states_of_open_shapes_are_named(tmp_path: Path) -> None:
    onnx.save(merged(), tmp_path / "m.onnx")
    with pytest.raises(AtcError, match=r"past_key_values.0.decoder.key' looks like a state, but"):
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", state="auto", input_shape="x:1,1~3,4")
