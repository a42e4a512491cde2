from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import save
from onnx import helper, numpy_helper
from projects import require, write_project
from stages import project_of
from tiny_networks import Net

from atc.cli.main import main
from atc.names import (
    FILES,
    LIMIT,
    RESERVED,
    c_string,
    comment,
    identifier,
    module_name,
    network_identifier,
    tensor_identifiers,
)
from atc.options.options import Options

HOSTILE = [
    "", " ", "*/ int x; /*", "*//*", "//", "\\", "a\\\nb", "??/", '"""', '"; system("x"); "', "\n",
    "\0", "a\0b", "\u202e", "数据", "int", "Class", "3d", "__LINE__", "_x_", "a b", "a.b/c:0",
    "x" * 100_000, "*" * 99 + "/", "%s%n", "${X}", "$<1:x>", "a;b", "`x`", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: ascii(n[:12]))
def test_every_name_becomes_an_identifier(name: str) -> None:
    text = identifier(name)
    assert text.isascii()
    assert text.isidentifier()
    assert text not in RESERVED
    assert len(text) <= LIMIT
    assert identifier(text) == text


def test_a_networks_prefix_is_stable_and_hides_no_header() -> None:
    for name in (*HOSTILE, *sorted(FILES), "Math", "9" * 60):
        text = network_identifier(name)
        assert network_identifier(text) == text
        assert text.casefold() not in FILES, name


def test_parameters_are_distinct_and_clash_with_nothing_in_the_function() -> None:
    names = ["x", "x", "x_2", "w0", "t12", "ctx", "uint8_t", "net_run", "NET_OK", "net", "int", ""]
    found = tensor_identifiers(names, "net")
    assert found == [
        "x", "x_2", "x_2_2", "t_w0", "t_t12", "t_ctx", "t_uint8_t", "t_net_run", "t_NET_OK",
        "t_net", "t_int", "t",
    ]  # fmt: skip


def test_many_equal_names_stay_cheap() -> None:
    assert len(set(tensor_identifiers(["same"] * 20_000, "net"))) == 20_000


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: ascii(n[:12]))
def test_a_comment_is_one_line_that_ends_nothing(name: str) -> None:
    text = comment(name)
    assert len(text) <= 60
    assert text.isascii()
    assert text.isprintable()
    for end in ("*/", "/*", "\\", '"', "?"):
        assert end not in text


@pytest.mark.parametrize("name", ["numpy", "cffi", "json", "lambda", "match", "string"])
def test_a_module_hides_no_other(name: str) -> None:
    assert module_name(name) == f"net_{name}"
    assert module_name("lenet") == "lenet"


