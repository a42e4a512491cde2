"""What a device needs around a library: programs, boards, linker scripts; and how large it comes out.

Takes an `Emission` and a target, gives texts and sizes. May import `build` and what is below it.
"""
