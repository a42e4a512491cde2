"""Running a network where it is for: under an emulator, over ssh, or over a serial line.

Takes a compiled folder and inputs, gives outputs. May import `pipeline` and what is below it.
"""
