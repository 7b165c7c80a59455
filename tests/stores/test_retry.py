"""Work on a server that goes away: again with growing pauses, then a message that says what to do."""

import logging

import pytest

from hyphash.errors import EngineError
from hyphash.stores.retry import FIRST_PAUSE, LONGEST_PAUSE, retry


class Server:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error("gone\nand more")
        return "answer"


def passing(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def test_it_comes_back_after_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    server = Server(failures=8)
    with caplog.at_level(logging.WARNING):
        assert retry(server, passing=passing, what="adding", server="db", sleep=pauses.append) == "answer"
    assert server.calls == 9
    full = [min(FIRST_PAUSE * 2**i, LONGEST_PAUSE) for i in range(8)]
    assert all(f / 2 <= p <= f for p, f in zip(pauses, full, strict=True))
    assert caplog.messages == ["db: adding failed (gone); trying again for up to 60 s"]  # once is enough


def test_a_reason_is_told_when_it_is_new_and_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reasons = [0.0], iter("aaabba")
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def work() -> None:
        clock[0] += 1
        if reason := next(reasons, None):
            raise ConnectionError(reason)

    retry(work, passing=passing, what="adding", server="db", sleep=lambda _: None)
    assert [line[len("db: adding failed (")] for line in caplog.messages] == ["a", "b", "a"]
    caplog.clear()
    reasons = iter("a" * 70)
    retry(work, passing=passing, what="adding", server="db", patience=100, sleep=lambda _: None)
    assert len(caplog.messages) == 3  # after 31 and 62 seconds


def test_other_errors_pass_at_once() -> None:
    server = Server(failures=1, error=KeyError)
    with pytest.raises(KeyError):
        retry(server, passing=passing, what="adding", server="db")
    assert server.calls == 1


def test_patience_ends_with_a_way_out() -> None:
    with pytest.raises(EngineError, match=r"db: adding failed for 0\.05 seconds.*gone.*give the command again"):
        retry(Server(failures=10**6), passing=passing, what="adding", server="db", patience=0.05)
