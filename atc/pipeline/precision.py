"""The precision options as one policy: which tensors are kept in which 16-bit type.

Modes are ATC's. Most say what tensors are rounded to between operators. In the mixed ones,
operators are of three lists as in ATC: those of the white list are kept in 16 bits, those of the
black list as they are, the others (gray) as their operands. allow_mix_precision_bf16 rounds nothing
itself: it allows kernels to multiply in bfloat16 for the products of the white list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import onnx_ir

from atc.errors import OptionError
from atc.ir.graph import DType
from atc.lower.context import node_name
from atc.lower.precision import Precision, Storage, Types
from atc.lower.value_types import Types as ModelTypes
from atc.lower.value_types import value_types
from atc.options.files import lines_of, read_json, read_text, wrong

MODES: Mapping[str, DType | None] = {
    "": None, "force_fp32": None, "must_keep_origin_dtype": None,
    "force_fp16": DType.FLOAT16, "cube_fp16in_fp32out": DType.FLOAT16,
    "allow_mix_precision": DType.FLOAT16, "allow_mix_precision_fp16": DType.FLOAT16,
    "allow_mix_precision_bf16": DType.BFLOAT16,
    "allow_fp32_to_fp16": DType.FLOAT16, "allow_fp32_to_bf16": DType.BFLOAT16,
}  # fmt: skip
"""The values of `--precision_mode`, with the type that tensors may be rounded to."""

MIXED_BF16 = "allow_mix_precision_bf16"
"""The mode that leaves to kernels whether they round operands, and then for products only."""

MODES_V2: Mapping[str, str] = {
    "": "", "fp16": "force_fp16", "origin": "must_keep_origin_dtype",
    "cube_fp16in_fp32out": "cube_fp16in_fp32out", "mixed_float16": "allow_mix_precision_fp16",
    "mixed_bfloat16": "allow_mix_precision_bf16",
}  # fmt: skip
"""The values of `--precision_mode_v2`, in the older spelling."""

HEAVY = frozenset({
    "Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "FusedConv", "FusedGemm",
    "FusedMatMul", "GRU", "Gemm", "LSTM", "MatMul", "MultiHeadAttention", "RNN",
})  # fmt: skip
"""Operators of products and sums: the white list, and what `cube_fp16in_fp32out` is about."""

DELICATE = frozenset({
    "Acos", "Asin", "Atan", "BatchNormalization", "Cosh", "CumSum", "Erf", "Exp",
    "GroupNormalization", "InstanceNormalization", "LayerNormalization", "Log", "LogSoftmax",
    "LpNormalization", "MeanVarianceNormalization", "Mod", "NegativeLogLikelihoodLoss", "Pow",
    "RMSNormalization", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Sinh", "Softmax",
    "SoftmaxCrossEntropyLoss", "Sqrt", "Tan",
})  # fmt: skip
"""The black list: operators that lose much in 16 bits."""

_PARAMETRIC = frozenset({
    "DequantizeLinear", "DynamicQuantizeLinear", "NonMaxSuppression", "QuantizeLinear", "Resize",
    "RoiAlign", "Upsample",
})  # fmt: skip
"""Operators of which only the first operand is data: scales and boxes are never rounded."""

_DTYPES: Mapping[str, DType] = {
    "float16": DType.FLOAT16, "bfloat16": DType.BFLOAT16, "float32": DType.FLOAT,
    "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16, "fp32": DType.FLOAT, "float": DType.FLOAT,
}  # fmt: skip


@dataclass(frozen=True)
class Names:
    """Operators as files list them: node names, and types after `OpType::`."""

    nodes: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def holds(self, node: onnx_ir.Node) -> bool:
        """Return whether a node is listed by its name or type."""
        return node_name(node) in self.nodes or node.op_type in self.types


@dataclass(frozen=True)
class Policy:
    """The precision options, all files read."""

    mode: str = ""
    keep: Names = field(default_factory=Names)
    heavy: frozenset[str] = HEAVY
    delicate: frozenset[str] = DELICATE
    custom_nodes: Mapping[str, Storage] = field(default_factory=dict)
    custom_types: Mapping[str, Storage] = field(default_factory=dict)

    def precision(self, states: Mapping[str, str] = MappingProxyType({})) -> Precision | None:
        """Return the state of a lowering under this policy, None where it changes nothing.

        `states` are the outputs that inputs become in the next run.
        """
        if self.mode == "force_fp32":
            return Precision(wide=True)
        plain = MODES[self.mode] is None or self.mode == MIXED_BF16
        custom = self.custom_nodes or self.custom_types
        return Precision(self.storage, states=states) if custom or not plain else None

    @property
    def epsilon(self) -> float:
        """Half the distance of neighbouring values of the narrowest type, relative; 0 without."""
        kept = {MODES[self.mode]}
        for storage in (*self.custom_nodes.values(), *self.custom_types.values()):
            for types in (storage.inputs, storage.outputs):
                kept.update(types if isinstance(types, tuple) else (types,))
        return 2**-8 if DType.BFLOAT16 in kept else 2**-11 if DType.FLOAT16 in kept else 0.0

    def storage(self, node: onnx_ir.Node) -> Storage:
        """Return what a node's tensors are kept in."""
        if node_name(node) in self.custom_nodes:
            return self.custom_nodes[node_name(node)]
        if node.op_type in self.custom_types:
            return self.custom_types[node.op_type]
        dtype = MODES[self.mode]
        if dtype is None or self.mode == MIXED_BF16 or self.keep.holds(node):
            return Storage()
        if self.mode == "cube_fp16in_fp32out":
            return Storage(inputs=dtype) if node.op_type in HEAVY else Storage()
        data: Types = (dtype,) if node.op_type in _PARAMETRIC else dtype
        if "mix" not in self.mode or node.op_type in self.heavy:
            return Storage(data, dtype)
        if node.op_type in self.delicate:
            return Storage()
        return Storage(data, dtype, follows=True)

    def warnings(self, model: onnx_ir.Model) -> Iterator[str]:
        """Yield the names that no node of the model has."""
        custom = (self.custom_nodes, self.custom_types)
        yield from not_in_model(model, "keep_dtype", self.keep.nodes, self.keep.types)
        yield from not_in_model(model, "customize_dtypes", *custom)


