"""Graphs as text: what is read is the graph that was printed; what is no graph is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from dynamic_models import CASES
from fuzz.run import draw
from networks import conv_net, pooled_net, training_net
from onnx import TensorProto, helper
from same_graph import assert_same_graph
from stages import graph_of

from atc.dims import Symbol, dim, maximum, minimum, not_equal, parse_extent, plain
from atc.errors import AtcError
from atc.ir.expr import Call, Expr, Input, call, cast, const
from atc.ir.graph import Alias, Array, Composite, DType, Graph, Node, TensorType, type_of
from atc.ir.ops import Map
from atc.ir.text import digest_of, dump, large_constants, parse
from atc.ir.view import View
from atc.options.options import Options
from atc.options.shapes import shapes, value_ranges
from atc.passes import run_passes
from support import compile_graph, node_cases, node_model, random_array, standard_nodes

SAMPLES = Path(__file__).parents[3] / "samples"
TYPE = TensorType(DType.FLOAT, (2,))


def assert_round_trip(graph: Graph) -> None:
    """Check that the text's graph is the graph, and prints the same text."""
    text, large = dump(graph), large_constants(graph)
    found = parse(text, lambda digest, type_: large[digest])
    assert_same_graph(graph, found)
    assert dump(found) == text


def lowered(case: onnx.ModelProto) -> Graph | None:
    """Return a model's graph; None where it isn't supported."""
    try:
        return compile_graph(case)
    except AtcError:
        return None


@pytest.mark.parametrize("make", [conv_net, pooled_net, training_net])
def test_networks(make: Callable[[Path], Path], tmp_path: Path) -> None:
    graph = compile_graph(onnx.load(make(tmp_path / "net.onnx")))
    assert_round_trip(graph)
    assert_round_trip(run_passes(graph, width=8))
    assert_round_trip(replace(graph, states=((0, 0),)))
    assert_round_trip(replace(graph, lengths=((3, 4),)))


@pytest.mark.parametrize("name", ["digits", "keywords"])
def test_samples(name: str) -> None:
    graph = compile_graph(onnx.load(SAMPLES / f"{name}.onnx"))
    assert_round_trip(graph)
    assert_round_trip(run_passes(graph, width=16))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [n for n in CASES if n != "voxels"])
def test_run_time_extents_and_control_flow(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    path = tmp_path / "net.onnx"
    onnx.save(case.model, path)
    ranges = value_ranges(case.values) if case.values else {}
    graph = graph_of(Options(path, tmp_path, input_shape=shapes(case.shapes), value_range=ranges))
    assert graph.dims
    assert_round_trip(graph)


def assert_all_round_trip(models: list[onnx.ModelProto], at_least: int) -> None:
    graphs = [graph for model in models if (graph := lowered(model)) is not None]
    assert len(graphs) >= at_least
    for graph in graphs:
        assert_round_trip(graph)
        assert_round_trip(run_passes(graph, width=8))


@pytest.mark.parametrize(("kind", "count"), [("graph", 12), ("op", 40), ("place", 8)])
def test_some_drawn_models(kind: str, count: int) -> None:
    assert_all_round_trip([draw(kind, seed).model for seed in range(count)], count * 3 // 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "op", "place", "contrib"])
def test_many_drawn_models(kind: str) -> None:
    assert_all_round_trip([draw(kind, seed).model for seed in range(300)], 200)


@pytest.mark.slow
def test_all_of_the_standards_operators() -> None:
    operators = {case.model.graph.node[0].op_type for case in standard_nodes()}
    models = [model for _, model, _ in node_cases(operators)]
    assert_all_round_trip(models, 1000)


@pytest.mark.parametrize(
    "operator",
    ["If", "Loop", "LSTM", "NonMaxSuppression", "TfIdfVectorizer", "RegexFullMatch", "StringSplit",
     "QLinearConv", "Attention", "DFT", "RoiAlign", "Cast", "Optional"],
)  # fmt: skip
def test_operators_of_every_family(operator: str) -> None:
    for model in [model for _, model, _ in node_cases([operator])][:12]:
        graph = lowered(model)
        if graph is not None:
            assert_round_trip(graph)


# ---- extents -------------------------------------------------------------------------------------

N = dim(Symbol(0, "n", 1, 64))
M = dim(Symbol(1, "m", 0, 10, given=False))
SYMBOLS = {0: Symbol(0, "n", 1, 64), 1: Symbol(1, "m", 0, 10, given=False)}


@pytest.mark.parametrize(
    "extent",
    [
        7, -3, 0, N, -N, 2 * N - 1, N * N * M - 4 * N + 3, (N + 2) // 3, (N * M + 1) // (N + M),
        (5 * N + 1) % 7, (N - 20) // 3, (N - M) % (M + 2), minimum(N, 3, M + 1),
        maximum(N * 2, M - 1), not_equal(N, M), ((N + 5) // 4 * M - 1) // 2,
        maximum((N - 20) // 3, 0) * M,
    ],
    ids=str,
)  # fmt: skip
def test_extents(extent: int) -> None:
    assert parse_extent(plain(extent), SYMBOLS) == extent


@pytest.mark.parametrize(
    "text", ["", "n", "d[2]", "d[0] +", "1 2", "(d[0]", "d[0])", "d[0] ** 2", "atc_max(", "1.5",
             "atc_pow(d[0], 2)", "system(0)", "((", "--1"],
)  # fmt: skip
def test_what_is_no_extent(text: str) -> None:
    with pytest.raises(ValueError, match="extent|dim"):
        parse_extent(text, SYMBOLS)


# ---- constants -----------------------------------------------------------------------------------


def holding(array: Array) -> Graph:
    return Graph("net", (), ("c",), (), {"c": type_of(array)}, {"c": array})


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 30)])
def test_constants(shape: tuple[int, ...]) -> None:
    for dtype in DType:
        assert_constant_survives(dtype, shape)


def assert_constant_survives(dtype: DType, shape: tuple[int, ...]) -> None:
    if dtype is DType.STRING:
        texts = [b"a", "\N{SNOWMAN}, \u2028\n".encode(), b'"quoted" \\', b""] * 15
        array = np.array(texts[: int(np.prod(shape))], dtype.numpy).reshape(shape)
    else:
        array = random_array(dtype, shape)
    assert_round_trip(holding(array))
    assert ("= (" in dump(holding(array))) == (array.size <= 16)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x80000000, 1, 0xFF800000])
