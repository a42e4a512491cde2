"""Extents by names of axes: those of --input_shape, and those that exporters write."""

from __future__ import annotations

import re

import onnx_ir
import pytest
from onnx import TensorProto, helper

from atc.dims import RANGES, Range, Sum, evaluate, plain, read_sum
from atc.errors import AtcError, ModelError
from atc.importers.onnx import pin_inputs
from atc.ir.graph import Graph
from atc.lower import lower_model
from atc.options.shapes import shapes


def model(**inputs: list[str | int]) -> onnx_ir.Model:
    """Return a model that gives each input back."""
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Neg", [name], [f"{name}_out"]) for name in inputs], "g",
        [helper.make_tensor_value_info(name, floats, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(f"{name}_out", floats, None) for name in inputs],
    )  # fmt: skip
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


def lowered(given: str, **inputs: list[str | int]) -> Graph:
    return lower_model(pin_inputs(model(**inputs), shapes(given), "net.onnx"), "net.onnx")


def extents(graph: Graph) -> dict[str, list[str]]:
    """Return the inputs' shapes, open extents as C has them."""
    return {name: [plain(n) for n in graph.types[name].shape] for name in graph.inputs}


P, S = "past_sequence_length", "sequence_length"
DECODER: dict[str, list[str | int]] = {
    "mask": ["batch", f"{P} + {S}"], "ids": ["batch", S], "past": ["batch", 4, P, 8],
    "places": ["batch", S],
}  # fmt: skip


def test_what_a_model_calls_by_names_follows_from_them() -> None:
    graph = lowered("ids:1,1~16;past:1,4,0~64,8", **DECODER)
    assert extents(graph) == {
        "mask": ["1", "d[0] + d[1]"], "ids": ["1", "d[0]"], "past": ["1", "4", "d[1]", "8"],
        "places": ["1", "d[0]"],
    }  # fmt: skip
    assert [(s.low, s.high) for s in graph.dims] == [(1, 16), (0, 64)]


def test_a_range_that_follows_may_be_given() -> None:
    given = "ids:1,1~16;past:1,4,0~64,8;mask:1,1~80"
    assert extents(lowered(given, **DECODER))["mask"] == ["1", "d[0] + d[1]"]


def test_fixed_extents_count_as_names_too() -> None:
    assert extents(lowered("ids:2,1;past:2,4,0~64,8", **DECODER))["mask"] == ["2", "d[0] + 1"]
    assert extents(lowered("ids:2,5;past:2,4,0,8", **DECODER)) == {
        "mask": ["2", "5"], "ids": ["2", "5"], "past": ["2", "4", "0", "8"], "places": ["2", "5"],
    }  # fmt: skip
    assert extents(lowered("past:2,4,0~64,8;ids:2,1", mask=["b", f"{P} + 1"], past=["b", 4, P, 8],
                           ids=["b", "one"]))["mask"] == ["2", "d[0] + 1"]  # fmt: skip


def test_names_of_the_option() -> None:
    own: dict[str, list[str | int]] = {"mask": ["b", "t"], "ids": ["b", "s"], "past": ["b", "p"]}
    graph = lowered("ids:1,n=1~4;past:1,m=0~9;mask:1,n+m", **own)
    assert extents(graph) == {"mask": ["1", "d[0] + d[1]"], "ids": ["1", "d[0]"],
                              "past": ["1", "d[1]"]}  # fmt: skip
    assert extents(lowered("ids:1,1~4;past:1,0~9;mask:1,s+p", **own)) == extents(graph)
    assert extents(lowered("ids:1,s=1~4;past:1,s;mask:1,2*s-1", **own)) == {
        "mask": ["1", "2 * d[0] - 1"], "ids": ["1", "d[0]"], "past": ["1", "d[0]"]
    }  # fmt: skip
    assert extents(lowered("ids:1,s=3;past:1,p=0;mask:1,s+p", **own))["mask"] == ["1", "3"]


def test_axes_that_the_model_calls_alike_follow_a_name_of_the_option() -> None:
    graph = lowered("ids:1,n=1~4;past:1,4,m=0~9,8;mask:1,n+m", **DECODER)
    assert extents(graph)["places"] == ["1", "d[0]"]
    graph = lowered("places:1,1~4;ids:1,n=1~4;past:1,4,m=0~9,8;mask:1,n+m", **DECODER)
    assert extents(graph)["places"] == extents(graph)["ids"]
    graph = lowered("places:1,1~5;ids:1,n=1~4;past:1,4,m=0~9,8;mask:1,n+m", **DECODER)
    assert extents(graph)["places"] != extents(graph)["ids"]


