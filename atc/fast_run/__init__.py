"""Measure kernels and numbers of threads on this machine, and keep or replay what was found.

Takes workloads, gives `Timings`; `policy` is their reviewable text. May import `build` and all
below it.
"""
