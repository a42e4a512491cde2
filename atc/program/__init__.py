"""Turn a graph and its kernels into calls in order: where values live, what shares memory.

Takes `Graph` and `Selection`, gives a `Program`: cascades, partitions for threads, packed layouts.
May import `select`, `backends`, `ir` and `dims`.
"""
