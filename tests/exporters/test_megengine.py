"""Models written as MegEngine dumps: read back by our importer, they compute the same.

That the real MegEngine 1.13 loads and runs the same files is seen where MEGENGINE_PYTHON names a
Python that has it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir
import pytest
from exporters.megengine_cases import CASES, Case, X, case, ints, main, normal, run

from atc.errors import UnsupportedError
from atc.exporters.megengine import to_megengine
from atc.exporters.megengine.translate import translate
from atc.importers.megengine import load_megengine
from atc.importers.megengine.reader import read_dump


def read_back(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    path = folder / "model.mge"
    path.write_bytes(to_megengine(model))
    return onnx_ir.to_proto(load_megengine(path, {}))


@pytest.mark.few(80)
@pytest.mark.parametrize("each", CASES, ids=lambda c: c.name)
def test_an_operator_computes_the_same(each: Case, tmp_path: Path) -> None:
    found = run(read_back(each.model(), tmp_path), {
        k: (v.astype(np.int32) if v.dtype == np.int64 else v).reshape(v.shape or (1,))
        for k, v in each.feeds().items()
    })  # fmt: skip
    for one, other in zip(found, each.truth(), strict=True):
        assert one.shape == (other.shape or (1,))
        assert one.dtype == (np.int32 if other.dtype == np.int64 else other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_real_megengine_computes_the_same(tmp_path: Path) -> None:
    python = os.environ.get("MEGENGINE_PYTHON")
    if not python:
        pytest.skip("MEGENGINE_PYTHON names no Python with MegEngine 1.13.0")
    main(tmp_path)
    script = Path(__file__).with_name("run_megengine.py")
    done = subprocess.run([python, str(script), str(tmp_path)], capture_output=True, text=True,
                          timeout=500, check=False)  # fmt: skip
    assert done.stdout == f"{2 * len(CASES)} of {2 * len(CASES)} equal\n", done.stderr[-2000:]


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    each = next(c for c in CASES if c.name == "Conv of groups")
    written = translate(each.model())
    path = tmp_path / "model.mge"
    path.write_bytes(to_megengine(each.model()))
    read = read_dump(path)
    assert read.version == "1.13.0"
    assert (read.outputs, read.output_names) == (written.outputs, written.output_names)
    for one, other in zip(read.operators, written.operators, strict=True):
        assert (one.kind, one.inputs, one.outputs) == (other.kind, other.inputs, other.outputs)
        for table, given in zip(one.tables, other.tables, strict=True):
            assert given.values.items() <= {**table.values}.items()
        for tensor, stored in zip(one.tensors, other.tensors, strict=True):
            np.testing.assert_array_equal(tensor.data, stored.data)


def test_names_of_inputs_and_outputs_stay(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[2] a, float[2] b) => (float[2] sum, float[2] same, float[2] again)
        { sum = Add(a, b) same = Identity(a) again = Identity(sum) }""")
    names = {"a": 'x"; \\ %s\n', "sum": "ö/../s"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    path = tmp_path / "model.mge"
    path.write_bytes(to_megengine(model))
    dump = read_dump(path)
    assert [t.name for op in dump.operators for t in op.tensors] == [names["a"], "b"]
    assert dump.output_names == (names["sum"], "same", "again")
    read = read_back(model, tmp_path)
    given = {v.name: np.float32([k, 2]) for k, v in enumerate(read.graph.input)}
    sum_, same, again = run(read, given)
    np.testing.assert_array_equal(sum_, again)
    np.testing.assert_array_equal(same, [0, 2])


@pytest.mark.parametrize(
    ("each", "why"),
    [
        (case("", "Add", X.astype(np.float64), X.astype(np.float64)), "no float64"),
        (case("", "Add", ints(1), constants={1: ints(2**40)}), "more than 32 bits"),
        (case("", "NonZero", X), "NonZero has no counterpart"),
        (case("", "Det", X[:, :, :3]), "Det has no counterpart"),
        (case("", "MaxPool", X, kernel_shape=[2], ceil_mode=1, strides=[2]), "rounds its shape up"),
        (case("", "Mod", ints(-3), ints(2), fmod=1), "dividend's sign"),
        (case("", "Pad", X, constants={1: ints(0, 0, -1, 0, 0, 0)}), "less than nothing"),
        (case("", "BitwiseNot", ints(3)), "BitwiseNot has no counterpart"),
        (case("", "Expand", X, constants={1: ints(1, 1, 1, 1, 1, 2, 3, 4)}), "7 at most"),
        (case("", "ArgMax", X, axis=1, select_last_index=1), "the last of several"),
        (case("", "ScatterND", X, ints(1).reshape(1, 1), X[:1], reduction="max"), "max"),
        (case("", "Resize", ints(1, 2), mode="linear", constants={1: None, 2: np.float32([2])}),
         "interpolates int64"),
        (case("", "Einsum", ints(1, 2), ints(1, 2), equation="i,i->"), "MatMul.*int64"),
        (case("", "LSTM", normal(3, 2, 4), hidden_size=5, outputs=3, activations=["Tanh"],
              constants={1: normal(1, 20, 4), 2: normal(1, 20, 5)}), "1 activations"),
        (case("", "QuantizeLinear", X, constants={1: np.float32(0.1)}), "it is quantized"),
        (case("", "RandomNormalLike", X), "numbers are random"),
        (case("", "GatherND", X, constants={1: np.zeros((0, 2), np.int64)}), "empty tensor"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_megengine_can_not_say_is_refused(each: Case, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why) as raised:
        to_megengine(each.model())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("g (float[N] x) => (float[N] y) { y = Relu(x) }", r"fixed shapes.*\[input x\]"),
        ("g (float[2] x) => (float[2] y) { y = other.Relu(x) }", "its domain is other"),
        ("""g (bool c, float[2] x) => (float[2] y)
         { y = If<then_branch = t () => (float[2] a) { a = Relu(x) },
                  else_branch = e () => (float[2] b) { b = Neg(x) }>(c) }""", "no branches"),
        ("""g (float[2,2,2] x, float[2,2] z) => (float[2,2,2] y)
         { y = Einsum<equation = "...ij,...jk->...ik">(x, z) }""", r"Ellipsis.*\[node y\]"),
        ("g () => (float[2] y) { y = RandomNormal<shape = [2]>() }", "numbers are random"),
    ],
)
def test_open_shapes_and_other_domains_are_refused(text: str, why: str) -> None:
    head = '<ir_version: 10, opset_import: ["": 21, "other": 1]>'
    with pytest.raises(UnsupportedError, match=why):
        to_megengine(onnx.parser.parse_model(head + text))


def kinds(text: str) -> list[str]:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    made = translate(onnx.shape_inference.infer_shapes(model)).operators
    return [op.kind for op in made if op.kind not in ("Host2DeviceCopy", "ImmutableTensor")]


@pytest.mark.parametrize(
    ("shape", "axis", "after", "found"),
    [
        ("2,9", 1, "y = Add(p, row)", ["Subtensor", "IndexingMultiAxisVec", "Elemwise"]),
        ("2,9", 1, "y = Neg(p)", ["Subtensor", "IndexingMultiAxisVec", "Elemwise"]),
        ("2,9", 1, "q = Add(p, row) y = Mul(p, q)",
         ["Subtensor", "IndexingMultiAxisVec", "Elemwise", "Elemwise"]),
        ("9,2", 1, "q = Transpose(p) y = Add(q, q)",
         ["Subtensor", "Dimshuffle", "IndexingMultiAxisVec", "Elemwise"]),
        ("2,9", 1, "y = Sigmoid(p)", ["Subtensor", "Elemwise"]),
        ("9,5", 0, "y = Add(p, row)", ["Subtensor", "Elemwise"]),
        ("1,9", 1, "y = Add(p, row)", ["Subtensor", "Elemwise"]),
    ],
)  # fmt: skip
def test_parts_with_gaps_are_copied_for_arithmetic(
    shape: str, axis: int, after: str, found: list[str]
) -> None:
    """MegEngine 1.13 adds a row to them as if they had none."""
    assert kinds(f"""g (float[{shape}] x) => (float[A,B] y)
        <float[5] row = {{1, 2, 3, 4, 5}}, int64[1] a = {{1}}, int64[1] b = {{6}},
         int64[1] axis = {{{axis}}}>
        {{ p = Slice(x, a, b, axis) {after} }}""") == found


def test_resize_by_pixel_centres_is_megengine_s_own() -> None:
    def made(factor: str, how: str) -> list[str]:
        return kinds(f"""g (float[1,2,4,5] x) => (float[A,B,C,D] y)
            <float[4] factors = {{1.0, 1.0, {factor}}}>
            {{ y = Resize<mode = "linear", coordinate_transformation_mode = "{how}">
               (x, , factors) }}""")

    assert made("2.0, 2.0", "half_pixel") == ["Resize"]
    assert "Resize" not in made("1.7, 2.0", "half_pixel")  # 6.8 rows are 6
    assert "Resize" not in made("2.0, 2.0", "asymmetric")


def test_opsets_of_other_meanings_are_refused() -> None:
    text = 'g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }'
    model = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["": 12]> {text}')
    with pytest.raises(UnsupportedError, match=r"opset 12 .* 13 is the oldest .*convert_version"):
        to_megengine(model)
    to_megengine(onnx.version_converter.convert_version(model, 13))


def test_equal_constants_are_stored_once() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}>
        { s = Add(x, a) t = Mul(s, b) y = Relu(t) }""")
    kinds = [op.kind for op in translate(model).operators]
    assert kinds.count("ImmutableTensor") == 1
