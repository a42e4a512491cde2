"""What other languages and build systems need around a library: wrappers, packages of firmware.

Takes an `Emission`'s files and interface, gives files. May import `codegen` and what is below it.
"""
