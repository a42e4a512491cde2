"""Whole networks, and files that trace.dump does not write by itself."""

from __future__ import annotations

import numpy as np
from make_megengine_dumps import Case


def networks(g):
    """Whole networks of common kinds."""
    M, F = g.M, g.F

    class Residual(M.Module):
        def __init__(self, width):
            super().__init__()
            self.first, self.second = (
                M.ConvBn2d(width, width, 3, padding=1),
                M.ConvBn2d(width, width, 1),
            )

        def forward(self, x):
            return F.relu(self.second(F.relu(self.first(x))) + x)

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.stem = M.ConvBnRelu2d(3, 8, 3, stride=2, padding=1)
            self.body = M.Sequential(Residual(8), Residual(8))
            self.head = M.Linear(8, 5)

        def forward(self, x):
            x = self.body(self.stem(x))
            return self.head(F.avg_pool2d(x, 8).reshape(x.shape[0], -1))

    net = g.randomized(Net())
    image = g.normal(1, 3, 16, 16)
    yield Case("residual", net, image)
    fused = dict(enable_fuse_conv_bias_nonlinearity=True, enable_fuse_conv_bias_with_z=True)
    yield Case("residual_fused", net, image, **fused)
    yield Case("residual_plain", net, image, optimize_for_inference=False, no_change_graph=True)
    yield Case("no_names", net, image, keep_var_name=0)
    yield Case("op_names", net, image, keep_opr_name=True, keep_param_name=True)
    yield Case(
        "two_outputs",
        lambda x: (net(x), F.softmax(net(x)), x),
        image,
        output_names=["logits", "probabilities", "same"],
    )

    class Unet(M.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = (
                M.Conv2d(3, 8, 3, stride=2, padding=1),
                M.ConvTranspose2d(8, 3, 2, 2),
            )
            self.last = M.Conv2d(6, 4, 1)

        def forward(self, x):
            y = self.up(F.leaky_relu(self.down(x), 0.1))
            y = F.vision.interpolate(y, scale_factor=2, mode="bilinear")
            x = F.vision.interpolate(x, scale_factor=2, mode="nearest")
            return F.argmax(self.last(F.concat([x, y], 1)), axis=1), F.sigmoid(y)

    yield Case("segmentation", g.randomized(Unet()), image)


def stored(g):
    """Shared parameters, separate and in one operator, and two networks in one file."""
    from megengine.core._imperative_rt.graph import make_shared
    from megengine.core.tensor import megbrain_graph as mb

    def graph():
        graph = mb.Graph()
        x = graph.make_h2d(dtype=np.float32, device="xpux", shape=(2, 3), name="x0")
        for mode in ("ADD", "MUL"):
            weight = make_shared(graph, g.mge.tensor(g.normal(2, 3))._dev_tensor())
            x = mb.apply_normal_varnode(g.B.Elemwise(mode), x, weight)[0]
        return [x]

    def separate(path, **options):
        path.write_bytes(mb.dump_graph(graph(), keep_param_name=True, **options)[0])

    def merged(path, **options):
        together = mb.optimize_for_inference(graph())[0]
        path.write_bytes(mb.dump_graph(together, keep_var_name=2, **options)[0])

    yield Case("shared", None, g.normal(2, 3), writer=separate)
    yield Case("holder", None, g.normal(2, 3), writer=merged)
    net = g.randomized(g.M.Linear(4, 3))
    x = g.normal(2, 4)
    yield Case("appended", lambda x: net(x) * 2, x, append=True)
