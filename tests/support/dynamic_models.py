"""Small models in the style of exporters whose shapes vary: with inputs, counts, loops, lengths.

Each is a function that returns a Case: the model, the ranges it is compiled for, and feeds of
several shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[np.generic]
Feed = Mapping[str, Array]

TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}


@dataclass(frozen=True)
class Case:
    """A model, what it is compiled for, and what it is run on."""

    model: onnx.ModelProto
    shapes: str
    feeds: Sequence[Feed]
    values: str = ""


@dataclass
class Net:
    """A graph under construction: every call adds a node and returns its first result."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        self.count += 1
        names = [f"{op.lower()}_{self.count}{'' if k == 0 else f'_{k}'}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, [*inputs], names, **attributes))
        return names[0]

    def constant(self, value: object, dtype: type = np.int64) -> str:
        self.count += 1
        name = f"c_{self.count}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, scale: float = 0.5) -> str:
        seeded = np.random.default_rng(self.count)
        return self.constant(seeded.standard_normal(shape) * scale, np.float32)

    def extent(self, x: str, axis: int) -> str:
        """One extent of a value, as a tensor [1]."""
        return self("Gather", self("Shape", x), self.constant([axis]))

    def scalar(self, x: str) -> str:
        return self("Squeeze", x)

    def joined(self, *parts: str | int) -> str:
        """Integers, and tensors [1], as one tensor."""
        names = [p if isinstance(p, str) else self.constant([p]) for p in parts]
        return self("Concat", *names, axis=0)

    def shaped(self, x: str, *extents: str | int) -> str:
        return self("Reshape", x, self.joined(*extents))

    def steps(self, limit: str) -> str:
        """0, 1, ... below a tensor [1] of one integer."""
        zero, one = self.constant(0), self.constant(1)
        return self("Range", zero, self.scalar(limit), one)

    def body(self, name: str, inputs: Mapping[str, tuple[str, object]], outputs: Mapping[str, str]
             ) -> onnx.GraphProto:  # fmt: skip
        """The nodes so far as a subgraph, whose outputs map names to type letters."""
        return helper.make_graph(self.nodes, name, _infos(inputs), _outputs(outputs), self.weights)

    def model(
        self, inputs: Mapping[str, tuple[str, object]], outputs: Mapping[str, str]
    ) -> onnx.ModelProto:
        """The model; outputs map names of values to type letters."""
        graph = helper.make_graph(
            self.nodes, "net", _infos(inputs), _outputs(outputs), self.weights
        )
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _infos(inputs: Mapping[str, tuple[str, object]]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(n, TYPES[t], s) for n, (t, s) in inputs.items()]


def _outputs(outputs: Mapping[str, str]) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_value_info(n, helper.make_tensor_type_proto(TYPES[t], None))
        for n, t in outputs.items()
    ]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def ints(high: int, *shape: int, low: int = 0, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape)


# ---- vision --------------------------------------------------------------------------------------


