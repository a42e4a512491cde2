"""ONNX files: what is read, and what is refused with one clear line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import conv_net
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from atc.errors import AtcError, ModelError, UnsupportedError
from atc.importers import load_model
from atc.importers.onnx import NEWEST_OPSET, load_onnx, pin_inputs
from atc.lower import lower_model
from support import Runner, compile_models, run_model


def add_model(opset: int = 18, shape: tuple[int | str, ...] = (2, 3)) -> onnx.ModelProto:
    """Return y = x + w with w [300, 3] cut to its first two rows."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal(shape[1:]).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [w],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def save_external(folder: Path, location: str = "weights.bin") -> Path:
    model = add_model()
    convert_model_to_external_data(model, location=location, size_threshold=0)
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


def relocate(path: Path, change: Callable[[onnx.TensorProto], None]) -> None:
    """Change the external data entries of the stored model."""
    model = onnx.load(path, load_external_data=False)
    change(model.graph.initializer[0])
    path.write_bytes(model.SerializeToString())


def set_entry(key: str, value: str) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        entries = {e.key: e.value for e in tensor.external_data} | {key: value}
        del tensor.external_data[:]
        for k, v in entries.items():
            tensor.external_data.add(key=k, value=v)

    return change


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    model = load_onnx(save_external(tmp_path))
    expected = numpy_helper.to_array(add_model().graph.initializer[0])
    read = model.graph.initializers["w"].const_value
    assert read is not None
    np.testing.assert_array_equal(read.numpy(), expected)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    path = save_external(folder)
    relocate(path, set_entry("location", location))
    with pytest.raises(ModelError, match=r"outside|not a readable"):
        load_onnx(path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_external(folder)
    (folder / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match="outside"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "4096"), ("length", "999999"), ("offset", "-8"), ("offset", "x")]
)
def test_external_data_that_the_file_lacks_is_refused(tmp_path: Path, key: str, value: str) -> None:
    path = save_external(tmp_path)
    relocate(path, set_entry(key, value))
    with pytest.raises(ModelError):
        load_onnx(path)


@pytest.mark.parametrize("offset", [4, 4096, 2**63, 2**64, 10**30])
def test_data_beyond_the_end_are_reported_with_file_offset_and_sizes(
    tmp_path: Path, offset: int
) -> None:
    path = save_external(tmp_path)
    relocate(path, set_entry("offset", str(offset)))
    have = (tmp_path / "weights.bin").stat().st_size
    need = numpy_helper.to_array(add_model().graph.initializer[0]).nbytes
    text = rf"'weights\.bin' has {have} bytes and can't hold {need} at offset {offset} .*tensor 'w'"
    with pytest.raises(ModelError, match=text):
        load_onnx(path)


def test_a_short_data_file_is_reported_with_its_size(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(3))
    text = r"'weights\.bin' has 3 bytes and can't hold \d+ at offset 0"
    with pytest.raises(ModelError, match=text):
        load_onnx(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("offset", "9" * 5000), ("length", "9" * 5000), ("location", "w" * 5000),
     ("location", "a\0b")],
)  # fmt: skip
def test_other_nonsense_is_reported_with_the_file(tmp_path: Path, key: str, value: str) -> None:
    path = save_external(tmp_path)
    relocate(path, set_entry(key, value))
    named = r"external data file '(weights\.bin|www|a\\x00b)"
    with pytest.raises(ModelError, match=named) as caught:
        load_onnx(path)
    assert len(str(caught.value)) < 500


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin"):
        load_onnx(path)


GARBAGE = {
    "empty": b"",
    "text": b"this is no model\n" * 20,
    "json": b'{"ir_version": 8}',
    "truncated": add_model().SerializeToString()[:-20],
    "random": np.random.default_rng(1).bytes(4096),
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "garbage.onnx"
    path.write_bytes(GARBAGE[name])
    with pytest.raises(AtcError) as caught:
        load_model(path, "", {}, None)
    text = str(caught.value)
    assert "garbage.onnx" in text
    assert "\n" not in text


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(ModelError, match=path.name):
            load_model(path, "onnx", {}, None)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "names.onnx"
    data = add_model().SerializeToString()
    assert data.count(b"add") == 1
    path.write_bytes(data.replace(b"add", b"a\xffd"))
    with pytest.raises(ModelError, match="UTF-8"):
        load_onnx(path)


def test_an_opset_from_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.onnx"
    path.write_bytes(add_model(NEWEST_OPSET + 1).SerializeToString())
    with pytest.raises(UnsupportedError, match="opset"):
        load_onnx(path)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, NEWEST_OPSET])
