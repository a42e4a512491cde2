"""The functions of compiled libraries as cffi knows them, without parsing C when a network loads.

A part of `atc/runtime/network.py`; generated projects carry both in one module. Its tables are
written by `tests/runtime/make_interface.py`.
"""

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
int NET_device_id(void);
int NET_init_on(void *ctx, int device, void *arena, size_t arena_size);
int NET_run_device_tensors(
  void *ctx, void *stream, const void *const *inputs, void *const *outputs);
int NET_reset(void *ctx);
size_t NET_state_size(void);
int NET_save_state(const void *ctx, void *state);
int NET_restore_state(void *ctx, const void *state);

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
    "00005e0d00001c010000000f0000600d000072030000000f0000620d000007010000000f0000620d0000000f"
    "0000070d000072030000000f0000070d00000c110000070100000c1100001c010000000f0000070d00000c11"
    "000065030000000f0000070d00000c1100000c1100001c010000000f0000070d00000c1100000c1100000403"
    "00000c030000000f0000070d00000c1100002011000021110000000f0000070d00000c11000004110000000f"
    "0000070d0000041100001c01000066030000000f0000070d0000041100000c110000000f0000070d0000000f"
    "0000650d00001c010000000f0000670d00001c010000000f0000010d000016110000000f0000010d0000000f"
    "00006a0d00001c010000000f00006c0d00001c010000000f00006e0d0000000f0000700d00001c010000000f"
    "0000040d000004110000000f0000720d00000c110000000f0000720d00000c1100001c010000070100002011"
    "0000000f0000720d00000c110000530300000c110000000f00005f0300000009000061030000010900006303"
    "0000020100001501000066030000170100006803000002090000010300006b030000030900006d0300000409"
    "0000160100001801000071030000050900000001"
)
_STRUCTS = (
    (b"\x00\x00\x00\x5f\x00\x00\x00\x02$call_info", b"\x00\x00\x62\x11nodes", b"\x00\x00\x62\x11op",
     b"\x00\x00\x62\x11kernel", b"\x00\x00\x6f\x11operations", b"\x00\x00\x6f\x11bytes"),
    (b"\x00\x00\x00\x61\x00\x00\x00\x02$call_time", b"\x00\x00\x6f\x11runs",
     b"\x00\x00\x6f\x11nanoseconds", b"\x00\x00\x6f\x11begin"),
    (b"\x00\x00\x00\x68\x00\x00\x00\x02$sequence_info", b"\x00\x00\x62\x11name",
     b"\x00\x00\x64\x11output", b"\x00\x00\x64\x11present", b"\x00\x00\x01\x11first",
     b"\x00\x00\x01\x11count"),
    (b"\x00\x00\x00\x6b\x00\x00\x00\x02$step", b"\x00\x00\x62\x11nodes", b"\x00\x00\x62\x11op",
     b"\x00\x00\x62\x11kernel", b"\x00\x00\x01\x11reads", b"\x00\x00\x01\x11writes",
     b"\x00\x00\x69\x11values"),
    (b"\x00\x00\x00\x6d\x00\x00\x00\x02$tensor_info", b"\x00\x00\x62\x11name",
     b"\x00\x00\x64\x11dtype", b"\x00\x00\x64\x11rank", b"\x00\x00\x65\x11shape",
     b"\x00\x00\x01\x11size"),
    (b"\x00\x00\x00\x71\x00\x00\x00\x02$value", b"\x00\x00\x6d\x11tensor", b"\x00\x00\x64\x11kind"),
)  # fmt: skip
_NAMES = (
    b"\x00\x00\x00\x5fcall_info", b"\x00\x00\x00\x61call_time", b"\x00\x00\x00\x5bobserver",
    b"\x00\x00\x00\x68sequence_info", b"\x00\x00\x00\x6bstep", b"\x00\x00\x00\x6dtensor_info",
    b"\x00\x00\x00\x71value",
)  # fmt: skip
_FUNCTIONS = (
    b"\x00\x00\x48\x23abi_version", b"\x00\x00\x40\x23alignment", b"\x00\x00\x40\x23arena_size",
    b"\x00\x00\x3d\x23arena_size_for", b"\x00\x00\x09\x23build_info",
    b"\x00\x00\x40\x23context_size", b"\x00\x00\x35\x23device_id", b"\x00\x00\x18\x23init",
    b"\x00\x00\x0e\x23init_on", b"\x00\x00\x40\x23input_count", b"\x00\x00\x45\x23input_info",
    b"\x00\x00\x37\x23input_lowest", b"\x00\x00\x4d\x23last_fault", b"\x00\x00\x40\x23output_count",
    b"\x00\x00\x45\x23output_info", b"\x00\x00\x2c\x23output_shape",
    b"\x00\x00\x40\x23profile_count", b"\x00\x00\x00\x23profile_info",
    b"\x00\x00\x50\x23profile_reset", b"\x00\x00\x03\x23profile_times", b"\x00\x00\x50\x23release",
    b"\x00\x00\x0b\x23reset", b"\x00\x00\x28\x23restore_state",
    b"\x00\x00\x1d\x23run_device_tensors", b"\x00\x00\x23\x23run_tensors",
    b"\x00\x00\x31\x23save_state", b"\x00\x00\x3a\x23sequence", b"\x00\x00\x40\x23sequence_count",
    b"\x00\x00\x14\x23set_input_shapes", b"\x00\x00\x59\x23set_observer",
    b"\x00\x00\x0b\x23start_threads", b"\x00\x00\x40\x23state_size",
    b"\x00\x00\x06\x23status_string", b"\x00\x00\x40\x23step_count", b"\x00\x00\x42\x23step_info",
    b"\x00\x00\x50\x23stop_threads", b"\x00\x00\x35\x23thread_count",
    b"\x00\x00\x40\x23value_count", b"\x00\x00\x4a\x23value_info", b"\x00\x00\x40\x23weights_size",
)  # fmt: skip
"""Of each function the number of its type and its name without the network's."""

FORMAT = 0x2601
"""The version of the tables' form, for cffi."""


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
