"""ONNX models written in other formats, the reverse of `importers`: a package each.

Need only be imported by who writes such files.
"""
