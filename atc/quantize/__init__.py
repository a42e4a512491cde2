"""`atc quantize`: onnxruntime's quantiser on data from files, and what that costs in accuracy.

Takes a `Job`, writes a model; `calibrated` wraps a compilation. May import the pipeline.
"""
