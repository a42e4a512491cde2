from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from projects import require

from atc.tools.report_page.code_sizes import code_sizes

SOURCE = """
static int x[9];
__attribute__((noinline)) static int inner(int n) { return n / x[1]; }
int small(void) { return 1; }
int a(int n) { return inner(n) + inner(n + 1); }
int big(int n)
{
  for (int k = 0; k < n; k++) x[k % 9] += n / (k + 1);
  return x[0];
}
"""


def test_functions_have_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    subprocess.run([require("gcc"), "-O1", "-shared", "-fPIC", "-o", "a.so", "a.c"], cwd=tmp_path,
                   check=True)  # fmt: skip
    sizes = code_sizes((tmp_path / "a.so").read_bytes())
    assert sizes is not None
    assert 0 < sizes.functions["small"] < sizes.functions["big"] < sizes.code
    assert sizes.sources["a"] == sizes.functions["inner"]  # local functions belong to their source
    assert sizes.of("a") == sizes.functions["a"] + sizes.functions["inner"]
    cut = (tmp_path / "a.so").read_bytes()[:500]
    assert code_sizes(cut) is None


@pytest.mark.parametrize("compiler", ["gcc", "arm-none-eabi-gcc"])
def test_archives_have_those_of_all_their_objects(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    (tmp_path / "b.c").write_text("int last(int n) { return n * n + 1; }\n")
    for name in ("a", "b"):
        subprocess.run([require(compiler), "-O1", "-c", "-o", f"{name}.o", f"{name}.c"],
                       cwd=tmp_path, check=True)  # fmt: skip
    files = ("a.o", "b.o", "a.c")  # the last one is no object
    subprocess.run([require("ar"), "rcs", "lib.a", *files], cwd=tmp_path, check=True)
    sizes = code_sizes((tmp_path / "lib.a").read_bytes())
    assert sizes is not None
    assert set(sizes.functions) == {"inner", "small", "a", "big", "last"}
    assert sum(sizes.functions.values()) <= sizes.code
    single = [code_sizes((tmp_path / f"{name}.o").read_bytes()) for name in ("a", "b")]
    assert sizes.code == sum(s.code for s in single if s)
    assert sizes.sources == {"a": sizes.functions["inner"]}


@pytest.mark.parametrize(
    "data",
    [b"", b"MZ", b"\x7fELF\x02\x01" + b"\xff" * 80, b"!<arch>\n", b"!<arch>\n" + b"x" * 60],
    ids=["empty", "other", "damaged", "empty archive", "damaged archive"],
)
def test_other_files_have_none(data: bytes) -> None:
    assert code_sizes(data) is None
