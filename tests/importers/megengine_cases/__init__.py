"""The cases of make_megengine_dumps.py: for each group, networks of one kind of operator."""

from megengine_cases.data import creation, images, indexing, reductions, shapes
from megengine_cases.elementwise import (
    conversions,
    elemwise,
    elemwise_integer,
    functions,
    multi_type,
)
from megengine_cases.layers import (
    convolutions,
    normalizations,
    pooling,
    products,
    quantized,
    recurrent,
)
from megengine_cases.networks import networks, stored

CASES = (
    *(elemwise, elemwise_integer, functions, multi_type, conversions, convolutions, quantized),
    *(pooling, normalizations, products, recurrent, reductions, shapes, indexing, creation),
    *(images, networks, stored),
)
