"""The options of `atc`: Ascend's ATC has most of them, the rest are our own."""

from __future__ import annotations

from functools import partial

from atc.cache.mode import DEFAULT_MODE, MODE_HELP, MODES
from atc.cache.remote_url import ACCESSES, TRUSTS, parse_remote
from atc.options.farm import parse_runner, parse_scheduler
from atc.options.shapes import batches, profiles, shape_ranges, shapes, value_ranges
from atc.options.table.products import PRODUCTS
from atc.options.table.setting import Setting
from atc.options.table.verification import VERIFICATION
from atc.options.values import (
    OUTPUT_TYPES,
    checks,
    choice,
    command,
    integer,
    names,
    nonnegative,
    output_types,
    path,
    pool,
    required_path,
    switch,
    switch_or_export,
    text,
    word_or,
    words,
)

LOG_LEVELS = ("debug", "info", "warning", "error", "null")

_FRAMEWORKS = {"0": "Caffe", "1": "MindSpore", "3": "TensorFlow"}
_FORMATS = ("", "NCHW", "NHWC", "ND", "NCDHW", "NDHWC")
_MODES = {n: "special" for n in (2, 4, *range(7, 31))}
_LAYOUTS = ("auto", "nchw", "nhwc", "nchw4c", "nchw8c", "nchw16c", "nchw32c", "chwn4")
_IMPLMODES = (
    "high_precision", "high_performance", "high_precision_for_all", "high_performance_for_all"
)  # fmt: skip
_PRECISIONS = (
    "", "force_fp32", "must_keep_origin_dtype", "force_fp16", "cube_fp16in_fp32out",
    "allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16",
    "allow_fp32_to_fp16", "allow_fp32_to_bf16",
)  # fmt: skip
_PRECISIONS_V2 = ("", "fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16")
_LATER_V2 = {"cube_hif8": "", "mixed_hif8": ""}

