"""One compilation, from model file to output folder, stage by stage.

Takes a `Request` (`request.py`: options, their files and the environment, resolved once), gives a
`Compilation`; searches over compilations are above it. May import every stage.
"""
