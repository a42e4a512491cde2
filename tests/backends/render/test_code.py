"""What of C is code: every pass over the text of kernels builds on it."""

from __future__ import annotations

import pytest

from atc.backends.render.code import changed, functions_changed, names_in


@pytest.mark.parametrize(
    "other",
    ["/* x */", "/* x\n * x */", "// x", '"x"', r'"\" x"', "'x'", r"'\''", "#define x 1",
     "  #if x \\\n  && x", '#include "x.h"'],
)  # fmt: skip
def test_what_is_no_code_stays(other: str) -> None:
    text = f"x = 1;\n{other}\nx = 2;\n"
    assert changed(text, lambda code: code.replace("x", "y")) == f"y = 1;\n{other}\ny = 2;\n"
    assert names_in(text) == {"x"}
    assert names_in(other) == frozenset()


def test_names_are_whole_words() -> None:
    assert names_in("dim1 + dims[0] * 0x1F + 2.0f") == {"dim1", "dims"}


def test_functions_have_a_head_and_a_body() -> None:
    text = "#include <a.h>\n\nstatic int f(int x)\n{\n  return x;\n}\n\nvoid g(void)\n{\n}\n"
    seen: list[tuple[str, str]] = []

    def with_line(head: str, body: str) -> str:
        seen.append((head, body))
        return f"{head}  /* new */\n{body}"

    new = functions_changed(text, with_line)
    assert seen == [("static int f(int x)\n{\n", "  return x;\n"), ("void g(void)\n{\n", "")]
    assert new.replace("  /* new */\n", "") == text
    assert new.count("/* new */") == 2
