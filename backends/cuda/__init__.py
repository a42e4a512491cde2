"""CUDA kernels by family, and the GPUs they are compiled for.

A family imports `backends/render` (C's expressions are CUDA's, too) and those before it: gpus,
kernel, elementwise, products, slim, tensor, windows, blocked, rows, data, ordered, loops,
recurrent, packed, attention, and the catalogue at last.
"""
