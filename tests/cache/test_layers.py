"""The cache stands alone: the standard library and the errors, no more.

Clients of remote stores are loaded by name when one is used.
"""

import ast
import sys
from pathlib import Path

import pytest

import atc.cache

MODULES = sorted(Path(atc.cache.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_only_the_standard_library_and_atc_errors(path):
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                names = [node.module or ""]
            case _:
                continue
        for name in names:
            top = name.partition(".")[0]
            assert (
                top in sys.stdlib_module_names
                or name == "atc.errors"
                or name == "atc.cache"
                or name.startswith("atc.cache.")
            )
            assert top != "pickle"
