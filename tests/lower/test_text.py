"""Strings through generated C, against Python's own and the standard's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from default_run import level
from joined_sources import compile_joined
from onnx import TensorProto, helper
from projects import compile_c, emit_model, sources, write_project

import atc
import atc.onnx_backend as backend
from atc.accuracy.compare import Subject, verify_library
from atc.errors import AtcError
from atc.ir.graph import STRING_BYTES

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
TYPES = {"O": TensorProto.STRING, "f": TensorProto.FLOAT, "i": TensorProto.INT64,
         "b": TensorProto.BOOL}  # fmt: skip


def text(*values: str) -> Any:
    return np.array(values, object)


def written(number: float) -> str:
    """Return a number as onnxruntime writes it."""
    number = float(number)
    if number != number:
        return "NaN"
    return f"{number:.8g}".upper() if abs(number) == float("inf") else f"{number:.8g}"


RANDOM = np.random.default_rng(0)
REALS = np.concatenate([
    [0.1, 1e10, -0.0, np.nan, np.inf, -np.inf, 1e-5, 16777217, 0.0001, 1e-45, 3.4028235e38, 100,
     2.44140625e-4, 99999999, 9.9999999e9, 0.99999999, 12345678, 5],
    RANDOM.standard_normal(300), 10.0 ** RANDOM.uniform(-44, 38, 300),
]).astype(np.float32)  # fmt: skip
WHOLE = np.array([0, 7, -5, 2**63 - 1, -(2**63), 10**18])
DECIMALS = [
    *(f"{v:.17g}" for v in RANDOM.standard_normal(200) * 10.0 ** RANDOM.uniform(-40, 38, 200)),
    " 2", "2\t", "+4", ".5", "5.", "1e400", "-1E-400", "iNf", "-infinity", "NAN", "0" * 100 + "1",
    "1" + "0" * 200 + "e-200", "123456789012345678901234567890", "16777217.0000000000000000001",
]  # fmt: skip


with np.errstate(over="ignore"):
    NEAREST = np.asarray([float(t) for t in DECIMALS]).astype(np.float32)
NEAREST[-1] = 16777218  # not the float that is nearest to the nearest double


@dataclass(frozen=True)
class Case:
    """One node: operator, inputs, what must come out; constants aren't inputs of the network."""

    op: str
    inputs: tuple[Any, ...]
    expected: Any
    domain: str = ""
    constants: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        values = {f"x{k}": v for k, v in enumerate((*self.inputs, *self.constants))}
        node = helper.make_node(self.op, [*values], ["y"], domain=self.domain, **self.attributes)
        given = [*values][: len(self.inputs)]
        expected = np.asarray(self.expected)
        graph = helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(n, TYPES[values[n].dtype.kind], values[n].shape)
             for n in given],
            [helper.make_tensor_value_info("y", TYPES[expected.dtype.kind], expected.shape)],
            [tensor(n, v) for n, v in values.items() if n not in given],
        )  # fmt: skip
        opsets = [helper.make_opsetid(d, v) for d, v in (("", 20), (ML, 4), (MICROSOFT, 1))]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def tensor(name: str, value: Any) -> onnx.TensorProto:
    if value.dtype.kind != "O":
        return onnx.numpy_helper.from_array(value, name)
    data = [v.encode("utf-8", "surrogateescape") for v in value.flat]
    return helper.make_tensor(name, TensorProto.STRING, value.shape, data)


NASTY = ['"; */ ??/', "a\\\n'%s", "日本語\u200f", "\udcff\udcc3(", "x" * (STRING_BYTES - 1), ""]
X = text(*NASTY)
GRID = text("a", "b", "c", "d", "e", "f").reshape(2, 3)
LOWER = text("straße", "àé日本 abc", "i̇", "\udcffx")

WORDS = text("b", "a", "", "Ab", "é", "abc", "ab", "B", "日本", "a")
SENTENCES = text("a b", "  c\u3000d\te ", "", "x", "é\u00a0f\u2028g", "a--b--c--", "-", " \x1f ")


def pieces(delimiter: str | None, most: int = -1) -> Any:
    """Return what Python splits the sentences into."""
    rows = [sentence.split(delimiter, most) for sentence in SENTENCES]
    width = max(map(len, rows))
    return text(*(part for row in rows for part in [*row, *[""] * (width - len(row))])).reshape(
        len(rows), width
    )


def split(delimiter: str, most: int = -1) -> Case:
    given = {"delimiter": delimiter, "maxsplit": most} if most >= 0 else {"delimiter": delimiter}
    return Case("StringSplit", (SENTENCES,), pieces(delimiter or None, most), attributes=given)


