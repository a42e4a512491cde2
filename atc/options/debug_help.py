"""Introductions to the help of diff, bisect, profile, report, quantize and others."""

from __future__ import annotations

from collections.abc import Mapping

_DIFF = """\
usage: atc diff --model=FILE [--input=FILES] [--json] [options]

Finds the node that goes wrong: compiles the model with hooks, runs it and a reference (onnxruntime
where it is installed, else onnx.reference) on the same inputs, compares what every kernel call
makes with the reference's value of the same name, and names the first that differs, by how much
and where. Exit status 0: all values agree.

Examples:
  atc diff --model=lenet.onnx
  atc diff --model=lenet.onnx --input=x.npy --tolerance=1e-5 --target=x86-64-avx2
  atc diff --model=bert.onnx --input="ids:ids.npy;mask:mask.npy" --json
"""

_BISECT = """\
usage: atc bisect --model=FILE --first=OPTIONS --second=OPTIONS [--json] [options]

Finds the decision that changes a result: compiles the model with two sets of options, lists the
options, passes and kernels that were decided differently, and looks by binary search for the first
one with which an output changes. Where a set is the name of a file, it is an algorithm policy.
Exit status 0: no output changes.

Examples:
  atc bisect --model=net.onnx --second="--op_select_implmode=high_precision"
  atc bisect --model=net.onnx --first=good.policy --second=bad.policy --tolerance=1e-4
  atc bisect --model=net.onnx --first="--oo_level=O1" --second="--oo_level=O3"
"""

_PROFILE = """\
usage: atc profile FOLDER [--runs=N] [--trace=FILE] [--json] [options]

Runs a network that was compiled with --profile and prints the time of every kernel call, its rate,
and its share of what the core can do at most.

Examples:
  atc profile out/resnet
  atc profile out/resnet --trace=trace.json
  atc profile out/resnet --json > profile.json
"""

_REPORT = """\
usage: atc report FOLDER [--output=FILE] [--profile=FILE] [options]

Writes one page of HTML, complete in itself, about a compiled network: the graph before and after
fusion, the memory over time, times per layer, the kernels' candidates, sizes, the cache.

Examples:
  atc report out/resnet
  atc report out/resnet --profile=profile.json --output=resnet.html
"""

_QUANTIZE = """\
usage: atc quantize --model=FILE --calibration=PATH --output=FILE [options]

Writes an ONNX model that computes in 8-bit integers: the ranges of all values are measured on the
calibration inputs, and QuantizeLinear and DequantizeLinear nodes put around operators. The report
shows how far each layer's values are from the float model's, and which layers add most noise.
Needs onnxruntime (pip install 'atc[quantize]').

Examples:
  atc quantize --model=net.onnx --calibration=images/ --output=net_int8.onnx
  atc quantize --model=net.onnx --calibration=x.npy --output=net_int8.onnx --method=entropy \\
      --keep_worst=2 --labels=test.npz
  atc quantize --model=net.onnx --calibration=x.npz --output=net_int8.onnx --keep_float="fc1;fc2"
"""

_MACHINE = """\
usage: atc machine [--measure] [--json]
       atc machine --machine=NAME|FILE.json [--json]

Shows what estimates of kernels count on for --target=host: sizes and rates of caches and memory,
rates and latencies of instructions, in cycles of a core. That is what --measure has kept, beside
the configuration file, else what is known of the processor. What --json prints is a file for
--machine, so that a model can be compiled here for a machine that was measured elsewhere.

Examples:
  atc machine
  atc machine --measure
  atc machine --measure --json > board.json
  atc --model=net.onnx --output=out/net --target=aarch64-neon --machine=board.json
"""

_TARGETS = """\
usage: atc targets [--json]

Lists all targets: the compiler that builds for each on this machine, what runs its programs here,
and the boards that --starter writes programs for. Below the table stands what to install for the
others.

Examples:
  atc targets
  atc targets --json
"""

_BATCH = """\
usage: atc batch FILE.toml [--jobs=N] [--sdk=NAME] [--again] [options]

Compiles models x targets x variants, several at a time. What is up to date isn't recompiled,
so that a run that was killed goes on where it was. The page batch.html in the output folder shows
status, sizes, times, and what changed since the last run. The file (see atc/docs/farm.md):

  output = "out"
  targets = ["x86-64-avx2", "c99"]
  [options]                         # of all rows; those of atc, by name
  op_compiler_cache_mode = "enable"
  [[model]]
  path = "digits.onnx"              # also name, targets, options

Exit status: 0 all rows are compiled; 1 one of them isn't, or the file is wrong.

Examples:
  atc batch matrix.toml
  atc batch matrix.toml --sdk=vision
"""

_DOCTOR = """\
usage: atc doctor [--target=NAME,...] [--json]

Looks at this machine: versions, compilers, what compiles and runs for each target (a few lines are
compiled with its flags), emulators, GPUs, caches, and what to install for the rest. What is absent
is no fault unless a compilation for the host, or for a --target, needs it.

Exit status: 0 all that is needed works; 1 something is in the way.

Examples:
  atc doctor
  atc doctor --target=cortex-m4f,aarch64-neon
  atc doctor --json
"""

HELP: Mapping[str, str] = {
    "diff": _DIFF, "bisect": _BISECT, "profile": _PROFILE, "quantize": _QUANTIZE,
    "report": _REPORT, "machine": _MACHINE, "targets": _TARGETS, "doctor": _DOCTOR,
    "batch": _BATCH,
}  # fmt: skip
"""The introductions by command."""