def test_opsets_from_7_to_the_newest_are_read(tmp_path: Path, opset: int) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(add_model(opset).SerializeToString())
    assert load_onnx(path).opset_imports[""] == opset


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Neg", ["s"], ["b"])]
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("mine", "NegSquare", ["a"], ["b"], body, opsets)
    graph = helper.make_graph(
        [helper.make_node("NegSquare", ["x"], ["y"], domain="mine")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    model = helper.make_model(
        graph, functions=[function], opset_imports=[*opsets, helper.make_opsetid("mine", 1)]
    )
    x = np.array([1, -2, 0.5, 3], np.float32)
    np.testing.assert_array_equal(run_model(model, [x])[0], -x * x)
    path = tmp_path / "f.onnx"
    onnx.save(model, path)
    assert not load_onnx(path).functions


def test_a_function_may_have_another_opset_than_the_model(tmp_path: Path) -> None:
    """ReduceSum takes its axes as an attribute up to opset 12, and as an input after it."""
    body = [helper.make_node("ReduceSum", ["a"], ["b"], axes=[1], keepdims=0)]
    opsets = [helper.make_opsetid("", 12)]
    function = helper.make_function("own", "Rows", ["a"], ["b"], body, opsets)
    graph = helper.make_graph(
        [helper.make_node("Rows", ["x"], ["y"], domain="own")], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, functions=[function]), tmp_path / "m")
    lowered = lower_model(load_onnx(tmp_path / "m"), "m")
    assert lowered.types[lowered.outputs[0]].shape == (2,)


SHORT, LONG = "", "ai.onnx"
"""The two names of the standard's domain."""


def softmax_model(
    imports: dict[str, int], domain: str = SHORT, inside: dict[str, int] | None = None
) -> onnx.ModelProto:
    """Return a Softmax of [2, 3, 4], within a function that imports `inside` if that is given."""
    node = helper.make_node("Softmax", ["x"], ["y"], name="softmax", domain=domain)
    functions = []
    if inside is not None:
        opsets = [helper.make_opsetid(*v) for v in inside.items()]
        functions = [helper.make_function("own", "F", ["x"], ["y"], [node], opsets)]
        node = helper.make_node("F", ["x"], ["y"], name="call", domain="own")
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 4))]
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name="y")])
    versions = [helper.make_opsetid(*v) for v in imports.items()]
    return helper.make_model(graph, opset_imports=versions, functions=functions, ir_version=8)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("imports", "inside"),
    [
        ({LONG: 13}, None), ({LONG: 9}, None), ({LONG: 13, SHORT: 13}, None),
        ({"own": 1, LONG: 9}, {LONG: 13}), ({"own": 1, LONG: 13}, {SHORT: 9}),
        ({"own": 1, SHORT: 9}, {LONG: 13}), ({"own": 1}, {LONG: 13}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("domain", [SHORT, LONG])
def test_the_standards_domain_has_two_names(
    tmp_path: Path, imports: dict[str, int], inside: dict[str, int] | None, domain: str
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(softmax_model(imports, domain, inside), path)
    (opset,) = {v for d, v in (imports if inside is None else inside).items() if d != "own"}
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    flat = x if opset == 13 else x.reshape(2, 12)  # before, it went over all axes from 1 on
    shares = np.exp(flat) / np.exp(flat).sum(-1, keepdims=True)
    (runner,) = compile_models([lower_model(load_onnx(path), "net.onnx")])
    assert isinstance(runner, Runner)
    (got,) = runner([x])
    np.testing.assert_allclose(got, shares.reshape(x.shape), rtol=1e-5)


@pytest.mark.parametrize(
    ("imports", "inside", "reason"),
    [
        ({LONG: 13, SHORT: 9}, None, r"imports opset 9 of the standard's domain, and 13 as"),
        ({"own": 1}, None, r"no opset of the domain ai\.onnx .*node 'softmax' \(Softmax\)"),
        ({SHORT: 13}, {SHORT: 13}, r"no opset of the domain own .*node 'call' \(F\)"),
        ({"own": 1, SHORT: 13}, {"own": 1},
         r"no opset of the domain ai\.onnx .*function 'F', node 'softmax'"),
        ({"own": 1, SHORT: 13}, {SHORT: NEWEST_OPSET + 1}, f"uses opset {NEWEST_OPSET + 1}"),
    ],
)  # fmt: skip
def test_a_domain_without_one_opset_is_refused(
    tmp_path: Path, imports: dict[str, int], inside: dict[str, int] | None, reason: str
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(softmax_model(imports, inside=inside), path)
    with pytest.raises((ModelError, UnsupportedError), match=reason) as error:
        load_onnx(path)
    assert str(path) in str(error.value)


def chosen_model() -> onnx.ModelProto:
    """Return y = -(x + 1 if the sum of x + x is above 0, else exp(x + x)), nodes in order."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, given, [f"{op}_of"])], op, [],
            [helper.make_tensor_value_info(f"{op}_of", TensorProto.FLOAT, [4])],
        )
        for op, given in (("Add", ["x", "one"]), ("Exp", ["double"]))
    ]  # fmt: skip
    nodes = [
        helper.make_node("Add", ["x", "x"], ["double"]),
        helper.make_node("ReduceSum", ["double"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["chosen"], then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node("Neg", ["chosen"], ["y"]),
    ]
    constants = {"one": np.ones(4, np.float32), "zero": np.float32(0)}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.array(a), name) for name, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("order", [(4, 3, 2, 1, 0), (3, 4, 0, 2, 1)])
def test_nodes_may_come_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Converters to float16 put the casts of inputs behind their readers; onnxruntime sorts."""
    model = chosen_model()
    nodes = [model.graph.node[k] for k in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    (net,) = compile_models([lower_model(load_onnx(tmp_path / "net.onnx"), "net.onnx")])
    assert isinstance(net, Runner)
    for sign in (1, -1):
        x = np.float32(sign) * np.arange(1, 5, dtype=np.float32)
        np.testing.assert_allclose(net([x])[0], -(x + 1 if sign > 0 else np.exp(2 * x)), rtol=1e-6)


def test_nodes_in_a_circle_are_refused(tmp_path: Path) -> None:
    model = chosen_model()
    model.graph.node[0].input[1] = "y"
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"reads 'y', which nothing computes before it .*Add"):
        lower_model(load_onnx(tmp_path / "net.onnx"), "net.onnx")


def test_pins_set_dynamic_dims(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(add_model(shape=("batch", 3)).SerializeToString())
    model = load_model(path, "onnx", {"x": (5, 3)}, None)
    assert [int(d) for d in model.graph.inputs[0].shape or ()] == [5, 3]


@pytest.mark.parametrize(
    ("shapes", "code"),
    [({"z": (2, 3)}, "E10017"), ({"x": (2, 3, 1)}, "E10049"), ({"x": (2, 4)}, "E10050")],
)
def test_wrong_pins_have_their_codes(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], code: str
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(add_model().SerializeToString())
    with pytest.raises(ModelError) as caught:
        pin_inputs(load_onnx(path), shapes, "net.onnx")
    assert caught.value.code == code


@pytest.mark.parametrize("seed", range(100))
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(add_model().SerializeToString())
    for _ in range(int(rng.integers(1, 8))):
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
    path = tmp_path / "mutated.onnx"
    path.write_bytes(data[: int(rng.integers(1, len(data) + 1))] if seed % 3 == 0 else data)
    with suppress(AtcError):  # anything else fails the test
        load_onnx(path)


@pytest.mark.parametrize(("scale", "shown"), [(np.inf, "inf"), (0.0, "0"), (-0.5, "-0.5")])
def test_a_scale_that_is_no_positive_number_is_a_warning(
    tmp_path: Path, scale: float, shown: str
) -> None:
    for scales, warned in (([0.5, scale], True), ([0.5, 2.0], False)):
        nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["y"], axis=1)]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
            [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 2])],
            [numpy_helper.from_array(np.array(scales, np.float32), "s")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        text = load_onnx(tmp_path / "net.onnx").metadata_props.get("atc.warnings", "")
        expected = f"scales must be positive numbers, these aren't: 's' ({shown}); calibrate again"
        assert text == (expected if warned else "")


def test_constants_that_old_models_list_as_inputs_are_not_named_as_such(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "net.onnx")
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
    onnx.save(proto, path)
    with pytest.raises(ModelError, match=r"'z' .* is not an input; the inputs are 'x' \["):
        pin_inputs(load_onnx(path), {"z": (1,)}, "net.onnx")
