"""What this process may use of its machine, and when it is asked to stop."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread

from hyphash.errors import ConfigError

THREADS = "HYPHASH_THREADS"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
GPU_FILES = ("nvidia", "nvhost", "nvgpu", "kfd", "dxg")  # in /dev: NVIDIA's, those of its small boards, AMD's, WSL's
SMALL, LARGE, MOST = 1 << 20, 1 << 30, 2**31 - 1  # bytes: what is taken from the system alone, what may lie idle


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


def keep_memory(keep: bool = True) -> None:
    """Let the C library keep freed memory for this process, where it is glibc. For a program, not for a library.

    It hands large blocks back to the system as soon as they are freed, and a network on a CPU asks for the same ones
    for every layer: much of its time goes into fresh pages (`speed/encoding.py --leave-memory` shows how much).
    A service had better hand them back: `keep=False`.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE if keep else SMALL)
        library.mallopt(M_TRIM_THRESHOLD, MOST if keep else SMALL)


def limit_memory(more: int) -> None:
    """Let this process take so many bytes more than now, on Linux: more is a MemoryError, not its neighbours' end."""
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def gpus() -> list[str]:
    """The GPUs of this machine as torch calls them; none where it is not installed.

    Torch takes seconds and hundreds of megabytes to say that there is none, so it is asked only where one may be.
    """
    if sys.platform == "linux" and not any(file.name.startswith(GPU_FILES) for file in Path("/dev").iterdir()):
        return []
    try:
        import torch
    except ImportError:
        return []
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def stop_on_signal(*, once: bool = False) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or termination into a question that the work asks itself; a second of its kind interrupts.

    With `once` it does not: a launcher passes on to its processes what the terminal has sent them already.
    """
    asked: set[int] = set()

    def ask(number: int, _frame: object) -> None:
        if number in asked and not once:
            raise KeyboardInterrupt
        asked.add(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def told_at_once(tell: Callable[[], object]) -> Iterator[None]:
    """Within, tell of the first signal as it comes, also while the main thread is in the middle of a computation."""
    hears, says = socket.socketpair()
    says.setblocking(False)
    before = signal.set_wakeup_fd(says.fileno(), warn_on_full_buffer=False)
    listening = Thread(target=lambda: hears.recv(1) and tell())
    listening.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        says.close()  # then it hears nothing
        listening.join()
        hears.close()