def without(expected: tuple[str, ...], words: Any = WORDS, **attributes: Any) -> Case:
    shape = (*words.shape[:-1], len(expected))
    return Case("StringNormalizer", (words,), text(*expected).reshape(shape), attributes=attributes)


def tokens(pattern: str, *rows: str, **attributes: Any) -> Case:
    """Return the tokens of the words, each row's joined by spaces; # fills them."""
    given = {"mark": 0, "mincharnum": 1, "pad_value": "#", "tokenexp": pattern, **attributes}
    expected = text(*" ".join(rows).split(" ")).reshape(len(rows), -1)
    sentences = text("abab c", "", "é1 x_2")
    return Case("Tokenizer", (sentences,), expected, MICROSOFT, attributes=given)


COUNTED = {
    **{f"split {d!r} {m}": split(d, m) for d in ("", "--", "-") for m in (-1, 0, 1, 2)},
    "stopwords": without(("", "ÉX"), text("b", "", "Éx", "B"), stopwords=["b"],
                         case_change_action="UPPER"),
    "stopwords as they are": without(("", "Ab", "é", "abc", "ab", "B", "日本"), is_case_sensitive=1,
                                     stopwords=["a", "b"]),
    "nothing is left": without(("",), text("B", "b").reshape(1, 2), stopwords=["b"]),
    "Turkish": without(("ıi",), text("Iİ", "ix"), stopwords=["İX"], locale="tr_TR",
                       case_change_action="LOWER"),
    "Unique": Case("Unique", (WORDS,), text(*sorted(set(WORDS)))),
    "Unique columns": Case(
        "Unique", (WORDS[:6].reshape(2, 3),), text("", "a", "b", "abc", "é", "Ab").reshape(2, 3),
        attributes={"axis": 1}),
    "NonZero": Case("NonZero", (text("a", "", "b"),), np.array([[0, 2]])),
    "Compress": Case("Compress", (WORDS, WORDS == "a"), text("a", "a")),
    "tokens": tokens("[a-z0-9_]+", "abab c", "# #", "1 x_2"),
    "the longest": tokens("a|ab|aba", "aba", "#", "#"),
    "marked": tokens(r"\w+", "\x02 abab \x03", "\x02 \x03 #", "\x02 x_2 \x03",
                                   mincharnum=3, mark=1),
}  # fmt: skip

