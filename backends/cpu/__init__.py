"""C kernels for CPUs by family, and the targets they are compiled for.

A family imports `backends/render` and those before it: map, matmul, normalize, data, attention,
rnn, conv, special, amx, small, and the catalogue at last.
"""
