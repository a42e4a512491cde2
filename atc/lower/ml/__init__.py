"""Lowerings of ai.onnx.ml: preprocessing, linear models, trees, support vector machines, maps.

Need only be imported: they register themselves.
"""

from atc.lower.ml import features, maps, svm, trees

__all__ = ["features", "maps", "svm", "trees"]
