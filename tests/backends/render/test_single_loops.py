"""Loops of one iteration in generated C: they go, what they do stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import conv_net
from projects import affine_model, emit_model

from atc.backends import kernel_source
from atc.backends.render.single_loops import without_single_loops
from atc.codegen import emit
from support import Runner, compile_models

SAMPLES = Path(__file__).parents[3] / "samples"


def function(body: str) -> str:
    return f"/* A comment about n and sum. */\nvoid f(const float *x, float *y)\n{{\n{body}}}\n"


@pytest.mark.parametrize(
    ("loop", "plain"),
    [
        ("  for (ptrdiff_t n = 0; n < 1; n++) {\n    y[n * 8 + 1] = x[1 + n * 4];\n  }\n",
         "  y[1] = x[1];\n"),
        ("  for (int k = 0; k < 1; k += 4) y[k] = x[k];\n", "  y[0] = x[0];\n"),
        ("  for (ptrdiff_t n = 0; n < 1; n++) {\n  for (ptrdiff_t h = 0; h < 9; h++) {\n"
         "    g(h);\n  for (ptrdiff_t q = 0; q < 7; q++) {\n    y[n * 63 + h * 7 + q] = 1;\n"
         "  }\n  }\n  }\n",
         "  for (ptrdiff_t h = 0; h < 9; h++) {\n    g(h);\n"
         "  for (ptrdiff_t q = 0; q < 7; q++) {\n    y[h * 7 + q] = 1;\n  }\n  }\n"),
        ("  for (size_t k = 0; k < 3; k += 3)\n    y[2] = x[2];\n", "  y[2] = x[2];\n"),
        ("  for (ptrdiff_t b = 0; b < 1; b++, x += 64) { /* blocks */\n    y[b + 3] = 1;\n  }\n",
         "  /* blocks */\n  y[3] = 1;\n  x += 64;\n"),
        ("  for (ptrdiff_t i = 6; i < 8; i += 2) {\n    g(i);\n  }\n",
         "  const ptrdiff_t i = 6;\n  g(i);\n"),
        ("  for (ptrdiff_t i = 0; i < 1; i++) {\n    float *to = y;\n    g(to, i);\n  }\n"
         "  g(i);\n",
         "  {\n    const ptrdiff_t i = 0;\n    float *to = y;\n    g(to, i);\n  }\n  g(i);\n"),
        ("  for (ptrdiff_t n = 0; n < 1; n++) {\n    float a = 0, sum = 1;\n    y[n] = sum;\n  }\n"
         "  float sum = 2;\n",
         "  {\n    float a = 0, sum = 1;\n    y[0] = sum;\n  }\n  float sum = 2;\n"),
        ("  if (x)\n    for (int i = 0; i < 1; i++) {\n      g(1);\n      g(2);\n    }\n",
         "  if (x)\n    {\n      g(1);\n      g(2);\n    }\n"),
        ("  for (int i = 0; i < 1; i++, w += 2) {\n    if (x) {\n      g(1);\n"
         "      continue;\n    }\n"
         "    if (y || z) continue;\n    g(w);\n  }\n",
         "  if (x) {\n    g(1);\n  } else {\n    if (!(y || z)) {\n      g(w);\n    }\n"
         "  }\n  w += 2;\n"),
        ("  for (ptrdiff_t i = 0; i < 1; i++) {\n\n"
         "    for (ptrdiff_t k = 0; k < 9; k++) {\n      if (x) {\n\n"
         "        continue;\n      }\n      g(k);\n    }\n  }\n",
         "\n  for (ptrdiff_t k = 0; k < 9; k++) {\n    if (x) {\n\n      continue;\n"
         "    }\n    g(k);\n  }\n"),
        ("  for (ptrdiff_t i = 0; i < 1; i++) {\n    for (ptrdiff_t j = 0; j < 1; j++) {\n"
         "      if (x) break;\n      y[i + j] = 1;\n    }\n  }\n",
         "  for (ptrdiff_t j = 0; j < 1; j++) {\n    if (x) break;\n    y[j] = 1;\n  }\n"),
        ("  for (ptrdiff_t i = 0; i < 1; i++) {\n    int j = 3;\n"
         "    y[i * 5000000000 + j] = 1;\n  }\n",
         "  const ptrdiff_t i = 0;\n  int j = 3;\n  y[i * 5000000000 + j] = 1;\n"),
        ("  for (ptrdiff_t i = 0; i < 1; i++) {\n    y[0] = scale * i + (i + x[i * 3]);\n  }\n",
         "  const ptrdiff_t i = 0;\n  y[0] = scale * i + (x[0]);\n"),
        ("  for (int n = 0; n < 1; n++) {\n    const int8_t *const plain = x0 + (n * 75 + 0);\n"
         "    g(plain, y0 + (0 + n), 3 + (n + 4));\n  }\n",
         "  const int8_t *const plain = x0;\n  g(plain, y0, 3 + 4);\n"),
    ],
)  # fmt: skip
def test_the_body_stands_without_the_loop(loop: str, plain: str) -> None:
    assert without_single_loops(function(loop)) == function(plain)


@pytest.mark.parametrize(
    "kept",
    [
        "  for (ptrdiff_t i = 0; i < 2; i++) {\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 0; i < dim0; i++) {\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 1; i < 1; i++) {\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 0; i < 5; i += 4) {\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 0; i < 1; i++) {\n    if (x)\n      continue;\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 0; i < 1; i++) {\n    if (x) break;\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 0; i < 1 && x; i++) {\n    g(i);\n  }\n",
        "  for (ptrdiff_t i = 0; i < 1; i++) {\n#if 1\n    g(i);\n#endif\n  }\n",
    ],
)
def test_other_loops_stay(kept: str) -> None:
    assert without_single_loops(function(kept)) == function(kept)


LOOP = re.compile(r"for \(\w+ (\w+) = (\d+)u?; \1 < (\d+)u?; (?:\1\+\+|\+\+\1|\1 \+= (\d+)u?)[,)]")


def single_loops(text: str) -> Iterator[str]:
    for found in LOOP.finditer(text):
        first, end, step = (int(found[k] or 1) for k in (2, 3, 4))
        if first < end <= first + step:
            yield found[0]


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "target", ["c99", "x86-64-avx2", "x86-64-avx512", "x86-64-amx", "aarch64-neon", "cuda-emulated"]
)
@pytest.mark.parametrize("model", ["digits", "keywords", "conv_net", "affine"])
def test_no_loop_of_one_iteration_is_left_and_statements_are_indented(
    model: str, target: str, tmp_path: Path
) -> None:
    emission = emit_model(_model(model, tmp_path), target=target)
    unindented = re.compile(r"^\{\n(?:(?: .*|#.*)?\n)*[^ #}\n].*", re.M)
    assert not [f for f, data in emission.files.items()
                if f.startswith("src/kernels/") and unindented.search(data.decode())]  # fmt: skip
    found = {path: [*single_loops(data.decode())] for path, data in emission.files.items()
             if path.startswith("src/") and path.endswith((".c", ".cu"))}  # fmt: skip
    assert found
    assert not {path: loops for path, loops in found.items() if loops}


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["digits", "keywords", "conv_net", "affine"])
def test_results_are_the_same_bits(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = _model(model, tmp_path)
    (without,) = compile_models([proto])
    for module in (kernel_source, emit):
        monkeypatch.setattr(module, "without_single_loops", lambda text: text)
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


@pytest.mark.parametrize("unroll", ["UNROLL", "UNROLL_BY(4)"])
def test_nothing_is_left_to_unroll(unroll: str) -> None:
    text = f"void f(int *x)\n{{\n  {unroll}\n  for (int k = 0; k < 1; k++) x[k] = 2;\n}}\n"
    assert without_single_loops(text) == "void f(int *x)\n{\n  x[0] = 2;\n}\n"
