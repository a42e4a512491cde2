"""CUDA kernels by family, and the GPUs they are compiled for.

A family imports `backends/render` (C's expressions are CUDA's, too) and those before it: gpus,
kernel, map, products, conv, normalize, attention, data, rnn, special, and the catalogue at last.
"""
