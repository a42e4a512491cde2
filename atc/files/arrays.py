"""Files of arrays in numpy's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from atc.files.regular import regular

_BEGINNINGS = (b"\x93NUMPY", b"PK")
"""Of .npy and of .npz: numpy takes all else for Python's pickles, and advises to trust them."""


def load_arrays(path: Path) -> Any:
    """Return what an .npy or .npz file holds, as `numpy.load` does, but never Python's objects.

    Errors are those of `numpy.load`, and ValueError for a file of another kind.
    """
    with regular(path).open("rb") as file:
        if not file.read(6).startswith(_BEGINNINGS):
            raise ValueError("it is neither an .npy nor an .npz file")
    return np.load(path, allow_pickle=False)
