"""The tables of a dump by vtable slot: containers, operators, and the operators' parameters.

A slot's default matters: FlatBuffers leaves a field out where it has it. Fields stand in slot
order; the numbers before the parameter tables are the codes of the union `OperatorParam`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class ModelSlot(IntEnum):
    """Slots of the root table of an FBS_V2 file."""

    MGE_VERSION = 0
    MODEL_VERSION = 1
    OPERATORS = 2
    MIDDLE_TENSORS = 3
    OUTPUTS = 4
    OUTPUT_ALIAS = 5


class GraphSlot(IntEnum):
    """Slots of the root table of an FBS v1 file."""

    MGB_VERSION = 0
    OPERATORS = 3
    OUTPUTS = 4


class OperatorSlot(IntEnum):
    """Slots of an operator of an FBS_V2 file; a union takes two, a vector of unions two vectors."""

    TYPE = 0
    TYPE_ID = 1
    NAME = 2
    PARAM_TYPE = 3
    PARAM = 4
    MORE_PARAM_TYPES = 5
    MORE_PARAMS = 6
    INPUTS = 7
    OUTPUTS = 8
    OUTPUT_DTYPE = 10
    TENSORS = 11
    OPR_VERSION = 12
    CUSTOM_DATA = 14


class OldOperatorSlot(IntEnum):
    """Slots of an operator of an FBS v1 file."""

    TYPE_ID = 0
    PARAM_TYPE = 1
    PARAM = 2
    INPUTS = 3
    OUTPUT_NAMES = 5
    OUTPUT_DTYPE = 6
    TENSORS = 7
    BLOBS = 9
    MORE_PARAM_TYPES = 10
    MORE_PARAMS = 11
    NAME = 12


class TensorSlot(IntEnum):
    """Slots of a stored tensor; `DATA` of FBS_V2, `DATA_SIZE` and `OFFSET` of FBS v1."""

    NAME = 0
    SHAPE = 1
    COMP_NODE = 2
    DTYPE = 3
    FORMAT_TYPE = 4
    FORMAT = 5
    DATA = 6
    DATA_SIZE = 4
    OFFSET = 5


@dataclass(frozen=True)
class Field:
    """One slot of a parameter table.

    `kind` is a scalar's kind, `enum` (with `names`), `dtype` for the two slots of a type, or a
    vector: `ints`, `axes` (structs of AxisAddRemove), `indices` (structs of IndexDescMaskDump).
    """

    name: str
    kind: str
    slot: int
    default: float = 0
    names: tuple[str, ...] = ()


_FORMATS = (
    "NCHW NHWC NHWCD4 NCHW4 NCHW8 NCHW32 NCHW88 NCHW44 NCHW44_DOT NCHW4_NCHW32 NCHW32_NCHW4 "
    "NCHW4_NCHW NHWC_NCHW NHWC_NCHW4_IC_SMALL NCHW_NCHW4_IC_SMALL CHWN4 NCHW64 NCHW4_NHWC"
)
_ENUMS = {
    name: tuple(words.split())
    for name, words in {
        "Border": "REPLICATE REFLECT REFLECT_101 WRAP CONSTANT TRANSPARENT ISOLATED",
        "CondTake": "EQ NEQ LT LEQ GT GEQ",
        "Conv": "CROSS_CORRELATION CONVOLUTION",
        "ConvNonline": "IDENTITY RELU SIGMOID H_SWISH",
        "Format": _FORMATS,
        "FormatNHWC": _FORMATS,
        "Format3D": "NCDHW NDHWC",
        "Forward": "TRAINING INFERENCE",
        "Interpolation": "NEAREST LINEAR AREA CUBIC LANCZOS4",
        "Pad": "REPLICATE REFLECT CONSTANT",
        "ParamDim": "DIM_11HW DIM_1CHW DIM_1C11 DIM_111C",
        "Pool": "MAX AVERAGE AVERAGE_COUNT_EXCLUDE_PADDING",
        "Order": "ASCENDING DESCENDING",
        "Reduce": "SUM SUM_SQR PRODUCT MIN MAX MEAN",
        "ReduceType": "DEFAULT FLOAT_IO16xC32 FLOAT_O32xC32 FLOAT_O16xC32 QUINT_I8xO32 QINT_I8xO32",
        "RnnNonline": "IDENTITY RELU TANH",
        "RoiMode": "MAX AVERAGE",
        "Sparse": "DENSE GROUP",
        "TopK": "KTH_ONLY VALUE_IDX_NOSORT VALUE_IDX_SORTED",
        "Elemwise": (
            "RELU ABS ACOS ASIN CEIL COS EXP EXPM1 FLOOR LOG LOG1P NEGATE SIGMOID SIN TANH "
            "ABS_GRAD ADD FLOOR_DIV MAX MIN MOD MUL POW SIGMOID_GRAD SUB SWITCH_GT0 TANH_GRAD "
            "TRUE_DIV LOG_SUM_EXP LT LEQ EQ SHL SHR COND_LEQ_MOV FUSE_MUL_ADD3 FUSE_MUL_ADD4 "
            "FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH FAST_TANH FAST_TANH_GRAD ROUND RMULH "
            "ATAN2 ERF ERFINV ERFC ERFCINV H_SWISH H_SWISH_GRAD FUSE_ADD_H_SWISH NOT AND OR XOR "
            "SILU SILU_GRAD GELU GELU_GRAD COND_LT_MOV NEQ ISNAN ISINF SINH COSH ASINH ACOSH "
            "ATANH TAN ASINH_GRAD ACOSH_GRAD ATANH_GRAD PRELU CLIP PRELU_GRAD SOFTPLUS "
            "SOFTPLUS_GRAD RELU6 RELU6_GRAD HSIGMOID HSIGMOID_GRAD LOGSIGMOID SQRT SQUARE SIGN "
            "SAFE_DIV"
        ),
        "ElemwiseMultiType": (
            "FUSE_MUL_ADD3_INT16x32x32x32 FUSE_MUL_ADD3_IXxF32xF32xI8 ROUND_SHR_SATURATE_IXxI8xI8 "
            "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT16x16x16x8 "
            "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT32x32x32x8 ROUND_SHR_SATURATE_IXxI8xI16 QADD "
            "QFUSE_ADD_RELU QMUL QMIN QMAX QSUB QTRUE_DIV QFUSE_ADD_SIGMOID QFUSE_ADD_TANH QRELU "
            "QABS QSIGMOID QEXP QTANH QFUSE_MUL_ADD3 QFAST_TANH QNEGATE QACOS QASIN QCEIL QCOS "
            "QEXPM1 QFLOOR QLOG QLOG1P QSIN QROUND QERF QERFINV QERFC QERFCINV QABS_GRAD "
            "QFLOOR_DIV QMOD QSIGMOID_GRAD QSWITCH_GT0 QTANH_GRAD QLT QLEQ QEQ QPOW QLOG_SUM_EXP "
            "QFAST_TANH_GRAD QATAN2 QCOND_LEQ_MOV QH_SWISH QFUSE_ADD_H_SWISH QH_SWISH_GRAD "
            "FUSE_MUL_ADD3_INT16xF32xF32xF32 MUL_INT16xF32xF32 FUSE_MUL_ADD3_UINT8xF32xF32xF32 "
            "QCOND_LT_MOV EQ NEQ LT LEQ ISNAN ISINF"
        ),
        "CvtColor": (
            "RGB2GRAY RGB2YUV YUV2RGB GRAY2RGB RGBA2RGB RGBA2BGR RGBA2GRAY RGB2BGR BGR2GRAY BGR2RGB"
        ),
    }.items()
}

# code name: field:kind=default ... ; the kind u32 and the default 0 are left out.
_PARAMS = """
1 Empty:
2 Axis: axis:i32
3 Convolution: mode:Conv pad_h pad_w stride_h=1 stride_w=1 dilate_h=1 dilate_w=1 sparse:Sparse \
  format:Format compute_mode
