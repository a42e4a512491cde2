"""The functions of compiled libraries as cffi knows them, without parsing C when a network loads.

A part of `atc/runtime/network.py`; generated projects carry both in one module.
"""

# ruff: noqa: I001 (one line an import: atc/codegen/emit.py moves them)

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

import _cffi_backend

DECLARATIONS = """
typedef struct {
  const char *name; int32_t dtype; int32_t rank; const int64_t *shape; size_t size;
} tensor_info;
typedef struct {
  const char *name; int32_t output; int32_t present; size_t first; size_t count;
} sequence_info;
typedef struct { tensor_info tensor; int32_t kind; } value;
typedef struct {
  const char *nodes, *op, *kernel; size_t reads, writes; const size_t *values;
} step;
typedef struct { uint64_t runs, nanoseconds, begin; } call_time;
typedef struct { const char *nodes, *op, *kernel; uint64_t operations, bytes; } call_info;
typedef void (*observer)(void *user, size_t step, int done, const void *const *values);

uint32_t NET_abi_version(void);
const char *NET_build_info(void);
const char *NET_status_string(int status);
size_t NET_context_size(void);
size_t NET_arena_size(void);
size_t NET_alignment(void);
size_t NET_weights_size(void);
int NET_init(void *ctx, void *arena, size_t arena_size);
int NET_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
size_t NET_input_count(void);
size_t NET_output_count(void);
const tensor_info *NET_input_info(size_t index);
const tensor_info *NET_output_info(size_t index);

int NET_set_input_shapes(void *ctx, const int64_t *const *shapes);
size_t NET_arena_size_for(const int64_t *const *shapes);
int NET_output_shape(const void *ctx, size_t index, int64_t *shape);
const int64_t *NET_input_lowest(size_t index);
size_t NET_sequence_count(void);
const sequence_info *NET_sequence(size_t index);
int NET_start_threads(void *ctx);
void NET_stop_threads(void *ctx);
int NET_thread_count(void);
void NET_release(void *ctx);

const void *NET_last_fault(const void *ctx);
size_t NET_profile_count(void);
const call_info *NET_profile_info(size_t index);
const call_time *NET_profile_times(const void *ctx);
void NET_profile_reset(void *ctx);
void NET_set_observer(void *ctx, observer see, void *user);
size_t NET_step_count(void);
const step *NET_step_info(size_t index);
size_t NET_value_count(void);
const value *NET_value_info(size_t index);
"""
"""The types and functions; those of the last two paragraphs are only in libraries that need them.

What follows is what cffi's own compiler makes of them (`emit_python_code`).
"""

