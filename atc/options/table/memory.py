"""Options that say how much memory a network may take, and what is computed again instead."""

from __future__ import annotations

from atc.options.table.setting import Setting
from atc.options.values import (
    choice,
    integer,
    switch,
)

MEMORY_OPTIONS: tuple[Setting, ...] = (
    Setting("memory_in_place", "Optimisation", "let results take over their operands' memory",
            "0|1", switch, True),
    Setting("recompute", "Optimisation", "which values may be computed again instead of kept, "
            "where that lowers the memory that the network needs: none, cheap ones (elementwise) "
            "or all",
            "none|cheap|all", choice(("none", "cheap", "all")), "none",
            documentation="Results have the same bits. --log=info tells the nodes."),
    Setting("memory_budget", "Optimisation", "most bytes that the arena may take, with the weights "
            "and the optimizer's state of --mode=train (0: any): no more is computed again than "
            "that takes, and a network that needs more is an error", "BYTES", integer(0), 0),
    Setting("recompute_until", "Optimisation", "bytes of arena from which on nothing more is "
            "computed again", "BYTES", integer(0), 0),
    Setting("recompute_minimum", "Optimisation", "values of fewer bytes are kept", "BYTES",
            integer(0), 0),
    Setting("recompute_tries", "Optimisation", "rules by which the search chooses what is computed "
            "again, each of which leads to plans of its own", "N", integer(0, 10_000), 10,
            documentation="The best of all their plans counts. Of more than 630 nodes fewer rules "
            "are tried, of 2,000 one."),
    Setting("recompute_rounds", "Optimisation", "rounds of a genetic search that crosses and "
            "changes those rules", "N", integer(0, 10_000), 0,
            documentation="More rounds take longer and never need more memory."),
    Setting("recompute_pool", "Optimisation", "rules that are alive in the genetic search", "N",
            integer(0, 10_000), 20),
    Setting("recompute_workers", "Optimisation", "threads of the search for what is computed again "
            "(0: half of the cores); the plan doesn't depend on them", "N", integer(0, 4096), 0),
)  # fmt: skip
