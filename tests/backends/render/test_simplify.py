"""What shapes make superfluous in generated C: it goes, the results stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from dynamic_models import CASES
from networks import conv_net
from projects import affine_model, emit_graph, emit_model
from stages import project_of
from tiny_networks import NETWORKS

from atc.backends import kernel_source
from atc.backends.render.simplify import without_neutral_operands
from atc.codegen import emit
from atc.codegen.emit import Emission
from atc.importers.onnx import pin_inputs
from atc.lower import lower_model
from atc.lower.value_bounds import declare_ranges
from atc.options.options import Options
from atc.options.shapes import shapes, value_ranges
from support import Runner, compile_models

SAMPLES = Path(__file__).parents[3] / "samples"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a = x0 + 0;", "a = x0;"),
        ("x1 + (k * 1) * 256", "x1 + k * 256"),
        ("first[kh * 3 + 0 + 1] - first[0 + w]", "first[kh * 3 + 1] - first[w]"),
        ("y = m / 1 * 1;", "y = m;"),
        ("x0 + (at / 1) * 4 + at % 1", "x0 + at * 4"),
        ("n = at / 1, first = at % 1 * 32;", "n = at, first = 0;"),
        ("(float)(k + 0)", "(float)k"),
        ("if (k * 1) f(k - 0, 1 * n);", "if (k) f(k, n);"),
        ("at = k < 0 ? -1 : k * 1;", "at = k < 0 ? -1 : k;"),
        ("  w += 0;\n  x += 8;\n", "  x += 8;\n"),
    ],
)
def test_neutral_operands_go(text: str, plain: str) -> None:
    assert without_neutral_operands(text) == plain


@pytest.mark.parametrize(
    "text",
    [
        "a + 0 * b", "a % 1 * b", "a * b % 1", "(ptrdiff_t)1 * x", "x - 0.5f + 0.0f", "a * 1.0f",
        "a / 1e3", "a + 0x10", "a * 1u << 3", "-1 * b", "a = 0; b = 1;", "return 0;", "a / b * 10",
        "/* a + 0 */", "// a * 1\n", 'puts("a + 0");', "#define A (b + 0)\n", "c == '+' - 01",
        "for (k = 0; k < 1 + n; k++)", "x[10 * 1.5]", "a *= 1;",
    ],
)  # fmt: skip
def test_others_stay(text: str) -> None:
    assert without_neutral_operands(text) == text


LOOP = re.compile(r"for \(\w+ (\w+) = (\d+)u?; \1 < (\d+)u?; (?:\1\+\+|\+\+\1|\1 \+= (\d+)u?)[,)]")
NEUTRAL = re.compile(
    r"[\w)\]] [-+]=? 0(?![\w.])(?! [*/])|[\w)\]] [*/%] 1(?![\w.])|"
    r"(?:[(\[]|= )(?:0 [+]|1 [*]) (?=[\w(])"
)
COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^ *#[^\n]*', re.DOTALL | re.MULTILINE)


def superfluous(text: str) -> Iterator[str]:
    """Yield the loops of one iteration, the terms that are 0 and the factors that are 1."""
    text = COMMENT.sub("", text)
    for found in LOOP.finditer(text):
        first, end, step = (int(found[k] or 1) for k in (2, 3, 4))
        if first < end <= first + step:
            yield found[0]
    for found in NEUTRAL.finditer(text):
        yield text[text.rfind("\n", 0, found.start()) + 1 : text.find("\n", found.end())]


def check(files: Mapping[str, bytes]) -> None:
    found = {path: [*superfluous(data.decode())] for path, data in files.items()
             if path.startswith("src/") and path.endswith((".c", ".cu"))}  # fmt: skip
    assert found
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "target", ["c99", "x86-64-avx2", "x86-64-avx512", "x86-64-amx", "aarch64-neon", "cuda-emulated"]
)
@pytest.mark.parametrize("model", ["digits", "keywords", "conv_net", "affine"])
def test_nothing_superfluous_is_left_and_statements_are_indented(
    model: str, target: str, tmp_path: Path
) -> None:
    emission = emit_model(_model(model, tmp_path), target=target)
    unindented = re.compile(r"^\{\n(?:(?: .*|#.*)?\n)*[^ #}\n].*", re.M)
    assert not [f for f, data in emission.files.items()
                if f.startswith("src/kernels/") and unindented.search(data.decode())]  # fmt: skip
    check(emission.files)


def _tiny(quantized: bool, target: str, folder: Path) -> Iterator[Emission]:
    """Yield the projects of small networks, with all passes."""
    for made in NETWORKS.values():
        onnx.save(made(quantized), folder / "model.onnx")
        options = Options(folder / "model.onnx", folder / "net", target=target)
        yield project_of(options).emission


def _dynamic(target: str, folder: Path) -> Iterator[Emission]:
    """Yield the projects of networks over ranges."""
    for made in CASES.values():
        case = made()
        model = pin_inputs(onnx_ir.from_proto(case.model), shapes(case.shapes), "model.onnx")
        declare_ranges(model, value_ranges(case.values))
        yield emit_graph(lower_model(model, "model.onnx"), target=target)


REGISTRIES: dict[str, Callable[[str, Path], Iterator[Emission]]] = {
    "float": partial(_tiny, False), "bytes": partial(_tiny, True), "dynamic": _dynamic
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    ["c99", "x86-64-avx512", "x86-64-amx", "aarch64-neon", "riscv64-rvv", "cortex-m0plus",
     "cortex-m4f", "cuda-emulated"],
)  # fmt: skip
@pytest.mark.parametrize("registry", REGISTRIES)
def test_nothing_superfluous_is_left_in_networks(
    registry: str, target: str, tmp_path: Path
) -> None:
    projects = [*REGISTRIES[registry](target, tmp_path)]
    assert len(projects) > 5
    for project in projects:
        check(project.files)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["digits", "keywords", "conv_net", "affine"])
def test_results_are_the_same_bits(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = _model(model, tmp_path)
    (without,) = compile_models([proto])
    for module in (kernel_source, emit):
        monkeypatch.setattr(module, "simplified", lambda text: text)
    (kept,) = compile_models([proto])
    assert isinstance(without, Runner)
    assert isinstance(kept, Runner)
    random = np.random.default_rng(3)
    feeds = [random.standard_normal(t.shape).astype(t.dtype.numpy) for t in kept.inputs]
    for a, b in zip(without(feeds), kept(feeds), strict=True):
        assert a.tobytes() == b.tobytes()


def _model(name: str, folder: Path) -> onnx.ModelProto:
    if name == "affine":
        return affine_model()
    if name == "conv_net":
        return onnx.load(conv_net(folder / "net.onnx"))
    return onnx.load(SAMPLES / f"{name}.onnx")
