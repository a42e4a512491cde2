"""Converts a TensorFlow SavedModel or TensorFlow Lite model to ONNX.

Its path, RESULT and opset are the arguments.
"""

from __future__ import annotations

import os
import sys

# Where they are, TensorFlow imports them for what no conversion calls: a third of the time.
sys.modules |= dict.fromkeys(("jax", "sklearn"))  # type: ignore[arg-type]

from atc.convert.tflite_sparse import dense_file  # noqa: E402
from atc.convert.tflite_variables import name_states, without_variables  # noqa: E402


def convert(path: str, result: str, opset: int) -> None:
    """Write the model as ONNX, with tf2onnx's own command."""
    from tf2onnx.convert import main

    folder = os.path.isdir(path)
    variables = None
    if not folder:
        path, variables = without_variables(path, f"{result}.static")
        path = dense_file(path, f"{result}.dense")
    kind = "--saved-model" if folder else "--tflite"
    sys.argv = ["tf2onnx.convert", kind, path, "--output", result, "--opset", str(opset)]
    main()
    if variables is not None:
        name_states(result, variables)


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2], int(sys.argv[3]))
