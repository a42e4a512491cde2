"""Compilers, what they make, and what starts it: from a C source to a library or a running program.

`processes` alone starts any. May import `target`, and of CUDA its list of targets.
"""
