"""MXNet's environment variables, and what they mean for an ahead-of-time compiler.

Newer names of MXNet 2 are aliases of those that the 1.x documentation has.
"""

from __future__ import annotations

from functools import partial

from atc.options.table.setting import Setting
from atc.options.values import choice, integer, path, switch

_KVSTORE = "nothing is exchanged between devices"
_LOADER = "there is no data loader"
_POOL = "each context takes the same few sizes, once: none to round, and none to keep for others"

_once = partial(Setting, group="MXNet variables", system="MXNet", kind="variable", read="once")
_dynamic = partial(_once, read="dynamic")


def _profile_unless_bulk(bulk: bool) -> bool | None:
    return None if bulk else True


def _no_cascades(bulk: bool) -> str | None:
    return None if bulk else "cascade:off"


def _workspace(tuning: int) -> int | None:
    return -1 if tuning == 2 else None


MXNET: tuple[Setting, ...] = (
    _once("MXNET_LIBRARY_PATH", row="X-01", values="FILE", aliases=("ATC_LIBRARY_PATH",),
          meaning="the library that a compiled network's Python module loads, where its caller "
          "names none", documentation="ATC_LIBRARY_PATH is our own name of it and wins."),
    _once("MXNET_GPU_WORKER_NTHREADS", row="X-02", values="N", parse=integer(1, 16),
          default="2", meaning="operators that run on one GPU at a time, as --gpu_streams",
          gives={"gpu_streams": int}),
    _once("MXNET_GPU_COPY_NTHREADS", row="X-03", values="N", parse=integer(1, 16),
          default="2", meaning="streams that copy to and from a GPU, as --gpu_copy_streams",
          gives={"gpu_copy_streams": int}),
    _once("MXNET_CPU_WORKER_NTHREADS", row="X-04", values="N", parse=integer(1, 1024),
          default="1", meaning="operators that run at the same time, as --parallel_branches",
          documentation="They are whatever is independent, however small, each in one thread. "
          "Where it isn't set, --num_threads may run branches at the same time as well, where "
          "that gains.", gives={"parallel_branches": lambda given: given}),
    _once("MXNET_CPU_PRIORITY_NTHREADS", row="X-05", values="N", parse=integer(1, 1024),
          default="4", meaning="urgent calls that a network runs at the same time: those of "
          "net.submit(..., urgent=True), which wait for no others",
          documentation="The running network's Python module reads it."),
    _once("MXNET_CPU_NNPACK_NTHREADS", row="X-06", values="N", parse=integer(1, 1024),
          meaning="threads of a compiled network, as --num_threads",
          gives={"num_threads": lambda given: given}),
    _once("MXNET_MP_WORKER_NTHREADS", row="X-07", values="N", default="1",
          meaning="threads of the data loader's processes", accepted=_LOADER),
    _once("MXNET_MP_OPENCV_NUM_THREADS", row="X-08", values="N", default="0",
          meaning="OpenCV's threads in the data loader", accepted=_LOADER),
    _dynamic("MXNET_EXEC_ENABLE_INPLACE", row="X-09", values="true|false", parse=switch,
             default="true", meaning="results may take over their operands' memory, as "
             "--memory_in_place", gives={"memory_in_place": lambda given: given}),
    _dynamic("NNVM_EXEC_MATCH_RANGE", row="X-10", values="N", parse=integer(0), default="16",
             meaning="0: tensors share no memory, as --disable_reuse_memory; else how many "
             "packings the planner tries, of which it keeps the smallest, as --memory_tries",
             documentation="MXNet's planner sweeps size classes up to this factor; ours needs no "
             "classes and sweeps ways to pack. Where it isn't set it tries 12.",
             gives={"disable_reuse_memory": lambda scale: scale == 0,
                    "memory_tries": lambda scale: min(scale, 1000) or None}),
    _dynamic("MXNET_EXEC_NUM_TEMP", row="X-11", values="N", parse=integer(1, 1024),
             meaning="workspaces that exist side by side, as --workspaces: no more operators run "
             "at the same time", documentation="Where it isn't set there are as many as operators "
             "that run at the same time.", gives={"workspaces": lambda given: given}),
    _once("MXNET_GPU_MEM_POOL_RESERVE", row="X-12", values="PERCENT", default="5",
          parse=integer(0, 100), meaning="percent of the GPU's memory left free, as "
          "--gpu_kept_free", gives={"gpu_kept_free": int}),
    _once("MXNET_GPU_MEM_POOL_TYPE", row="X-13", values="Naive|Round|Unpooled", default="Naive",
          parse=choice(("Naive", "Round", "Unpooled")), works_for=("Unpooled",),
          meaning="the kind of memory pool: without --gpu_pool there is none", accepted=_POOL),
    _once("MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF", row="X-14", values="N", default="24",
          meaning="where the memory pool rounds less", accepted=_POOL),
    _once("MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", row="X-15", values="BYTES", default="2097152",
          parse=integer(1), works_for=(1,), meaning="what the memory pool rounds to: 1 is nothing",
          accepted=_POOL),
    _once("MXNET_ENGINE_TYPE", row="X-16", default="ThreadedEnginePerDevice",
          values="NaiveEngine|ThreadedEngine|ThreadedEnginePerDevice",
          parse=choice(("NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice")),
          meaning="NaiveEngine: locate faults: compile with --sanity_check, so that the first "
          "kernel call that goes wrong is named; and what a running network is given by "
          "net.submit is done before that returns", documentation="With the other engines "
          "net.submit queues, and the variables for threads say how many compute.",
          gives={"sanity_check": lambda engine: "1" if engine == "NaiveEngine" else None}),
    _dynamic("MXNET_EXEC_BULK_EXEC_INFERENCE", row="X-17", values="0|1", parse=switch, default="1",
             meaning="0: each kernel call runs and is timed by itself, as --profile and "
             "--optimization_switch=cascade:off; 1: nothing is between the calls, and some run "
             "in bulk, by stripes of rows",
             gives={"profile": _profile_unless_bulk, "optimization_switch": _no_cascades}),
    _dynamic("MXNET_EXEC_BULK_EXEC_TRAIN", row="X-18", values="0|1", parse=switch, default="1",
             meaning="the same: a training step is compiled as any other graph",
             gives={"profile": _profile_unless_bulk, "optimization_switch": _no_cascades}),
    _dynamic("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", row="X-19", values="N", default="15",
             meaning="nodes of a part of the training graph",
             accepted="a compiled step is one sequence of calls"),
    _once("MXNET_KVSTORE_REDUCTION_NTHREADS", row="X-20", values="N", default="4",
          meaning="threads that sum gradients", accepted=_KVSTORE),
    _once("MXNET_KVSTORE_BIGARRAY_BOUND", row="X-21", values="N", default="1000000",
          meaning="size from which gradients are summed in parallel", accepted=_KVSTORE),
    _once("MXNET_KVSTORE_USETREE", row="X-22", values="0|1", default="0",
          meaning="sums gradients in a tree", accepted=_KVSTORE),
    _once("MXNET_KVSTORE_LOGTREE", row="X-23", values="0|1", default="0",
          meaning="logs that tree", accepted=_KVSTORE),
    _once("MXNET_KVSTORE_TREE_ARRAY_BOUND", row="X-24", values="N", default="10000000",
          meaning="size from which there are several trees", accepted=_KVSTORE),
    _once("MXNET_KVSTORE_TREE_BACKTRACK", row="X-25", values="0|1", default="0",
          meaning="how the tree is searched", accepted=_KVSTORE),
    _once("MXNET_KVSTORE_TREE_LINK_USAGE_PENALTY", row="X-26", values="X", default="0.7",
          meaning="weight of a used link", accepted=_KVSTORE),
    _once("MXNET_ENABLE_GPU_P2P", row="X-27", values="0|1", default="1",
          meaning="GPUs copy from each other", accepted=_KVSTORE),
    _dynamic("MXNET_BACKWARD_DO_MIRROR", row="X-28", values="0|1", parse=switch, default="0",
             meaning="activations are recomputed in the backward pass, as --recompute=cheap",
             gives={"recompute": lambda on: "cheap" if on else None}),
    _once("MXNET_PROFILER_AUTOSTART", row="X-29", values="0|1", parse=switch, default="0",
          meaning="networks are compiled with --profile; when one was loaded, profile.json "
          "is written as the process ends, for the viewer of Chrome traces",
          gives={"profile": lambda on: on or None}),
    _once("MXNET_PROFILER_MODE", row="X-30", values="0...15", parse=integer(0, 15), default="0",
          meaning="what profile.json contains: 0 the model's operators only, else also copies and "
          "other calls that are no operator's", documentation="MXNet 2 has made a mask of bits of "
          "it, of which all above 0 mean the same here."),
    _dynamic("MXNET_CUDNN_AUTOTUNE_DEFAULT", row="X-31", values="0|1|2", parse=integer(0, 2),
             meaning="0: kernels are chosen by estimates, 1: measured (--fast_run) "
             "within --workspace_limit, 2: measured without that limit",
             gives={"fast_run": bool, "workspace_limit": _workspace}),
    _once("MXNET_CUDA_ALLOW_TENSOR_CORE", row="X-32", values="0|1", parse=switch, default="1",
          meaning="allows kernels that use a GPU's tensor cores, as --tensor_cores",
          gives={"tensor_cores": bool}),
    _once("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", row="X-33", values="0|1", parse=switch,
          default="0", meaning="1: products of floats may be rounded to 16 bits, as "
          "--precision_mode=allow_mix_precision_bf16",
          gives={"precision_mode": lambda on: "allow_mix_precision_bf16" if on else None},
          documentation="With 0 tensor cores compute them, too, in three products of halves."),
    _dynamic("MXNET_GLUON_REPO", row="X-34", values="URL", meaning="where models are fetched from",
             accepted="nothing is ever fetched"),
    _dynamic("MXNET_HOME", row="X-35", values="DIR", parse=path, default="~/.mxnet",
             meaning="where --model and --weight look for a name without folder that isn't in "
             "the working directory; its folder models too"),
    _dynamic("MXNET_MKLDNN_ENABLED", row="X-36", values="0|1", parse=switch, default="1",
             aliases=("MXNET_ONEDNN_ENABLED",), meaning="0: only portable kernels, as "
             "--kernels=portable", gives={"kernels": lambda on: "all" if on else "portable"}),
    _dynamic("MXNET_MKLDNN_CACHE_NUM", row="X-37", values="N", parse=integer(-1), default="64",
             aliases=("MXNET_ONEDNN_CACHE_NUM",), meaning="shapes whose plan a running "
             "network of several shapes keeps, the latest ones (-1: of all)",
             documentation="The running network's Python module reads it as it loads. MXNet's own "
             "default is -1."),
    _dynamic("MXNET_ENFORCE_DETERMINISM", row="X-38", values="0|1", parse=switch, default="0",
             meaning="only kernels whose results depend on nothing but their inputs, as "
             "--reproducible", gives={"reproducible": lambda given: given}),
    _once("MXNET_CPU_PARALLEL_COPY_SIZE", row="X-39", values="N", default="200000",
          parse=integer(0), aliases=("MXNET_CPU_PARALLEL_SIZE",),
          meaning="elements from which on copies are divided among the threads, as "
          "--parallel_copy_size", documentation="Where it isn't set that is estimated.",
          gives={"parallel_copy_size": lambda given: given}),
    Setting("parallel branches", "Features", "the lesser of MXNET_CPU_WORKER_NTHREADS and "
            "MXNET_EXEC_NUM_TEMP is how many operators run at a time, if they are independent; "
            "each such branch needs memory of its own",
            kind="feature", system="MXNet", row="X-40"),
    _once("MXNET_USE_OPERATOR_TUNING", row="X-41", values="0|1", parse=switch, default="1",
          meaning="1: an operator is divided among threads only where that gains; 0: wherever it "
          "can be, as --thread_tuning=0", gives={"thread_tuning": lambda on: on}),
    _once("MXNET_USE_NUM_CORES_OPERATOR_TUNING", row="X-42", values="N", parse=integer(1, 1024),
          meaning="cores that this counts on, as --tuned_cores",
          gives={"tuned_cores": lambda given: given}),
)  # fmt: skip
