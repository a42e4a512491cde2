"""Single operators from ATC's JSON: compiled, run, and refused with ATC's codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc.errors import OptionError
from atc.tools.single_op import FORMATS, TYPES, read_single_ops
from support import Runner, compile_models, pinned


def tensor(shape: list[int], kind: str = "float32", **more: Any) -> dict[str, Any]:
    return {"format": "ND", "shape": shape, "type": kind, **more}


def op(name: str, inputs: list[Any], attr: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    out = more.pop("output", {"format": "ND", "type": "float32"})
    return {"op": name, "input_desc": inputs, "output_desc": [out], "attr": attr or [], **more}


def attribute(name: str, kind: str, value: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "value": value}


def written(content: Any, folder: Path) -> Path:
    path = folder / "ops.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


X = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)


def test_operators_are_compiled_and_right(tmp_path: Path) -> None:
    square = tensor([3, 3])
    content = [
        op("Add", [tensor([2, 3, 4]), tensor([4])]),
        op("RealDiv", [tensor([2, 3, 4]), tensor([1], is_const=True, const_value=[4])]),
        op("Softmax", [tensor([2, 3, 4])], [attribute("axis", "int", 1)]),
        op("Gemm", [square, square], [attribute("alpha", "float", 2),
                                      attribute("transB", "bool", True)]),
        op("Clip", [tensor([2, 3, 4]), {"type": "UNDEFINED", "format": "RESERVED"},
                    tensor([], name="most")]),
        op("Transpose", [tensor([2, 3, 4])], [attribute("perm", "list_int", [2, 0, 1])]),
        op("Cast", [tensor([2, 3, 4])], [attribute("to", "data_type", "int32")],
           output=tensor([2, 3, 4], "int32")),
    ]  # fmt: skip
    s, c = X[0, :, :3], X[1, :, 1:]
    half = np.float32(0.5)
    cases = [
        ([X, X[0, 0]], X + X[0, 0]), ([X], X / 4),
        ([X], np.exp(X) / np.exp(X).sum(1, keepdims=True)), ([s, c], 2 * s @ c.T),
        ([X, np.array(half)], np.minimum(X, half)), ([X], X.transpose(2, 0, 1)),
        ([X], X.astype(np.int32)),
    ]  # fmt: skip
    singles = read_single_ops(written(content, tmp_path))
    models = [pinned(m.model, x) for m, (x, _) in zip(singles, cases, strict=True)]
    for net, (inputs, expected) in zip(compile_models(models), cases, strict=True):
        assert isinstance(net, Runner), net
        np.testing.assert_allclose(net(inputs)[0], expected, rtol=1e-5, atol=1e-6)
    assert singles[0].name == "0_Add_float32_2x3x4_float32_4"
    assert len({s.name for s in singles}) == len(singles)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type(kind: str, tmp_path: Path) -> None:
    content = [op("Identity", [tensor([2], kind)], output=tensor([2], kind))]
    (single,) = read_single_ops(written(content, tmp_path))
    assert single.model.graph.input[0].type.tensor_type.elem_type > 0


GOOD = tensor([2])
WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("[{", "E10025"),
    "no list": ({"op": "Add"}, "E10025"),
    "empty": ([], "E10025"),
    "no name": ([op("", [GOOD])], "E10026"),
    "no object": (["Add"], "E10026"),
    "unknown type": ([op("Relu", [tensor([2], "float8")])], "E10027"),
    "unknown format": ([op("Relu", [{**GOOD, "format": "FRACTAL_NZ"}])], "E10027"),
    "no output": ([{"op": "Relu", "input_desc": [GOOD]}], "E10027"),
    "wrong constant": ([op("Relu", [{**GOOD, "is_const": True, "const_value": [1]}])], "E10027"),
    "open shape": ([op("Relu", [tensor([-1, 2])])], "E10028"),
    "no shape": ([op("Relu", [{"format": "ND", "type": "int8"}])], "E10028"),
    "nameless attribute": ([op("Relu", [GOOD], [attribute("", "int", 1)])], "E10029"),
    "wrong attribute": ([op("Relu", [GOOD], [attribute("axis", "int", "1")])], "E10030"),
    "unknown kind": ([op("Relu", [GOOD], [attribute("a", "list_list_int", [[1]])])], "E10030"),
    "a bool for a number": ([op("Relu", [GOOD], [attribute("axis", "int", True)])], "E10030"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_description_has_atcs_code(case: str, tmp_path: Path) -> None:
    content, code = WRONG[case]
    with pytest.raises(OptionError) as caught:
        read_single_ops(written(content, tmp_path))
    assert caught.value.code == code
    assert "--singleop: " in caught.value.where
    assert set(FORMATS) >= {"ND", "NCHW"}


def test_a_file_that_is_not_there_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="E10023"):
        read_single_ops(tmp_path / "none.json")
    closed = written([op("Relu", [GOOD])], tmp_path)

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OptionError, match="E10024"):
        read_single_ops(closed)
