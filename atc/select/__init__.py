"""Choose a kernel for every node, by estimated or measured cycles and the price of memory.

Takes a graph and timings, gives a `Selection`; layouts and weight storage are weighed here, too.
May import `backends` (alone with the catalogue of kernels), `passes` and `ir`.
"""