6 ConvBias: nonline_mode:ConvNonline mode:Conv sparse:Sparse format:Format pad_h pad_w stride_h=1 \
  stride_w=1 dilate_h=1 dilate_w=1 compute_mode
8 Images2Neibs: pad_h pad_w stride_h=1 stride_w=1 dilate_h=1 dilate_w=1 window_h=3 window_w=3
9 Pooling: mode:Pool pad_h pad_w stride_h=2 stride_w=2 window_h=2 window_w=2 format:Format
10 LRN: n=5 k:f32=2 alpha:f32=1e-4 beta:f32=0.75
11 BN: param_dim:ParamDim fwd_mode:Forward epsilon:f64=1e-4 avg_factor:f64=1 scale:f32=1 bias:f32
12 ROIPooling: mode:RoiMode scale:f32=1
13 WarpPerspective: imode:Interpolation=1 bmode:Border format:Format border_val:f32
17 Elemwise: mode:Elemwise
18 ElemwiseMultiType: mode:ElemwiseMultiType
19 PowC: exp:f32
20 MatrixMul: transposeA:bool transposeB:bool compute_mode format
23 Reduce: mode:Reduce axis:i32=2147483647 data_type:ReduceType
24 Cumsum: axis:i32=2147483647 exclusive:bool=1 reverse:bool
25 CondTake: mode:CondTake val:f32 eps:f32=1e-6
26 Argsort: order:Order
29 Linspace: endpoint:bool=1
30 LinspaceFull: start:f64 stop:f64=1 endpoint:bool=1
31 Eye: k:i32 dtype:i8
37 CvtColor: mode:CvtColor
38 WarpAffine: imode:Interpolation=1 border_mode:Border border_val:f32 format:FormatNHWC=1
40 Resize: imode:Interpolation=1 format:FormatNHWC=1
41 Convolution3D: mode:Conv pad_d pad_h pad_w stride_d=1 stride_h=1 stride_w=1 dilate_d=1 \
  dilate_h=1 dilate_w=1 sparse:Sparse data_type format:Format3D