def test_a_total_is_what_there_was_and_what_is_new() -> None:
    own: dict[str, list[str | int]] = {
        "ids": ["b", "words"], "mask": ["b", "total_words"], "past": ["b", 4, "past_words", 8],
    }  # fmt: skip
    graph = lowered("ids:1,1~4;past:1,4,0~9,8", **own)
    assert extents(graph)["mask"] == ["1", "d[0] + d[1]"]
    assert extents(lowered("ids:1,n=1~4;past:1,4,m=0~9,8", **own)) == extents(graph)
    assert extents(lowered("ids:1,1~4;past:1,4,0~9,8;mask:1,7", **own))["mask"] == ["1", "7"]
    assert extents(lowered("ids:1,1~4;past:1,4,0,8", **own))["mask"] == ["1", "d[0]"]
    with pytest.raises(AtcError, match="dynamic dimension 'total_words'"):
        lowered("ids:1,1~4;past:1,4,9,8", **own)


@pytest.mark.parametrize("total", ["total_words", "past_words + words"])
def test_what_is_proposed_is_enough(total: str) -> None:
    own: dict[str, list[str | int]] = {
        "ids": ["b", "words"], "mask": ["b", total], "places": ["b", "words"],
        "past": ["b", 4, "past_words", 8],
    }  # fmt: skip
    with pytest.raises(AtcError) as caught:
        lowered("", **own)
    proposed = re.findall('"([^"]+)"', caught.value.hint)
    assert proposed == ["ids:1,1;past:1,4,0,8", "ids:1~8,1~8;past:1~8,4,0~8,8"]
    for given in proposed:
        assert len(extents(lowered(given, **own))) == 4


IMAGES: dict[str, list[str | int]] = {"x": [1, 3, "32*h", "8*w + 1"], "small": [1, "16*h", "w"]}


@pytest.mark.parametrize(
    "given", ["x:1,3,64~320,17~33", "x:1,3,40~330,10~40", "x:1,3,32*h=64~320,8*w+1=17~40"]
)
def test_a_multiple_gives_the_extent_of_its_name(given: str) -> None:
    """As PyTorch writes sizes that must be multiples; another input follows from it."""
    graph = lowered(given, **IMAGES)
    assert extents(graph) == {
        "x": ["1", "3", "32 * d[0]", "8 * d[1] + 1"], "small": ["1", "16 * d[0]", "d[1]"]
    }  # fmt: skip
    assert [(s.low, s.high) for s in graph.dims] == [(2, 10), (2, 4)]


def test_names_of_multiples_in_the_option() -> None:
    graph = lowered("x:1,32*h=64~320;y:h,16*h+w;z:w=1~4", x=["a", "b"], y=[0, 0], z=["c"])
    assert extents(graph)["x"] == ["1", "32 * d[0]"]
    assert extents(graph)["y"] == ["d[0]", "16 * d[0] + d[1]"]


def test_multiples_that_contradict_each_other_say_nothing_of_the_name() -> None:
    graph = lowered("x:32~64;y:160~320", x=["32*h"], y=["16*h"])
    assert [(s.low, s.high) for s in graph.dims] == [(32, 64), (160, 320)]


def test_a_single_size_need_not_be_a_multiple() -> None:
    assert extents(lowered("x:1,3,100,10;small:1,50,2", **IMAGES))["x"] == ["1", "3", "100", "10"]


def test_names_that_are_no_sums_are_names() -> None:
    graph = lowered("a:1~4", a=["n / 2"], b=["n / 2"])
    assert extents(graph) == {"a": ["d[0]"], "b": ["d[0]"]}


def test_an_input_is_named_by_what_does_not_follow() -> None:
    ways = r'pin it: --input_shape="mask:2,1", or give a range: "mask:2,1~8"'
    with pytest.raises(AtcError, match=r"dynamic dimension 't' in \[2, t\].*" + ways):
        lowered("ids:2,1~4", ids=["b", "s"], mask=["b", "t"])


