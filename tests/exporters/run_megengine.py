"""Run dumps of `megengine_cases.py` with the real MegEngine, and compare.

    PYTHON tests/exporters/run_megengine.py FOLDER

PYTHON is CPython 3.8 or 3.10 on Linux with `pip install MegEngine==1.13.0 "numpy<1.24"`; the
project itself does not need it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from megengine.utils.comp_graph_tools import GraphInference


def differs(path: Path) -> str:
    """Return how a dump's results differ from what is stored beside it, '' where they don't."""
    stored = dict(np.load(path.with_suffix(".npz")))
    wanted = [stored.pop(f"o{k}") for k in range(sum(name[0] == "o" for name in stored))]
    # scalars have an axis in MegEngine
    feeds = {k: v.reshape(v.shape or (1,)) for k, v in stored.items()}
    try:
        found = [np.asarray(v) for v in GraphInference(str(path)).run(inp_dict=feeds).values()]
    except Exception as error:
        return str(error).splitlines()[0]
    for one, other in zip(found, wanted):  # noqa: B905 (Python 3.8)
        if one.shape != (other.shape or (1,)):
            return f"shape {one.shape} for {other.shape}"
        if not np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{np.abs(one.astype(float) - other).max()} away"
    return "" if len(found) == len(wanted) else f"{len(found)} results for {len(wanted)}"


if __name__ == "__main__":
    paths = sorted(Path(sys.argv[1]).glob("*.mge"))
    found = {path.stem: differs(path) for path in paths}
    for name, how in found.items():
        if how:
            print(f"{name}: {how}")
    print(f"{sum(not how for how in found.values())} of {len(found)} equal")
