"""ONNX models written in other formats, the reverse of `importers`: a package each.

A model in, bytes out. May import `lower` and what is below it; imported by who writes such files.
"""
