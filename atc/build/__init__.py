"""Compile the text to objects and libraries, and replace the output folder all at once.

Takes files and units, gives a `BuildResult`; the op compiler cache keeps the objects. `sdk` makes
one library of several networks. May import `backends`, `cache`, `codegen`.
"""
