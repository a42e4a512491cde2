"""PyTorch: modules become libraries, by PyTorch's own exporter to ONNX.

`export` makes an ONNX model of a module or a graph, `dynamo` is what `torch.compile` calls. Needs
`pip install '.[torch]'`; may import `api` and all below it; nothing of ours but `entry` imports it.
"""

from atc.pytorch.dynamo import backend
from atc.pytorch.export import compile_module, train_module

__all__ = ["backend", "compile_module", "train_module"]
