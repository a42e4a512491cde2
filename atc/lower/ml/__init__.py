"""Lowerings of ai.onnx.ml: preprocessing, linear models, trees, support vector machines, maps.

May import `lower` and what it may; importing them registers them.
"""

from atc.lower.ml import features, maps, svm, trees

__all__ = ["features", "maps", "svm", "trees"]