44 TopK: mode:TopK
45 RelayoutFormat: mode oc group=1
47 LocalShare: mode:Conv pad_h pad_w stride_h=1 stride_w=1 dilate_h=1 dilate_w=1 \
  spatial_groups_h=1 spatial_groups_w=1 sparse:Sparse format:Format compute_mode
48 ROIAlign: mode:RoiMode format:Format spatial_scale:f32=1 offset:f32 pooled_height=1 \
  pooled_width=1 sample_height=2 sample_width=2
50 BatchConvBias: nonline_mode:ConvNonline mode:Conv pad_h pad_w stride_h=1 stride_w=1 dilate_h=1 \
  dilate_w=1 sparse:Sparse format:Format compute_mode
51 DType(param): dtype:i8=8
53 OptionalAxis: axis:i32=-1
54 OptionalAxisV1: axis:i32=7
55 ExecutionPolicy: strategy=1 workspace_limit:u64
56 AssertEqual: maxerr:f32=1e-4 verbose:bool
63 Host2DeviceCopy: enable_value_infer:bool=1 dump_default_value:bool allow_cpu_mem_fwd:bool=1
64 Dimshuffle: pattern:ints ndim
65 AxisAddRemove: desc:axes
66 IndexDescMaskDump: items:indices
67 DType: dtype:dtype
68 Remap: imode:Interpolation=1 border_type:Border format:FormatNHWC=1 scalar:f32
69 NMSKeep: iou_thresh:f32 max_output
70 AdaptivePooling: mode:Pool format:Format
73 FakeQuant: qmin:i32=-2147483648 qmax:i32=2147483647
74 TQT: qmin:i32=-2147483648 qmax:i32=2147483647
76 LSQ: qmin:i32=-2147483648 qmax:i32=2147483647
81 SlidingWindowTranspose: out_h out_w pad_h pad_w stride_h=1 stride_w=1 dilate_h=1 dilate_w=1 \
  window_h=3 window_w=3
82 Padding: front0 front1 front2 front3 front4 front5 front6 back0 back1 back2 back3 back4 back5 \
  back6 padding_val:f32 padding_mode:Pad=2
85 LayerNorm: affine:bool=1 eps:f32=1e-5 normalized_dim:u64=1 normalized_size:u64=1
86 Dropout: drop_prob:f32 seed:u64
87 RNNCell: nonline_mode:RnnNonline
88 RNN: num_layers=1 bidirectional:bool bias:bool=1 hidden_size=128 dropout:f32 \
  nonline_mode:RnnNonline fwd_mode:Forward
89 LSTM: num_layers=1 bidirectional:bool bias:bool=1 hidden_size=128 proj_size dropout:f32 \
  fwd_mode:Forward
90 Softmax: axis:i32=-1
91 Diag: k:i32
92 GroupNorm: affine:bool=1 eps:f32=1e-5 group=1 format:Format
93 Fill: value:f32
94 GeneralNorm: affine:bool=1 eps:f32=1e-5 axis_start:u64 axis_end:u64
95 MultiHeadAttn: num_heads=1 embeding_size k_size v_size qproj_size kproj_size vproj_size \
  oproj_size qbias:bool kbias:bool vbias:bool obias:bool sm_scaler:f32=1 input_order \
  attn_mask_type tensor_combination_type add_zero_attn:bool need_weights:bool reslink:bool \
  training:bool=1 seed:u64 attn_prob:f32 out_prob:f32
96 Resize3D: imode:Interpolation=1 format:Format3D=1 align_corners:bool
"""


def _fields(text: str) -> tuple[Field, ...]:
    fields: list[Field] = []
    for slot, word in enumerate(text.split()):
        head, _, default = word.partition("=")
        name, _, kind = head.partition(":")
        names = _ENUMS.get(kind, ())
        kind = "enum" if names else kind or "u32"
        fields.append(Field(name, kind, slot, float(default or 0), names))
    return tuple(fields)


def _param_tables() -> Mapping[int, tuple[str, tuple[Field, ...]]]:
    lines = re.findall(r"(\d+) ([\w()]+):(.*)", _PARAMS.replace("\\\n", ""))
    return {int(code): (name, _fields(text)) for code, name, text in lines}


# Code of the union OperatorParam: the table's name and its fields.
PARAM_TABLES = _param_tables()
