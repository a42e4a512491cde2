"""Words per second of decoders with caches, beside onnxruntime and the memory's own speed.

    python tests/benchmarks/decode.py --layers=6 --words=8192 --weights=float32,int4,int4-int8
    python tests/benchmarks/decode.py --weights=float32,float16,bfloat16 --at_once=8

makes a decoder of the shape of Llama's with 135 million weights (fewer layers and words, if given),
compiles it once for prompts and single words, and runs it alternately with onnxruntime, which is
given its caches anew as its users do, and with a loop that does nothing but read as many bytes as
the library's weights are, asking for lines ahead or not, whichever is faster.
A word must read those, without the table of which it takes a row, and
the caches' keys and values of all words before it: the share is what the loop takes for so many
bytes in the time of a word. `int4-int8` are weights of 4 bits whose products may round what they
multiply to INT8 (accuracy_level=4), as llama.cpp's do; `float16` and `bfloat16` the float32 model
with that precision mode, onnxruntime runs it as it is. With `--at_once` a run takes so many words,
as when some are guessed; all that it takes counts. All run in one thread, whose time on the
processor counts, or in `--threads=2`: then time is the clock's, for an idle machine, and the same
network compiled for one thread is a row of its own.

llama.cpp runs beside them where llama-cpp-python is installed; `--gguf=FILE` is its model, which
`--make_gguf=1` makes first: the same shape, Q4_0, random weights (package gguf). Of a prompt it
computes the logits of the last word alone, the other two those of all.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime

import atc
from atc.quantize.quantize import Job
from atc.quantize.weights import quantize_weights

SAMPLE = Path(__file__).parents[2] / "samples" / "language_model"
sys.path.insert(0, str(SAMPLE))

import make_decoder  # noqa: E402

READ = """
#include <stddef.h>
#include <stdint.h>

/* Read memory and do next to nothing else: eight sums hide the additions. Lines are asked for
 * `ahead` numbers before they are read, or left to the core. */
uint64_t read_all(const uint64_t *x, size_t count, size_t ahead)
{
  uint64_t s[64] = {0};
  for (size_t k = 0; k + 64 <= count; k += 64) {
    for (int l = 0; ahead && l < 64; l += 8) __builtin_prefetch(x + k + ahead + l, 0, 2);
    for (int l = 0; l < 64; l++) s[l] += x[k + l];
  }
  for (int l = 1; l < 64; l++) s[0] += s[l];
  return s[0];
}
"""


TURN, PAUSE = 32, 0.03
"""Words that a network runs before it is the next one's turn, and seconds in between."""
LONGEST = 512
"""Words that the caches hold."""
MODES = {"float16": "force_fp16", "bfloat16": "allow_mix_precision_bf16"}
"""The float32 model's precision mode by weights."""
WARM = 8
"""Words at the beginning of a turn that aren't timed: caches and clocks are those of a pause."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the weights that a word reads, and of the keys and values that it leaves."""

    weights: int
    left: int

    def read(self, held: int) -> int:
        """Return what a word reads after so many."""
        return self.weights + held * self.left


@dataclass(frozen=True)
class Found:
    """Times in seconds of a run: of a word, of the prompt's words; the part of the memory's speed
    that decoding has."""

    word: float
    prompt: float
    share: float


class Clock:
    """Times runs: one thread's time on the processor, or of several the time that passes."""

    def __init__(self, threads: int) -> None:
        self.now = time.thread_time if threads == 1 else time.perf_counter

    def time(self, run: Callable[[], Any]) -> float:
        """Return the seconds of a run."""
        begin = self.now()
        run()
        return self.now() - begin


AHEAD = (0, 2048)
"""How far the loop that reads asks for lines, in numbers of 8 bytes: the faster way counts."""


