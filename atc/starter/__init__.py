"""Programs, boards and linker scripts around a library for a device; its sizes there.

Takes an `Emission` and a target, gives texts and sizes. May import `build` and what is below it.
"""
