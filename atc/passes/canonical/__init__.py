"""Passes that bring graphs into one form: views folded, expressions shared, ops decomposed.

A graph in, a graph out; may import `passes.rewriting` and the IR.
"""
