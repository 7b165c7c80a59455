"""Servers that go away and come back: work on them is tried again with growing pauses, and people are told."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from hyphash.errors import EngineError

T = TypeVar("T")

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0
REMINDER = 30.0  # seconds after which people are told the same once more

log = logging.getLogger(__name__)


def retry(
    work: Callable[[], T], *, passing: Callable[[Exception], bool], what: str, server: str, patience: float = 60.0,
    told: Callable[[Exception], str] = str, sleep: Callable[[float], None] = time.sleep,
) -> T:  # fmt: skip
    """The result of `work`, tried again for `patience` seconds while it fails with errors that are `passing`.

    Pauses double from FIRST_PAUSE to LONGEST_PAUSE, each shortened at random by up to a half, so that many clients do
    not come back at once. People are told a reason when it is new, and again after REMINDER seconds. `work` may have
    taken effect although it failed, so it must be safe to repeat. `what`, `server` and what an error is `told` as go
    into messages; none of them may hold a password.
    """
    deadline, pause = time.monotonic() + patience, FIRST_PAUSE
    said, since = "", 0.0
    while True:
        try:
            return work()
        except Exception as error:
            if not passing(error):
                raise
            left, line = deadline - time.monotonic(), first_line(error, told)
            if left <= 0:
                raise EngineError(
                    f"{server}: {what} failed for {patience:g} seconds, at last with: {line}; see that "
                    "the server runs and can be reached, then give the command again: it goes on where it stopped"
                ) from error
            wait = min(pause * random.uniform(0.5, 1.0), left)
            if line != said or time.monotonic() - since > REMINDER:
                log.warning("%s: %s failed (%s); trying again for up to %.0f s", server, what, line, left)
                said, since = line, time.monotonic()
            sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)


def first_line(error: Exception, told: Callable[[Exception], str] = str) -> str:
    """What an error says, for a message of one line."""
    return (told(error).strip() or type(error).__name__).splitlines()[0]
