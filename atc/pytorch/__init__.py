"""PyTorch: modules become libraries, by PyTorch's own exporter to ONNX.

`export` makes an ONNX model of a module or a graph, `dynamo` is what `torch.compile` calls. Needs
`pip install '.[torch]'`; nothing else of ours imports it.
"""

from atc.pytorch.dynamo import backend
from atc.pytorch.export import compile_module, train_module

__all__ = ["backend", "compile_module", "train_module"]