CASES = {
    **COUNTED,
    "Identity": Case("Identity", (X,), X),
    "constants": Case("Concat", (text("a"),), text("a", *NASTY), "", (X,), {"axis": 0}),
    "Transpose": Case("Transpose", (GRID,), GRID.T),
    "Reshape": Case("Reshape", (GRID,), GRID.reshape(3, 2), "", (np.array([3, 2]),)),
    "Slice": Case("Slice", (GRID,), GRID[:, ::-1], "",
                  tuple(np.array([v]) for v in (-1, -9, 1, -1))),
    "Expand": Case("Expand", (GRID[:, :1],), np.broadcast_to(GRID[:, :1], (2, 4)), "",
                   (np.array([2, 4]),)),
    "Tile": Case("Tile", (GRID,), np.tile(GRID, (2, 1)), "", (np.array([2, 1]),)),
    "Gather": Case("Gather", (X, np.array([2, -1, 0])), X[[2, -1, 0]]),
    "GatherND": Case("GatherND", (GRID, np.array([[1, 2], [0, 1]])), text("f", "b")),
    "ScatterElements": Case("ScatterElements", (text("a", "b", "c"), np.array([2]), text("zz")),
                            text("a", "b", "zz")),
    "Pad": Case("Pad", (GRID,), text("", "a", "b", "c", "", "d", "e", "f").reshape(2, 4), "",
                (np.array([0, 1, 0, 0]),)),
    "Pad with a string": Case("Pad", (text("a"),), text("é", "a", "é"), "",
                              (np.array([1, 1]), np.array("é", object))),
    "Where": Case("Where", (np.array([[True], [False]]), text("a", "b"), text("é")),
                  text("a", "b", "é", "é").reshape(2, 2)),
    "Equal": Case("Equal", (text("a", "é", "")[:, None], text("é", "a\u0301", "")),
                  np.array([[0, 0, 0], [1, 0, 0], [0, 0, 1]], bool)),
    "StringConcat": Case("StringConcat", (text("a", "é", "")[:, None], text("x" * 253, "")),
                         text("a" + "x" * 253, "a", "é" + "x" * 253, "é", "x" * 253, "")
                         .reshape(3, 2)),
    "RegexFullMatch": Case("RegexFullMatch", (text("a@b.com", "a@b", "é" * 9 + "@b.com", ""),),
                           np.array([True, False, True, False]), "", (),
                           {"pattern": r"[^@]+@b\.\bcom\b"}),
    "lower": Case("StringNormalizer", (text("Straße", "ÀÉ日本 ABC", "İ", "\udcffX"),), LOWER,
                  "", (), {"case_change_action": "LOWER"}),
    "upper": Case("StringNormalizer", (text("straße ﬃ", "ŉ\udcff\udcc3é").reshape(1, 2),),
                  text("STRASSE FFI", "ʼN\udcff\udcc3É").reshape(1, 2), "", (),
                  {"case_change_action": "UPPER"}),
    "neither": Case("StringNormalizer", (X,), X),
    "LabelEncoder to integers": Case(
        "LabelEncoder", (text("a", "q", "c"),), np.array([5, -1, 7]), ML, (),
        {"keys_strings": ["a", "b", "c"], "values_int64s": [5, 6, 7]}),
    "LabelEncoder to strings": Case(
        "LabelEncoder", (np.array([1, 2, 3]),), text("y\n", "_Unused", '"x*/'), ML, (),
        {"keys_int64s": [3, 1], "values_strings": ['"x*/', "y\n"]}),
    "LabelEncoder of strings": Case(
        "LabelEncoder", (text("a", "??/"),), text("é", "-"), ML, (),
        {"keys_strings": ["a"], "values_strings": ["é"], "default_string": "-"}),
    "CategoryMapper to integers": Case(
        "CategoryMapper", (text("b", ""),), np.array([6, -7]), ML, (),
        {"cats_strings": ["a", "b"], "cats_int64s": [5, 6], "default_int64": -7}),
    "CategoryMapper to strings": Case(
        "CategoryMapper", (np.array([6, 1]),), text("b", "?"), ML, (),
        {"cats_strings": ["a", "b"], "cats_int64s": [5, 6], "default_string": "?"}),
    "OneHotEncoder": Case(
        "OneHotEncoder", (text("b", "q"),), np.array([[0, 1], [0, 0]], np.float32), ML, (),
        {"cats_strings": ["a", "b"]}),
    "LinearClassifier": Case(
        "LinearClassifier", (np.array([[1, 0], [0, 1]], np.float32),), text("no", "yes"), ML, (),
        {"classlabels_strings": ["no", "yes"], "coefficients": [1.0, 0.0, 0.0, 1.0],
         "intercepts": [0.0, 0.0]}),
    "Cast of floats": Case("Cast", (REALS,), text(*map(written, REALS)), "", (), {"to": 8}),
    "Cast of integers": Case("Cast", (WHOLE,), text(*map(str, WHOLE)), "", (), {"to": 8}),
    "Cast of truths": Case("Cast", (np.array([True, False]),), text("1", "0"), "", (), {"to": 8}),
    "Cast to floats": Case("Cast", (text(*DECIMALS),), NEAREST, "", (), {"to": 1}),
    "Cast to integers": Case(
        "Cast", (text(*map(str, WHOLE), "1.9", " -2.5e1 ", "1e30", "+7"),),
        np.array([*WHOLE, 1, -25, -(2**63), 7]), "", (), {"to": 7}),
    "Cast to truths": Case("Cast", (text("1", "0", "-0.5", "0.0"),),
                           np.array([True, False, True, False]), "", (), {"to": 9}),
    "ArrayFeatureExtractor": Case("ArrayFeatureExtractor", (GRID, np.array([2, 0])),
                                  GRID[:, [2, 0]], ML),
}  # fmt: skip


