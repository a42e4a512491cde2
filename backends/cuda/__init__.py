"""CUDA kernels by family, and the GPUs they are compiled for.

A family imports only those before it: gpus, kernel, elementwise, products, tensor, windows, rows,
data, and the catalogue at last. Of `backends/cpu` only `render` is used: C's expressions are CUDA's, too.
"""
