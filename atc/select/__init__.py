"""Choose a kernel for every node, by estimated or measured cycles and the price of memory.

Takes a graph and timings, returns a `Selection`; the costs of layouts and of weight storage are
computed here, too. May import `backends` (as the only package with the catalogue of kernels),
`passes` and `ir`.
"""
