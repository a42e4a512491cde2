"""The command line: the only package that prints or exits.

Commands load what they run when they run it, so that `--help` and errors come at once. May
import all of atc but `smoke`.
"""
