"""Work done elsewhere: a cluster's workers compile kernels, boards run measuring programs.

Takes sources and programs, gives objects that were checked and what programs printed; what doesn't
come back is left to this machine. May import `build` and what stands below it; packages
for clusters are loaded when one is used.
"""
