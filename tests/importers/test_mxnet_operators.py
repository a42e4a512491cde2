"""Every MXNet operator's translation against its definition in numpy."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from importers import mxnet_cases as plain
from importers import mxnet_cases_vision as vision
from importers.mxnet_cases import Case
from importers.mxnet_files import FLAGS, Array, assert_close, node, run, symbol, variable, write

from atc.errors import AtcError
from atc.importers.mxnet import load_mxnet
from atc.importers.mxnet.node_context import RULES

FLOATING = [
    *plain.ELEMENTWISE, *plain.ACTIVATIONS, *plain.LAYERS, *plain.SHAPES, *plain.REDUCTIONS,
    *plain.INDICES, *vision.VISION, *vision.RECURRENT,
]  # fmt: skip
FUSED = {"_sg_mkldnn_conv"}  # test_mxnet_quantized.py


def model_of(folder: Path, case: Case) -> tuple[Path, dict[str, Array]]:
    """Write the case's files; return the symbol's path and the inputs."""
    count = len(case.inputs)
    nodes = [
        variable(f"x{i}", __dtype__=str(FLAGS[a.dtype.name])) for i, a in enumerate(case.inputs)
    ]
    nodes.append(node(case.op, "y", [(i, 0) for i in range(count)], **case.attrs))
    root = symbol(nodes, [(count, k) for k in case.outputs])
    stored = {f"arg:x{i}": case.inputs[i] for i in case.weights}
    fed = {f"x{i}": a for i, a in enumerate(case.inputs) if i not in case.weights}
    return write(folder, root, stored), fed


def evaluate(folder: Path, case: Case) -> tuple[list[Array], list[Array]]:
    """Return what the importer's model gives and what is true."""
    path, fed = model_of(folder, case)
    exact = [a.astype(float) for a in case.inputs]
    wanted = case.truth(*exact)
    results = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    found = run(path, fed, optimize=False)
    return found, [np.asarray(r) for r in results]


@pytest.mark.few(90)
@pytest.mark.parametrize("case", FLOATING, ids=lambda c: c.op)
def test_operator(tmp_path: Path, case: Case) -> None:
    found, wanted = evaluate(tmp_path, case)
    for y, t in zip(found, wanted, strict=False):
        assert_close(y, t)


@pytest.mark.parametrize("case", vision.QUANTIZED, ids=lambda c: c.op)
def test_quantized_operator(tmp_path: Path, case: Case) -> None:
    found, wanted = evaluate(tmp_path, case)
    for y, t in zip(found, wanted, strict=True):
        assert y.shape == t.shape
        if y.dtype.kind == "f":
            assert_close(y, t)
        else:  # a tie may round either way
            assert np.abs(y.astype(float) - t).max() <= 1


@pytest.mark.parametrize("case", vision.MANY_BOXES, ids=lambda c: c.op)
def test_suppression_of_many_boxes(tmp_path: Path, case: Case) -> None:
    """Too many images, or boxes for a matrix, take a Loop."""
    path, fed = model_of(tmp_path, case)
    model = load_mxnet(path, None, {name: x.shape for name, x in fed.items()})
    assert "Loop" in {node.op_type for node in model.graph}
    found, wanted = evaluate(tmp_path, case)
    assert_close(found[0], wanted[0])


WILD = ("0", "-1", "7", "None", "()", "(0, 0)", "(-1, 2, 3)", "nan", "-inf", "1e30", "abc", "(1,",
        "99999999999", "(99999999, 99999999)", "True", "int32", "(" + "1, " * 40 + ")")  # fmt: skip


def mutated(case: Case, rng: random.Random) -> Case:
    """Return the case with an attribute, or an input's shape or type, gone wild."""
    attrs, inputs = dict(case.attrs), list(case.inputs)
    if attrs and rng.random() < 0.6:
        key = rng.choice(list(attrs))
        attrs[key] = rng.choice(WILD)
        if rng.random() < 0.2:
            del attrs[key]
    elif inputs:
        i = rng.randrange(len(inputs))
        x = inputs[i]
        with np.errstate(all="ignore"):
            shapes = x.ravel(), x[None], x[..., :1], np.repeat(x, 3, axis=0)
            inputs[i] = rng.choice((*shapes, x.astype("i1"), x.astype("f2")))
    return replace(case, attrs=attrs, inputs=inputs)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(8))
def test_wild_nodes_are_refused_or_translated(tmp_path: Path, seed: int) -> None:
    """Whatever a node says, the importer answers with one line or with a model."""
    cases = [*FLOATING, *vision.QUANTIZED]
    for number, case in enumerate(cases[seed::8] * 3):
        found = outcome(tmp_path, mutated(case, random.Random(f"{seed} {number}")))
        if isinstance(found, AtcError):
            assert "\n" not in str(found)
            assert found.code != "E19999"
        else:
            onnx.checker.check_model(onnx_ir.to_proto(found), full_check=True)


def outcome(folder: Path, case: Case) -> AtcError | onnx_ir.Model:
    path, fed = model_of(folder, case)
    try:
        return load_mxnet(path, None, {k: v.shape for k, v in fed.items()})
    except AtcError as error:
        return error


def test_every_translation_has_a_case() -> None:
    tested = {RULES[c.op].translate for c in (*FLOATING, *vision.QUANTIZED)}
    missing = {op for op, rule in RULES.items() if rule.translate not in tested}
    assert {RULES[op].translate for op in missing} <= {RULES[op].translate for op in FUSED}


@pytest.mark.parametrize(
    ("op", "attrs", "kind"),
    [("Cast", {"dtype": "int32"}, "int32"), ("argmax", {"axis": 1}, "float32"),
     ("topk", {}, "float32"), ("topk", {"dtype": "int64"}, "int64"),
     ("_greater_scalar", {"scalar": 1}, "float32"), ("shape_array", {}, "int64"),
     ("one_hot", {"depth": 3, "dtype": "float16"}, "float16")],
)  # fmt: skip
def test_result_type(tmp_path: Path, op: str, attrs: dict[str, object], kind: str) -> None:
    case = Case(op, [plain.X], lambda x: x, attrs)
    assert evaluate(tmp_path, case)[0][0].dtype == kind
