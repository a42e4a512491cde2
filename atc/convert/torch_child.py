"""Converts a program of torch.export to ONNX: FILE, RESULT and opset are the arguments."""

from __future__ import annotations

import sys

import torch


def convert(file: str, result: str, opset: int) -> None:
    """Write a `.pt2` file as ONNX."""
    program = torch.export.load(file)
    made = torch.onnx.export(
        program, dynamo=True, opset_version=opset, verbose=False, optimize=True
    )
    assert made is not None
    made.save(result)


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2], int(sys.argv[3]))
