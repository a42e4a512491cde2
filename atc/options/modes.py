"""Required and forbidden options for each `--mode`, and for `--singleop`."""

from __future__ import annotations

from collections.abc import Mapping

from atc.errors import OptionError
from atc.options.table.training import TRAINING

TRANSLATE, CHECK, TEXT_GRAPH, SHOW = 1, 3, 5, 6
TRAIN = "train"

_NEEDS: Mapping[int, tuple[str, ...]] = {
    TRANSLATE: ("json",), TEXT_GRAPH: ("om", "json"), SHOW: ("om",),
}  # fmt: skip


def needed_by_mode(given: Mapping[str, str]) -> dict[str, str]:
    """Return a command line's options with those that a mode doesn't need but every compilation.

    Raises OptionError: E10007 for what a mode needs and isn't there, E10054 where it is empty,
    E10057 where options don't go together.
    """
    mode = str(given.get("mode", "0")).strip()
    own = dict(given)
    if mode != TRAIN:
        for name in (s.name for s in TRAINING if s.name in own):
            raise OptionError(f"--{name} is for --mode=train", where=f"--{name}", code="E10057")
    if own.get("singleop"):
        if mode != "0" or own.get("model"):
            other = "model" if own.get("model") else "mode"
            raise OptionError(f"--singleop excludes --{other}", where="--singleop", code="E10047")
        return {**own, "model": own["singleop"]}
    if not mode.isdigit() or int(mode) not in (TRANSLATE, CHECK, TEXT_GRAPH, SHOW):
        for name, modes in (("om", "1, 5 and 6"), ("json", "1 and 5")):
            if name in own and mode == "0":
                raise OptionError(
                    f"--{name} is for the modes {modes}", where=f"--{name}", code="E10057",
                    hint="name the model with --model, or add --mode",
                )  # fmt: skip
        return own
    for name in _NEEDS.get(int(mode), ()):
        _require(own, name, mode)
    if int(mode) == SHOW and (extra := set(own) - {"mode", "om", "log"}):
        raise OptionError(
            f"--mode=6 goes with --om alone, not with --{min(extra)}", where="--mode", code="E10057"
        )
    own.setdefault("output", "unused")
    if int(mode) != CHECK and own.get("om"):
        own.setdefault("model", own["om"])
    return own


def _require(given: Mapping[str, str], name: str, mode: str) -> None:
    hint = {"json": "give --json=net.onnx, or a name that ends in .json",
            "om": "give --om=FOLDER of a compiled network, or a text graph"}[name]  # fmt: skip
    if name not in given:
        raise OptionError(f"--mode={mode} needs --{name}", where=f"--{name}", code="E10007",
                          hint=hint)  # fmt: skip
    if not given[name].strip():
        raise OptionError(f"--mode={mode} needs --{name}, which is empty", where=f"--{name}",
                          code="E10054", hint=hint)  # fmt: skip
