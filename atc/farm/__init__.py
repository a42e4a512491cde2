"""Work done elsewhere: kernels compiled by a cluster's workers, measuring programs run on boards.

Takes sources and programs, gives objects that were checked and what programs printed; what doesn't
come back is left to this machine. May import `build` and what stands below it; packages
for clusters are loaded when one is used.
"""
