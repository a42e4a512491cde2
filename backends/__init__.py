"""Targets, kernels and toolchains: what code is made of and what it is compiled with.

`toolchain` holds compilers and alone starts processes. May import `ir`, `dims` and `templates`.
"""
