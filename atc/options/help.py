"""The text of `--help`, made of the settings table."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from atc.errors import OptionError, one_line
from atc.options.debug_help import HELP
from atc.options.environment import names_of
from atc.options.table import VARIABLES, Setting, options_of

WIDTH = 96
_INDENT = 8
_HIDDEN = ("Accepted without effect", "MegEngine variables", "MXNet variables")
"""Groups that are shown only where they are asked for."""

_COMPILE = """\
usage: atc --model=FILE --output=FOLDER [options]
       atc check --model=FILE [--json] [options]
       atc verify [FOLDER] --model=FILE [options]
       atc cache stats|verify|clear|why [options]
       atc explain FOLDER NODE
       atc diff|bisect --model=FILE [options]
       atc profile|report FOLDER [options]
       atc quantize --model=FILE --calibration=PATH --output=FILE [options]
       atc targets [--json]
       atc env [VARIABLE...] [--json]
       atc doctor [--target=NAME,...] [--json]
       atc completion bash|zsh|fish
       load_and_run MODEL_OR_LIBRARY [options]

Compiles a neural network (ONNX, MegEngine, MXNet) into a folder of standalone C99 and the
libraries built from it, which need nothing but libm.

Options are written --name=value or --name value, with underscores or dashes; quote a value that
holds ';'. Switches (0|1) may stand alone. What the command line leaves open is looked up in the
environment, then in the configuration file ~/.config/atc/atc.cfg (lines name=value).

More: atc --help GROUP, --help OPTION, --help VARIABLE; the groups are
{groups}

Examples:
  atc --model=lenet.onnx --output=out/lenet --op_compiler_cache_mode=enable
  atc --model=resnet.onnx --output=out/resnet --input_shape="x:1,3,224,224" --verify
  atc --model=net-symbol.json --weight=net-0010.params --output=out/net \\
      --input_shape="data:1,3,224,224" --target=aarch64-neon
  atc --model=net.onnx --output=out/net --out_nodes="conv5:0;prob:0" --display_model_info=1
"""

_VERIFY = """\
usage: atc verify [FOLDER] --model=FILE [options]

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
usage: atc cache stats [--json] [options]  what the op compiler cache holds, by target
       atc cache verify [options]   read every entry and check it and its signature; exit status 1
                                    if any is damaged, or others can change the cache
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

Explains why a node of a compiled model got its kernel: all candidates with estimates, times and
reasons. FOLDER is the output folder, NODE the node's name in the model.

Examples:
  atc explain out/resnet /layer1/conv1/Conv
"""

_ENV = """\
usage: atc env [VARIABLE...] [--json]

Lists the environment variables that atc knows with their current values: set in the environment,
else in the configuration file, else the default. The op compiler cache's own op_cache.ini comes
before both. Variables that are read once count as they were when the process began.

Examples:
  atc env
  atc env MGE_FASTRUN_CACHE_DIR ASCEND_CACHE_PATH
  atc env --json
"""

_COMPLETION = """\
usage: atc completion bash|zsh|fish

Prints a script that completes commands, options and their values.

Examples:
  source <(atc completion bash)
  atc completion zsh > ~/.zfunc/_atc
  atc completion fish > ~/.config/fish/completions/atc.fish
"""

_LOAD_AND_RUN = """\
usage: load_and_run MODEL_OR_LIBRARY [options]
       compare_binary_iodump DUMP DUMP [-e MAX_ERR] [-s]

Runs a compiled folder, a library, or a model that is compiled first, as MegEngine's tool of that
name does. Options are written --name=value or --name value, with dashes or underscores; switches
also --name and --noname. --flagfile=FILE reads options from a file, --fromenv=NAME,... takes them
from FLAGS_NAME.

Exit status: 0 all is well; 1 a wrong option, input, model or library; 3 a tool of the machine
failed; 4 a mistake of ours; 5 a check found something: --range, --check_var_value, a test case,
threads that disagree, memory written that isn't the network's; 130 interrupted.

Options (load_and_run --help=GROUP shows one group):
{groups}

Examples:
  load_and_run lenet.mge --iter=20 --warmup-iter=3
  load_and_run out/lenet --input="data:digit.ppm" --thread=2
  load_and_run lenet.onnx --input="data:[[[[1.0,0.5]]]];scale:2.0" --io-dump=values.txt
  load_and_run lenet.mge --fast-run --fast-run-algo-policy=lenet.policy --profile=lenet.json
