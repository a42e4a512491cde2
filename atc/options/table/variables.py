"""Our own environment variables, and those of Ascend's ATC."""

from __future__ import annotations

from atc.cache.remote_url import parse_remote
from atc.options.farm import parse_runner, parse_scheduler
from atc.options.table.setting import Setting

ATC_VARIABLES: tuple[Setting, ...] = (
    Setting("ATC_CONFIG", "Environment", "the configuration file (default: "
            "$XDG_CONFIG_HOME/atc/atc.cfg, else ~/.config/atc/atc.cfg): lines name=value with "
            "options and variables, which count where neither the command line nor the "
            "environment says anything", "FILE", kind="variable", read="dynamic"),
    Setting("CC", "Environment", "the C compiler (default: gcc, clang, the package ziglang)",
            "COMMAND", kind="variable", read="dynamic"),
    Setting("ATC_CACHE_KEY", "Environment", "the key that signs the entries of a cache several "
            "users share: 16 characters or more that nobody else knows (default: the "
            "user's own, cache.key beside atc.cfg)", "TEXT", kind="variable", read="dynamic",
            secret=True,
            documentation="Whoever has it can put code into the builds of all who have it. With it "
            "the cache's directories may be writable by their group, and what it signed is "
            "believed of a remote store."),
    Setting("ATC_OP_COMPILER_CACHE_REMOTE", "Environment", "what --op_compiler_cache_remote says "
            "otherwise", "URL", parse_remote, kind="variable", read="dynamic", secret=True,
            gives={"op_compiler_cache_remote": lambda url: url},
            documentation="It isn't shown, since it may hold a password."),
    Setting("ATC_SCHEDULER", "Environment", "what --scheduler says otherwise", "tcp://HOST:PORT",
            parse_scheduler, kind="variable", read="dynamic",
            gives={"scheduler": lambda address: address or None}),
    Setting("ATC_RUNNER", "Environment", "what --runner says otherwise; a worker of a cluster "
            "reads it, too: which board it measures on", "ssh:HOST", parse_runner,
            kind="variable", read="dynamic", gives={"runner": lambda text: text or None}),
    Setting("ATC_SSH_CONFIG", "Environment", "the configuration file of ssh for --runner=ssh:HOST "
            "(default: ssh's own)", "FILE", kind="variable", read="dynamic"),
    Setting("NVCC", "Environment", "the CUDA compiler (default: that of $CUDA_HOME, "
            "$CUDA_BIN_PATH, PATH, of "
            "NVIDIA's packages for Python)", "COMMAND", kind="variable", read="dynamic"),
    Setting("CUDA_HOME", "Environment", "the folder of a CUDA toolkit", "DIR", kind="variable",
            read="dynamic"),
    Setting("ASCEND_CACHE_PATH", "Environment", "root of the op compiler cache", "DIR",
            kind="variable", read="dynamic", system="ATC", row="O-08"),
    Setting("ASCEND_MAX_OP_CACHE_SIZE", "Environment", "megabytes that each target's cache may "
            "take, -1: never delete", "N", default="500", kind="variable", read="dynamic",
            system="ATC", row="O-05"),
    Setting("ASCEND_REMAIN_CACHE_SIZE_RATIO", "Environment", "per cent of the cache that deleting "
            "leaves", "N", default="50", kind="variable", read="dynamic", system="ATC", row="O-06"),
    Setting("op_cache.ini", "Features", "max_op_cache_size and remain_cache_size_ratio for all "
            "users of a cache directory; it counts only with both, and then before the variables",
            kind="feature", system="ATC", row="O-07"),
)  # fmt: skip