@pytest.mark.parametrize(
    ("x", "fixed", "ranges"),
    [
        (["b", 3, "h", "w"], "1,3,224,224", "1~8,3,64~224,64~224"),
        ([1, "h", "w", 3], "1,224,224,3", "1,64~224,64~224,3"),
        ([1, 1, 64, "w"], "1,1,64,224", "1,1,64,64~224"),
        ([1, 3, "32*h", "w"], "1,3,32,224", "1,3,32~256,64~224"),
        (["b", 3, "past", 8], "1,3,0,8", "1~8,3,0~8,8"),
        (["b", 80, "t"], "1,80,1", "1~8,80,1~8"),
    ],
)
def test_images_are_proposed_at_sizes_that_they_have(
    x: list[str | int], fixed: str, ranges: str
) -> None:
    """Networks halve images several times: one of a pixel fits none."""
    with pytest.raises(AtcError) as caught:
        lowered("", x=x)
    assert f'pin it: --input_shape="x:{fixed}"' in str(caught.value)
    assert f'or give a range: "x:{ranges}"' in str(caught.value)
    lowered(f"x:{ranges}", x=x)


def test_an_axis_without_a_name_is_shown_as_open() -> None:
    net = model(x=["n", 2])
    net.graph.inputs[0].shape = onnx_ir.Shape([None, 2])
    with pytest.raises(AtcError, match=r"dynamic dimension '\?' in \[\?, 2\]"):
        lower_model(pin_inputs(net, {}, "net.onnx"), "net.onnx")


def test_a_name_of_two_ranges_says_nothing() -> None:
    own: dict[str, list[str | int]] = {"a": ["n"], "b": ["n"], "c": ["n + 1"]}
    graph = lowered("a:1~4;b:1~8;c:1~9", **own)
    assert extents(graph) == {"a": ["d[0]"], "b": ["d[1]"], "c": ["d[2]"]}
    with pytest.raises(AtcError, match=r"input 'c' has the dynamic dimension 'n \+ 1'"):
        lowered("a:1~4;b:1~8", **own)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("ids:1,1~4;mask:1,s+p", "E10002", "axis 1 of input 'mask' is s+p, but nothing says what"),
        ("ids:1,s=1~4;places:1,s=1~5", "E10002", "says of 's' that it is 1~4 and 1~5"),
        ("ids:1,1~4;past:1,4,0~9,8;mask:1,1~12", "E10050", "which is 1~13; --input_shape gives"),
        ("ids:1,s=1~4;past:1,4,0~9,8;mask:1,s-2", "E10011", "is s-2, which may be -1"),
        ("ids:1,s=1~4;past:1,s+1,0~9,8", "E10050", "axis 1 of input 'past' is 4 in the model"),
        ("ids:1,s=-1", "E10002", "leaves axis 1 of input 'ids' open"),
        ("ids:1,s+1", "E10002", "nothing says what 's' is"),
    ],
)  # fmt: skip
def test_what_does_not_follow_is_reported(given: str, code: str, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        lowered(given, **DECODER)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_an_option_nothing_follows() -> None:
    pinned = pin_inputs(model(a=["n"], b=["n + 1"]), {}, "net.onnx")
    assert all(RANGES not in v.meta for v in pinned.graph.inputs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s", Sum((("s", 1),))),
        ("past_sequence_length + 1", Sum((("past_sequence_length", 1),), 1)),
        ("2*s0 + s1*3 - 4", Sum((("s0", 2), ("s1", 3)), -4)),
        ("s - s + 2", Sum((), 2)),
        ("a.b+c", Sum((("a.b", 1), ("c", 1)))),
        ("", None), ("s+", None), ("+s", None), ("s//2", None), ("n / 2", None),
        ("Max(1, s)", None), ("s p", None), ("2s", None),
    ],
)  # fmt: skip
def test_texts_of_sums(text: str, expected: Sum | None) -> None:
    assert read_sum(text) == expected
    if expected is not None:
        assert read_sum(str(expected)) == expected


def test_the_extents_of_a_sum_are_those_of_its_names() -> None:
    graph = lowered("ids:1,1~16;past:1,4,0~64,8", **DECODER)
    s, p = graph.dims
    assert evaluate(graph.types["mask"].shape[1], {s: 3, p: 7}) == 10
    assert Range(1, 80) == Range(*graph.types["mask"].shape[1].bounds)  # type: ignore[attr-defined]
