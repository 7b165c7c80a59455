"""What one process does for the others: the same as it does for itself, errors and all."""

from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

import numpy as np
import pytest

from hyphash.errors import BusyError
from hyphash.service import Settings
from hyphash.service.monitoring import Metrics
from hyphash.service.sharing import SharedUploads, Sharing
from hyphash.service.uploads import UploadEncoder


@pytest.fixture
def sharing(made: Any) -> Iterator[tuple[Sharing, UploadEncoder]]:
    metrics = Metrics()
    uploads = UploadEncoder.open(made.collection, Settings(), device="auto", seen=metrics.batches.observe)
    sharing = Sharing(uploads, metrics)
    yield sharing, uploads
    sharing.close()


def test_another_process_gets_what_this_one_would(sharing: tuple[Sharing, UploadEncoder]) -> None:
    shared = SharedUploads(sharing[0].address, 0, Metrics())
    fingerprint, pixels = sharing[1].fingerprint, np.full((12, 12, 3), 7, np.uint8)
    np.testing.assert_array_equal(shared.outputs(fingerprint, pixels), sharing[1].outputs(fingerprint, pixels))
    assert shared.decode(len, b"abc", memory=1, seconds=30) == 3
    with pytest.raises(BusyError, match="room"):
        shared.decode(len, b"abc", memory=1, seconds=0)
    shared.close()


def test_figures_of_all_are_told_to_each(sharing: tuple[Sharing, UploadEncoder]) -> None:
    metrics = [Metrics(), Metrics()]
    shared = [SharedUploads(sharing[0].address, number, one) for number, one in enumerate(metrics)]
    for one in metrics:
        one.refused.inc()
        one.text()  # told with every question
    assert b"hyphash_refused_total 2.0" in metrics[0].text()
    assert b"hyphash_batch_photos_count 1.0" in metrics[1].text()
    for one in shared:
        one.close()


def test_what_a_process_has_counted_stays_when_another_takes_its_place(
    sharing: tuple[Sharing, UploadEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    for process in (71, 72, 73):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        metrics = Metrics()
        shared = SharedUploads(sharing[0].address, 0, metrics)
        metrics.refused.inc(2)
        metrics.in_flight.inc(5)
        told = metrics.text()
        shared.close()
    assert b"hyphash_refused_total 6.0" in told
    assert b"hyphash_requests_in_flight 5.0" in told  # nobody works for one that is no more


def test_nobody_is_answered_without_the_key(sharing: tuple[Sharing, UploadEncoder]) -> None:
    with pytest.raises(AuthenticationError):
        Client(sharing[0].address.place, authkey=b"guessed")
    shared = SharedUploads(sharing[0].address, 0, Metrics())
    assert shared.decode(len, b"abc", memory=1, seconds=30) == 3  # and the others go on
    shared.close()


def test_who_finds_nobody_is_told_to_come_again(sharing: tuple[Sharing, UploadEncoder]) -> None:
    shared = SharedUploads(sharing[0].address, 0, Metrics())
    sharing[0].close()
    with pytest.raises(BusyError, match="try again"):
        shared.decode(len, b"abc", memory=1, seconds=30)
    shared.close()
