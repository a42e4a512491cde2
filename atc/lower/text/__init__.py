"""Lowerings on strings: cells of a fixed size, n-grams, and regular expressions as automata.

Need only be imported: they register themselves.
"""

from atc.lower.text import ngrams, operators

__all__ = ["ngrams", "operators"]