def test_c_strings_hold_the_bytes_of_the_text(tmp_path: Path) -> None:
    texts = ["plain", 'quo"te', "back\\slash", "???/", "数据", "tab\tnew\nline", "8\x018", "%d"]
    tables = ", ".join(map(c_string, texts))
    (tmp_path / "t.c").write_text(
        "#include <stdio.h>\n"
        f"static const char *const t[] = {{{tables}}};\n"
        f"int main(void) {{ for (int i = 0; i < {len(texts)}; i++) puts(t[i]); return 0; }}\n"
    )
    command = [require("gcc"), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "t.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "a.out"], capture_output=True, check=True).stdout
    assert said.decode() == "".join(f"{text}\n" for text in texts)


def sum_of(path: Path, names: list[str], first: str = "4") -> Path:
    """Write a model of some steps on the sum of its inputs [first, 3]."""
    rows: int | str = int(first) if first.isdigit() else first
    weights = numpy_helper.from_array(np.ones((3, 3), np.float32), "q_weights")
    axis = numpy_helper.from_array(np.array(0), "q_axis")
    nodes = [
        helper.make_node("Sum", names, ["q_sum"]),
        helper.make_node("MatMul", ["q_sum", "q_weights"], ["q_product"]),
        helper.make_node("CumSum", ["q_product", "q_axis"], ["q_total"]),
        *(helper.make_node(op, ["q_total"], [f"q_{op}"]) for op in ("Relu", "Tanh")),
    ]
    shapes: dict[str, list[int | str]] = {name: [rows, 3] for name in names}
    outputs: dict[str, list[int | str]] = {f"q_{op}": [rows, 3] for op in ("Relu", "Tanh")}
    return save(nodes, shapes, outputs, path, [weights, axis])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    ["4~9 --profile", "--sanity_check", "--runtime_log --parallel_branches=2", "--selftest --hooks",
     "4~9 --target=cuda-emulated --profile", "--target=cuda-emulated --sanity_check"],
)  # fmt: skip
def test_inputs_may_be_called_what_anything_in_the_sources_is(options: str, tmp_path: Path) -> None:
    ranges, more = options.startswith("4"), [o for o in options.split() if o.startswith("-")]

    def compiles(names: list[str]) -> bool:
        model = sum_of(tmp_path / "given.onnx", names, "n" if ranges else "4")
        shapes = ";".join(f"{name}:4~9,3" for name in names)
        given = [f"--input_shape={shapes}"] if ranges else []
        return main([f"--model={model}", f"--output={tmp_path / 'net'}", *more, *given]) == 0

    assert compiles(["q_a", "q_b"])
    sources = [f for f in (tmp_path / "net").rglob("*") if f.suffix in (".c", ".h", ".cu")]
    texts = [re.sub(r"/\*.*?\*/", "", f.read_text(), flags=re.DOTALL) for f in sources]
    words = {w for text in texts for w in re.findall(r"[A-Za-z_]\w*", text)}
    assert compiles(sorted(w for w in words if not w.startswith("q_")))


def product_model() -> onnx.ModelProto:
    """Return a product that two threads share."""
    sides = [helper.make_tensor_value_info(v, 1, (512, 512)) for v in "xy"]
    weights = numpy_helper.from_array(np.ones((512, 512), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", sides[:1], sides[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def striped_model() -> onnx.ModelProto:
    """Return convolutions of bytes that run in stripes where RAM is scarce."""
    net = Net(quantized=True, uneven=True)
    x = net.conv(net.input(1, 3, 23, 18), filters=8, stride=2)
    x = net.conv(net.conv(x, filters=8, depthwise=True), filters=13, kernel=(1, 1))
    return net.model(net.conv(x, filters=13, depthwise=True))


@pytest.mark.parametrize(
    ("model", "options", "local"),
    [
        (product_model, {"num_threads": 2}, "operands"),
        (striped_model, {"target": "cortex-m4f"}, "row"),
        (striped_model, {"target": "cortex-m4f"}, "rows"),
    ],
)
def test_no_local_of_a_run_hides_an_input(
    model: Callable[[], onnx.ModelProto], options: dict[str, Any], local: str, tmp_path: Path
) -> None:
    names = ["axis", "failed", "join_stripes", "operands", "partitions_0", "phase", "r", "row",
             "rows", "shift_rolling_buffer"]  # fmt: skip
    made = model()
    (given,) = made.graph.input
    made.graph.node.insert(0, helper.make_node("Max", names, [given.name]))
    of = given.type.tensor_type
    dims = [d.dim_value for d in of.shape.dim]
    del made.graph.input[:]
    sides = (helper.make_tensor_value_info(name, of.elem_type, dims) for name in names)
    made.graph.input.extend(sides)
    onnx.save(made, tmp_path / "m.onnx")
    given_options = Options(model=tmp_path / "m.onnx", output=tmp_path / "net", **options)
    write_project(tmp_path / "net", project_of(given_options).emission)
    text = (tmp_path / "net/src/net.c").read_text()
    assert re.search(rf"[ *]{local}(\[.*\])? = ", text)
    command = [require("gcc"), "-std=c99", "-Wshadow", "-Werror", "-fsyntax-only", "-Iinclude"]
    subprocess.run([*command, "src/net.c"], cwd=tmp_path / "net", check=True)
