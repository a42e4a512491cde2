"""onnx_ir without sympy until symbolic extents are computed with."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import atc
import onnx_ir
assert "sympy.core" not in sys.modules, "sympy was imported"
extent = onnx_ir.SymbolicDim("N") + 1
assert str(extent) == "N + 1", extent
assert "sympy.core" in sys.modules
import sympy
from sympy import Symbol
assert sympy.Symbol is Symbol and sympy.sqrt(4) == 2
"""


def test_sympy_comes_when_an_extent_needs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_others_import_sympy_as_ever() -> None:
    code = "import atc, sys, sympy; assert 'sympy.core' in sys.modules"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
