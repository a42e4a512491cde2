"""Every error code that ATC's users know, as the command line gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from importers.mxnet_files import node, symbol, variable
from networks import conv_net, save
from onnx import helper

from atc.cli.main import main
from atc.options.unsupported import LATER

TENSOR = {"format": "ND", "shape": [2], "type": "float32"}

DYNAMIC = {9, 12, 18, 19, 20, 31, 35, 36, 37, 39, 40, 45, 46}
"""Codes of --dynamic_batch_size and its like: refused as a whole until they work, then tested
where they are."""

CODES = {
    *range(1, 15), *range(16, 33), 34, 35, 36, 37, 39, 40, 41, 45, 46, 47, 49, 50, 52,
    *range(54, 58),
} - {15}  # fmt: skip


def single_op(**changes: object) -> str:
    op = {"op": "Relu", "input_desc": [TENSOR], "output_desc": [TENSOR], **changes}
    return json.dumps([op])


MXNET = symbol(
    [variable("x"), variable("w"), node("elemwise_add", "sum", [(0, 0), (1, 0)])], [(2, 0)]
)

FILES = {
    "fp16.json": "{",
    "aipp.cfg": "aipp_op { aipp_mode: static input_format: RGB888_U8 }",
    "bad.cfg": "aipp_op {\n  crop: maybe\n}",
    "n-symbol.json": json.dumps(MXNET),
    "text.json": "[{",
    "nameless.json": single_op(op=""),
    "type.json": single_op(input_desc=[{**TENSOR, "type": "float7"}]),
    "shape.json": single_op(input_desc=[{**TENSOR, "shape": [0]}]),
    "attribute.json": single_op(attr=[{"name": "", "type": "int", "value": 1}]),
    "value.json": single_op(attr=[{"name": "axis", "type": "int", "value": "one"}]),
}

NET = ("--model=net.onnx", "--output=out", "--target=c99")
SINGLE = ("--output=out", "--target=c99")

CASES: dict[int, tuple[str, ...]] = {
    1: (*NET, "--op_compiler_cache_mode=on"),
    2: (*NET, "--input_shape=x"),
    3: (*NET, "--jobs=many"),
    4: (*NET, "--model="),
    5: (*NET, "--enable_single_stream=maybe"),
    6: (*NET, "--disable_reuse_memory=2"),
    7: ("--output=out",),
    8: ("--model=n-symbol.json", "--output=out", "--input_shape=x:2"),
    10: (*NET, "--log=loud"),
    11: (*NET, "--input_shape=x:-5,3,8,8"),
    13: (*NET, "--op_debug_level=5"),
    14: (*NET, "--output_type=FP7"),
    16: (*NET, "--out_nodes=conv9:0"),
    17: (*NET, "--input_shape=conv1:1"),
    21: (*NET, f"--output={'a' * 300}"),
    22: ("--model=net.onnx", "--output=.."),
    23: (*SINGLE, "--singleop=none.json"),
    24: (*SINGLE, "--singleop=closed.json"),
    25: (*SINGLE, "--singleop=text.json"),
    26: (*SINGLE, "--singleop=nameless.json"),
    27: (*SINGLE, "--singleop=type.json"),
    28: (*SINGLE, "--singleop=shape.json"),
    29: (*SINGLE, "--singleop=attribute.json"),
    30: (*SINGLE, "--singleop=value.json"),
    32: (*NET, "--precision_mode=allow_mix_precision", "--modify_mixlist=fp16.json"),
    34: (*NET, "--insert_op_conf=aipp.cfg", "--input_fp16_nodes=x"),
    41: ("--model=aipp.cfg", "--output=out"),
    47: (*NET, "--singleop=value.json"),
    49: (*NET, "--input_shape=x:1,3,8"),
    50: (*NET, "--input_shape=x:1,4,8,8"),
    52: (*NET, "--insert_op_conf=bad.cfg"),
    54: ("--mode=1", "--model=net.onnx", "--json="),
    55: ("--model=unknown.onnx", *SINGLE),
    56: (*NET, "--soc_version=x86-64", "--target=aarch64"),
    57: ("--mode=6", "--om=out", "--model=net.onnx"),
}


def test_every_code_is_tested() -> None:
    assert set(CASES) | DYNAMIC == CODES
    assert not set(CASES) & DYNAMIC
    if "dynamic_dims" not in LATER:
        files = Path(__file__).parents[2].rglob("test_*.py")
        text = "".join(f.read_text("utf-8") for f in files if f != Path(__file__))
        assert not [n for n in DYNAMIC if f"E100{n:02}" not in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codes")
    conv_net(path / "net.onnx")
    node_ = helper.make_node("Frobnicate", ["x"], ["y"], "odd")
    save([node_], {"x": [2]}, {"y": [2]}, path / "unknown.onnx")
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path / "closed.json").write_text(single_op())
    return path


def refusing(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one file be closed to this process, which may be allowed to read every file."""
    whole = Path.open

    def opened(path: Path, *given: object, **more: object) -> object:
        if path.name == "closed.json":
            raise PermissionError(13, "Permission denied")
        return whole(path, *given, **more)  # type: ignore[call-overload]

    if any("closed" in a for a in arguments):
        monkeypatch.setattr(Path, "open", opened)


@pytest.mark.parametrize("number", CASES, ids=lambda n: f"E100{n:02}")
def test_the_command_line_gives_the_code(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    refusing(CASES[number], monkeypatch)
    before = sorted(folder.iterdir())
    assert main(list(CASES[number])) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"E100{number:02}: ")
    assert err.count("\n") == 1
    assert re.search(r"\[.+\]", err)
    assert out.splitlines()[-1].startswith("ATC run failed")
    assert sorted(folder.iterdir()) == before
