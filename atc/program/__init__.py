"""Turn a graph and its kernels into calls in order: where values live, which of them share memory.

Takes `Graph` and `Selection`, returns a `Program`, with cascades, partitions for threads and packed
layouts. May import `select`, `backends`, `ir`, `dims` and `files`.
"""
