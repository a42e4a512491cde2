"""Passes that compute quantized tensors on the integers themselves.

A graph in, a graph out; may import `passes.canonical` and the IR.
"""