ATC_OPTIONS: tuple[Setting, ...] = (
    # ---- model -------------------------------------------------------------------------------
    Setting("model", "Model", "the model file: ONNX, MegEngine .mge, MXNet *-symbol.json, or "
            "what --framework converts",
            "FILE", required_path, system="ATC", row="A-01"),
    Setting("weight", "Model", "the weights of an MXNet model (default: the newest .params file "
            "beside it)", "FILE", path, system="ATC", row="A-02"),
    Setting("framework", "Model", "the model's format (default: found out from its content)",
            "5|onnx|mge|mxnet|torch|tflite|sklearn",
            choice(("", "-1", "5", "onnx", "mge", "mxnet", "torch", "tflite", "sklearn"),
                   _FRAMEWORKS, instead="export the model to ONNX; SavedModel: --framework=tflite"),
            system="ATC", row="A-03",
            documentation="5 is ATC's number of ONNX. torch (.pt2 of torch.export), tflite (also "
            "folders of TensorFlow's SavedModel) and sklearn (pickles of scikit-learn, XGBoost, "
            "LightGBM, which run as they are read) are never found out: the packages that read "
            "them convert them, in a process of its own (pip install 'atc[torch]' and so on)."),
    Setting("input_shape", "Model", "the inputs' shapes; needed where the model leaves one open",
            "name:n,c,h,w;name2:1~8,c", shapes, system="ATC", row="A-08",
            documentation="A range 1~8 makes one library that runs any shape inside, 0~8 one that "
            "takes an empty tensor, too; -1 is what --dynamic_batch_size and its like list. s=1~8 "
            "names an extent, and s, s+p, 2*s-1 follow from names: equal names are equal extents, "
            "those that the model gives its axes among them (past_sequence_length + 1). "
            "32*h=320~640 takes multiples alone. An input all of whose axes follow may be left "
            "out. The last colon ends a name. No dims at all are a scalar. name:[2,3][4] are the "
            "shapes of a sequence's elements, name:empty has none; name:none an absent optional."),
    Setting("input_shape_range", "Model", "ATC's former name of --input_shape",
            "name:[1~8,c];name2:[n,c,h,w]", shape_ranges, system="ATC", row="A-35",
            documentation="Shapes stand in brackets, or without them."),
    Setting("static_shapes", "Model", "take ranges of --input_shape for their largest shape, which "
            "is the only one that the library then runs", "0|1", switch, False),
    Setting("dynamic_batch_size", "Model", "the batch sizes to compile for: what a leading -1 of "
            "--input_shape stands for", "1,2,4", batches, system="ATC", row="A-10",
            documentation="The library has a plan for each, which share the weights; "
            "<name>_set_input_shapes chooses one."),
    Setting("dynamic_image_size", "Model", "the image sizes to compile for: what the -1s at height "
            "and width of --input_shape stand for", "h,w;h,w", profiles, system="ATC", row="A-11"),
    Setting("value_range", "Model", "bounds of integers known only at run time that decide "
            "shapes", "name:0~100;name2:1~8,1~64", value_ranges,
            documentation="A name is an input's or a node's result's; one range holds for all "
            "elements, else there is one for each. The name of a Loop bounds its iterations. "
            "flag:1 makes a constant of a flag. Memory is for the largest, the actual shapes are "
            "asked after the run, and what exceeds its range is a status code."),
    Setting("dynamic_dims", "Model", "the shapes to compile for: a value for each -1 of "
            "--input_shape", "d1,d2;d1,d2", partial(profiles, lowest=0), system="ATC", row="A-12",
            documentation="The three lists exclude each other."),
    Setting("out_nodes", "Model", "what to compute instead of the model's outputs: value names, "
            "or node names with output numbers", "value;...|node:0;...", names,
            system="ATC", row="A-13",
            documentation="The two forms can't be mixed."),
    Setting("input_format", "Model", "how the inputs come; NHWC and NDHWC transpose all inputs of "
            "that rank, whose shapes in --input_shape are still the model's own",
            "NCHW|NHWC|ND|NCDHW|NDHWC", choice(_FORMATS), system="ATC", row="A-09"),
    Setting("input_fp16_nodes", "Model", "inputs that come in half precision", "name;name2", names,
            system="ATC", row="A-15"),
    Setting("output_type", "Model", "the type of all outputs, or of each: an output's name or a "
            "node's with an output number", "TYPE|output:TYPE;node:0:TYPE", output_types,
            system="ATC", row="A-14",
            documentation=f"Types are {', '.join(OUTPUT_TYPES)}. Numbers outside an integer type "
            "become its nearest."),
    Setting("state", "Model", "pairs of an input and an output that the library carries from run "
            "to run itself; auto finds them by the names that exporters give",
            "input:output;...|auto", names,
            documentation="They leave the signature, lie in the arena and are updated in place. "
            "init and <name>_reset make them zero; <name>_save_state and <name>_restore_state copy "
            "them. A key-value cache has a range in --input_shape, from 0 to the most that it may "
            "hold: it is empty at first, and a run appends to it where it lies."),
    Setting("insert_op_conf", "Model", "a file of preprocessing for images (AIPP), which becomes a "
            "part of the network: crop, colours, resize, mean and scale, padding",
            "FILE", path, system="ATC", row="A-16",
            documentation="The input then takes uint8: [N, H, W, C], or [N, 3/2 H, W] for "
            "YUV420SP (all Y, then rows of U V pairs). The order is: swap channels, crop, convert "
            "colours, resize (bilinear, half-pixel centres), normalise, pad. XRGB8888 has X first; "
            "ax_swap_switch moves it to the end. aipp_mode dynamic is refused."),
    # ---- output ------------------------------------------------------------------------------
    Setting("output", "Output", "the folder to write; its last part is the network's name in C",
            "FOLDER", required_path, system="ATC", row="A-04"),
    Setting("external_weight", "Output", "where the weights lie: 0 in the library, 1 in a file per "
            "tensor, in a folder beside it, 2 in one file beside it", "0|1|2", integer(0, 2), 0,
            system="ATC", row="A-31"),
    *PRODUCTS,
    Setting("display_model_info", "Output", "print memory, kernels, target and versions of the "
            "result", "0|1", switch, False, system="ATC", row="A-27", role="tool"),
    Setting("explain", "Output", "print a node's candidate kernels, their times, and why one was "
            "chosen", "NODE", text, role="tool"),
    Setting("verify", "Output", "run the library and a reference on random inputs and compare",
            "0|1", switch, False, role="tool"),
    # ---- target ------------------------------------------------------------------------------
    Setting("target", "Target", "the processor to compile for; of several, the best first, the "
            "library runs the first that it can", "NAME[,NAME...]", text, "host"),
    Setting("machine", "Target", "the processor that estimates of kernels count on (default: the "
            "target's)", "NAME|FILE.json|host", text,
            documentation="A name of archspec's, or a file that atc machine --json printed. The "
            "default is one for each target, so that --target=NAME gives the same code wherever it "
            "is compiled; of --target=host it is this machine's, as atc machine --measure has kept "
            "it, else as its processor is known."),
    Setting("soc_version", "Target", "ATC's name of --target", "NAME", text, system="ATC",
            row="A-07"),
    Setting("host_env_os", "Target", "the operating system that the library is for", "linux",
            choice(("", "linux")), system="ATC", row="A-32"),
    Setting("host_env_cpu", "Target", "the processor family that the library is for", "x86_64|"
            "aarch64", choice(("", "x86_64", "aarch64")), system="ATC", row="A-32",
            documentation="For another than this machine's it means the plainest --target of it."),
    Setting("build_config", "Target", "the command that compiles C: a compiler, and flags that "
            "come after our own (default: $CC)", "COMMAND", command, system="ATC", row="A-34"),
    Setting("compiler_timeout", "Target", "seconds that each call of the compiler may take, 0: no "
            "limit", "SECONDS", nonnegative, 600),
    Setting("num_threads", "Target", "threads of the compiled network; the results are the same "
            "bits for any number", "N",
            integer(1, 1024), 1),
    Setting("parallel_branches", "Target", "branches of the network that run at the same time, "
            "each in one thread (0: up to --num_threads where that is estimated to take less time "
            "than to divide each call; 1: none)", "N", integer(0, 1024), 0,
            documentation="More than 1: all that is independent is run at the same time, whatever "
            "its size. More values are in memory together then; the results are the same bits. "
            "Where the arena would exceed --memory_budget nothing is."),
    Setting("workspaces", "Target", "areas of scratch that exist side by side, and so the most "
            "branches that run at the same time (0: as many as do)", "N", integer(0, 1024), 0),
    Setting("thread_tuning", "Target", "divide a call among threads only where that is estimated, "
            "or with --fast_run measured, to gain; 0: wherever it is possible", "0|1", switch,
            True),
    Setting("tuned_cores", "Target", "cores that this counts on, the most threads that one call is "
            "divided among (0: --num_threads)", "N", integer(0, 1024), 0),
    Setting("parallel_copy_size", "Target", "elements from which on a call that only copies is "
            "divided among the threads (-1: as estimated)", "N", integer(-1), -1),
    # ---- cache -------------------------------------------------------------------------------
    Setting("op_compiler_cache_mode", "Op compiler cache", MODE_HELP, "|".join(MODES),
            choice(MODES), DEFAULT_MODE, system="ATC", row="O-01",
            documentation="--op_debug_level and --op_debug_config switch the cache off for what "
            "they debug: compile logs would be incomplete on hits, and debug objects are not "
            "worth the room."),
    Setting("op_compiler_cache_dir", "Op compiler cache", "where the cache lies (default: "
            "$ASCEND_CACHE_PATH, else $HOME/atc_data)", "DIR", path, system="ATC", row="O-02",
            documentation="Letters, digits, '_', '-', '.', '/' and Chinese characters. Files in "
            "the default directory may be deleted when the tool is upgraded; one given here "
            "never is."),
    Setting("op_compiler_cache_remote", "Op compiler cache", "a store that is asked after the "
            "cache, and filled behind it, for compiled operators and measured times",
            "URL", parse_remote,
            documentation="s3://bucket/prefix, gs://bucket/prefix, redis://host:6379/0, "
            "file:///folder, http(s)://host/path (only read). What ATC_CACHE_KEY didn't sign is "
            "refused. A store that is slow, full, away or lying costs a warning. Compiled "
            "operators follow --op_compiler_cache_mode, times --fast_run_cache_type."),
    Setting("op_compiler_cache_remote_access", "Op compiler cache", "whether that store is also "
            "written (default: where it can be)", "read|readwrite", choice(ACCESSES)),
    Setting("op_compiler_cache_trust", "Op compiler cache", "whose entries of that store are "
            "believed: those signed with ATC_CACHE_KEY, or without a key all that are in the "
            "store, when whoever can write there can put code into the build", "key|store",
            choice(TRUSTS), "key"),
    # ---- optimisation ------------------------------------------------------------------------
    Setting("fast_run", "Optimisation", "measure each operator's best candidate kernels on this "
            "machine; export: write a C project that measures them elsewhere, for "
            "--fast_run_import", "0|1|export", switch_or_export, False, system="MegEngine",
            documentation="The project is fast_run/ in the output folder; its measure prints the "
            "times. --full_run is for its candidates, too."),
    Setting("fast_run_import", "Optimisation", "what the project of --fast_run=export printed: "
            "kernels are chosen by these times", "FILE", path),
    Setting("full_run", "Optimisation", "measure all candidate kernels", "0|1", switch, False,
            system="MegEngine"),
    Setting("fast_run_algo_policy", "Optimisation", "a text file of the kernels chosen by "
            "measuring: written with --fast_run or --full_run, replayed without", "FILE", path,
            system="MegEngine",
            documentation="One line per workload. Lines that are there aren't measured again. The "
            "build that replays a file makes the same library as the one that wrote it."),
    Setting("fast_run_timeout", "Optimisation", "seconds that one candidate may take, 0: no limit",
            "SECONDS", nonnegative, 20),
    Setting("fast_run_cache_type", "Optimisation", "whether measured times are kept: FILE, or "
            "MEMORY for this run only (default: FILE)", "FILE|MEMORY",
            choice(("", "FILE", "MEMORY"))),
    Setting("fast_run_cache_dir", "Optimisation", "where measured times are kept (default: the "
            "folder of the op compiler cache, whatever its mode)", "DIR", path),
    Setting("kernels", "Optimisation", "which kernels may be chosen: portable ones are plain C, "
            "optimized ones leave plain C to the operators that have nothing else",
            "all|portable|optimized", choice(("all", "portable", "optimized")), "all"),
    Setting("deterministic_math", "Optimisation", "make float32 results the same bits on every "
            "target: own functions in the place of the C library's, one order of sums, no vectors "
            "of floats", "0|1", switch, False,
            documentation="Targets without an operating system have the own functions in any "
            "case. What is equal where: atc/docs/numerics.md."),
    Setting("workspace_limit", "Optimisation", "most bytes of scratch that a kernel may use, "
            "where there is a choice (-1: no limit)", "N", integer(-1), -1, system="MegEngine"),
    Setting("weight_price", "Optimisation", "cycles of each run that a kernel must save for every "
            "byte by which it enlarges the weights (0: none)", "N", nonnegative, 0.2,
            documentation="Winograd's filters are up to seven times as large as the model's."),
    Setting("reproducible", "Optimisation", "only kernels whose results depend on nothing but "
            "their inputs: all of them", "0|1", switch, False, system="MegEngine"),
    Setting("deterministic", "Optimisation", "ATC's name of --reproducible", "0|1", switch, False,
            system="ATC", row="A-30"),
    Setting("deterministic_level", "Optimisation", "above 0: like --deterministic", "0...3",
            integer(0, 3), 0, system="ATC", row="A-30"),
    Setting("profile", "Optimisation", "compile with functions that time each kernel call", "0|1",
            switch, False),
    Setting("sanity_check", "Debugging", "compile with checks around each kernel call: of memory "
            "that nobody may write, of NaN, of infinities, of numbers beyond a limit",
            "memory,nan,inf,range:LIMIT", checks,
            documentation="Alone or 1: the first three. A run that fails a check returns "
            "ERROR_CHECK, and last_fault names the node."),
    Setting("hooks", "Debugging", "compile with a hook around each kernel call that shows its "
            "values to an observer", "0|1", switch, False),
    Setting("runtime_log", "Debugging", "compile with a log on standard error: failures, and from "
            "a level that NAME_set_log_level or RUNTIME_OVERRIDE_LOG_LEVEL says also runs (1) and "
            "kernel calls (0)", "0|1", switch, False),
    Setting("record_computing_path", "Debugging", "errors at a node, and faults that a library "
            "compiled with --sanity_check finds, name the chain of nodes that computed what it "
            "reads", "0|1", switch, False),
    Setting("strip", "Debugging", "leave out of the library all symbols that loading it doesn't "
            "need", "0|1", switch, False),
    Setting("c_opr_lib", "Model", "a shared library of operators of your own, for nodes that the "
            "compiler doesn't know", "FILE", path, system="MegEngine",
            documentation="See atc_external.h. Programs that use the compiled network link the "
            "functions, too."),
    Setting("c_opr_init_interface", "Model", "the name of that library's init function", "NAME",
            text, "mgb_c_opr_init", system="MegEngine"),
    Setting("precision_mode", "Optimisation", "what tensors are rounded to between operators, and "
            "whether products may be in bfloat16 (default: the model's own types)",
            "MODE", choice(_PRECISIONS), system="ATC", row="A-17",
            documentation="must_keep_origin_dtype changes nothing, force_fp32 turns 16-bit floats "
            "into float32. force_fp16, allow_fp32_to_fp16 and allow_fp32_to_bf16 round every "
            "operator's results and weights, cube_fp16in_fp32out the operands of products and "
            "convolutions, allow_mix_precision (_fp16) all but the operators that lose much. "
            "allow_mix_precision_bf16 allows kernels to round the operands of products and "
            "convolutions to bfloat16, where that is faster; all else is in float32."),
    Setting("precision_mode_v2", "Optimisation", "the newer spelling of --precision_mode",
            "|".join(_PRECISIONS_V2[1:]), choice(_PRECISIONS_V2, _LATER_V2), system="ATC",
            row="A-18"),
    Setting("keep_dtype", "Optimisation", "a file of operators that no precision mode changes: a "
            "node's name or OpType::Type on each line", "FILE", path, system="ATC", row="A-19"),
    Setting("modify_mixlist", "Optimisation", "a JSON file that changes the lists of mixed "
            "precision", "FILE", path, system="ATC", row="A-19", documentation='Its form is '
            '{"black-list": {"to-add": ["Conv"], "to-remove": ["Exp"]}, "white-list": {...}}.'),
    Setting("customize_dtypes", "Optimisation", "a file of types for single operators, a line "
            "each: name::InputDtype:float16,float32,OutputDtype:float16", "FILE", path,
            system="ATC", row="A-19"),
    Setting("op_precision_mode", "Optimisation", "an ini file of high_precision or "
            "high_performance for operators, in the sections [ByOpType] and [ByNodeName]", "FILE",
            path, system="ATC", row="A-19"),
    Setting("max_error", "Optimisation", "the largest error that the outputs may have, as a part "
            "of their largest magnitude (0: any); the fastest kernels that keep it are taken", "E",
            nonnegative, 0,
            documentation="Measured on seeded inputs against the model in float64. As many "
            "products are in bfloat16 as it allows, those that gain most time for the error they "
            "add; then the kernels that err most become precise ones until it is kept. For a "
            "target that this machine can't run the errors of products are predicted."),
    Setting("cal_conf", "Optimisation", "quantise the model to 8-bit integers first: a file of "
            "what atc quantize takes for that, a line each (calibration=data/, method=percentile)",
            "FILE", path, system="ATC", row="A-35",
            documentation="The names are those of atc quantize in its group Calibration. It needs "
            "onnxruntime and inputs of known shapes."),
    Setting("op_select_implmode", "Optimisation", "high_precision leaves out kernels that "
            "round more than the operator's definition; _for_all may follow either",
            "high_precision|high_performance", choice(_IMPLMODES), "high_performance",
            system="ATC", row="A-20"),
    Setting("optypelist_for_implmode", "Optimisation", "the operator types that "
            "--op_select_implmode is for (default: all)", "Type,Type2", words, system="ATC",
            row="A-20"),
    Setting("oo_level", "Optimisation", "passes on the graph: O0 none, O1 clean-ups, O2 fusion "
            "and layouts, O3 all", "O0|O1|O2|O3", choice(("O0", "O1", "O2", "O3")), "O3",
            system="ATC", row="A-33"),
    Setting("fusion_switch_file", "Optimisation", "a file that switches passes on the graph off: "
            "lines name:off, or ATC's JSON", "FILE", path, system="ATC", row="A-21",
            documentation="The names are those that --dump shows; ALL stands for every pass."),
    Setting("optimization_switch", "Optimisation", "passes on the graph to switch", "pass:on;"
            "pass2:off", text, system="ATC", row="A-35"),
    Setting("op_bank_path", "Optimisation", "a folder of measured kernel times: what it holds is "
            "used, --fast_run adds to it", "DIR", path, system="ATC", row="A-24",
            documentation="Other kernels are other sources, and so other keys of the op compiler "
            "cache."),
    Setting("layout_transform", "Optimisation", "how feature maps lie in memory: auto solves for "
            "the least cost of the whole graph; another one is taken wherever a node can be "
            "computed in; blocks must be as wide as the target's vectors; on GPUs bytes alone may "
            "lie in blocks, of 4 or 32 channels, chwn4 has the images of a batch before those, and "
            "auto is nchw", "|".join(_LAYOUTS), choice(_LAYOUTS), "auto",
            documentation="The report shows what each of them is estimated to cost, by measured "
            "times where there are some."),
    Setting("disable_reuse_memory", "Optimisation", "give every tensor memory of its own", "0|1",
            switch, False, system="ATC", row="A-22"),
    Setting("memory_tries", "Optimisation", "packings that the memory planner tries, of which it "
            "keeps the smallest: orders of the buffers, from the ninth on rounds of a search", "N",
            integer(1, 1000), 12),
    Setting("device_id", "Optimisation", "the GPU, by its number, that a network for one takes "
            "where a program names none", "N", integer(0, 15), 0, system="ATC", row="A-35"),
    Setting("gpu_streams", "Optimisation", "the most streams of a GPU on which branches of a "
            "network run at the same time, where that is estimated to gain; "
            "--parallel_branches=N: wherever it is possible", "N", integer(1, 16), 4),
    Setting("gpu_copy_streams", "Optimisation", "the most streams of a GPU on which inputs are "
            "copied there, and outputs back", "N", integer(1, 16), 1),
    Setting("gpu_pool", "Optimisation", "bytes of a GPU's memory that a network's first context "
            "reserves, for its weights and for what all contexts need, or all that is free; by "
            "default each takes what it needs", "all|BYTES", pool),
    Setting("gpu_kept_free", "Optimisation", "percent of a GPU's memory that must stay free for "
            "others: a context that would leave less isn't prepared", "PERCENT",
            integer(0, 100), 0),
    Setting("gpu_swap", "Optimisation", "let values be swapped where a GPU's network needs more "
            "than --memory_budget, or than --gpu_pool has: copied to page-locked memory of the "
            "host, and back, beside the kernels", "0|1", switch, False,
            documentation="With --recompute what is estimated to be faster counts."),
    Setting("host_compute", "Optimisation", "beside a GPU let the host compute what is small, "
            "up to 64 elements, and whose operands it has; 0: the GPU, wherever it has a kernel",
            "0|1", switch, True),
    Setting("fused_code", "Optimisation", "the language that fused operators must be written in: "
            "with cuda a target that is not a GPU is an error", "auto|cuda",
            choice(("auto", "cuda")), "auto"),
    Setting("tensor_cores", "Optimisation", "let a GPU's tensor cores compute products: those of "
            "16-bit floats and bytes exactly, those of floats as --precision_mode allows (by "
            "default in three products of halves, bf16x3)", "0|1", switch, True),
    Setting("allow_hf32", "Optimisation", "let a GPU's tensor cores round floats that they "
            "multiply to TF32 (11 significant bits), unless --max_error is given", "0|1", switch,
            False, system="ATC", row="A-35"),
    Setting("memory_in_place", "Optimisation", "let results take over their operands' memory",
            "0|1", switch, True),
    Setting("recompute", "Optimisation", "which values may be recomputed instead of kept, "
            "where that lowers the memory that the network needs: none, cheap ones (elementwise) "
            "or all",
            "none|cheap|all", choice(("none", "cheap", "all")), "none",
            documentation="Results have the same bits. --log=info lists the nodes."),
    Setting("memory_budget", "Optimisation", "most bytes that the arena may take, with the weights "
            "and the optimizer's state of --mode=train (0: any): no more is recomputed than that "
            "takes, and a network that needs more is an error", "BYTES", integer(0), 0,
            documentation="Without --recompute only the order of nodes may change. A smaller "
            "budget never costs less work than a larger one. --log=info says what is "
            "recomputed, how much work that is, and what no plan can be below."),
    Setting("recompute_until", "Optimisation", "bytes of arena from which on nothing more is "
            "recomputed", "BYTES", integer(0), 0),
    Setting("recompute_minimum", "Optimisation", "values of fewer bytes are kept", "BYTES",
            integer(0), 0),
    Setting("recompute_tries", "Optimisation", "rules by which the search chooses what is "
            "recomputed, each of which leads to plans of its own", "N", integer(0, 10_000), 10,
            documentation="The best of all their plans counts. Of more than 600 nodes fewer rules "
            "are tried, of more than 3,000 one."),
    Setting("recompute_rounds", "Optimisation", "rounds of a genetic search that crosses and "
            "changes those rules", "N", integer(0, 10_000), 0,
            documentation="More rounds take longer and never need more memory."),
    Setting("recompute_pool", "Optimisation", "rules that are alive in the genetic search", "N",
            integer(0, 10_000), 20),
    Setting("recompute_workers", "Optimisation", "threads of the search for what is recomputed "
            "(0: half of the cores); the plan doesn't depend on them", "N", integer(0, 4096), 0),
    Setting("jobs", "Optimisation", "C compilers that run at a time (0: one per core); also -j N",
            "N", integer(0, 4096), 0),
    Setting("scheduler", "Optimisation", "a cluster of dask's whose workers compile kernels, and "
            "measure them where they carry the target's name as a resource",
            "tcp://HOST:PORT|local:N", parse_scheduler,
            documentation="local:4 are four processes of this machine. The result is the same "
            "bytes. Whoever reaches a scheduler without TLS can run programs on its workers."),
    Setting("runner", "Optimisation", "where programs run that measure kernels (default: here, "
            "under the target's emulator), and what atc verify compares (here, under an emulator, "
            "ssh:HOST, or serial:DEVICE)",
            "local|qemu[:PROGRAM]|node|ssh:HOST|adb:SERIAL|command:WORDS|serial:DEVICE",
            parse_runner,
            documentation="Each program is carried there, has --fast_run_timeout, and is removed. "
            "qemu or node alone is what runs the target's programs here, as local is where there "
            "is need of it."),
    # ---- debugging ---------------------------------------------------------------------------
    Setting("log", "Debugging", "what to report on standard error", "|".join(LOG_LEVELS),
            choice(LOG_LEVELS, code="E10010"), "null", system="ATC", row="A-25", role="tool",
            documentation="debug shows every pass with node counts and times, every command that "
            "is started, and a traceback on failure."),
    Setting("dump", "Debugging", "write the graph after each pass into this folder", "DIR", path),
    Setting("op_debug_level", "Debugging", "0: off. 1: keep each kernel's object, description, "
            "source and map from lines to nodes. 2: the same, built with -O0 -g. 3: objects and "
            "descriptions. 4: like 3, with sources and the fused expressions. Above 0 the cache "
            "isn't used", "0...4", integer(0, 4), 0, system="ATC", row="O-03"),
    Setting("op_debug_config", "Debugging", "a file that says what to debug, and for which "
            "operators", "FILE", path, system="ATC", row="O-04",
            documentation="Lines op_debug_config=oom,dump_bin,dump_cce,dump_loc,ccec_O0,ccec_g "
            "and, for some operators only, op_debug_list=Name,OpType::Type."),
    Setting("debug_dir", "Debugging", "where kernel_meta/ with the kept files goes", "DIR", path,
            ".", system="ATC", row="A-26"),
    Setting("build_dir", "Debugging", "where objects are built (default: a temporary folder)",
            "DIR", path),
    Setting("keep_build", "Debugging", "keep the folder of the sources, objects and commands of "
            "the build", "0|1", switch, False),
    Setting("mode", "Debugging", "0: compile. 1: only translate the model (or the report of a "
            "compiled network) to the file of --json. 3: only check the model. 5: a text graph to "
            "JSON. 6: show a compiled network. train: compile a step of training",
            "0|1|3|5|6|train", word_or("train", integer(0, 30, _MODES)), 0,
            system="ATC", row="A-05", role="tool"),
    Setting("om", "Debugging", "what the modes 1, 5 and 6 read: a model, a .graph.txt, or the "
            "folder of a compiled network", "PATH", path, system="ATC", row="A-06", role="tool"),
    Setting("json", "Debugging", "what the modes 1 and 5 write: ONNX where the name ends in .onnx, "
            "else JSON", "FILE", path, system="ATC", row="A-06", role="tool"),
    Setting("check_report", "Debugging", "where --mode=3 writes all nodes that can't be compiled, "
            "with reasons; without that mode, written if the model is refused (default: "
            "check_result.json with --mode=3)", "FILE", path, system="ATC", row="A-28",
            role="tool"),
    Setting("singleop", "Debugging", "a JSON file of single operators; each is compiled into a "
            "folder of its own under --output", "FILE", path, system="ATC", row="A-29",
            role="tool"),
    *VERIFICATION,
    # ---- help --------------------------------------------------------------------------------
    Setting("help", "Help", "show this text; also -h", "", switch, False, role="help"),
    Setting("version", "Help", "show the version", "", switch, False, role="help"),
)  # fmt: skip