"""

_INTRODUCTIONS = {
    "load_and_run": _LOAD_AND_RUN,
    "compile": _COMPILE, "verify": _VERIFY, "check": _CHECK, "cache": _CACHE, "explain": _EXPLAIN,
    "env": _ENV, "completion": _COMPLETION, **HELP,
}  # fmt: skip

COMMANDS = tuple(_INTRODUCTIONS)
"""All commands that have a help: `compile` is `atc` without one, `load_and_run` a program too."""


def help_text(command: str, topic: str = "") -> str:
    """Return the help of a command, or of one group, option or variable if `topic` is one.

    Raises OptionError where `topic` is a word, but not a known one.
    """
    own = options_of(command)
    groups = _groups(own.values())
    if topic and (not topic.startswith("-") or _plain(topic) in own):
        return _about(topic, own, groups)
    common = {title: members for title, members in groups.items() if title not in _HIDDEN}
    titles = textwrap.fill(
        ", ".join(groups), WIDTH, initial_indent="  ", subsequent_indent="  "
    )
    return _INTRODUCTIONS[command].replace("{groups}", titles) + "\n" + "\n".join(
        _group_text(title, members) for title, members in common.items()
    )


def _groups(options: Iterable[Setting]) -> dict[str, list[Setting]]:
    """Return a command's options and all variables by their groups' titles."""
    groups: dict[str, list[Setting]] = {}
    for setting in (*options, *VARIABLES):
        groups.setdefault(setting.group, []).append(setting)
    return groups


def _about(topic: str, own: Mapping[str, Setting], groups: Mapping[str, list[Setting]]) -> str:
    """Return the text of a group, an option or a variable."""
    name = _plain(topic)
    if name in own:
        return _entry(own[name]) + "".join(_details(own[name]))
    for variable in VARIABLES:
        if topic in names_of(variable):
            return _entry(variable) + "".join(_details(variable))
    for title, members in groups.items():
        if title.lower().replace(" ", "_").startswith(name.lower()):
            return _group_text(title, members)
    known = [*own, *(v.name for v in VARIABLES), *groups]
    near = difflib.get_close_matches(topic, known, n=2)
    raise OptionError(
        f"no group, option or variable is called '{one_line(topic, 60)}'",
        hint=f"did you mean {' or '.join(near)}?" if near else f"the groups: {', '.join(groups)}",
    )


def _plain(topic: str) -> str:
    return topic.removeprefix("--").replace("-", "_").replace(" ", "_")


def _details(setting: Setting) -> Iterator[str]:
    """Yield lines that only the help of this one setting has."""
    indent = " " * _INDENT
    if setting.system:
        row = f" (row {setting.row} of the table of settings)" if setting.row else ""
        yield f"{indent}From {setting.system}{row}.\n"
    if setting.aliases:
        yield f"{indent}Other names: {', '.join(setting.aliases)}.\n"
    if setting.kind == "variable":
        when = "as the process begins" if setting.read == "once" else "at each use"
        yield f"{indent}Read {when}.\n"
    givers = [v.name for v in VARIABLES if setting.kind == "option" and setting.name in v.gives]
    if givers:
        yield f"{indent}Variables that give it: {', '.join(givers)}.\n"


def _group_text(title: str, members: Iterable[Setting]) -> str:
    return f"{title}:\n" + "".join(_entry(s) for s in members)


def _entry(setting: Setting) -> str:
    head = f"  {setting.label}={setting.values}" if setting.values else f"  {setting.label}"
    effect = f"No effect, with a warning: {setting.accepted}" if setting.accepted else ""
    if effect and setting.works_for:
        effect = f"Other values than {', '.join(map(str, setting.works_for))} have no {effect[3:]}"
    texts = (setting.meaning, setting.documentation, effect)
    text = ". ".join(t.rstrip(".") for t in texts if t)
    default = f" (default: {shown_default(setting)})" if _has_default(setting) else ""
    body = textwrap.fill(
        f"{text}{default}", WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return f"{head}\n{body}\n"


def _has_default(setting: Setting) -> bool:
    return setting.default != "" and setting.role != "help" and "(default" not in setting.meaning


def shown_default(setting: Setting) -> str:
    """Return a setting's default as the user would write it."""
    default = setting.default
    return str(int(default)) if isinstance(default, bool) else str(default)
