"""What a user may set: parsed, checked and resolved from command line, environment and files.

Gives one `Options` for a compilation; `table/` has a row per option and variable, by system. May
import `backends` (names of targets), `cache` (its limits) and `dims`.
"""
