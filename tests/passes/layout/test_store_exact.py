"""Values that 16 bits hold: computed with as floats, stored in 16 bits where that costs less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from kernel_program import vector_target
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked
from atc.passes.layout.store_exact import holds

F = DType.FLOAT
X = Input(F, 0)


@pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16], ids=lambda h: h.label)
@pytest.mark.parametrize(
    ("made", "held"),
    [
        (lambda rounded: X, False),
        (lambda rounded: Input(F, 1), True),
        (lambda rounded: rounded, True),
        (lambda rounded: call("Max", rounded, const(0.0, F)), True),
        (lambda rounded: call("Min", rounded, const(6.1, F)), False),
        (lambda rounded: call("Min", rounded, const(1e6, F)), False),
        (lambda rounded: call("Where", call("Less", X, const(0.1, F)), rounded, Input(F, 1)), True),
        (lambda rounded: call("Add", rounded, rounded), False),
    ],
    ids=["another", "exact", "rounded", "max", "fraction", "large", "where", "sum"],
)
def test_what_16_bits_hold(made: Callable[[Expr], Expr], held: bool, half: DType) -> None:
    (other,) = {DType.FLOAT16, DType.BFLOAT16} - {half}
    for rounded in (cast(cast(X, half), F), cast(Input(half, 0), F)):
        assert holds(made(rounded), lambda k: k == 1, half) is held
    assert not holds(cast(cast(X, other), F), lambda k: k == 1, half)


def network(path: Path, dtype: int) -> Path:
    """Write a residual network of a type of 16 bits with a pool, a clip and a concatenation."""
    rng = np.random.default_rng(0)
    weights, nodes = [], []

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def constant(*shape: int, scale: float = 1.0) -> str:
        values = scale * rng.standard_normal(shape)
        weights.append(helper.make_tensor(f"w{len(weights)}", dtype, shape, values.ravel()))
        return f"w{len(weights) - 1}"

    def conv(x: str, channels: int, filters: int, size: int, group: int = 1) -> str:
        fan = channels // group * size * size
        w = constant(filters, channels // group, size, size, scale=fan**-0.5)
        return node("Conv", x, w, constant(filters), pads=[size // 2] * 4, group=group)

    weights += [helper.make_tensor(n, dtype, (), [v]) for v, n in ((0.0, "low"), (6.0, "high"))]
    x = node("Relu", conv("x", 3, 32, 3))
    y = node("Clip", conv(x, 32, 64, 1), "low", "high")
    y = node("Relu", conv(y, 64, 64, 3, group=64))
    x = node("Relu", node("Add", conv(y, 64, 32, 1), x))
    y = node("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    x = node("Concat", x, y, axis=1)
    x = node("Sigmoid", conv(x, 64, 16, 3))
    node("GlobalAveragePool", x)
    made = helper.make_graph(
        nodes, "halves", [helper.make_tensor_value_info("x", dtype, (1, 3, 64, 64))],
        [helper.make_tensor_value_info(nodes[-1].output[0], dtype, (1, 16, 1, 1))], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_network_of_halves_takes_half_the_memory_with_the_same_bits(
    dtype: int, tmp_path: Path
) -> None:
    model = network(tmp_path / "halves.onnx", dtype)
    off = [tmp_path / "stored.cfg", tmp_path / "both.cfg"]
    off[0].write_text("store_exact:off\n")
    off[1].write_text("store_exact:off\nwiden_halves:off\n")
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(kind)
    results, arenas = [], []
    for k, more in enumerate([{}, *({"fusion_switch_file": each} for each in off)]):
        blocked = {"target": "x86-64-avx2", "layout_transform": "nchw8c", **more}
        done = atc.compile(model, tmp_path / f"net{k}", **blocked)
        arenas.append(done.arena.plan.size)
        results.append(atc.load(done.folder)(x))
    np.testing.assert_array_equal(*results[:2])
    step = float(np.finfo(np.float16).eps if kind == np.float16 else 2**-7)
    wide = [r.astype(np.float64) for r in results]  # what isn't fused is rounded more often
    np.testing.assert_allclose(wide[2], wide[0], rtol=step)
    assert arenas[0] < 0.6 * arenas[2]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
def test_what_large_products_read_takes_half_the_memory_with_the_same_bits(
    target: str, tmp_path: Path
) -> None:
    vector_target(target)
    rng, tokens, width, half = np.random.default_rng(2), 1024, 96, TensorProto.FLOAT16
    shapes = {"w0": (width, 4 * width), "b0": (4 * width,), "w1": (4 * width, width)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / s[0] ** 0.5).astype(np.float16), name)
        for name, s in shapes.items()
    ]
    nodes = [
        helper.make_node(op, inputs, [result])
        for op, inputs, result in (
            ("MatMul", ["x", "w0"], "p"), ("Add", ["p", "b0"], "q"), ("Relu", ["q"], "r"),
            ("MatMul", ["r", "w1"], "y"),
        )
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, half, (tokens, width)) for n in ("x", "y")]
    made = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]),
              model := tmp_path / "mlp.onnx")  # fmt: skip
    off = tmp_path / "off.cfg"
    off.write_text("store_exact:off\n")
    x = rng.standard_normal((tokens, width)).astype(np.float16)
    stored, floats = (
        atc.compile(model, tmp_path / f"net{k}", target=target, **more)
        for k, more in enumerate([{}, {"fusion_switch_file": off}])
    )
    results = [atc.load(done.folder)(x) for done in (stored, floats)]
    np.testing.assert_array_equal(*results)
    assert stored.arena.plan.size < 0.7 * floats.arena.plan.size


def image_network(path: Path) -> Path:
    """Write a network of floats whose first layers are large, those of small images behind."""
    rng, nodes, weights = np.random.default_rng(3), [], []
    sizes = (
        ("x", 3, 32, 3, 2, 1), ("a", 32, 32, 3, 1, 32), ("b", 32, 64, 1, 1, 1),
        ("c", 64, 64, 3, 4, 64), ("d", 64, 64, 1, 1, 1), ("e", 64, 64, 3, 1, 64),
        ("f", 64, 16, 1, 1, 1),
    )  # fmt: skip
    for k, (x, channels, filters, size, stride, group) in enumerate(sizes):
        w = rng.standard_normal((filters, channels // group, size, size)) / size
        weights.append(numpy_helper.from_array((w / 4).astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node("Conv", [x, f"w{k}"], [f"r{k}"], pads=[size // 2] * 4,
                                      strides=[stride] * 2, group=group))  # fmt: skip
        nodes.append(helper.make_node("Relu", [f"r{k}"], ["abcdefy"[k]]))
    made = helper.make_graph(
        nodes, "image", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 160, 160))],
        [helper.make_empty_tensor_value_info("y")], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
def test_what_is_small_beside_the_most_stays_floats_with_the_same_bits(
    target: str, tmp_path: Path
) -> None:
    """The image is rounded by the convolution that reads it."""
    vector_target(target)
    model, off = image_network(tmp_path / "net.onnx"), tmp_path / "off.cfg"
    off.write_text("store_exact:off\n")
    given = {"target": target, "precision_mode": "force_fp16", "layout_transform":
             "nchw8c" if target == "x86-64-avx2" else "nchw16c"}  # fmt: skip
    stored, floats = (
        atc.compile(model, tmp_path / f"net{k}", **given, **more)
        for k, more in enumerate([{}, {"fusion_switch_file": off}])
    )
    x = np.random.default_rng(4).standard_normal((1, 3, 160, 160)).astype(np.float32)
    np.testing.assert_array_equal(*(atc.load(done.folder)(x) for done in (stored, floats)))
    types = {n.split(".")[0]: t.dtype for n, t in stored.program.types.items()}
    assert types["a"] is types["b"] is DType.FLOAT16
    assert F in {types[n] for n in "cdef"}, types
    assert stored.arena.plan.size < 0.75 * floats.arena.plan.size
    first = next(c.workload.op for n, c in stored.selection.items() if n.split(".")[0] == "a")
    assert isinstance(first, ConvBlocked)
    assert first.rounds is DType.FLOAT16
    assert not any(c.workload.op.kind == "Map" for c in stored.selection.values())
