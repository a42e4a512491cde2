"""`atc batch matrix.toml`: many compilations, models x targets x variants, each a row.

Takes the text of a matrix, gives outcomes, a journal that a killed run goes on from, a page, and
libraries of several networks. May import `api` and all below; prints nothing.
"""
