"""A MegEngine dump with test cases, for the tests of load_and_run."""

from __future__ import annotations

import importlib.util
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np


def _writer() -> ModuleType:
    path = Path(__file__).parents[1] / "importers" / "megengine_writer.py"
    spec = importlib.util.spec_from_file_location("megengine_writer_of_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def dump_with_cases(wrong: float = 0.0, version: int = 2) -> bytes:
    """Return a dump of prob = exp(x) with two test cases; the second expects `wrong` more."""
    w = _writer()
    write = w.write_v2 if version == 2 else w.write_v1
    dump = w.Dump()
    expected, x = dump.input("prob:expect", (2, 3)), dump.input("x", (2, 3))
    y = dump.op("Elemwise", [x], {"Elemwise": {"mode": "EXP"}}, name="exp")[0]
    error = dump.op("Elemwise", [expected, y], {"Elemwise": {"mode": "SUB"}})[0]
    dump.output(dump.op("AssertEqual", [expected, y, error], {"AssertEqual": {}})[0], "assert")
    parts = [b"mgbtest0" + struct.pack("<I", 2) + write(dump)]
    for k in range(2):
        values = np.arange(6, dtype=np.float32).reshape(2, 3) / 6 - k
        case = w.Dump()
        for name, array in (("x", values), ("prob:expect", np.exp(values) + wrong * k)):
            case.output(case.constant(array.astype(np.float32)), name)
            op = case.ops[-1]
            case.ops[-1] = replace(op, tensors=(replace(op.tensors[0], name=name),))
        parts.append(write(case))
    return b"".join(parts)
