"""CUDA kernels by family, and the GPUs they are compiled for.

A family imports only those before it: kernel, elementwise, products, windows, rows, data, and the
catalogue at last. Of `backends/cpu` only `render` is used: C's expressions are CUDA's, too.
"""
