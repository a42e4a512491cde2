"""A library's self-test names the first node whose result is wrong, and by how much."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from codegen.test_sanity import with_evil_kernel
from networks import conv_net
from onnx import helper
from projects import F32, compile_c, make_model

import atc
from atc.codegen.emit import Emission, emit
from atc.codegen.selftest import NODES, signs
from atc.pipeline import writing

USE = r"""
#include <stdio.h>
#include "net.h"
static net_arena arena;
static net_context ctx;
static float x[{x}], y[{y}];
int main(void)
{{
  net_difference d = {{0}};
  if (net_init(&ctx, &arena, sizeof arena) != NET_OK) return 9;
  const int status = net_selftest(&ctx, x, y, &d);
  printf("%d %s %s %g\n", status, d.output ? d.output : "-", d.node ? d.node : "-", (double)d.node_error);
  return net_run(&ctx, x, y);
}}
"""  # noqa: E501


def said(folder: Path, x: int, y: int) -> list[str]:
    """Run the self-test of a project: its status, the output and the node that differ, the RMSE."""
    (folder / "use.c").write_text(USE.format(x=x, y=y))
    compile_c(folder, "-Wall", "-Wextra", "-Wconversion", "-Werror", "-Iinclude", "-Isrc", "-c",
              "src/net_selftest.c", "-o", "t.o")  # fmt: skip
    compile_c(folder, "-Iinclude", "use.c", "libnet.a", "-lm", "-o", "use")
    done = subprocess.run([folder / "use"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def doctored(node: str, statement: str) -> Callable[..., Emission]:
    def evil(*arguments: Any, **options: Any) -> Emission:
        return with_evil_kernel(emit(*arguments, **options), node, statement)

    return evil


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "host"])
@pytest.mark.parametrize(
    ("node", "first"), [("conv1", "relu1"), ("conv2", "conv2"), ("softmax", "softmax"), (None, "-")]
)  # fmt: skip
def test_the_first_wrong_node_is_named(
    target: str, node: str | None, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if node:
        monkeypatch.setattr(writing, "emit", doctored(node, "{out}[1] += 2.0f;"))
    model = conv_net(tmp_path / "m.onnx")
    graph = onnx.load(model).graph
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim]
              for v in (graph.input[0], graph.output[0])]  # fmt: skip
    done = atc.compile(
        model, tmp_path / "net", target=target, selftest=True, layout_transform="nchw"
    )  # results that are packed, or have channels beyond the model's, have no sum
    status, output, found, error = said(done.folder, *(int(np.prod(s)) for s in shapes))
    assert (status == "0") == (node is None)
    assert (output, found) == ("y" if node else "-", first)
    if node:
        result = next(v for n in graph.node if n.name == first for v in n.output)
        table = (done.folder / "src/net_selftest.c").read_text()
        count = int(re.search(rf'{{"{first}", .*?, (\d+), \d+, \d+, \d+}}', table)[1])  # type: ignore[index]
        assert float(error) == pytest.approx(2 / np.sqrt(count), rel=1e-3), result


@pytest.mark.slow
def test_a_node_whose_fault_no_output_shows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["s"], name="sum"),
        helper.make_node("HardSigmoid", ["s"], ["y"], alpha=1e-30, beta=0.5),
    ]
    model = make_model(
        nodes, [("x", F32, (9,))], [("y", F32, (9,))], {"axis": np.array(0, np.int64)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    for statement, expected in (
        ("(void){in_};", ["0", "-", "-"]),
        ("{out}[3] = -4.0f;", ["-14", "-", "sum"]),
    ):
        monkeypatch.setattr(writing, "emit", doctored("sum", statement))
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", selftest=True)
        assert said(tmp_path / "net", 9, 9)[:3] == expected


FLIPS = r"""
#include <stdio.h>
#include "net.h"
static net_arena arena;
static net_context ctx;
static NET_ALIGNED unsigned char weights[NET_WEIGHTS_SIZE];
static float x[{x}], y[{y}];
int main(void)
{{
  size_t unseen = 0;
  FILE *file = fopen("net_weights.bin", "rb");
  if (file == NULL || fread(weights, 1, sizeof weights, file) != sizeof weights) return 8;
  if (net_init(&ctx, &arena, sizeof arena, weights, sizeof weights) != NET_OK) return 9;
  for (size_t k = 0; k < sizeof weights; k++) {{
    const unsigned char bit = (unsigned char)(1u << k % 8);
    weights[k] ^= bit;
    unseen += net_selftest(&ctx, x, y, NULL) != NET_ERROR_WEIGHTS;
    weights[k] ^= bit;
  }}
  printf("%lu %d\n", (unsigned long)unseen, net_selftest(&ctx, x, y, NULL));
  return 0;
}}
"""


def test_every_changed_bit_of_a_weight_is_seen(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(3).normal(size=(9, 5)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Softmax", ["p"], ["y"], name="softmax"),
    ]
    onnx.save(make_model(nodes, [("x", F32, (1, 9))], [("y", F32, (1, 5))], weights),
              tmp_path / "m.onnx")  # fmt: skip
    options = {"target": "c99", "selftest": True}
    folder = atc.compile(
        tmp_path / "m.onnx", tmp_path / "file/net", external_weight=2, **options
    ).folder
    (folder / "use.c").write_text(FLIPS.format(x=9, y=5))
    compile_c(folder, "-O2", "-Iinclude", "use.c", "libnet.a", "-lm", "-o", "use")
    done = subprocess.run([folder / "use"], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]

    folder = atc.compile(tmp_path / "m.onnx", tmp_path / "net", **options).folder
    assert said(folder, 9, 5)[0] == "0"
    data = bytearray((folder / "net_weights.bin").read_bytes())
    data[0] ^= 1  # of a float's last bits: no output shows it
    (folder / "net_weights.bin").write_bytes(data)
    sources = [*map(str, folder.glob("src/**/*.c")), "net_weights.S"]
    compile_c(folder, "-Iinclude", "-I.", "-Isrc", "use.c", *sources, "-lm", "-o", "use")
    done = subprocess.run([folder / "use"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-4", "-", "-", "0"]


def test_a_sigmoid_may_err_as_much_as_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["s"], name="sum"),
        helper.make_node("Sub", ["s", "many"], ["d"], name="sub"),
        helper.make_node("Sigmoid", ["d"], ["y"], name="sigmoid"),
    ]
    constants = {"axis": np.array(0, np.int64), "many": np.float32(14)}
    model = make_model(nodes, [("x", F32, (9,))], [("y", F32, (9,))], constants)
    onnx.save(model, tmp_path / "m.onnx")
    for statement, expected in (("(void){in_};", "0"), ("{out}[3] += 5e-6f;", "-14")):
        monkeypatch.setattr(writing, "emit", doctored("sub", statement))
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", selftest=True)
        assert said(tmp_path / "net", 9, 9)[0] == expected


MODELS = Path(__file__).parents[3] / "shared" / "models"
NAMES = sorted(f.parent.name for f in MODELS.glob("*/model.onnx"))
LARGE = {"ort_superres", "ppocr_cls", "ultraface_rfb320"}
"""Those that plain C takes long for."""
ROOM = 1 << 23
"""Bytes for an input or an output, which none of these has more of."""


class Difference(ctypes.Structure):
    """What a self-test says of the first difference."""

    _fields_ = [
        ("output", ctypes.c_char_p), ("index", ctypes.c_size_t), ("error", ctypes.c_float),
        ("node", ctypes.c_char_p), ("node_error", ctypes.c_float),
    ]  # fmt: skip


def found_by(library: Path) -> Difference:
    """Return what the self-test of a good library finds."""
    net = ctypes.CDLL(str(library))
    for name in ("net_context_size", "net_arena_size"):
        getattr(net, name).restype = ctypes.c_size_t
    context = ctypes.create_string_buffer(net.net_context_size())
    size = net.net_arena_size()
    arena = ctypes.create_string_buffer(size + 64)
    begin = -(-ctypes.addressof(arena) // 64) * 64
    assert net.net_init(context, ctypes.c_void_p(begin), ctypes.c_size_t(size)) == 0
    count = net.net_input_count() + net.net_output_count()
    buffers = [ctypes.create_string_buffer(ROOM) for _ in range(count)]
    difference = Difference()
    status = net.net_selftest(context, *buffers, ctypes.byref(difference))
    assert (status == 0) == (difference.output is None and difference.node is None)
    return difference


@pytest.mark.slow
@pytest.mark.skipif(not NAMES, reason="../shared/models is not there")
@pytest.mark.parametrize(
    ("name", "target"),
    [(n, "host") for n in NAMES] + [(n, "c99") for n in NAMES if n not in LARGE],
)
def test_no_good_library_fails(name: str, target: str, tmp_path: Path) -> None:
    folder = MODELS / name
    with np.load(folder / "case0_in.npz") as case:
        shapes = [case[f"i{k}"].shape for k in range(len(case.files))]
    inputs = json.loads((folder / "meta.json").read_text())["inputs"]
    done = atc.compile(
        folder / "model.onnx", tmp_path / "net", target=target, selftest=True,
        input_shape=dict(zip(inputs, shapes, strict=True)),
    )  # fmt: skip
    found = found_by(done.folder / "libnet.so")
    assert (found.output, found.node) == (None, None), (found.error, found.node_error)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_signs_are_those_of_the_generator(count: int) -> None:
    state, expected = 0, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        expected.append(-1.0 if state >> 31 else 1.0)
    np.testing.assert_array_equal(signs(count), expected)


def test_of_many_nodes_some_are_known(tmp_path: Path) -> None:
    names = [f"a/rather/long/name/of/a/node/which/has/the/number/{k}" for k in range(90)]
    nodes = [
        helper.make_node("CumSum", [f"x{k}", "axis"], [f"x{k + 1}"], name=name)
        for k, name in enumerate(names)
    ]
    model = make_model(
        nodes, [("x0", F32, (2,))], [("x90", F32, (2,))], {"axis": np.array(0, np.int64)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    folder = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", selftest=True).folder
    found = re.findall(r'\{"(.*?)",', (folder / "src/net_selftest.c").read_text())
    assert 10 < len(found) < 90
    assert sum(len(name) + 29 for name in found) <= NODES
    assert found[-1] == f"..{names[-1][-30:]}"
    assert said(folder, 2, 2)[0] == "0"