def detector() -> Case:
    """Convolution, boxes and scores, NonMaxSuppression, Gather, the best few of what is left."""
    n = Net()
    x = n("Relu", n("Conv", "x", n.weight(8, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    head = n("Conv", x, n.weight(6, 8, 1, 1))
    rows = n("Reshape", n("Transpose", head, perm=[0, 2, 3, 1]), n.constant([1, -1, 6]))
    parts = n("Split", rows, n.constant([2, 2, 2]), outputs=3, axis=2)
    corner, size = n("Sigmoid", parts), n("Sigmoid", f"{parts}_1")
    boxes = n("Concat", corner, n("Add", corner, size), axis=2)
    scores = n("Transpose", n("Sigmoid", f"{parts}_2"), perm=[0, 2, 1])
    kept = n("NonMaxSuppression", boxes, scores, n.constant([20]),
             n.constant([0.4], np.float32), n.constant([0.5], np.float32))  # fmt: skip
    index = n("Gather", kept, n.constant(2), axis=1)
    chosen = n("Gather", n("Squeeze", boxes, n.constant([0])), index, axis=0)
    best = n("GatherND", n("Squeeze", scores, n.constant([0])),
             n("Slice", kept, n.constant([1]), n.constant([3]), n.constant([1])))  # fmt: skip
    few = n("Min", n.extent(best, 0), n.constant([5]))
    top = n("TopK", best, few, outputs=2)
    result = n("Gather", chosen, f"{top}_1", axis=0)
    model = n.model({"x": ("f", [1, 3, "h", "w"])}, {top: "f", result: "f"})
    feeds = [{"x": floats(1, 3, h, w)} for h, w in ((8, 8), (17, 12), (24, 32))]
    return Case(model, "x:1,3,8~32,8~32", feeds)


def rois() -> Case:
    """RoiAlign over boxes that NonZero finds."""
    n = Net()
    found = n("NonZero", n("Greater", "score", n.constant(0.0, np.float32)))
    index = n("Squeeze", found, n.constant([0]))
    boxes = n("Gather", "boxes", index)
    batch = n("Mul", index, n.constant([0]))
    pooled = n("RoiAlign", "x", boxes, batch, output_height=2, output_width=2, sampling_ratio=2)
    flat = n("Flatten", pooled)
    y = n("MatMul", flat, n.weight(16, 5))
    model = n.model(
        {"x": ("f", [1, 4, "h", "w"]), "boxes": ("f", ["k", 4]), "score": ("f", ["k"])}, {y: "f"}
    )

    def feed(h: int, w: int, k: int) -> Feed:
        boxes = np.abs(floats(k, 4)) + np.array([0, 0, 2, 2], np.float32)
        return {"x": floats(1, 4, h, w), "boxes": boxes, "score": floats(k)}

    return Case(
        model, "x:1,4,4~12,4~12;boxes:1~9,4;score:1~9", [feed(5, 7, 3), feed(12, 4, 9)]
    )  # fmt: skip


def skips() -> Case:
    """What a U-Net and YOLO join: an image's halves and, twice as large, its quarters."""
    n = Net()
    half = n("Conv", "x", n.weight(8, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    quarter = n("Conv", half, n.weight(6, 8, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    up = n("Resize", quarter, "", n.constant([1, 1, 2, 2], np.float32), mode="nearest",
           coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    y = n("Conv", n("Concat", up, half, axis=1), n.weight(4, 14, 3, 3), pads=[1, 1, 1, 1])
    model = n.model({"x": ("f", ["n", 3, "h", "w"])}, {y: "f"})
    feeds = [{"x": floats(k, 3, h, w)} for k, h, w in ((1, 8, 24), (3, 24, 16), (2, 12, 20))]
    return Case(model, "x:1~3,3,8~24,8~24", feeds)


def masks() -> Case:
    """Two parts of images, as large as values say, one of them framed and cut, joined."""
    n = Net()
    part = n("Slice", "x", n.constant([0, 0]), "s")
    framed = n("Slice", "x", n.constant([0, 0]), "t")
    for axis in (0, 1):
        more = n("Slice", "x", n.constant([0]), n("Slice", "u", n.constant([axis]),
                 n.constant([axis + 1])), n.constant([axis]))  # fmt: skip
        fitting = n("Slice", more, n.constant([0]), n.extent(framed, 1 - axis),
                    n.constant([1 - axis]))  # fmt: skip
        framed = n("Concat", framed, fitting, axis=axis)
    cut = n("Slice", framed, n.constant([0, 0]), n.constant([7, 9]))
    front = n.constant([0])
    y = n("Exp", n("Concat", *(n("Unsqueeze", p, front) for p in (part, cut)), axis=0))
    given = {"x": ("f", [7, 9]), **dict.fromkeys("stu", ("i", [2]))}
    sizes = [((3, 4), (1, 2), (2, 2)), ((7, 9), (4, 8), (3, 3)), ((1, 2), (1, 1), (0, 1))]
    feeds = [dict(zip("stu", map(np.array, each), strict=True)) for each in sizes]
    return Case(n.model(given, {y: "f"}), "", [{"x": floats(7, 9), **feed} for feed in feeds])


def pyramid() -> Case:
    """An image in three sizes that are computed from its own, joined at the largest."""
    n = Net()
    parts = []
    size = n("Shape", "x", start=2)
    lead = n("Shape", "x", end=2)
    for divisor in (2, 3):
        small = n("Div", size, n.constant([divisor]))
        down = n("Resize", "x", "", "", n("Concat", lead, small, axis=0), mode="linear")
        y = n("Relu", n("Conv", down, n.weight(4, 3, 3, 3), pads=[1, 1, 1, 1]))
        whole = n("Concat", n("Shape", y, end=2), size, axis=0)
        parts.append(n("Resize", y, "", "", whole, mode="nearest",
                       coordinate_transformation_mode="asymmetric",
                       nearest_mode="floor"))  # fmt: skip
    y = n("Concat", "x", *parts, axis=1)
    model = n.model({"x": ("f", ["n", 3, "h", "w"])}, {y: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 3, 6, 6), (2, 3, 13, 10), (1, 3, 16, 9))]
    return Case(model, "x:1~2,3,6~16,6~16", feeds)


def segmentation() -> Case:
    """Down, up to the size of the input, and the best class of every pixel."""
    n = Net()
    low = n("Relu", n("Conv", "x", n.weight(8, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    mid = n("Relu", n("Conv", low, n.weight(8, 1, 3, 3), pads=[1, 1, 1, 1], group=8))
    logits = n("Conv", mid, n.weight(5, 8, 1, 1))
    size = n("Concat", n("Shape", logits, end=2), n("Shape", "x", start=2), axis=0)
    up = n("Resize", logits, "", "", size, mode="linear")
    y = n("ArgMax", up, axis=1, keepdims=0)
    model = n.model({"x": ("f", ["n", 3, "h", "w"])}, {up: "f", y: "i"})
    feeds = [{"x": floats(*s)} for s in ((1, 3, 8, 9), (2, 3, 16, 12), (3, 3, 7, 15))]
    return Case(model, "x:1~3,3,7~16,7~16", feeds)


def windows() -> Case:
    """Attention in windows: padded to whole windows, cut, joined, cropped."""
    n, w = Net(), 4
    height, width = n.extent("x", 1), n.extent("x", 2)
    more = [n("Mod", n("Sub", n.constant([w]), n("Mod", e, n.constant([w]))), n.constant([w]))
            for e in (height, width)]  # fmt: skip
    pads = n.joined(0, 0, 0, 0, 0, *more, 0)
    x = n("Pad", "x", pads)
    rows, columns = (n("Div", n.extent(x, d), n.constant([w])) for d in (1, 2))
    batch = n.extent("x", 0)
    x = n.shaped(x, batch, rows, w, columns, w, 8)
    x = n("Reshape", n("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), n.constant([-1, w * w, 8]))
    scores = n("MatMul", x, n("Transpose", x, perm=[0, 2, 1]))
    x = n("MatMul", n("Softmax", scores, axis=-1), x)
    x = n.shaped(x, batch, rows, columns, w, w, 8)
    x = n("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    ends = [n("Mul", e, n.constant([w])) for e in (rows, columns)]
    x = n.shaped(x, batch, *ends, 8)
    ends = n.joined(height, width)
    y = n("Slice", x, n.constant([0, 0]), ends, n.constant([1, 2]))
    model = n.model({"x": ("f", ["n", "h", "w", 8])}, {y: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 4, 4, 8), (2, 5, 11, 8), (1, 8, 6, 8))]
    return Case(model, "x:1~2,4~12,4~12,8", feeds)


def grid() -> Case:
    """YOLO's decoding: a grid of the feature map's size from two ranges."""
    n = Net()
    head = n("Conv", "x", n.weight(6, 4, 1, 1))
    height, width = n.extent(head, 2), n.extent(head, 3)
    rows = n("Unsqueeze", n.steps(height), n.constant([1]))
    columns = n("Unsqueeze", n.steps(width), n.constant([0]))
    shape = n.joined(height, width)
    mesh = [n("Unsqueeze", n("Expand", e, shape), n.constant([0])) for e in (columns, rows)]
    cells = n("Cast", n("Concat", *mesh, axis=0), to=1)
    parts = n("Split", head, n.constant([2, 2, 2]), outputs=3, axis=1)
    centre = n("Mul", n("Add", n("Sigmoid", parts), cells), n.constant(8.0, np.float32))
    size = n("Exp", f"{parts}_1")
    y = n("Concat", centre, size, n("Sigmoid", f"{parts}_2"), axis=1)
    y = n("Transpose", n.shaped(y, 0, 6, -1), perm=[0, 2, 1])
    model = n.model({"x": ("f", ["n", 4, "h", "w"])}, {y: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 4, 3, 5), (2, 4, 8, 4))]
    return Case(model, "x:1~2,4,2~8,2~8", feeds)


def shuffle() -> Case:
    """Chains of Shape, Slice, Concat, Reshape: channels shuffled, pixels unshuffled, flattened."""
    n = Net()
    shape = n("Shape", "x")
    lead = n("Slice", shape, n.constant([0]), n.constant([1]))
    tail = n("Slice", shape, n.constant([2]), n.constant([4]))
    x = n("Reshape", "x", n("Concat", lead, n.constant([2, 4]), tail, axis=0))
    x = n("Reshape", n("Transpose", x, perm=[0, 2, 1, 3, 4]), shape)
    half = n("Div", tail, n.constant([2]))
    rows, columns = (n("Gather", half, n.constant([d])) for d in (0, 1))
    x = n("Reshape", x, n("Concat", lead, n.constant([8]), rows, n.constant([2]), columns,
                          n.constant([2]), axis=0))  # fmt: skip
    x = n("Transpose", x, perm=[0, 1, 3, 5, 2, 4])
    x = n("Reshape", x, n("Concat", lead, n.constant([32]), half, axis=0))
    y = n("Flatten", x, axis=2)
    z = n("ReduceMean", y, n.constant([1]), keepdims=0)
    model = n.model({"x": ("f", ["n", 8, "h", "w"])}, {x: "f", y: "f", z: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 8, 4, 4), (3, 8, 4, 4), (2, 8, 4, 4))]
    return Case(model, "x:1~3,8,4,4", feeds)


# ---- language ------------------------------------------------------------------------------------


def cached_attention() -> Case:
    """A decoder layer with keys and values of the past, and a mask made of shapes."""
    n, heads, depth = Net(), 2, 4
    size = heads * depth
    batch, length = n.extent("x", 0), n.extent("x", 1)
    q, k, v = (n("Transpose", n("Reshape", n("MatMul", "x", n.weight(size, size)),
                                n.constant([0, 0, heads, depth])), perm=[0, 2, 1, 3])
               for _ in range(3))  # fmt: skip
    k, v = n("Concat", "past_k", k, axis=2), n("Concat", "past_v", v, axis=2)
    keys = n.extent(k, 2)
    past = n("Sub", keys, length)
    row = n("Unsqueeze", n("Add", n.steps(length), past), n.constant([1]))
    column = n("Unsqueeze", n.steps(keys), n.constant([0]))
    mask = n("Where", n("Greater", column, row), n.constant(-1e9, np.float32),
             n.constant(0.0, np.float32))  # fmt: skip
    scores = n("MatMul", q, n("Transpose", k, perm=[0, 1, 3, 2]))
    scores = n("Add", n("Mul", scores, n.constant(0.5, np.float32)), mask)
    y = n("Transpose", n("MatMul", n("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    y = n("MatMul", n.shaped(y, batch, length, size), n.weight(size, size))
    past_type = ("f", ["n", heads, "p", depth])
    model = n.model(
        {"x": ("f", ["n", "s", size]), "past_k": past_type, "past_v": past_type},
        {y: "f", k: "f", v: "f"},
    )

    def feed(b: int, s: int, p: int) -> Feed:
        past = [floats(b, heads, p, depth, seed=k) for k in (1, 2)]
        return {"x": floats(b, s, size), "past_k": past[0], "past_v": past[1]}

    return Case(
        model, "x:1~2,1~12,8;past_k:1~2,2,1~20,4;past_v:1~2,2,1~20,4",
        [feed(1, 1, 20), feed(2, 12, 1), feed(1, 5, 7)],
    )  # fmt: skip


def relative_positions() -> Case:
    """T5's buckets of relative positions as a bias of the scores."""
    n = Net()
    length = n.extent("x", 1)
    steps = n.steps(length)
    distance = n("Sub", n("Unsqueeze", steps, n.constant([0])),
                 n("Unsqueeze", steps, n.constant([1])))  # fmt: skip
    size = n("Neg", n("Min", distance, n("ConstantOfShape", n("Shape", distance),
             value=numpy_helper.from_array(np.array([0], np.int64)))))  # fmt: skip
    far = n("Cast", n("Mul", n("Log", n("Div", n("Cast", n("Max", size, n.constant(1)), to=1),
            n.constant(4.0, np.float32))), n.constant(2.5, np.float32)), to=7)  # fmt: skip
    far = n("Min", n("Add", far, n.constant(4)), n.constant(7))
    bucket = n("Where", n("Less", size, n.constant(4)), size, far)
    bias = n("Transpose", n("Gather", n.weight(8, 2), bucket), perm=[2, 0, 1])
    scores = n("MatMul", "x", n("Transpose", "x", perm=[0, 2, 1]))
    y = n("Softmax", n("Add", n("Unsqueeze", scores, n.constant([1])), bias), axis=-1)
    model = n.model({"x": ("f", ["n", "s", 6])}, {y: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 1, 6), (2, 19, 6), (1, 30, 6))]
    return Case(model, "x:1~2,1~32,6", feeds)


def pooled_sentences() -> Case:
    """Sentence embeddings: tokens without padding are averaged and made unit vectors."""
    n = Net()
    x = n("Gather", n.weight(30, 8), "ids")
    mask = n("Unsqueeze", n("Cast", "mask", to=1), n.constant([2]))
    wide = n("Expand", mask, n("Shape", x))
    total = n("ReduceSum", n("Mul", x, wide), n.constant([1]), keepdims=0)
    count = n("Clip", n("ReduceSum", wide, n.constant([1]), keepdims=0),
              n.constant(1e-9, np.float32))  # fmt: skip
    mean = n("Div", total, count)
    y = n("Div", mean, n("ReduceL2", mean, n.constant([1]), keepdims=1))
    model = n.model({"ids": ("i", ["n", "s"]), "mask": ("i", ["n", "s"])}, {y: "f"})

    def feed(b: int, s: int) -> Feed:
        mask = (np.arange(s) < ints(s + 1, b, 1, low=1)).astype(np.int64)
        return {"ids": ints(30, b, s), "mask": mask}

    return Case(model, "ids:1~4,1~16;mask:1~4,1~16", [feed(1, 1), feed(4, 9), feed(3, 16)])


def beam_step() -> Case:
    """A step of beam search: the best of beams times words, and where each came from."""
    n, beams, words = Net(), 3, 7
    batch = n.extent("logits", 0)
    scores = n("Add", n("LogSoftmax", "logits", axis=-1),
               n("Unsqueeze", "past", n.constant([2])))  # fmt: skip
    top = n("TopK", n.shaped(scores, batch, -1), n.constant([beams]), outputs=2)
    beam = n("Div", f"{top}_1", n.constant(words))
    word = n("Mod", f"{top}_1", n.constant(words))
    index = n("Expand", n("Unsqueeze", beam, n.constant([2])),
              n.joined(batch, beams, n.extent("tokens", 2)))  # fmt: skip
    kept = n("GatherElements", "tokens", index, axis=1)
    y = n("Concat", kept, n("Unsqueeze", word, n.constant([2])), axis=2)
    model = n.model(
        {"logits": ("f", ["n", beams, words]), "past": ("f", ["n", beams]),
         "tokens": ("i", ["n", beams, "s"])},
        {top: "f", y: "i"},
    )  # fmt: skip

    def feed(b: int, s: int) -> Feed:
        return {"logits": floats(b, beams, words), "past": floats(b, beams),
                "tokens": ints(words, b, beams, s)}  # fmt: skip

    return Case(
        model, "logits:1~4,3,7;past:1~4,3;tokens:1~4,3,1~10", [feed(1, 1), feed(4, 10), feed(2, 5)]
    )


def greedy_decode() -> Case:
    """A Loop that runs while the word isn't the last one, and collects the words."""
    b = Net()
    row = b("Gather", "table", "word")
    logits = b("MatMul", b("Tanh", b("Add", row, "state")), b.constant(floats(6, 9), np.float32))
    nearest = b("ArgMax", logits, axis=1, keepdims=0)
    state = b("Mul", b("Add", row, "state"), b.constant(0.5, np.float32))
    going = b("Squeeze", b("Not", b("Equal", nearest, b.constant([0]))))
    held = b("Identity", nearest)
    body = b.body(
        "step", {"i": ("i", []), "c": ("b", []), "word": ("i", [1]), "state": ("f", [1, 6])},
        {going: "b", nearest: "i", state: "f", held: "i"},
    )  # fmt: skip
    n = Net()
    table = n("Identity", n.constant(floats(9, 6, seed=3), np.float32))
    n.nodes[-1].output[0] = "table"
    first = n("Loop", "most", "", "start", "x", outputs=3, body=body)
    del table
    model = n.model(
        {"most": ("i", []), "start": ("i", [1]), "x": ("f", [1, 6])},
        {first: "i", f"{first}_2": "i"},
    )
    feeds = [
        {"most": np.array(m), "start": np.array([s]), "x": floats(1, 6, seed=s)}
        for m, s in ((12, 1), (5, 4), (1, 7), (12, 8), (0, 3))
    ]
    return Case(model, "", feeds, "most:0~12")


def growing_state() -> Case:
    """A Loop whose state grows by a row every time; the number of iterations is an input."""
    b = Net()
    last = b("Slice", "rows", b.constant([-1]), b.constant([1 << 40]), b.constant([0]))
    new = b("Tanh", b("MatMul", last, b.constant(floats(4, 4), np.float32)))
    grown = b("Concat", "rows", new, axis=0)
    going = b("Identity", "c")
    body = b.body(
        "step", {"i": ("i", []), "c": ("b", []), "rows": ("f", None)}, {going: "b", grown: "f"}
    )
    n = Net()
    y = n("Loop", "turns", n.constant(True, np.bool_), "x", body=body)
    model = n.model({"turns": ("i", []), "x": ("f", ["n", 4])}, {y: "f"})
    feeds = [{"turns": np.array(t), "x": floats(k, 4)} for t, k in ((6, 1), (0, 3), (3, 2))]
    return Case(model, "x:1~3,4", feeds, "turns:0~6")


# ---- speech --------------------------------------------------------------------------------------


def masked_encoder() -> Case:
    """Convolutional subsampling with lengths, a mask of the shorter length, masked attention."""
    n = Net()
    x = n("Relu", n("Conv", "x", n.weight(8, 4, 3), strides=[2], pads=[1, 1]))
    lengths = n("Add", n("Div", n("Sub", "lengths", n.constant([1])), n.constant([2])),
                n.constant([1]))  # fmt: skip
    x = n("Transpose", x, perm=[0, 2, 1])
    steps = n.steps(n.extent(x, 1))
    mask = n("Less", n("Unsqueeze", steps, n.constant([0])),
             n("Unsqueeze", lengths, n.constant([1])))  # fmt: skip
    bias = n("Where", mask, n.constant(0.0, np.float32), n.constant(-1e4, np.float32))
    scores = n("MatMul", x, n("Transpose", x, perm=[0, 2, 1]))
    scores = n("Add", scores, n("Unsqueeze", bias, n.constant([1])))
    y = n("MatMul", n("Softmax", scores, axis=-1), x)
    y = n("Mul", y, n("Cast", n("Unsqueeze", mask, n.constant([2])), to=1))
    y = n("LogSoftmax", n("MatMul", y, n.weight(8, 11)), axis=-1)
    model = n.model({"x": ("f", ["n", 4, "t"]), "lengths": ("i", ["n"])}, {y: "f", lengths: "i"})

    def feed(b: int, t: int) -> Feed:
        return {"x": floats(b, 4, t), "lengths": ints(t + 1, b, low=1)}

    return Case(model, "x:1~3,4,4~40;lengths:1~3", [feed(1, 4), feed(3, 40), feed(2, 17)])


def length_regulator() -> Case:
    """FastSpeech: every row is repeated as often as its duration says."""
    n = Net()
    ends = n("CumSum", "durations", n.constant(0))
    total = n("ReduceSum", "durations", keepdims=1)
    steps = n("Unsqueeze", n.steps(total), n.constant([1]))
    before = n("LessOrEqual", n("Unsqueeze", ends, n.constant([0])), steps)
    index = n("ReduceSum", n("Cast", before, to=7), n.constant([1]), keepdims=0)
    y = n("Gather", "x", index)
    model = n.model({"x": ("f", ["t", 5]), "durations": ("i", ["t"])}, {y: "f"})
    feeds = [{"x": floats(t, 5), "durations": ints(4, t, low=1)} for t in (1, 4, 7)]
    return Case(model, "x:1~8,5;durations:1~8", feeds, f"{total}:1~32")


def collapse() -> Case:
    """CTC: the best symbols without blanks and repetitions."""
    n = Net()
    best = n("ArgMax", "x", axis=1, keepdims=0)
    first = n("Concat", n.constant([-1]), n("Slice", best, n.constant([0]), n.constant([-1])),
              axis=0)  # fmt: skip
    keep = n("And", n("Not", n("Equal", best, first)),
             n("Not", n("Equal", best, n.constant([0]))))  # fmt: skip
    y = n("Compress", best, keep)
    count = n("Size", y)
    model = n.model({"x": ("f", ["t", 4])}, {y: "i", count: "i"})
    return Case(model, "x:1~24,4", [{"x": floats(t, 4)} for t in (1, 9, 24)])


def frames() -> Case:
    """Overlapping frames of a signal by indices from ranges, windowed, and their energies."""
    n, width, hop = Net(), 8, 3
    count = n("Add", n("Div", n("Sub", n.extent("x", 1), n.constant([width])),
                       n.constant([hop])), n.constant([1]))  # fmt: skip
    starts = n("Unsqueeze", n("Mul", n.steps(count), n.constant(hop)), n.constant([1]))
    index = n("Add", starts, n.constant([np.arange(width)]))
    y = n("Mul", n("Gather", "x", index, axis=1), n.constant(np.hanning(width), np.float32))
    energy = n("ReduceSumSquare", y, n.constant([2]), keepdims=0)
    model = n.model({"x": ("f", ["n", "t"])}, {y: "f", energy: "f"})
    return Case(model, "x:1~2,8~64", [{"x": floats(*s)} for s in ((1, 8), (2, 64), (1, 31))])


def recurrent() -> Case:
    """A bidirectional LSTM over lengths of their own, all results."""
    n, size = Net(), 5
    time, batch = n.extent("x", 0), n.extent("x", 1)
    lengths = n("Cast", "lengths", to=6)
    y = n("LSTM", "x", n.weight(2, 4 * size, 3), n.weight(2, 4 * size, size),
          n.weight(2, 8 * size), lengths, outputs=3, hidden_size=size, direction="bidirectional")
    rows = n.shaped(n("Transpose", y, perm=[0, 2, 1, 3]), time, batch, 2 * size)
    z = n("MatMul", rows, n.weight(2 * size, 4))
    model = n.model(
        {"x": ("f", ["t", "n", 3]), "lengths": ("i", ["n"])},
        {z: "f", f"{y}_1": "f", f"{y}_2": "f"},
    )

    def feed(t: int, b: int) -> Feed:
        return {"x": floats(t, b, 3), "lengths": ints(t + 1, b, low=1)}

    return Case(model, "x:1~12,1~3,3;lengths:1~3", [feed(1, 1), feed(12, 3), feed(7, 2)])


# ---- points, masks, control flow -----------------------------------------------------------------


def voxels() -> Case:
    """The mean of the points of every voxel: Unique rows, sums by ScatterElements."""
    n = Net()
    cells = n("Cast", n("Floor", "points"), to=7)
    unique = n("Unique", cells, outputs=4, axis=0)
    count = n.extent(unique, 0)
    index = n("Expand", n("Unsqueeze", f"{unique}_2", n.constant([1])), n("Shape", "points"))
    zeros = n("ConstantOfShape", n.joined(count, 3))
    total = n("ScatterElements", zeros, index, "points", axis=0, reduction="add")
    number = n("Unsqueeze", n("Cast", f"{unique}_3", to=1), n.constant([1]))
    mean = n("Div", total, number)
    y = n("Relu", n("MatMul", mean, n.weight(3, 6)))
    model = n.model({"points": ("f", ["k", 3])}, {mean: "f", y: "f", unique: "i"})
    return Case(model, "points:1~40,3", [{"points": floats(k, 3)} for k in (1, 13, 40)])


def masked_rows() -> Case:
    """Rows that a mask chooses go through a layer and back to their places."""
    n = Net()
    index = n("Transpose", n("NonZero", "mask"), perm=[1, 0])
    rows = n("GatherND", "x", index)
    count = n.extent(rows, 0)
    rows = n("Relu", n("MatMul", rows, n.weight(6, 6)))
    norm = n("Div", rows, n("Cast", n("Max", count, n.constant([1])), to=1))
    y = n("ScatterND", "x", index, norm)
    model = n.model({"x": ("f", ["n", "s", 6]), "mask": ("b", ["n", "s"])}, {y: "f", rows: "f"})
    feeds = [
        {"x": floats(*s), "mask": np.asarray(floats(*s[:2]) > limit)}
        for s, limit in (((1, 1, 6), 9), ((2, 7, 6), 0), ((3, 10, 6), -9))
    ]
    return Case(model, "x:1~3,1~10,6;mask:1~3,1~10", feeds)


def masked_sums() -> Case:
    """Sums up to a length, by the steps below it, then a factor that another node computes."""
    n = Net()
    row = n("Unsqueeze", n.steps(n.extent("x", 1)), n.constant([0]))
    below = n("Less", row, n("Unsqueeze", "lengths", n.constant([1])))
    mask = n("Unsqueeze", n("Cast", below, to=TensorProto.FLOAT), n.constant([2]))
    total = n("ReduceSum", n("Mul", "x", mask), n.constant([1]), keepdims=0)
    y = n("Add", n("Mul", total, n("Neg", "scale")), n("Transpose", "shift"))
    model = n.model(
        {"x": ("f", ["b", "t", 4]), "lengths": ("i", ["b"]), "scale": ("f", ["b", 4]),
         "shift": ("f", [4, "b"])}, {y: "f"},
    )  # fmt: skip

    def feed(b: int, t: int) -> Feed:
        return {"x": floats(b, t, 4), "lengths": ints(t + 2, b), "scale": floats(b, 4, seed=1),
                "shift": floats(4, b, seed=2)}  # fmt: skip

    return Case(
        model, "x:1~5,1~9,4;lengths:1~5;scale:1~5,4;shift:4,1~5",
        [feed(1, 1), feed(3, 7), feed(5, 9)],
    )  # fmt: skip


def sampled() -> Case:
    """GridSample of each kind over images of several sizes, for any number of places."""
    n = Net()
    kinds = [(m, p, a) for m in ("bilinear", "bicubic", "nearest")
             for p, a in (("zeros", 0), ("border", 1), ("reflection", 0), ("reflection", 1))]
    parts = [n("GridSample", "x", "at", mode=m, padding_mode=p, align_corners=a)
             for m, p, a in kinds]  # fmt: skip
    y = n("Concat", *parts, axis=1)
    model = n.model({"x": ("f", ["n", 2, "h", "w"]), "at": ("f", ["n", "k", 3, 2])}, {y: "f"})
    feeds = [{"x": floats(b, 2, h, w), "at": 1.2 * floats(b, k, 3, 2)}
             for b, h, w, k in ((1, 4, 7, 2), (3, 9, 1, 1), (2, 1, 5, 4))]  # fmt: skip
    return Case(model, "x:1~3,2,1~9,1~7;at:1~3,1~4,3,2", feeds)


def nucleus() -> Case:
    """Top-p: words in order until their probabilities sum up to p."""
    n = Net()
    probability = n("Softmax", "logits", axis=0)
    top = n("TopK", probability, n("Shape", probability), outputs=2)
    before = n("CumSum", top, n.constant(0), exclusive=1)
    keep = n("Less", before, n.constant(0.7, np.float32))
    y = n("Compress", f"{top}_1", keep)
    p = n("Compress", top, keep)
    y2 = n("Div", p, n("ReduceSum", p, keepdims=1))
    model = n.model({"logits": ("f", ["v"])}, {y: "i", y2: "f"})
    return Case(model, "logits:1~50", [{"logits": 3 * floats(v)} for v in (1, 20, 50)])


def rows_one_by_one() -> Case:
    """A Loop over the rows of a batch, outer values in its body, results collected."""
    b = Net()
    row = b("Gather", "x", "i", axis=0)
    y = b("Softmax", b("MatMul", b("Unsqueeze", row, b.constant([0])), "w"), axis=-1)
    total = b("Add", "total", b("ReduceSum", y, keepdims=0))
    going = b("Identity", "c")
    body = b.body(
        "row", {"i": ("i", []), "c": ("b", []), "total": ("f", [])},
        {going: "b", total: "f", y: "f"},
    )  # fmt: skip
    n = Net()
    first = n("Loop", n.scalar(n.extent("x", 0)), n.constant(True, np.bool_),
              n.constant(0.0, np.float32), outputs=2, body=body)  # fmt: skip
    model = n.model({"x": ("f", ["n", 4]), "w": ("f", [4, "k"])}, {first: "f", f"{first}_1": "f"})
    feeds = [{"x": floats(a, 4), "w": floats(4, k)} for a, k in ((1, 2), (9, 5), (4, 3))]
    return Case(model, "x:1~9,4;w:4,1~5", feeds)


def until_close() -> Case:
    """Newton's method while the error is large, twenty times at most."""
    b = Net()
    half = b.constant(0.5, np.float32)
    new = b("Mul", b("Add", "y", b("Div", "x", "y")), half)
    error = b("ReduceMax", b("Abs", b("Sub", b("Mul", new, new), "x")), keepdims=0)
    going = b("Greater", error, b.constant(1e-4, np.float32))
    body = b.body(
        "step", {"i": ("i", []), "c": ("b", []), "y": ("f", ["n"])}, {going: "b", new: "f"}
    )
    n = Net()
    y = n("Loop", n.constant(20), n.constant(True, np.bool_), "x", body=body)
    model = n.model({"x": ("f", ["n"])}, {y: "f"})
    return Case(model, "x:1~8", [{"x": 1 + np.abs(floats(k))} for k in (1, 4, 8)])


def branches() -> Case:
    """An If of the values whose branches give different lengths."""
    then, other = Net(), Net()
    a = then("Slice", "x", then.constant([0]), then.constant([2]))
    b = other("Concat", "x", "x", axis=0)
    n = Net()
    condition = n("Greater", n("ReduceSum", "x", keepdims=0), n.constant(0.0, np.float32))
    y = n("If", condition, then_branch=then.body("then", {}, {a: "f"}),
          else_branch=other.body("else", {}, {b: "f"}))  # fmt: skip
    z = n("Mul", y, n.constant(2.0, np.float32))
    model = n.model({"x": ("f", ["n"])}, {z: "f"})
    feeds = [{"x": np.full(k, v, np.float32)} for k, v in ((2, 1), (5, -1), (7, 1), (8, -2))]
    return Case(model, "x:2~8", feeds)


def branches_sliced() -> Case:
    """An If of detectors: the places that a branch finds, or none; the first ones are taken."""
    then, other = Net(), Net()
    a = then("Reshape", then("NonZero", "x"), then.constant([-1]))
    zero = numpy_helper.from_array(np.zeros(1, np.int64))
    b = other("ConstantOfShape", other.constant([0]), value=zero)
    n = Net()
    condition = n("Greater", n("ReduceMax", "x", keepdims=0), n.constant(2.0, np.float32))
    places = n("If", condition, then_branch=then.body("then", {}, {a: "i"}),
               else_branch=other.body("else", {}, {b: "i"}))  # fmt: skip
    first = n("Slice", places, n.constant([0]), n.constant([3]))
    model = n.model({"x": ("f", ["n"])}, {n("Gather", "x", first): "f"})
    return Case(model, "x:2~8", [{"x": np.arange(k, dtype=np.float32)} for k in (2, 3, 4, 8)])


def best_of_found() -> Case:
    """The best of the scores above a threshold; where those are is asked twice, as RetinaNet does.
    """
    n = Net()
    keep = n("Greater", "x", n.constant(0.0, np.float32))
    scores = n("GatherND", "x", n("Transpose", n("NonZero", keep)))
    found = n("Reshape", n("NonZero", keep), n.constant([-1]))
    count = n("Min", n.constant([3]), n("Shape", found))
    best = n("TopK", scores, count, outputs=2)
    at = n("Gather", found, f"{best}_1")
    model = n.model({"x": ("f", ["n"])}, {best: "f", at: "i"})
    return Case(model, "x:2~8", [{"x": floats(k)} for k in (2, 5, 8)])


def conditional_rows() -> Case:
    """An If inside a Loop, each with values from outside, and a scan of a dynamic length."""
    then, other = Net(), Net()
    a = then("Mul", "h", "scale")
    b = other("Add", "h", "part")
    s = Net()
    big = s("Greater", s("ReduceSum", "part", keepdims=0), s.constant(0.0, np.float32))
    h = s("If", big, then_branch=then.body("then", {}, {a: "f"}),
          else_branch=other.body("else", {}, {b: "f"}))  # fmt: skip
    out = s("Tanh", h)
    body = s.body("scan", {"h": ("f", [3]), "part": ("f", [3])}, {h: "f", out: "f"})
    n = Net()
    n.nodes.append(helper.make_node("Identity", [n.constant(0.7, np.float32)], ["scale"]))
    first = n("Scan", n.constant(np.zeros(3), np.float32), "x", outputs=2, body=body,
              num_scan_inputs=1)  # fmt: skip
    model = n.model({"x": ("f", ["t", 3])}, {first: "f", f"{first}_1": "f"})
    return Case(model, "x:1~20,3", [{"x": floats(t, 3)} for t in (1, 11, 20)])


def scanned_columns() -> Case:
    """Scans of the columns of a batch: of as many as a range says, from the last, and of four."""
    n = Net()
    state, names = "start", []
    for sequence, backwards in (("x", 1), ("w", 0)):
        s = Net()
        h = s("Add", "h", "part")
        body = s.body(
            f"of_{sequence}", {"h": ("f", ["n", 3]), "part": ("f", ["n", 3])},
            {h: "f", s("Mul", h, "part"): "f"},
        )  # fmt: skip
        state = n("Scan", state, sequence, outputs=2, body=body, num_scan_inputs=1,
                  scan_input_axes=[2], scan_input_directions=[backwards],
                  scan_output_axes=[1])  # fmt: skip
        names += [state, f"{state}_1"]
    kept = n("Dropout", state, outputs=2)
    inputs: dict[str, tuple[str, object]] = {
        "start": ("f", ["n", 3]), "x": ("f", ["n", 3, "t"]), "w": ("f", ["n", 3, 4])
    }  # fmt: skip
    model = n.model(inputs, {**dict.fromkeys([*names, kept], "f"), f"{kept}_1": "b"})
    feeds = [
        {"start": floats(b, 3), "x": floats(b, 3, t), "w": floats(b, 3, 4)}
        for b, t in ((1, 1), (4, 11), (9, 20))
    ]
    return Case(model, "start:n=1~9,3;x:n=1~9,3,t=1~20;w:n=1~9,3,4", feeds)


def masked_assignment() -> Case:
    """x[mask] = 0 as PyTorch's exporter writes it: the mask is counted in two ways."""
    n = Net()
    wide = n("Expand", n("Unsqueeze", "mask", n.constant([-1])), n("Shape", "x"))
    places = n("Transpose", n("NonZero", wide), perm=[1, 0])
    flat = n("Cast", n("Reshape", "mask", n.constant([-1])), to=7)
    zeros = n("Expand", n.constant(0.0, np.float32), n.joined(n("ReduceSum", flat), 4))
    updates = n("Reshape", zeros, n.constant([-1]))
    y = n("Add", n("ScatterND", "x", places, updates), n.constant(1.0, np.float32))
    model = n.model({"x": ("f", ["n", "s", 4]), "mask": ("b", ["n", "s"])}, {y: "f"})
    feeds = [{"x": floats(*s, 4), "mask": floats(*s, seed=1) > 0.2} for s in ((1, 1), (3, 7))]
    feeds.append({"x": floats(2, 5, 4), "mask": np.zeros((2, 5), bool)})
    return Case(model, "x:n=1~3,s=1~7,4;mask:n,s", feeds)


# ---- volumes -------------------------------------------------------------------------------------
def volumes() -> Case:
    """A U-Net of volumes, whose convolutions are sums over their planes."""
    n = Net()
    first = n("LeakyRelu", n("Conv", "x", n.weight(6, 1, 3, 3, 3), pads=[1] * 6))
    down = n("Relu", n("Conv", first, n.weight(8, 6, 3, 3, 3), n.weight(8), pads=[1] * 6,
             strides=[2, 2, 2]))  # fmt: skip
    up = n("ConvTranspose", down, n.weight(8, 6, 2, 2, 2), strides=[2, 2, 2])
    y = n("Conv", n("Concat", first, up, axis=1), n.weight(2, 12, 2, 3, 3), dilations=[2, 1, 1],
          pads=[0, 1, 1, 2, 1, 1])  # fmt: skip
    model = n.model({"x": ("f", ["n", 1, "2*d", "2*h", "2*w"])}, {y: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 1, 4, 2, 6), (2, 1, 8, 12, 10))]
    return Case(model, "x:1~2,1,4~8,2~12,6~10", feeds)


# ---- audio ---------------------------------------------------------------------------------------
def spectrum() -> Case:
    """Frames of a signal as powers of its frequencies: as many as it is long."""
    n = Net()
    waves = n("STFT", "x", n.constant(5), n.weight(12), onesided=1)
    power = n("ReduceSum", n("Mul", waves, waves), n.constant([-1]), keepdims=0)
    model = n.model({"x": ("f", ["n", "t", 1])}, {power: "f"})
    feeds = [{"x": floats(*s)} for s in ((1, 12, 1), (3, 21, 1), (2, 50, 1))]
    return Case(model, "x:n=1~3,t=12~50,1", feeds)


def many_taps() -> Case:
    """A filter of more taps than are written out, in steps of two."""
    n = Net()
    y = n("Relu", n("Conv", "x", n.weight(20, 3, 48), strides=[2], pads=[23, 23]))
    model = n.model({"x": ("f", ["n", 3, "t"])}, {y: "f"})
    return Case(model, "x:1~2,3,8~150", [{"x": floats(*s)} for s in ((1, 3, 8), (2, 3, 150))])


def batched_values() -> Case:
    """Weighted sums of the heads of tokens, between which the batch stands."""
    n = Net()
    tokens = n.shaped("v", 40, n("Mul", n.extent("v", 1), n.constant([4])), 32)
    y = n("Relu", n("MatMul", "x", n("Transpose", tokens, perm=[1, 0, 2])))
    model = n.model({"x": ("f", ["4*n", 40, 40]), "v": ("f", [40, "n", 128])}, {y: "f"})
    feeds = [{"x": floats(4 * b, 40, 40), "v": floats(40, b, 128)} for b in (1, 4)]
    return Case(model, "v:40,n=1~4,128;x:4*n,40,40", feeds)


def relative_embeddings() -> Case:
    """VITS's embeddings of distances up to four, padded for longer texts, cut for shorter."""
    n = Net()
    length, zero = n.extent("x", 1), n.constant([0])
    pad = n("Max", n("Sub", length, n.constant([5])), zero)
    start = n("Max", n("Sub", n.constant([5]), length), zero)
    end = n("Add", start, n("Sub", n("Mul", length, n.constant([2])), n.constant([1])))
    padded = n("Pad", n.weight(1, 9, 6), n.joined(0, pad, 0, 0, pad, 0))
    used = n("Slice", padded, start, end, n.constant([1]))
    scores = n("MatMul", "x", n("Transpose", used, perm=[0, 2, 1]))
    flat = n.shaped(n("Pad", scores, n.constant([0, 0, 0, 0, 0, 1])), 1,
                    n("Mul", n("Mul", length, n.constant([2])), length))  # fmt: skip
    more = n("Pad", flat, n.joined(0, 0, 0, n("Sub", length, n.constant([1]))))
    rows = n.shaped(more, 1, n("Add", length, n.constant([1])),
                    n("Sub", n("Mul", length, n.constant([2])), n.constant([1])))  # fmt: skip
    kept = n("Slice", rows, zero, length, n.constant([1]))
    last = n("Slice", kept, n("Sub", length, n.constant([1])), n.constant([1 << 60]),
             n.constant([2]))  # fmt: skip
    y = n("MatMul", n("Softmax", last), "x")
    model = n.model({"x": ("f", [1, "t", 6])}, {y: "f"})
    return Case(model, "x:1,t=1~30,6", [{"x": floats(1, t, 6)} for t in (1, 4, 5, 6, 30)])


def attention_of_bytes(points: tuple[int, int] = (121, 30), dtype: type = np.uint8) -> Case:
    """Scores of tokens, and sums of these, between bytes whose scales make all sums exact."""
    n = Net()

    def quantized(x: str, scale: float, point: int) -> str:
        args = (n.constant(scale, np.float32), n.constant(point, dtype))
        return n("DequantizeLinear", n("QuantizeLinear", x, *args), *args)

    x = n("Reshape", quantized("x", 2**-5, points[0]), n.constant([0, 0, 2, 11]))
    q, k, v = (n("Transpose", x, perm=perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    scores = quantized(n("MatMul", q, k), 2**-4, points[1])
    y = n("Transpose", n("MatMul", scores, v), perm=[0, 2, 1, 3])
    model = n.model({"x": ("f", ["n", "t", 22])}, {y: "f"})
    return Case(model, "x:1~3,1~50,22", [{"x": floats(*s, 22)} for s in ((1, 1), (3, 15), (2, 50))])


CASES: Mapping[str, Callable[[], Case]] = {
    f.__name__: f for f in (
        detector, rois, skips, masks, pyramid, segmentation, windows, grid, shuffle,
        cached_attention, relative_positions, sampled, pooled_sentences, beam_step, greedy_decode,
        growing_state, masked_encoder, length_regulator, collapse, frames, recurrent, voxels,
        masked_rows, masked_sums, nucleus, rows_one_by_one, until_close, branches, branches_sliced,
        best_of_found, conditional_rows, scanned_columns, spectrum, many_taps, batched_values,
        relative_embeddings, volumes, masked_assignment, attention_of_bytes,
    )
}  # fmt: skip
