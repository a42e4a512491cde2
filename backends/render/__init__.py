"""C text that kernels share: expressions in scalars and in the vector vocabulary, epilogues, loops.

May import the IR and the modules of `backends`, but not `cpu`, `cuda` or `parallel_for`.
"""
