"""Options of Ascend's ATC about its chips and services: accepted, each with one warning."""

from __future__ import annotations

from functools import partial

from atc.options.table.setting import Setting
from atc.options.values import truth

_ignored = partial(
    Setting, group="Accepted without effect", system="ATC", values="VALUE", role="ignored"
)
_chip = partial(_ignored, row="A-23", accepted="it is about Ascend's chips")
_service = partial(_ignored, row="A-35")

IGNORED_OPTIONS: tuple[Setting, ...] = (
    _chip("buffer_optimize", meaning="buffers of the chip"),
    _chip("core_type", meaning="kind of the chip's cores"),
    _chip("aicore_num", meaning="number of the chip's cores"),
    _chip("virtual_type", meaning="virtual chips"),
    _chip("enable_small_channel", meaning="convolutions with few channels"),
    _chip("is_input_adjust_hw_layout", meaning="the chip's layout for inputs"),
    _chip("is_output_adjust_hw_layout", meaning="the chip's layout for outputs"),
    _chip("sparsity", meaning="sparse weights"),
    _chip("enable_compress_weight", meaning="compressed weights", values="true|false",
          parse=truth,
          accepted="weights are stored as the kernels read them"),
    _chip("compression_optimize_conf", meaning="compression of the model",
          accepted="weights are stored as the kernels read them"),
    _chip("compress_weight_conf", meaning="compressed weights of single operators",
          accepted="weights are stored as the kernels read them"),
    _chip("enable_scope_fusion_passes", meaning="scope fusion rules of TensorFlow models"),
    _chip("enable_single_stream", meaning="one stream only", values="true|false", parse=truth,
          accepted="a compiled network is one sequence of calls"),
    _chip("ac_parallel_enable", meaning="streams of the chip's CPU"),
    _chip("tiling_schedule_optimize", meaning="tiling on the chip"),
    _chip("cluster_config", meaning="several devices"),
    _chip("mdl_bank_path", meaning="knowledge base of the model's tuning",
          accepted="--fast_run_algo_policy names the file of measured kernels"),
    _chip("auto_tune_mode", meaning="automatic tuning; ATC itself has given it up",
          accepted="--fast_run measures kernels"),
    _service("save_original_model", meaning="the original model as .om",
             accepted="--mode=1 writes the model as it was read"),
    _service("dump_mode", meaning="JSON with shapes", accepted="shapes are always in it"),
    _service("input_hint_shape", meaning="probable shapes of the inputs",
             accepted="one plan holds for all shapes of --input_shape"),
    _service("op_name_map", meaning="names of custom operators",
             accepted="Caffe's custom operators aren't read"),
    _service("quant_dumpable", meaning="dumps of quantised operators",
             accepted="every operator's values can be dumped"),
    _service("is_weight_clip", meaning="limits of the weights' values",
             accepted="weights keep their type"),
    _service("status_check", meaning="overflow checks", accepted="floats don't trap"),
    _service("jit_compile", meaning="compilation at run time",
             accepted="everything is compiled ahead of time"),
    _service("raw_ge_options", meaning="options of Ascend's graph engine",
             accepted="that engine isn't used"),
    _service("shape_generalized_build_mode", meaning="generalised shapes",
             accepted="--input_shape says which shapes there are"),
    _service("atomic_clean_policy", meaning="clearing of memory",
             accepted="kernels clear what they need"),
    _service("static_model_ops_lower_limit", meaning="smallest static subgraph",
             accepted="the whole model is static"),
    _service("hccl_sub_comm_config", meaning="groups of devices",
             accepted="there is one processor"),
    _service("enable_attr_compression", meaning="compressed attributes",
             accepted="attributes become constants of the code"),
)  # fmt: skip
