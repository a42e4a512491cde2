"""Operator types from their 64-bit ids, for dumps that hold no type names.

The id is XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) with seed 20160701
of the class name: with its version suffix and a closing NUL in old files and for classes registered
for model version 2, without both otherwise. A hash of 0 becomes 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from atc.errors import UnsupportedError

# Every operator type that a dump may hold, normalised; not all of them can be translated.
_KINDS = """
AdaptivePooling Alloc Argmax Argmin Argsort AssertEqual AxisAddRemove BatchConvBias BatchNorm
BatchedIncrMeshIndexing BatchedMatrixMul BatchedMeshIndexing BatchedSetMeshIndexing BetaRNG
Broadcast CheckNonFinite CollectiveComm Concat CondExecMark CondExecMerge CondExecPred
CondExecPredLogical CondTake ConvBias Convolution Convolution3D Convolution3DBackwardData
ConvolutionBackwardData Copy Correlation Cross Cumsum CvtColor DctChannelSelect DeformableConv
DeformablePSROIPooling Diag Dimshuffle Dot Dropout Elemwise ElemwiseMultiType ExternCOprDummy
Eye FakeQuant Fill Flip GammaRNG GaussianBlur GaussianRNG GeneralNorm GetVarShape GroupLocal
GroupNorm Host2DeviceCopy Identity Images2Neibs ImmutableTensor IncrMeshIndexing IncrSubtensor
IndexAt IndexingIncrMultiAxisVec IndexingMultiAxisVec IndexingOneHot IndexingRemap
IndexingSetMultiAxisVec IndexingSetOneHot InstanceNorm LRN LSQ LSTM LSTMCell LayerNorm Linspace
Local LocalShare MarkNoBroadcastElemwise MaskConvolution MaskPropagate MaskedFill MatrixInverse
MatrixMul MeshIndexing MultiHeadAttn MultipleDeviceTensorHolder
MultipleDeviceTensorWithFormatHolder NMSKeepMGB NonZero NvOf Padding ParamPackConcat
ParamPackSplit PermutationRNG PoissonRNG Pooling PowC RNN RNNCell ROIAlign ROICopy ROIPooling
Reduce RegionRestrictedConvolution RelayoutFormat Remap Reshape Resize Resize3D Rotate SVD
SetMeshIndexing SetSubtensor SharedDeviceTensor SharedDeviceTensorWithFormat ShuffleRNG
SlidingWindowTranspose Softmax Split Subtensor TQT TopK TypeCvt UniformRNG
VolatileSharedDeviceTensor WarpAffine WarpPerspective
"""
KINDS = tuple(_KINDS.split())

_SEED = 20160701
_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def type_id(name: str, *, terminated: bool) -> int:
    """Return the id of a class name; `terminated` appends the NUL byte."""
    return xxh64(name.encode() + (b"\0" if terminated else b""), _SEED) or 1


def kind_of_id(number: int, file: str) -> str:
    """Return the normalised type of an id; raises `UnsupportedError` where it is unknown."""
    kind = _kinds_by_id().get(number)
    if kind is None:
        raise UnsupportedError(
            f"unknown operator with type id {number:016x}",
            where=file,
            hint="dump with dump_format=FBS_V2, which holds the operators' names",
        )
    return kind


@cache
def _kinds_by_id() -> Mapping[int, str]:
    return {
        type_id(spelling, terminated=terminated): kind
        for kind in KINDS
        for spelling in _spellings(kind)
        for terminated in (False, True)
    }


def normalized(name: str) -> str:
    """Return a class name without its version suffix and `Forward`."""
    return re.sub(r"(?<=.)Forward$", "", re.sub(r"(?<=.)V\d$", "", name))


def _spellings(kind: str) -> Iterator[str]:
    for name in (kind, f"{kind}Forward"):
        yield name
        yield from (f"{name}V{version}" for version in range(1, 5))


def xxh64(data: bytes, seed: int) -> int:
    """Return the 64-bit xxHash of `data`."""
    at, end = 0, len(data)
    if end >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while at + 32 <= end:
            lanes = [_round(lane, _word(data, at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        value = sum(_rotate(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            value = (value ^ _round(0, lane)) * _P1 + _P4
    else:
        value = seed + _P5
    value = _tail(data, at, (value + end) & _MASK)
    value = ((value ^ (value >> 33)) * _P2) & _MASK
    value = ((value ^ (value >> 29)) * _P3) & _MASK
    return value ^ (value >> 32)


def _tail(data: bytes, at: int, value: int) -> int:
    """Mix the last, fewer than 32 bytes into the hash."""
    while at + 8 <= len(data):
        value = _rotate(value ^ _round(0, _word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= len(data):
        value = _rotate(value ^ (_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    for byte in data[at:]:
        value = _rotate(value ^ (byte * _P5), 11) * _P1
    return value & _MASK


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(lane: int, word: int) -> int:
    return (_rotate(lane + word * _P2, 31) * _P1) & _MASK
