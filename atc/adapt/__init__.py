"""Changes of a model that options ask for, before it is lowered: ONNX in, ONNX out."""