def not_in_model(
    model: onnx_ir.Model, option: str, names: Iterable[str], types: Iterable[str]
) -> Iterator[str]:
    """Yield warnings of the names, and types, of nodes in an option that the model hasn't got."""
    nodes = [n for graph in (model.graph, *model.graph.subgraphs()) for n in graph]
    missing = sorted({*names} - {node_name(n) for n in nodes})
    missing_types = sorted({*types} - {n.op_type for n in nodes})
    for name in (*missing, *(f"OpType::{t}" for t in missing_types)):
        yield f"--{option}: '{name}' is not an operator of the model"


def read_policy(
    mode: str, keep_dtype: Path | None, modify_mixlist: Path | None, customize_dtypes: Path | None
) -> Policy:
    """Return the policy of the precision options; raises OptionError for what can't be meant."""
    policy = Policy(mode)
    if keep_dtype is not None:
        policy = replace(policy, keep=read_names(keep_dtype, "keep_dtype"))
    if modify_mixlist is not None:
        if "mix" not in mode:
            raise OptionError(
                "--modify_mixlist changes the lists of mixed precision, which is not asked for",
                where="--modify_mixlist", hint="add --precision_mode=allow_mix_precision",
                code="E10057",
            )  # fmt: skip
        heavy, delicate = _mixlist(modify_mixlist)
        policy = replace(policy, heavy=heavy, delicate=delicate)
    if customize_dtypes is not None:
        nodes, types = _customized(customize_dtypes)
        policy = replace(policy, custom_nodes=nodes, custom_types=types)
    return policy


# --------------------------------------------------------------------------------------- files


