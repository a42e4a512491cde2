"""What a device needs around a library: programs, boards, linker scripts; its sizes there.

Takes an `Emission` and a target, gives texts and sizes. May import `build` and what is below it.
"""
