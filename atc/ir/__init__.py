"""The compiler's graph: tensors, nodes, scalar expressions, affine views, the op families.

Values only: no target, no C, no file format. May import `dims`, `errors` and `files`.
"""
