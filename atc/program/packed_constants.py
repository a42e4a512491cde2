"""Constants as kernels read them, which may be several times the model: they leave memory."""

from __future__ import annotations

import numpy as np

from atc.backends.render.packing import Pack, PackInParts
from atc.files.mapped import reading
from atc.files.spool import Spool
from atc.ir.graph import Array


def packed(pack: Pack, constant: Array, spool: Spool) -> Array:
    """Return a constant packed, in the spool if it is large; the constant's own pages go.

    Raises ModelError if it lies in a file that was written since it was mapped.
    """
    with reading(constant):
        if isinstance(pack, PackInParts):
            stored = spool.stored(pack.parts(constant), pack.size, constant.dtype)
            return pack(constant) if stored is None else stored
        result = np.ascontiguousarray(pack(constant))
        stored = spool.stored([(0, result)], result.size, result.dtype)
        return result if stored is None else stored.reshape(result.shape)
