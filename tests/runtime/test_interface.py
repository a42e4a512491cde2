"""The tables of the C interface are what cffi makes of the declarations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi

from atc.runtime import interface


def test_the_tables_are_those_of_the_declarations(tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef(interface.DECLARATIONS)
    ffi.set_source("net", None)
    ffi.emit_python_code(str(tmp_path / "net.py"))
    tables: dict[str, Any] = {}
    backend = SimpleNamespace(FFI=lambda name, **given: tables.update(given))
    text = (tmp_path / "net.py").read_text("utf-8").replace("import _cffi_backend", "")
    exec(text, {"_cffi_backend": backend})

    functions = tuple(f.replace(b"NET_", b"", 1) for f in tables["_globals"][::2])
    assert functions == interface._FUNCTIONS
    assert tables["_struct_unions"] == interface._STRUCTS
    assert tables["_typenames"] == interface._NAMES
    assert tables["_types"] == interface._TYPES
    assert tables["_version"] == interface.FORMAT
