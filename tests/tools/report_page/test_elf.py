from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from projects import require

from atc.tools.report_page.elf import code_sizes

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


@pytest.mark.parametrize(
    "data", [b"", b"MZ", b"\x7fELF\x02\x01" + b"\xff" * 80], ids=["empty", "other", "damaged"]
)
def test_other_files_have_none(data: bytes) -> None:
    assert code_sizes(data) is None
