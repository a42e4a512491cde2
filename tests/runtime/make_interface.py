"""Writes the tables of atc/runtime/interface.py anew: `python tests/runtime/make_interface.py`.

They are what cffi's own compiler makes of the DECLARATIONS there.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi

INTERFACE = Path(__file__).parents[2] / "atc" / "runtime" / "interface.py"
_WIDTH = 100


def rewritten(module: str) -> str:
    """Return the text of the module with the tables that its declarations come to."""
    found = re.search(r'^DECLARATIONS = """\n(.*?)^"""$', module, re.MULTILINE | re.DOTALL)
    assert found is not None
    head, rest = module.split("\n_TYPES = ", 1)
    _, tail = rest.split('\n"""Of each function', 1)
    version = re.sub(r"(?m)^FORMAT = .*$", f"FORMAT = {hex(_tables(found[1])['_version'])}", tail)
    return f'{head}\n{tables_text(found[1])}"""Of each function{version}'


def tables_text(declarations: str) -> str:
    """Return the Python of the tables of C declarations whose functions begin with NET_."""
    tables = _tables(declarations)
    types = "".join(f'    "{line}"\n' for line in textwrap.wrap(tables["_types"].hex(), 88))
    functions = [_bytes(f.replace(b"NET_", b"", 1)) for f in tables["_globals"][::2]]
    names = map(_bytes, tables["_typenames"])
    structs = "".join(
        f"{_listed([_bytes(each[0], 8), *map(_bytes, each[1:])], '    (', '     ')[:-1]}),\n"
        for each in tables["_struct_unions"]
    )
    return (
        f"_TYPES = bytes.fromhex(\n{types})\n_STRUCTS = (\n{structs})  # fmt: skip\n"
        f"_NAMES = (\n{_listed(names, '    ', '    ')}\n)  # fmt: skip\n"
        f"_FUNCTIONS = (\n{_listed(functions, '    ', '    ')}\n)  # fmt: skip\n"
    )


def _tables(declarations: str) -> dict[str, Any]:
    """Return what cffi's compiler gives to its backend."""
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    ffi.set_source("net", None)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = Path(folder, "net.py")
        ffi.emit_python_code(str(path))
        text = path.read_text("utf-8").replace("import _cffi_backend", "")
    tables: dict[str, Any] = {}
    backend = SimpleNamespace(FFI=lambda name, **given: tables.update(given))
    exec(text, {"_cffi_backend": backend})
    return tables


def _bytes(data: bytes, digits: int = 4) -> str:
    """Return a literal: so many bytes of numbers as hexadecimal digits, then a name."""
    number = "".join(f"\\x{b:02x}" for b in data[:digits])
    return f'b"{number}{data[digits:].decode()}"'


def _listed(items: Iterable[str], first: str, other: str) -> str:
    """Return items with a comma behind each, in lines that are not too long."""
    lines = textwrap.wrap(
        " ".join(f"{item}," for item in items), _WIDTH, initial_indent=first,
        subsequent_indent=other, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    INTERFACE.write_text(rewritten(INTERFACE.read_text("utf-8")), "utf-8")
