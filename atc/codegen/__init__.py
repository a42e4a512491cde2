"""Write the text of the C project of a planned program; no I/O.

Takes `Program` and `Arena`, returns an `Emission`: a mapping of paths to bytes. May import
`memory`, `program`, `backends`, `runtime` and the levels below them, and values of `options`.
"""
