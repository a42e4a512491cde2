"""The options of `load_and_run`, as MegEngine's tool of that name has them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from atc.errors import OptionError
from atc.options.table.atc_options import ATC_OPTIONS
from atc.options.table.setting import Setting
from atc.options.values import choice, integer, nonnegative, path, switch

EACH_CORE = "auto"
"""A number of threads: one for each core."""

_option = partial(Setting, system="MegEngine", role="run")
_basic = partial(_option, group="Runs")
_select = partial(_option, group="Choice of kernels")
_data = partial(_option, group="Inputs and outputs")
_layout = partial(_option, group="Layouts", values="0|1", parse=switch, default=False)
_graph = partial(_option, group="Graph and memory", values="0|1", parse=switch, default=False)
_device = partial(_option, group="Device")
_check = partial(_option, group="Checks and profiles")
_debug = partial(_option, group="Debugging")
_extern = partial(_option, group="External operators")
_other = partial(_option, group="Accepted for other tools' command lines")
_feature = partial(Setting, system="MegEngine", role="run", kind="feature", group="Tools")


def interval(value: object) -> tuple[int, int] | None:
    """Return the interval and the first index of `INTERVAL[:START]`; None for nothing."""
    if str(value) == "":
        return None
    first, colon, start = str(value).partition(":")
    try:
        return _natural(first, 1), _natural(start, 0) if colon else 0
    except ValueError:
        raise OptionError(
            f"'{str(value)[:60]}' is not an interval", hint="the form is INTERVAL[:START_INDEX]"
        ) from None


def threads(value: object) -> object:
    """Return a number of threads; EACH_CORE means as many as this process has cores."""
    return len(os.sched_getaffinity(0)) if value == EACH_CORE else integer(-1, 1024)(value)


def core_ids(value: object) -> tuple[int, ...]:
    """Return the cores of `0,1,...`."""
    try:
        return tuple(_natural(part, 0) for part in str(value).split(",")) if str(value) else ()
    except ValueError:
        raise OptionError(
            f"'{str(value)[:60]}' is not a list of cores", hint="the form is 0,1,2"
        ) from None


def _natural(digits: str, least: int) -> int:
    if not digits.strip().isdecimal() or int(digits) < least:
        raise ValueError(digits)
    return int(digits)


_OWN = (
    # ---- runs --------------------------------------------------------------------------------
    _basic("iter", meaning="timed runs", values="N", parse=integer(0), default=10, row="L-01"),
    _basic("warmup_iter", meaning="runs before them that aren't timed", values="N",
           parse=integer(0), default=1, row="L-02"),
    _basic("thread", meaning="threads that run the network at the same time, each in a context of "
           "its own; their outputs must agree", values="N", parse=integer(1, 1024), default=1,
           row="L-03"),
    _basic("fake_first", meaning="touch all memory before the first run, without running a kernel",
           values="0|1", parse=switch, default=False, row="L-31"),
    _basic("json", meaning="print one JSON object instead of lines", values="0|1", parse=switch,
           default=False, system=""),
    # ---- inputs and outputs ------------------------------------------------------------------
    _data("input", meaning="the inputs; those that aren't named are zeros",
          values="[NAME:]VALUE;...", row="L-04",
          documentation="A value is a file .npy, .npz, .json, .ppm or .pgm, an array such as "
          "[[1.0,2.0]], or {n,c,h,w}: all bytes 1. Whole numbers and images are taken for inputs "
          "of any type that holds them; an image has its channels last, or first where the input "
          "has"),
    _data("batch_size", meaning="repeat the inputs along their first axis up to N (-1: don't); a "
          "model is compiled for it", values="N", parse=integer(-1), default=-1),
    _data("io_dump", meaning="write what every kernel call computes as text", values="FILE",
          parse=path, row="L-11"),
    _data("io_dump_stdout", meaning="the same to standard output", values="0|1", parse=switch,
          default=False, row="L-12"),
    _data("io_dump_stderr", meaning="the same to standard error", values="0|1", parse=switch,
          default=False, row="L-12"),
    _data("bin_io_dump", meaning="write what every kernel call computes into a folder that is "
          "there, a binary file per value", values="DIR", parse=path, row="L-13"),
    _data("bin_out_dump", meaning="write the outputs of every run into a folder that is there, as "
          "run0-var19 by run and variable", values="DIR", parse=path, row="L-14",
          documentation="A variable has the same number as in other dumps of the same build"),
    _data("copy_to_host", meaning="count a copy of the outputs into the run's time", values="0|1",
          parse=switch, default=False, row="L-15"),
    # ---- choice of kernels -------------------------------------------------------------------
    _select("full_run", meaning="measure all candidate kernels, naive ones too", values="0|1",
            parse=switch, default=False, row="L-05"),
    _select("fast_run", meaning="measure the optimised candidate kernels only; a product or "
            "convolution that has none is an error", values="0|1", parse=switch, default=False,
            row="L-06"),
    _select("fast_run_algo_policy", meaning="a file of the kernels chosen by measuring: read if "
            "it is there, written after measuring", values="FILE", parse=path, row="L-07"),
    _select("reproducible", meaning="only kernels whose results depend on nothing but their "
            "inputs: all of them", values="0|1", parse=switch, default=False, row="L-08"),
    _select("fast_run_shared_batch_size", meaning="choose the kernels that are best for this "
            "batch size, whatever the model's (0: the model's)", values="N", parse=integer(0),
            default=0, row="L-09"),
    _select("binary_equal_between_batch", meaning="equal rows of a batch give equal bits: all "
            "kernels do", values="0|1", parse=switch, default=False, row="L-10"),
    _select("fitting", meaning="try sets of options, print and keep the best; warms up 3 times, "
            "runs 10 times", values="0|1", parse=switch, default=False),
    _select("dump_fitting_model", meaning="the folder to keep the best library of --fitting in",
            values="FOLDER", parse=path),
    # ---- layouts -----------------------------------------------------------------------------
    _layout("enable_nchw4", meaning="channels in blocks of 4, of int8 on a GPU", row="L-16",
            documentation="As --layout_transform=nchw4c of atc; of no effect on a CPU."),
    _layout("enable_chwn4", meaning="channels in blocks of 4 behind the images of a batch, of int8 "
            "on a GPU", row="L-17",
            documentation="As --layout_transform=chwn4 of atc; of no effect on a CPU."),
    _layout("enable_nchw44", meaning="channels in blocks of 4, the vectors of NEON", row="L-18"),
    _layout("enable_nchw88", meaning="channels in blocks of 8, the vectors of AVX", row="L-19"),
    _layout("enable_nchw32", meaning="channels in blocks of 32, of int8 on a GPU's tensor cores; "
            "switches --enable_fuse_conv_bias_nonlinearity on", row="L-20",
            documentation="As --layout_transform=nchw32c of atc; of no effect on a CPU."),
    _layout("enable_nchw64", meaning="int4 layout of CUDA: an error, no kernel computes in int4",
            row="L-21"),
    _layout("enable_nhwcd4", meaning="layout of OpenCL's images", row="L-22",
            accepted="it is a layout of OpenCL images; the compiler's own layout is used"),
    _layout("enable_nchw44_dot", meaning="the same with ARM's dot product of int8: an error for "
            "targets that haven't got it, as aarch64-neon-dotprod and aarch64-neon-i8mm have",
            row="L-23"),
    _option("layout_transform", group="Layouts", meaning="choose layouts for the whole graph by "
            "measuring operators and conversions; unspec is cpu", values="cpu|unspec|cuda",
            parse=choice(("", "cpu", "unspec", "cuda")), row="L-24"),
    _option("layout_transform_dump", group="Layouts", meaning="write the transformed graph, in a "
            "format of atc's own whatever its name; needs --layout_transform; the file can be run "
            "again", values="FILE", parse=path, row="L-25"),
    # ---- graph and memory --------------------------------------------------------------------
    _graph("enable_fuse_conv_bias_nonlinearity", meaning="fuse bias and activation into "
           "convolutions", default=True, row="L-26"),
    _graph("enable_fuse_conv_bias_with_z", meaning="fuse residual additions into convolutions",
           default=True, row="L-27"),
    _graph("enable_fuse_preprocess", meaning="fuse what is done to an input into its first reader",
           default=True, row="L-28"),
    _graph("weight_preprocess", meaning="rearrange weights when compiling, never when running",
           default=True, row="L-29"),
    _graph("const_shape", meaning="all shapes are fixed, as they always are here", row="L-30"),
    _graph("no_sanity_check", meaning="leave out the check that inputs and the memory around the "
           "arena stay as they are, and those of --sanity_check", row="L-32"),
    _graph("disable_mem_opt", meaning="give every tensor memory of its own", row="L-33"),
    _option("workspace_limit", group="Graph and memory", meaning="most bytes of scratch that a "
            "kernel may use, where there is a choice (-1: no limit)", values="N",
            parse=integer(-1), default=-1, row="L-34"),
    _graph("record_comp_seq", meaning="run the recorded sequence of kernels, as compiled networks "
           "always do; text dumps then show values at the end", row="L-35"),
    _graph("record_comp_seq2", meaning="the same, with the library stripped of symbols; needs "
           "--no_sanity_check", row="L-36"),
    _graph("enable_jit", meaning="fuse elementwise operators", default=True, row="L-37"),
    _option("jit_level", group="Graph and memory", meaning="2 fuses into reductions too, 1 "
            "doesn't", values="1|2", parse=integer(1, 2), default=2, system=""),
    _graph("optimize_for_inference", meaning="fold and fuse for inference, as always here",
           default=True),
    _graph("fuse_grain", meaning="fuse grain operators",
           accepted="patterns of single operators are always found"),
    _graph("enable_ioc16", meaning="compute in half precision",
           accepted="networks are computed in the precision of the model"),
    # ---- device ------------------------------------------------------------------------------
    _device("cpu", meaning="run on the CPU, as always here", values="0|1", parse=switch,
            default=False, row="L-38"),
    _device("cuda", meaning="run on the GPU, as --target=cuda; with a target that is "
            "a GPU, on that", values="0|1",
            parse=switch, default=False, row="L-39"),
    _device("cpu_default", meaning="run in the caller's thread; no other is started", values="0|1",
            parse=switch, default=False, row="L-40"),
    _device("multithread", meaning="run in a pool of N threads, the caller waits; alone: one for "
            "each core", values="N", parse=threads, default=-1, row="L-41", alone=EACH_CORE,
            documentation="A model is compiled for N threads; the results stay the same bits"),
    _device("multithread_default", meaning="the same, the caller being one of the N", values="N",
            parse=threads, default=-1, row="L-42", alone=EACH_CORE),
    _device("multi_thread_core_ids", meaning="the core of each thread of the pool",
            values="ID,ID,...", parse=core_ids, row="L-43"),
    _device("rocm", meaning="run on ROCm: an error, there is no such target", values="0|1",
            parse=switch, default=False, row="L-44"),
    _device("rocm_enable_miopen_search", meaning="tune MIOpen", values="0|1", parse=switch,
            default=False, row="L-45", accepted="there is no ROCm target"),
    _device("tensorrt", meaning="run subgraphs with TensorRT", values="0|1", parse=switch,
            default=False, row="L-46", accepted="compiled networks stand alone; own kernels run"),
    _device("tensorrt_cache", meaning="a file of TensorRT's engines", values="FILE", parse=path,
            row="L-47", accepted="the op compiler cache keeps what is compiled"),
    # ---- checks and profiles -----------------------------------------------------------------
    _check("check_dispatch", meaning="warn of kernel calls that write nothing", values="0|1",
           parse=switch, default=False, row="L-48"),
    _check("range", meaning="the magnitude that every float must stay below (0: any)", values="X",
           parse=nonnegative, default=0, row="L-49"),
    _check("check_var_value", meaning="compare one value after another with that of the first "
           "run, each for INTERVAL runs", values="INTERVAL[:START_INDEX]", parse=interval,
           row="L-50"),
    _check("profile", meaning="write the times of all kernel calls as JSON, for MegEngine's "
           "profile_analyze and draw_graph", values="FILE", parse=path, row="L-51"),
    _check("profile_host", meaning="the same, without the times of the device", values="FILE",
           parse=path, row="L-52"),
    # ---- debugging ---------------------------------------------------------------------------
    _debug("model_info", meaning="print a table of inputs and outputs before and after the runs",
           values="0|1", parse=switch, default=False, row="L-53"),
    _debug("verbose", meaning="report every step on standard error", values="0|1", parse=switch,
           default=False, row="L-54"),
    _debug("disable_assert_throw", meaning="go on where an output isn't what a dump's own test "
           "case expects", values="0|1", parse=switch, default=False, row="L-55"),
    _debug("get_static_mem_info", meaning="write the memory plan as StaticMemoryInfo.json and the "
           "graph as graph.json into a folder, for MegEngine's graph_info_analyze", values="DIR",
           parse=path, row="L-56"),
    _debug("wait_gdb", meaning="print the process's number and wait for the return key",
           values="0|1", parse=switch, default=False, row="L-57"),
    # ---- external operators ------------------------------------------------------------------
    _extern("c_opr_lib", meaning="a shared library of your own operators: see "
            "atc_external.h", values="FILE", parse=path, row="L-58"),
    _extern("c_opr_lib_with_param", meaning="let it provide the memory of inputs and outputs",
            values="0|1", parse=switch, default=False, row="L-59"),
    _extern("c_opr_init_interface", meaning="the name of its init function", values="NAME",
            default="mgb_c_opr_init"),
    # ---- options that other tools need -------------------------------------------------------
    _other("lite", meaning="use Lite's interface", values="0|1", parse=switch, default=False,
           accepted="there is one interface"),
    _other("mdl", meaning="use MegEngine's interface", values="0|1", parse=switch, default=False,
           accepted="there is one interface"),
    _other("share_param_mem", meaning="load from shared memory", values="0|1", parse=switch,
           default=False, accepted="weights are mapped, processes share them anyway"),
    _other("packed_model_dump", meaning="write a packed model", values="FILE", parse=path,
           accepted="compiled networks aren't packed"),
    _other("pack_info_json", meaning="what to pack", values="FILE", parse=path,
           accepted="compiled networks aren't packed"),
    _other("pack_cache", meaning="a cache to pack", values="FILE", parse=path,
           accepted="compiled networks aren't packed"),
    _other("pack_info_cryption", meaning="how packed information is encrypted", values="NAME",
           accepted="compiled networks aren't packed"),
    _other("pack_model_cryption", meaning="how a packed model is encrypted", values="NAME",
           accepted="compiled networks aren't packed"),
    _other("model_dump", meaning="the folder to keep the compiled network in", values="FOLDER",
           parse=path),
    # ---- what is no option -------------------------------------------------------------------
    _feature("mgb_c_opr_init", meaning="the C interface of external operators: an init function "
             "that takes a versioned getter, and three functions for memory", row="L-60"),
    _feature("compare_binary_iodump", meaning="`compare_binary_iodump DUMP DUMP [-e MAX_ERR] [-s]` "
             "compares two binary dumps; exit status 5 where they differ", row="L-61"),
    _feature("--version", meaning="prints what this build can do: targets, compilers, formats",
             row="L-62"),
)  # fmt: skip


def _enabled(meaning: str) -> str:
    """Return the meaning of modes with the default that this tool has."""
    return meaning.replace("disable (default):", "disable:").replace(
        "enable:", "enable (default):"
    )  # fmt: skip


_SHARED = (
    "target", "input_shape", "weight", "framework", "op_compiler_cache_mode",
    "op_compiler_cache_dir", "fast_run_timeout", "sanity_check",
)  # fmt: skip
_BORROWED = tuple(
    replace(s, role="run", group="Compilation of a model", row="", system="")
    for s in ATC_OPTIONS
    if s.name in _SHARED
)
_CACHED = tuple(
    replace(s, default="enable", meaning=_enabled(s.meaning))
    if s.name == "op_compiler_cache_mode" else s
    for s in _BORROWED
)  # fmt: skip

LOAD_AND_RUN: tuple[Setting, ...] = (*_OWN, *_CACHED)
