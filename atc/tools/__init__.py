"""Commands beside compiling: check, bisect, explain, profile, report pages, the other modes.

Each takes a folder or options and gives a value and its text; may import `compile` and all below.
"""
