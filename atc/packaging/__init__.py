"""Wrappers for other languages and packages of firmware around a library.

Takes an `Emission`'s files and interface, gives files. May import `codegen` and what is below it.
"""
