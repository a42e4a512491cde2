"""Load and run compiled libraries through their C interface, with cffi and numpy.

`network`, `library`, `values` and `interface` are also the module of the generated folder. May
import `errors`, `ir` and `names`; the four import only each other.
"""