def test_every_float_keeps_its_bits(bits: int) -> None:
    assert_round_trip(holding(np.array([bits], np.uint32).view(np.float32)))


def test_bytes_that_are_no_text_keep_theirs() -> None:
    assert_round_trip(holding(np.array([b"\xff\xfe"], DType.STRING.numpy)))


def test_digests_know_types_and_shapes() -> None:
    zeros = np.zeros(24, np.float32)
    digests = {digest_of(a) for a in (zeros, zeros.reshape(4, 6), zeros.view(np.int32))}
    assert len(digests) == 3


def test_a_large_constant_that_is_not_given() -> None:
    with pytest.raises(ValueError, match="line 2: the constant [0-9a-f]{16} .* is not given"):
        parse(dump(holding(np.zeros(100, np.float32))))


# ---- names and expressions -----------------------------------------------------------------------

HOSTILE = ["a b", "graph", "const", "return", "-", "#", "x, y", "l\n  return", '"', "\\", "é", "",
           "x:", ":x", "x:0", "a::b_1/c.d#2", "x: f32", "\u2028", "\u202e", "⟨d[0]⟩", "None",
           "x = y", "(", "  ", "# x", "$a;b", "-x"]  # fmt: skip


def test_names_are_kept_whatever_they_are() -> None:
    names = [n for n in HOSTILE if n]
    op = Map((2,), Input(DType.FLOAT, 0), (View((1,)),))
    nodes = tuple(
        Node(op, (a,), (b,), (a, b)) for a, b in zip(names, names[1:], strict=False)
    )  # fmt: skip
    for title in HOSTILE:
        graph = Graph(title, (names[0],), tuple(names), nodes, dict.fromkeys(names, TYPE))
        assert_round_trip(replace(graph, warnings=tuple(HOSTILE)))


def test_absent_operands_composites_guards_and_aliases_are_kept() -> None:
    op = Map((2,), Input(DType.FLOAT, 0), (View((1,)),))
    nodes = (Node(op, ("x", "", ""), ("y",)), Node(op, ("",), ("z",)))
    graph = Graph(
        "net", ("x",), ("y",), nodes, dict.fromkeys("xyz", TYPE), dims=tuple(SYMBOLS.values()),
        guards=(N - M - 1,), composites=(Composite("input", "a list", 0, -1), Composite(
            "output", "map", 1, 2, is_map=True)),
        aliases={"y": Alias("layout", "x"), "z": Alias("output", "a name"), "x": Alias(
            "recomputed", "w")},
    )  # fmt: skip
    assert_round_trip(graph)


X, Y = Input(DType.FLOAT, 0), Input(DType.INT64, 1)


