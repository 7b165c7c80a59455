"""What this process may use of its machine."""

import os
from functools import cache

from hyphash.errors import ConfigError

THREADS = "HYPHASH_THREADS"


def default_threads() -> int:
    """HYPHASH_THREADS, or as many threads as this process may use cores."""
    return _threads(os.environ.get(THREADS, ""))


@cache  # asking the system takes as long as a search
def _threads(wish: str) -> int:
    if wish:
        if not wish.isdecimal() or int(wish) < 1:
            raise ConfigError(f"{THREADS} is a number of threads, not {wish!r}")
        return int(wish)
    return cores()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
