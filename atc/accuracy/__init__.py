"""Evaluation in float64, comparison with references, and searches under a bound of the error.

Takes a `Compilation` or a library and inputs, gives differences; `bf16x3` and `max_error` wrap
compilations. May import the pipeline and all below it.
"""
