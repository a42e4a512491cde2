"""Portable kernel of DecodeImage."""

from __future__ import annotations

import numpy as np

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.ops.image import DecodeImage

ROTATIONS = {"0.298631336": 2446, "0.390180644": 3196, "0.541196100": 4433, "0.765366865": 6270,
             "0.899976223": 7373, "1.175875602": 9633, "1.501321110": 12299, "1.847759065": 15137,
             "1.961570560": 16069, "2.053119869": 16819, "2.562915447": 20995,
             "3.072711026": 25172}  # fmt: skip
"""Factors of the inverse DCT of Loeffler, Ligtenberg and Moschytz (ICASSP 1989), times 2^13."""


def inverse_dct() -> list[list[int]]:
    """Return the eight rows that the coefficients of a line weight, times 2^13.

    They are sums of rounded ROTATIONS, so that results are those of decoders which compute with
    these.
    """
    r = list(ROTATIONS.values())
    one = np.eye(8, dtype=np.int64)  # row u: what coefficient u contributes
    even = (one[2] + one[6]) * r[2]
    c, d = even - one[6] * r[7], even + one[2] * r[3]
    a, b = (one[0] + one[4]) << 13, (one[0] - one[4]) << 13
    upper = [a + d, b + c, b - c, a - d]
    both = (one[7] + one[3] + one[5] + one[1]) * r[5]
    third, fourth = both - (one[7] + one[3]) * r[8], both - (one[5] + one[1]) * r[1]
    first, second = -(one[7] + one[1]) * r[4], -(one[5] + one[3]) * r[10]
    lower = [one[1] * r[6] + first + fourth, one[3] * r[11] + second + third,
             one[5] * r[9] + second + fourth, one[7] * r[0] + first + third]  # fmt: skip
    lines = [u + v for u, v in zip(upper, lower, strict=True)]
    lines += [u - v for u, v in zip(reversed(upper), reversed(lower), strict=True)]
    rows: list[list[int]] = np.stack(lines, axis=1).tolist()
    return rows


class ImageDecoder(Kernel[DecodeImage]):
    """Decoders of all formats in one function; the file's first bytes choose."""

    name = "image_decoder"
    op = DecodeImage
    template = "cpu/special/image_decoder.c.j2"
    fallible = ("FORMAT", "IMAGE")

    def scratch(self, w: Workload[DecodeImage], params: Params, target: Target) -> int:
        """Reserve the lines of a PNG (at most 8 bytes per pixel), or the planes of a JPEG."""
        op = w.op
        lines = 8 * op.height * op.width + 4 * op.height + 32
        return max(lines, 3 * _plane(op))

    def values(self, w: Workload[DecodeImage], params: Params, target: Target) -> dict[str, object]:
        """Return the file's size, and how a JPEG's planes lie in scratch."""
        op = w.op
        return {
            "op": op, "size": w.input(0).size, "plane": _plane(op), "stride": _whole(op.width),
            "basis": inverse_dct(),
        }  # fmt: skip


def _whole(extent: int) -> int:
    """Return an extent rounded up to whole units of 16 pixels."""
    return -(-extent // 16) * 16


def _plane(op: DecodeImage) -> int:
    return _whole(op.width) * _whole(op.height)


KERNELS = (ImageDecoder(),)