def reader(folder: Path, size: int, threads: int) -> Callable[[int], float]:
    """Return what reads so many bytes, a part in each thread, and says how long that took."""
    (folder / "read.c").write_text(READ)
    library = folder / "read.so"
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, folder / "read.c"]
    subprocess.run(command, check=True)
    read = ctypes.CDLL(str(library)).read_all
    read.argtypes, read.restype = [ctypes.c_void_p] + [ctypes.c_size_t] * 2, ctypes.c_uint64
    parts = np.array_split(np.ones(size // 8, np.uint64), threads)
    pool = ThreadPoolExecutor(max(1, threads - 1))

    def read_all(ahead: int) -> None:
        others = [pool.submit(read, part.ctypes.data, part.size, ahead) for part in parts[1:]]
        read(parts[0].ctypes.data, parts[0].size, ahead)
        wait(others)

    return lambda ahead: Clock(threads).time(lambda: read_all(ahead))


class Compiled:
    """The decoder as a library that keeps its caches."""

    def __init__(self, model: Path, folder: Path, shape: make_decoder.Shape, prompt: int,
                 threads: int, mode: str = "") -> None:  # fmt: skip
        text = make_decoder.shapes(shape, prompt, LONGEST)
        atc.compile(model, folder, input_shape=text, state="auto", num_threads=threads,
                    external_weight=2, op_compiler_cache_mode="enable",
                    **({"precision_mode": mode} if mode else {}))  # fmt: skip
        self.net, self.clock = atc.load(folder), Clock(threads)
        self.held = 0
        report = json.loads(next(folder.glob("*.report.json")).read_text())
        table = (2 if mode == MODES["float16"] else 4) * shape.words * shape.width
        weights = report["memory"]["weights_bytes"] - table
        self.sizes = Sizes(weights, 4 * 2 * shape.layers * shape.groups * shape.size)

    def read_on(self, count: int) -> float:
        """Run so many words more; return the time."""
        ids = np.ones((1, count), np.int64)
        mask = np.ones((1, self.held + count), np.int64)
        taken = self.clock.time(lambda: self.net(ids, mask))
        self.held += count
        return taken

    def restart(self) -> None:
        """Forget all words."""
        self.net.reset()
        self.held = 0


class Onnxruntime:
    """onnxruntime, whose caches go out and in."""

    def __init__(self, model: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(model), options)
        self.clock = Clock(threads)
        self.restart()

    def restart(self) -> None:
        """Forget all words."""
        self.held = 0
        self.caches = {
            v.name: np.zeros([1, v.shape[1], 0, v.shape[3]], np.float32)
            for v in self.session.get_inputs() if v.name.startswith("past")
        }  # fmt: skip

    def read_on(self, count: int) -> float:
        """Run so many words more; return the time."""
        mask = np.ones((1, self.held + count), np.int64)
        feed = {"input_ids": np.ones((1, count), np.int64), "attention_mask": mask, **self.caches}
        begin = self.clock.now()
        _, *caches = self.session.run(None, feed)
        taken = self.clock.now() - begin
        self.caches = dict(zip(self.caches, caches, strict=True))
        self.held += count
        return taken


def measured(
    runs: dict[str, Any], sizes: Sizes, read: Callable[[int], float], prompt: int, words: int,
    at_once: int,
) -> dict[str, Found]:  # fmt: skip
    """Return the medians of alternating runs, of some words in a row each, `at_once` in each run.

    Other threads of the one before may spin for some time: they get it.
    """
    prompts: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            time.sleep(PAUSE)
            for _ in range(2):
                run.restart()
                taken = run.read_on(prompt)
            prompts[name].append(taken)  # the second: the first one's caches are cold
    each: dict[str, list[float]] = {name: [] for name in runs}
    bytes_: dict[str, list[int]] = {name: [] for name in runs}
    reading: dict[int, list[float]] = {ahead: [] for ahead in AHEAD}
    warm, turn = max(2, WARM // at_once), max(8, TURN // at_once)
    for _ in range(0, words, TURN):
        for name, run in runs.items():
            time.sleep(PAUSE)
            if run.held + (warm + turn) * at_once > LONGEST:
                run.restart()
                run.read_on(prompt)
            for k in range(warm + turn):
                size, taken = sizes.read(run.held), run.read_on(at_once)
                if k >= warm:
                    each[name].append(taken)
                    bytes_[name].append(size)
        for ahead, taken_each in reading.items():
            time.sleep(PAUSE)
            taken_each += [read(ahead) for _ in range((WARM + TURN) // 2)][WARM // 2 :]
    rate = sizes.weights / min(map(median, reading.values()))
    found = {}
    for name, times in each.items():
        shares = (size / rate / taken for size, taken in zip(bytes_[name], times, strict=True))
        found[name] = Found(median(times) / at_once, median(prompts[name]) / prompt, median(shares))
    return found


def let_round(file: Path) -> None:
    """Let products with packed weights round what they multiply."""
    model = onnx.load(file)
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            others = [a for a in node.attribute if a.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend([*others, onnx.helper.make_attribute("accuracy_level", 4)])
    onnx.save(model, file)


def rows(chosen: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    shape = make_decoder.SHAPES[chosen.shape]
    shape = replace(shape, layers=chosen.layers or shape.layers, words=chosen.words or shape.words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wide = folder / "float32.onnx"
        onnx.save(make_decoder.Decoder(shape).model(), wide)
        for weights in chosen.weights.split(","):
            model = wide
            if weights != "float32" and weights not in MODES:
                model = folder / f"{weights}.onnx"
                quantize_weights(Job(wide, model, weights="int4"))
                if weights == "int4-int8":
                    let_round(model)
            mode = MODES.get(weights, "")
            own = Compiled(model, folder / weights, shape, chosen.prompt, chosen.threads, mode)
            read = reader(folder, own.sizes.weights, chosen.threads)
            yield (
                f"a word of {weights} reads {own.sizes.weights / 1e6:.1f} MB of weights and "
                f"{own.sizes.left / 1e3:.1f} KB of caches for each word before it"
            )
            runs: dict[str, Any] = {"atc": own, "onnxruntime": Onnxruntime(model, chosen.threads)}
            if chosen.threads > 1:
                alone = folder / f"{weights}-alone"
                runs["atc, alone"] = Compiled(model, alone, shape, chosen.prompt, 1, mode)
            for who, found in measured(
                runs, own.sizes, read, chosen.prompt, chosen.steps, chosen.at_once
            ).items():
                yield (
                    f"{weights:10}{who:13}{1 / found.word:9.1f} words/s{found.share:8.2f} of memory"
                    f"{1 / found.prompt:10.1f} words/s of the prompt"
                )
    if chosen.gguf:
        if chosen.make_gguf:
            make_gguf(shape, chosen.gguf)
        yield llama_cpp(chosen.gguf, chosen.prompt, chosen.steps, chosen.threads)


def make_gguf(shape: make_decoder.Shape, file: Path) -> None:
    """Write llama.cpp's model of that shape, with random weights in Q4_0."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants  # type: ignore[import-not-found]

    writer, random = GGUFWriter(str(file), "llama"), np.random.default_rng(0)
    writer.add_context_length(shape.longest)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.size)
    writer.add_vocab_size(shape.words)
    writer.add_tokenizer_model("no_vocab")
    q4 = GGMLQuantizationType.Q4_0

    def add(name: str, outer: int, inner: int) -> None:
        weights = random.standard_normal((outer, inner), dtype=np.float32) / inner**0.5
        writer.add_tensor(f"{name}.weight", quants.quantize(weights, q4), raw_dtype=q4)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(shape.width, np.float32))

    add("token_embd", shape.words, shape.width)
    add("output", shape.words, shape.width)
    add_norm("output_norm")
    for layer in (f"blk.{k}." for k in range(shape.layers)):
        for part, outer in (("q", shape.heads), ("k", shape.groups), ("v", shape.groups)):
            add(f"{layer}attn_{part}", outer * shape.size, shape.width)
        add(f"{layer}attn_output", shape.width, shape.width)
        for part in ("gate", "up"):
            add(f"{layer}ffn_{part}", shape.inner, shape.width)
        add(f"{layer}ffn_down", shape.width, shape.inner)
        add_norm(f"{layer}attn_norm")
        add_norm(f"{layer}ffn_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(model: Path, prompt: int, words: int, threads: int) -> str:
    """Return the line of llama.cpp."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    llama = Llama(str(model), n_ctx=512, n_threads=threads, verbose=False)
    clock = Clock(threads)
    first = clock.time(lambda: llama.eval([1] * prompt))
    each = [clock.time(lambda: llama.eval([1])) for _ in range(words)]
    return (
        f"{'gguf':10}{'llama.cpp':13}{1 / median(each):9.1f} words/s{'':18}"
        f"{prompt / first:10.1f} words/s of the prompt"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=make_decoder.SHAPES, default="135M")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--weights", default="float32,int4")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--at_once", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--make_gguf", type=int, choices=(0, 1), default=0)
    for line in rows(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
