"""Passes that fuse nodes: elementwise chains, epilogues, attention, branches.

A graph in, a graph out; may import `passes.canonical` and the IR.
"""
