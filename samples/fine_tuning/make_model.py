"""Writes words.onnx into a folder: the keywords model without the softmax, which the loss has.

    python samples/fine_tuning/make_model.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from make_models import keywords_model  # noqa: E402


def main() -> None:
    """Write the model."""
    model = keywords_model()
    model.graph.node.pop()
    model.graph.output[0].name = "logits"
    onnx.checker.check_model(model, full_check=True)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "words.onnx")


if __name__ == "__main__":
    main()
