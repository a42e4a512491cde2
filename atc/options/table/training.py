"""The options of `--mode=train`, which are the keywords of `atc.training_step`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from atc.errors import OptionError, one_line
from atc.options.table.setting import Setting
from atc.options.values import integer, names, switch

LOSSES = ("cross_entropy", "square_loss", "l1_loss", "binary_cross_entropy")
OPTIMIZERS = ("sgd", "adam", "adamw")

Labels = Mapping[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each label by name."""

_LABEL = re.compile(r"([^:;\[\]]+):(\w+)\[([\d, ]*)\]")


def loss(value: object) -> object:
    """Return the name of a loss, or a function, which Python alone can give."""
    return value if callable(value) else _one_of("loss", value, LOSSES)


def optimizer(value: object) -> str:
    """Return the name of an optimizer."""
    return _one_of("optimizer", value, OPTIMIZERS)


def _one_of(kind: str, value: object, known: Sequence[str]) -> str:
    if value not in known:
        raise OptionError(f"there is no {kind} '{one_line(str(value), 60)}'",
                          hint=f"use {', '.join(known)}", code="E10006")  # fmt: skip
    return str(value)


def number(value: object) -> float:
    """Return a finite number of 0 or more."""
    try:
        found = float(str(value))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        shown = one_line(str(value), 60)
        raise OptionError(f"'{shown}' is not a number of 0 or more", code="E10003")
    return found


def labels(value: object) -> Labels:
    """Return the labels of `name:type[n,m];name2:type[]`, or of a mapping to type and shape."""
    if isinstance(value, Mapping):
        try:
            return {str(n): (str(getattr(t, "__name__", t)), tuple(map(int, shape)))
                    for n, (t, shape) in value.items()}  # fmt: skip
        except (TypeError, ValueError):
            raise OptionError(f"'{one_line(str(value), 60)}' names no types and shapes",
                              hint='the form is {"name": ("int64", (8,))}',
                              code="E10003") from None  # fmt: skip
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for part in filter(None, (p.strip() for p in str(value or "").split(";"))):
        label = _LABEL.fullmatch(part)
        if label is None or label[1] in found:
            raise OptionError(f"'{one_line(part, 60)}' is not a label",
                              hint='the form is "name:int64[8];name2:float32[8,2]"',
                              code="E10003")  # fmt: skip
        found[label[1]] = label[2], tuple(int(n) for n in label[3].split(",") if n.strip())
    return found


def keywords(value: object) -> Mapping[str, object]:
    """Return the keywords of `name=1;name2=0.9,0.999`, or of a mapping."""
    if isinstance(value, Mapping):
        return {str(name): own for name, own in value.items()}
    found: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in str(value or "").split(";"))):
        name, equals, given = part.partition("=")
        try:
            numbers = tuple(float(n) for n in given.split(","))
        except ValueError:
            numbers = ()
        if not equals or not numbers or not name.isidentifier() or name in found:
            raise OptionError(f"'{one_line(part, 60)}' is not a number of an optimizer",
                              hint='the form is "momentum=0.9;weight_decay=1e-4"',
                              code="E10003")  # fmt: skip
        found[name] = numbers if len(numbers) > 1 else numbers[0]
    return found


_GROUP = "Training"

TRAINING: tuple[Setting, ...] = tuple(
    Setting(name, _GROUP, meaning, values, parse, default, documentation, role="train")
    for name, values, parse, default, meaning, documentation in (
        ("loss", "|".join(LOSSES), loss, "cross_entropy",
         "with --mode=train: what is made small, of the first output and a label", ""),
        ("optimizer", "|".join(OPTIMIZERS), optimizer, "sgd",
         "with --mode=train: how the weights follow their gradients", ""),
        ("lr", "NUMBER", number, 0.01, "with --mode=train: the learning rate",
         "In C it is an argument of <name>_step, where this one is ignored."),
        ("trainable", "PATTERN;PATTERN2", names, "*",
         "with --mode=train: the weights that are trained, by name or by a pattern of names; all "
         "others are constants",
         "Patterns pass over numbers without axes, which have to be named."),
        ("labels", "NAME:TYPE[N,...];...", labels, "",
         "with --mode=train: name, type and shape of the label (default: what fits the output)",
         ""),
        ("clip_norm", "NUMBER", number, 0.0,
         "with --mode=train: the norm that all gradients together are scaled down to (0: any)", ""),
        ("accumulate", "N", integer(1), 1,
         "with --mode=train: steps whose gradients are averaged before weights change", ""),
        ("optimizer_options", "NAME=NUMBER;...", keywords, "",
         "with --mode=train: the optimizer's own, as PyTorch calls them: momentum, nesterov, "
         "weight_decay, betas, eps", ""),
        ("inplace_update", "0|1", switch, True,
         "with --mode=train: new weights replace the old ones where they lie as soon as nothing "
         "reads those; 0: after the step, from memory of their own", ""),
    )
)  # fmt: skip
