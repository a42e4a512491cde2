"""Lowerings on strings: cells of a fixed size, n-grams, and regular expressions as automata.

May import `lower` and what it may; importing them registers them.
"""

from atc.lower.text import ngrams, operators

__all__ = ["ngrams", "operators"]
