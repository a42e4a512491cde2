#!/bin/sh
# What a job of continuous integration does: compiles, and prints what came from the store.
set -eu
: "${ATC_OP_COMPILER_CACHE_REMOTE:?names the store}" "${ATC_CACHE_KEY:?signs its entries}"
export ASCEND_CACHE_PATH="${ASCEND_CACHE_PATH:-$PWD/out/cache}"
atc --model=samples/digits.onnx --output=out/digits --op_compiler_cache_mode=enable --log=info
atc cache stats
