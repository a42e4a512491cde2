"""The text of `--help`, made of the settings table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from atc.settings import SETTINGS, Setting, options_of

WIDTH = 96
_INDENT = 8

_COMPILE = """\
usage: atc --model=FILE --output=FOLDER [options]
       atc check --model=FILE [--json] [options]
       atc verify --model=FILE [--library=FOLDER] [options]
       atc cache stats|verify|clear|why [options]
       atc explain FOLDER NODE

Compiles a neural network (ONNX, MegEngine, MXNet) into a folder of standalone C99 and the
libraries built from it, which need nothing but libm.

Options are written --name=value or --name value, with underscores or dashes; quote a value that
holds ';'. Switches (0|1) may stand alone.

Examples:
  atc --model=lenet.onnx --output=out/lenet --op_compiler_cache_mode=enable
  atc --model=resnet.onnx --output=out/resnet --input_shape="x:1,3,224,224" --verify
  atc --model=net-symbol.json --weight=net-0010.params --output=out/net \\
      --input_shape="data:1,3,224,224" --target=aarch64-neon
  atc --model=net.onnx --output=out/net --out_nodes="conv5:0;prob:0" --display_model_info=1
"""

_VERIFY = """\
usage: atc verify --model=FILE [--library=FOLDER] [options]

Runs a compiled network and a reference (onnxruntime where it is installed, else onnx.reference)
on the same inputs and compares the outputs. Without --library the model is compiled for it.
Exit status 0: all outputs agree.

Examples:
  atc verify --model=lenet.onnx
  atc verify --model=lenet.onnx --library=out/lenet --seed=1 --tolerance=1e-5
  atc verify --model=lenet.onnx --library=out/lenet --input=x.npz
"""

_CHECK = """\
usage: atc check --model=FILE [--json] [options]

Goes through a compilation up to the C text, without a compiler and without an output, and lists
every node that can't be compiled with the reason and a way out, and how all others would be
computed: `tuned` or `portable` kernels, or `none` where nothing is left to compute. What it says is
what compiling does. Exit status 0: the model compiles.

Examples:
  atc check --model=net.onnx
  atc check --model=net.onnx --input_shape="x:1,3,224,224" --target=aarch64-neon --json
"""

_CACHE = """\
usage: atc cache stats [options]    what the op compiler cache holds, by target
       atc cache verify [options]   read every entry and check it; exit status 1 if any is damaged
       atc cache clear [options]    delete the entries
       atc cache why NAME [options] what a kernel's entries were made of and how they differ;
                                    NAME is its name or the start of an entry's digest

Examples:
  atc cache stats
  atc cache clear --target=x86-64-avx2
  atc cache why atc_conv_direct_f32_0123456789ab --op_compiler_cache_dir=/var/cache/atc
"""

_EXPLAIN = """\
usage: atc explain FOLDER NODE

Tells why a node of a compiled model got its kernel: all candidates with estimates, times and
reasons. FOLDER is the output folder, NODE the node's name in the model.

Examples:
  atc explain out/resnet /layer1/conv1/Conv
"""

_INTRODUCTIONS = {
    "compile": _COMPILE, "verify": _VERIFY, "check": _CHECK, "cache": _CACHE, "explain": _EXPLAIN
}  # fmt: skip


def help_text(command: str) -> str:
    """Return the help of `compile`, `verify` or `cache`."""
    settings = [*options_of(command).values(), *(s for s in SETTINGS if s.kind == "variable")]
    return _INTRODUCTIONS[command] + "\n" + "\n".join(_groups(settings))


def _groups(settings: Iterable[Setting]) -> Iterator[str]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    for title, members in groups.items():
        yield f"{title}:\n" + "".join(_entry(s) for s in members)


def _entry(setting: Setting) -> str:
    name = f"--{setting.name}" if setting.kind == "option" else setting.name
    head = f"  {name}={setting.values}" if setting.values else f"  {name}"
    text = ". ".join(t.rstrip(".") for t in (setting.meaning, setting.documentation) if t)
    default = f" (default: {_shown(setting.default)})" if _has_default(setting) else ""
    body = textwrap.fill(
        f"{text}{default}", WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return f"{head}\n{body}\n"


def _has_default(setting: Setting) -> bool:
    return setting.default != "" and setting.role != "help" and "(default" not in setting.meaning


def _shown(default: str | int | bool) -> str:
    return str(int(default)) if isinstance(default, bool) else str(default)
