"""The options of `load_and_run`, as MegEngine's tool of that name has them."""

from __future__ import annotations

from atc.settings.setting import Setting

LOAD_AND_RUN: tuple[Setting, ...] = ()