@pytest.mark.parametrize(
    "expression",
    [
        X, const(-0.0, DType.FLOAT), const(float("nan"), DType.DOUBLE), const(True, DType.BOOL),
        const(float("-inf"), DType.FLOAT16), const(-5, DType.INT8), const(2 * N - 1, DType.INT64),
        cast(Y, DType.FLOAT), cast(cast(X, DType.INT8, saturate=True), DType.BFLOAT16),
        call("Where", call("Less", X, const(1e-30, DType.FLOAT)), X, cast(Y, DType.FLOAT)),
        call("Lookup", X, Y), Call(DType.INT32, "Mul", (Y, Y)), Call(DType.FLOAT, "Cast", (X,)),
    ],
    ids=str,
)  # fmt: skip
def test_expressions(expression: Expr) -> None:
    op = Map((2,), expression, (View((1,)), View((0,), -3)), (View((N,), M),))
    graph = Graph("net", ("x", "i"), ("y",), (Node(op, ("x", "i"), ("y",)),),
                  dict.fromkeys("xiy", TYPE), dims=tuple(SYMBOLS.values()))  # fmt: skip
    assert_round_trip(graph)


def test_expressions_deeper_than_python_nests() -> None:
    deep: Expr = X
    for _ in range(1500):
        deep = call("Neg", call("Add", X, deep))
    op = Map((2,), deep, (View((1,)),))
    assert_round_trip(Graph("net", ("x",), ("y",), (Node(op, ("x",), ("y",)),),
                            dict.fromkeys("xy", TYPE)))  # fmt: skip


def test_graphs_in_graphs_see_the_values_around_them() -> None:
    info = helper.make_tensor_value_info
    inner = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node("If", ["c"], ["r"], "inner", **{
                f"{other}_branch": helper.make_graph(
                    [helper.make_node(op, ["x", "w"], ["s"], f"the {op}")], other, [],
                    [info("s", TensorProto.FLOAT, [3])])
                for other, op in (("then", "Add"), ("else", "Mul"))})],
            side, [], [info("r", TensorProto.FLOAT, [3])])
        for side in ("then", "else")
    }  # fmt: skip
    model = node_model("If", [np.array(True)], **inner)
    graph = model.graph
    graph.input.extend([info("x", TensorProto.FLOAT, [3]), info("w", TensorProto.FLOAT, [3]),
                        info("c", TensorProto.BOOL, [])])  # fmt: skip
    found = compile_graph(model)
    assert dump(found).count("graph ") == 7
    assert_round_trip(found)


# ---- damage --------------------------------------------------------------------------------------

TEXT = """graph net(x: f32[2])
  const w: f32[2] = (0.5, 1.0)
  y: f32[2] = Map(shape=(2), expr=Mul(x0, x1), views=(<1>, <1>)) x, w  # scale
  return y
"""


def test_indentation_and_empty_lines_mean_nothing() -> None:
    loose = "\n\n" + TEXT.replace("  const", "const").replace("  return", "\n\n      return")
    assert_same_graph(parse(loose), parse(TEXT))
    assert_same_graph(parse(TEXT.rstrip()), parse(TEXT))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph net", "net", "line 1: 'graph ' is expected before 'net"),
        ("(x: f32[2])", "(x: f33[2])", "'f33' is not an element type"),
        ("(0.5, 1.0)", "(0.5)", "line 2: cannot reshape"),
        ("(0.5, 1.0)", "(0.5, one)", "line 2: could not convert"),
        ("Map(", "Mop(", "line 3: there is no Mop"),
        ("shape=(2)", "shape=(2.5)", "line 3: '2.5' is not a valid extent"),
        ("shape=(2)", "form=(2)", "line 3: Map has no attribute form"),
        ("shape=(2), ", "", "line 3: Map needs the attribute shape"),
        ("Mul(x0, x1)", "Mul(x0)", "line 3: Mul of 1 arguments"),
        ("Mul(x0, x1)", "Mul(x0, 1.50)", "line 3: '1.50' is not a number of type f32"),
        ("Mul(x0, x1)", "Mul(x0, 1.5:i32)", "line 3: "),
        ("<1>, <1>", "<1>, 1", "line 3: '<' is expected"),
        ("x, w", "x w", "line 3: the end of the line is expected before 'w"),
        ("  return y\n", "", "the graph has no end"),
        ("return y\n", "return y\nmore", "there is more behind the graph"),
        ("return y", "guard d[0]\n return y", "line 4: there is no dim d.0."),
        ("return y", "dim Symbol(index=0)\n return y", "line 4: 'dim' is not expected"),
    ],
)  # fmt: skip
def test_what_is_no_graph(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        parse(TEXT.replace(old, new, 1))


def test_a_dump_reads_one_constant_at_a_time() -> None:
    one, two = np.zeros((4, 8), np.float32), np.array([1.0], np.float32)
    types = {name: type_of(array) for name, array in (("a", one), ("b", two))}
    heard: list[tuple[str, int]] = []

    @contextmanager
    def reading(array: Array) -> Iterator[None]:
        heard.append(("begin", id(array)))
        yield
        heard.append(("end", id(array)))

    graph = Graph("g", (), (), (), types, {"a": one, "b": two})
    assert dump(graph, reading) == dump(graph)
    assert heard == [(what, id(array)) for array in (one, two) for what in ("begin", "end")]
