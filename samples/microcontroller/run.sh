#!/bin/sh
# Keyword spotting on a Cortex-M4F and an M55, under qemu: sh samples/microcontroller/run.sh [FOLDER]
# Needs atc with its extra quantize, make, gcc-arm-none-eabi, libnewlib-arm-none-eabi, qemu-system-arm.
set -eu
here=$(dirname "$0")
out=${1:-out/microcontroller}

python3 "$here/make_model.py" "$out"
atc quantize --model="$out/kws_float.onnx" --calibration="$out/calibration.npy" \
  --output="$out/kws.onnx" >"$out/quantize.txt"
python3 "$here/make_model.py" "$out" words.h

for core in cortex-m4f cortex-m55; do
  atc --model="$out/kws.onnx" --output="$out/$core/kws" --target="$core" --starter=1 \
    --input_type=int8 --max_ram=24K --max_rom=64K
  cp "$here/spot.c" "$out/$core/kws/starter/main.c"
  cp "$out/words.h" "$out/$core/kws/starter/"
  make -C "$out/$core/kws/starter" run
done
