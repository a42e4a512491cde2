"""C kernels for CPUs by family, and the targets they are compiled for.

A family imports only those before it: render, map, matmul, normalize, data, attention, rnn, conv,
special, amx, small, and the catalogue at last.
"""
