"""The tensors that a model stores."""

from __future__ import annotations

import numpy as np
import onnx_ir

from atc.errors import ModelError, UnsupportedError, reason_of
from atc.ir.graph import Array, DType
from atc.lower.strings import cells, is_text


def array_of(tensor: onnx_ir.TensorProtocol, name: str, file: str) -> Array:
    """Return a stored tensor as numpy, strings as cells.

    Raises an error that names the file and the tensor where that is damaged or of a type that is
    not covered.
    """
    try:
        array = tensor.numpy()
        array = cells(array) if is_text(array) else array
        DType.from_numpy(array.dtype)
    except KeyError:
        raise UnsupportedError(
            f"tensor '{name}' has the type {tensor.dtype.name}, which is not covered", where=file
        ) from None
    except UnsupportedError as error:
        error.where = f"{file}, tensor '{name}'"
        raise
    except (ValueError, OSError, TypeError, AssertionError) as error:
        reason = reason_of(error)
        raise ModelError(f"tensor '{name}' is damaged: {reason}", where=file) from error
    return np.asarray(array)
