"""Text that kernels share: expressions as scalar C and in the vector vocabulary, epilogues, loops.

May import the IR and the modules of `backends`, neither `cpu` nor `cuda` nor `parallel_for`.
"""