_TYPES = bytes.fromhex(
    "00004a0d00001c010000000f00004c0d00005e030000000f00004e0d000007010000000f00004e0d0000000f"
    "0000070d00005e030000000f0000070d00000c11000051030000000f0000070d00000c1100000c1100001c01"
    "0000000f0000070d00000c110000040300000c030000000f0000070d0000041100001c01000052030000000f"
    "0000070d0000000f0000510d00001c010000000f0000530d00001c010000000f0000010d000010110000000f"
    "0000010d0000000f0000560d00001c010000000f0000580d00001c010000000f00005a0d0000000f00005c0d"
    "00001c010000000f0000040d000004110000000f00005e0d00000c110000000f00005e0d00000c1100001c01"
    "00000701000019110000000f00005e0d00000c1100003f0300000c110000000f00004b030000000900004d03"
    "0000010900004f03000002010000150100005203000017010000540300000209000001030000570300000309"
    "0000590300000409000016010000180100005d030000050900000001"
)
_STRUCTS = (
    (b"\x00\x00\x00\x4b\x00\x00\x00\x02$call_info", b"\x00\x00\x4e\x11nodes", b"\x00\x00\x4e\x11op",
     b"\x00\x00\x4e\x11kernel", b"\x00\x00\x5b\x11operations", b"\x00\x00\x5b\x11bytes"),
    (b"\x00\x00\x00\x4d\x00\x00\x00\x02$call_time", b"\x00\x00\x5b\x11runs",
     b"\x00\x00\x5b\x11nanoseconds", b"\x00\x00\x5b\x11begin"),
    (b"\x00\x00\x00\x54\x00\x00\x00\x02$sequence_info", b"\x00\x00\x4e\x11name",
     b"\x00\x00\x50\x11output", b"\x00\x00\x50\x11present", b"\x00\x00\x01\x11first",
     b"\x00\x00\x01\x11count"),
    (b"\x00\x00\x00\x57\x00\x00\x00\x02$step", b"\x00\x00\x4e\x11nodes", b"\x00\x00\x4e\x11op",
     b"\x00\x00\x4e\x11kernel", b"\x00\x00\x01\x11reads", b"\x00\x00\x01\x11writes",
     b"\x00\x00\x55\x11values"),
    (b"\x00\x00\x00\x59\x00\x00\x00\x02$tensor_info", b"\x00\x00\x4e\x11name",
     b"\x00\x00\x50\x11dtype", b"\x00\x00\x50\x11rank", b"\x00\x00\x51\x11shape",
     b"\x00\x00\x01\x11size"),
    (b"\x00\x00\x00\x5d\x00\x00\x00\x02$value", b"\x00\x00\x59\x11tensor", b"\x00\x00\x50\x11kind"),
)  # fmt: skip
_NAMES = (
    b"\x00\x00\x00\x4bcall_info", b"\x00\x00\x00\x4dcall_time", b"\x00\x00\x00\x47observer",
    b"\x00\x00\x00\x54sequence_info", b"\x00\x00\x00\x57step", b"\x00\x00\x00\x59tensor_info",
    b"\x00\x00\x00\x5dvalue",
)  # fmt: skip
_FUNCTIONS = (
    b"\x00\x00\x34\x23abi_version", b"\x00\x00\x2c\x23alignment", b"\x00\x00\x2c\x23arena_size",
    b"\x00\x00\x29\x23arena_size_for", b"\x00\x00\x09\x23build_info",
    b"\x00\x00\x2c\x23context_size", b"\x00\x00\x12\x23init", b"\x00\x00\x2c\x23input_count",
    b"\x00\x00\x31\x23input_info", b"\x00\x00\x23\x23input_lowest", b"\x00\x00\x39\x23last_fault",
    b"\x00\x00\x2c\x23output_count", b"\x00\x00\x31\x23output_info",
    b"\x00\x00\x1c\x23output_shape", b"\x00\x00\x2c\x23profile_count",
    b"\x00\x00\x00\x23profile_info", b"\x00\x00\x3c\x23profile_reset",
    b"\x00\x00\x03\x23profile_times", b"\x00\x00\x3c\x23release", b"\x00\x00\x17\x23run_tensors",
    b"\x00\x00\x26\x23sequence",
    b"\x00\x00\x2c\x23sequence_count", b"\x00\x00\x0e\x23set_input_shapes",
    b"\x00\x00\x45\x23set_observer", b"\x00\x00\x0b\x23start_threads",
    b"\x00\x00\x06\x23status_string", b"\x00\x00\x2c\x23step_count", b"\x00\x00\x2e\x23step_info",
    b"\x00\x00\x3c\x23stop_threads", b"\x00\x00\x21\x23thread_count",
    b"\x00\x00\x2c\x23value_count", b"\x00\x00\x36\x23value_info", b"\x00\x00\x2c\x23weights_size",
)  # fmt: skip
"""Of each function the number of its type and its name without the network's."""

FORMAT = 0x2601
"""The version of the tables' form that cffi is told."""


def open_interface(path: str | PathLike[str], prefix: str) -> tuple[Any, Any]:
    """Return cffi's interface and the loaded library; OSError for a file that can't be loaded.

    What the library has not raises the interface's `error` when it is asked for.
    """
    own = prefix.encode() + b"_"
    functions = [part for f in _FUNCTIONS for part in (f[:4] + own + f[4:], 0)]
    ffi = _cffi_backend.FFI(
        prefix, _version=FORMAT, _types=_TYPES, _globals=tuple(functions), _struct_unions=_STRUCTS,
        _typenames=_NAMES,
    )  # fmt: skip
    return ffi, ffi.dlopen(fspath(path))
