"""Loops of one iteration in generated C: they go, what they do stays."""

from __future__ import annotations

import pytest

from atc.backends.render.single_loops import without_single_loops


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
        ("  for (ptrdiff_t m = 0; m < 2; m += 2) {\n    int32_t a = x[m], b = x[m + 1];\n  }\n",
         "  int32_t a = x[0], b = x[1];\n"),
        ("  for (ptrdiff_t n = 0; n < 1; n++) {\n    float a = x[n]; /* of image n */\n"
         "    y[n] = a;\n  }\n  /* An a. */\n",
         "  float a = x[0]; /* of image n */\n  y[0] = a;\n  /* An a. */\n"),
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


@pytest.mark.parametrize("unroll", ["UNROLL", "UNROLL_BY(4)"])
def test_nothing_is_left_to_unroll(unroll: str) -> None:
    text = f"void f(int *x)\n{{\n  {unroll}\n  for (int k = 0; k < 1; k++) x[k] = 2;\n}}\n"
    assert without_single_loops(text) == "void f(int *x)\n{\n  x[0] = 2;\n}\n"