def read_names(path: Path, option: str) -> Names:
    """Return the operators of a file: a node's name, or `OpType::` and a type, on each line."""
    nodes, types = set(), set()
    for number, line in lines_of(read_text(path, option)):
        kind, double, name = line.partition("::")
        if double and kind == "OpType":
            if not name.strip():
                raise wrong("OpType:: lacks a type", path, option, line=number)
            types.add(name.strip())
        else:
            nodes.add(line)
    return Names(frozenset(nodes), frozenset(types))


def _mixlist(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the white and the black list as a file changes them; what leaves both is gray."""
    option = "modify_mixlist"
    content = read_json(path, option)
    lists = {"white-list": set(HEAVY), "black-list": set(DELICATE), "gray-list": set[str]()}
    hint = '{"black-list": {"to-remove": ["Softmax"], "to-add": ["Conv"]}, "white-list": {...}}'
    for title, changes in content.items() if isinstance(content, dict) else [("", None)]:
        if title not in lists or not isinstance(changes, dict):
            raise wrong(f"'{title}' is not one of {', '.join(lists)}", path, option, hint=hint)
        for change, types in changes.items():
            if change not in ("to-add", "to-remove") or not _texts(types):
                raise wrong(f"'{title}': '{change}' is not a list to add or remove", path, option,
                            hint=hint)  # fmt: skip
            if change == "to-remove":
                lists[title] -= set(types)
                continue
            for other in lists.values():
                other -= set(types)
            lists[title] |= set(types)
    return frozenset(lists["white-list"]), frozenset(lists["black-list"])


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _customized(path: Path) -> tuple[dict[str, Storage], dict[str, Storage]]:
    """Return types by node and by operator type, of lines `name::InputDtype:...,OutputDtype:...`.

    A line for a type is `OpType::type:InputDtype:...`. Either list may be left out.
    """
    option, hint = "customize_dtypes", "conv1::InputDtype:float16,float16,OutputDtype:float16"
    nodes: dict[str, Storage] = {}
    types: dict[str, Storage] = {}
    for number, line in lines_of(read_text(path, option)):
        found = re.fullmatch(
            r"(?:OpType::(?P<type>[^:]+):|(?P<node>.+?)::)"
            r"(?:InputDtype:(?P<inputs>[\w,\s]*?),?\s*)?(?:OutputDtype:(?P<outputs>[\w,\s]*))?",
            line,
        )
        if found is None or (found["inputs"] is None and found["outputs"] is None):
            raise wrong(f"'{line}' is not a rule", path, option, line=number, hint=hint)
        try:
            rule = Storage(_types(found["inputs"]), _types(found["outputs"]))
        except KeyError as error:
            raise wrong(f"{error} is not a type of a rule", path, option, line=number,
                        hint=f"use {', '.join(_DTYPES)}") from None  # fmt: skip
        if found["type"] is not None:
            types[found["type"].strip()] = rule
        else:
            nodes[found["node"].strip()] = rule
    return nodes, types


def _types(text: str | None) -> tuple[DType | None, ...]:
    words = [word.strip().lower() for word in (text or "").split(",") if word.strip()]
    kept = [_DTYPES[word] for word in words]
    return tuple(None if dtype is DType.FLOAT else dtype for dtype in kept)


# ------------------------------------------------------------------------------------- kernels


def node_names(model: onnx_ir.Model, listed: Names | None = None) -> frozenset[str]:
    """Return the names of all nodes, or of those that are listed."""
    return frozenset(node_name(n) for n in _nodes(model) if listed is None or listed.holds(n))


def bf16_nodes(model: onnx_ir.Model, policy: Policy, own: ModelTypes) -> frozenset[str]:
    """Return the names of the nodes that kernels may multiply in bfloat16.

    Their operands are bfloat16 anyway (a product of two is a float32), or the mode allows it.
    `own` are the `own_types`.
    """
    heavy = policy.heavy | HEAVY

    def multiplies(node: onnx_ir.Node) -> bool:
        return _may_multiply(policy, node) or _reads_bf16(node, own)

    nodes = [n for n in _nodes(model) if n.op_type in heavy]
    return frozenset(node_name(n) for n in nodes if multiplies(n))


def stored_nodes(model: onnx_ir.Model, policy: Policy, own: ModelTypes) -> frozenset[str]:
    """Return the names of the nodes whose results may be stored in bfloat16.

    They are rounded to that anyway, or the mode allows it. `own` are the `own_types`.
    """

    def stores(node: onnx_ir.Node) -> bool:
        found = {own.get(value) for value in node.outputs}
        return _may_store(policy, node) or found == {onnx_ir.DataType.BFLOAT16}

    return frozenset(node_name(n) for n in _nodes(model) if stores(n))


def _nodes(model: onnx_ir.Model) -> Iterator[onnx_ir.Node]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph


def own_types(model: onnx_ir.Model, policy: Policy) -> ModelTypes:
    """Return the types of a model's values, none where it has no bfloat16 or it is widened."""
    types = {} if policy.mode == "force_fp32" else value_types(model)
    return types if onnx_ir.DataType.BFLOAT16 in types.values() else {}


def _reads_bf16(node: onnx_ir.Node, types: ModelTypes) -> bool:
    """Return whether all floats that a node reads are bfloat16."""
    read = {types.get(value) for value in node.inputs if value is not None}
    return onnx_ir.DataType.BFLOAT16 in read and not any(
        t is None or t.is_floating_point() for t in read - {onnx_ir.DataType.BFLOAT16}
    )


def _may_store(policy: Policy, node: onnx_ir.Node) -> bool:
    storage = policy.storage(node)
    if policy.mode != MIXED_BF16 or storage != Storage():
        return storage.outputs is DType.BFLOAT16 and not storage.follows
    return node.op_type not in policy.delicate and not policy.keep.holds(node)


def _may_multiply(policy: Policy, node: onnx_ir.Node) -> bool:
    storage = policy.storage(node)
    rounded = storage.inputs is DType.BFLOAT16 and not storage.follows
    if policy.mode != MIXED_BF16 or storage != Storage():
        return rounded
    return node.op_type in policy.heavy and not policy.keep.holds(node)


@dataclass(frozen=True)
class OperatorModes:
    """The file of `--op_precision_mode`: whether types, and nodes, are to be precise."""

    types: Mapping[str, bool] = field(default_factory=dict)
    nodes: Mapping[str, bool] = field(default_factory=dict)


def exact_nodes(
    model: onnx_ir.Model, mode: str, listed: Iterable[str], by_operator: OperatorModes
) -> frozenset[str]:
    """Return the names of the nodes whose kernels mustn't round more than their operator does.

    `mode` is `--op_select_implmode`'s, for the types of `--optypelist_for_implmode` or, if that
    is empty, for all; `by_operator` has the last word.
    """
    only, precise = frozenset(listed), mode.startswith("high_precision")
    found = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in graph:
            own = precise and (not only or node.op_type in only)
            own = by_operator.types.get(node.op_type, own)
            own = by_operator.nodes.get(node_name(node), own)
            if own:
                found.add(node_name(node))
    return frozenset(found)


def read_operator_modes(path: Path) -> OperatorModes:
    """Return what an ini file says of types and nodes; raises OptionError for a wrong line."""
    option = "op_precision_mode"
    sections: dict[str, dict[str, bool]] = {"[ByOpType]": {}, "[ByNodeName]": {}}
    modes = {
        "high_precision": True, "high_performance": False, "enable_float_32_execution": True,
        "enable_hi_float_32_execution": False, "support_out_of_bound_index": False,
    }  # fmt: skip
    current = sections["[ByOpType]"]
    for number, line in lines_of(read_text(path, option)):
        if line.startswith("["):
            if line not in sections:
                raise wrong(f"'{line}' is not a section", path, option, line=number,
                            hint=f"use {' and '.join(sections)}")  # fmt: skip
            current = sections[line]
            continue
        name, equals, mode = (part.strip() for part in line.rpartition("="))
        if not equals or mode not in modes:
            raise wrong(f"'{line}' is not a mode of an operator", path, option, line=number,
                        hint=f"name={'|'.join(modes)}")  # fmt: skip
        current[name] = modes[mode]
    return OperatorModes(sections["[ByOpType]"], sections["[ByNodeName]"])