def lowered(name: str) -> tuple[backend.AtcBackendRep, dict[str, Any], Any]:
    case = CASES[name]
    rep = backend.AtcBackendRep(case.model(), "c99", level().lstrip("-"))
    arrays = rep.arrays(list(case.inputs))
    return rep, arrays, rep.lower(arrays)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return the outputs of all cases, compiled into one library; no input is a constant there."""
    reps = {name: lowered(name) for name in CASES}
    networks = backend.compile_networks(
        [graph for *_, graph in reps.values()], reps["Identity"][0].target, level().lstrip("-"),
        compile_all=compile_joined,
    )
    found = {}
    for (name, (rep, arrays, _)), network in zip(reps.items(), networks, strict=True):
        assert [v.name for v in network.parameters] == list(arrays)
        rep.remember(arrays, network)
        found[name] = rep.run(arrays)[0]
    return found


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, results: dict[str, Any]) -> None:
    expected, got = CASES[name].expected, results[name]
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_folded_strings_are_the_same() -> None:
    for name in ("lower", "StringConcat", "Equal", "Gather"):
        case = CASES[name]
        every = Case(case.op, (), case.expected, "", case.inputs, case.attributes)
        (got,) = backend.AtcBackendRep(every.model(), "c99", "O0").run([])
        np.testing.assert_array_equal(got, case.expected)


UNFIT = {
    "StringConcat": [(text("a" * 200), text("b" * 56)), (text("é" * 127), text("éé"))],
    "StringNormalizer": [(text("ŉ" * 120),), (text("ß" * 100 + "ŉ" * 27),)],
    "Cast": [(text(bad),) for bad in ("abc", "", "1e", "0x10", "--1", "1 2", ".", "nano", "é")],
}


def test_what_does_not_fit_is_a_status() -> None:
    attributes = {"StringNormalizer": {"case_change_action": "UPPER"}, "Cast": {"to": 1}}
    for op, many in UNFIT.items():
        made = np.float32([0]) if op == "Cast" else text("")
        model = Case(op, many[0], made, attributes=attributes.get(op, {})).model()
        rep = backend.AtcBackendRep(model, "c99", "O0")
        for inputs in many:
            reasons = ("a text is not a number", "a string is too long for its cell")
            reason = reasons[op != "Cast"]
            with pytest.raises(RuntimeError, match=reason):
                rep.run(list(inputs))


REFUSED = {
    "longer than 255 bytes|a string of 256 bytes": Case("Identity", (text("x" * 256),), X),
    "holds a NUL": Case("Identity", (text("a\0b"),), X),
    "input 0 is string": Case("Add", (text("a"), text("b")), X),
    "'\\)' is missing": Case("RegexFullMatch", (text("a"),), X, attributes={"pattern": "("}),
    "keys of int64|keys": Case(
        "LabelEncoder", (text("a"),), np.array([1]), ML, (),
        {"keys_int64s": [1], "values_int64s": [1]}),
    "2 keys, 1 values": Case(
        "LabelEncoder", (text("a"),), np.array([1]), ML, (),
        {"keys_strings": ["1", "2"], "values_int64s": [1]}),
    "case_change_action is 'x'": Case(
        "StringNormalizer", (text("a"),), X, attributes={"case_change_action": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_can_not_be_is_refused(message: str) -> None:
    case = REFUSED[message]
    with pytest.raises((AtcError, ValueError), match=message) as caught:
        backend.AtcBackendRep(case.model(), "c99", "O0").run(list(case.inputs))
    assert "\n" not in str(caught.value)


def test_the_project_of_strings(tmp_path: Path) -> None:
    """Its C is clean, its example prints text, and its module takes arrays of str and of bytes."""
    model = CASES["StringConcat"].model()
    project = write_project(tmp_path / "p", emit_model(model))
    compile_c(project, "-c", *sources(project), "example/main.c")
    onnx.save(model, tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99")
    net = atc.load(tmp_path / "net")
    assert str(net.inputs[0]) == "x0: string [3, 1]"
    one, two = np.array([["a"], ["b"], ["é"]]), np.array([b"\xff", b""])
    expected = text("a\udcff", "a", "b\udcff", "b", "é\udcff", "é").reshape(3, 2)
    np.testing.assert_array_equal(net(one, two), expected)
    cells = [a.astype(f"S{STRING_BYTES}") for a in (np.char.encode(one, "utf-8"), two)]
    np.testing.assert_array_equal(net.bind(*cells)()[0], [b"a\xff", b"a"])
    assert verify_library(Subject(tmp_path / "m.onnx"), tmp_path / "net").passed
    for wrong in (np.array([["a"], ["b"], [3]], object), np.zeros((3, 1))):
        with pytest.raises(TypeError, match="input 'x0'"):
            net(wrong, two)
    with pytest.raises(ValueError, match="longer than 255 bytes"):
        net(one, np.array(["x" * 256, ""]))
    with pytest.raises(ValueError, match="holds a NUL"):
        net(one, np.array(["\0a", ""]))


def test_a_cell_that_nothing_ends_is_read_no_further() -> None:
    """C code may fill a cell to its last byte: then that is where the string ends."""
    case = CASES["Identity"]
    rep, _, graph = lowered("RegexFullMatch")
    (network,) = backend.compile_networks([graph], rep.target, level().lstrip("-"))
    full = np.array([b"x" * STRING_BYTES] * 4, f"S{STRING_BYTES}")
    assert not network.bind(full)().any()
    assert case.expected.shape == (len(NASTY),)
