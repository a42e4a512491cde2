"""One compilation, from model file to output folder, stage by stage.

Takes `Options`, gives a `Compilation`; searches over compilations are above it. May import every
stage.
"""
