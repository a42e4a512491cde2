"""Everything a user may set: resolved from command line, environment and files, and checked.

Gives one `Options` for a compilation; `table/` has a row per option and variable, by system. May
import `backends` (names of targets), `cache` (its limits) and `dims`.
"""
