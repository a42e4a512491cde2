"""Running a network where it is for: under the target's emulator, or on a machine that ssh reaches.

Takes a compiled folder and inputs, gives outputs. May import `pipeline` and what is below it.
"""
