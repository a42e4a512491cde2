"""The op compiler cache: compiled operators kept on disk from one compilation to the next.

Keys, store and ageing; knows no models. May import `errors`.
"""

from atc.cache.debug import DebugConfig, parse_debug_config
from atc.cache.key import Key, make_key
from atc.cache.manage import (
    CacheReport,
    ClearReport,
    FolderStats,
    StoredKernel,
    VerifyReport,
    WhyReport,
    cache_stats,
    clear_cache,
    verify_cache,
    why,
)
from atc.cache.mode import DEFAULT_MODE, MODE_HELP, MODES, check_mode, mode_under_debug
from atc.cache.proved import ERRORS, TEMPLATES, ContentStore, open_content_store
from atc.cache.remote import RemoteTier, open_remote
from atc.cache.remote_url import RemoteUrl
from atc.cache.report import (
    clear_text,
    run_text,
    stats_json,
    stats_text,
    verify_text,
    why_text,
)
from atc.cache.root import find_root
from atc.cache.session import Session
from atc.cache.stats import CacheStats, Event
from atc.cache.store import Cache, open_cache

__all__ = [
    "DEFAULT_MODE",
    "ERRORS",
    "MODES",
    "MODE_HELP",
    "TEMPLATES",
    "Cache",
    "CacheReport",
    "CacheStats",
    "ClearReport",
    "DebugConfig",
    "Event",
    "FolderStats",
    "Key",
    "ContentStore",
    "RemoteTier",
    "RemoteUrl",
    "Session",
    "StoredKernel",
    "VerifyReport",
    "WhyReport",
    "cache_stats",
    "check_mode",
    "clear_cache",
    "clear_text",
    "find_root",
    "make_key",
    "mode_under_debug",
    "open_cache",
    "open_content_store",
    "open_remote",
    "parse_debug_config",
    "run_text",
    "stats_json",
    "stats_text",
    "verify_cache",
    "verify_text",
    "why",
    "why_text",
]
