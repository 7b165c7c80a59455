"""Photos that strangers send: decoded in processes, encoded in batches, for one process or several."""

import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from threading import Event
from typing import Any, cast

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from hyphash.errors import BusyError, PhotoError
from hyphash.photos import Preprocessing, Raw, pixels_of
from hyphash.service import Settings
from hyphash.service.uploads import Batcher, Room, SharedUploads, Sharing, UploadEncoder

SEEN = Preprocessing(size=8, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))


def photo(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (side, side), "teal").save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def uploads(made: Any) -> Iterator[UploadEncoder]:
    encoder = UploadEncoder(made.collection, Settings(max_pixels=10_000))
    yield encoder
    encoder.close()


LOOK = partial(pixels_of, preprocessing=SEEN)


def test_a_network_that_starts_slowly_keeps_no_service_from_starting(made: Any) -> None:
    uploads = UploadEncoder.open(made.collection, Settings(seconds=1e-9), device="auto")
    with pytest.raises(BusyError, match="in time"):
        uploads.outputs(uploads.fingerprint, np.full((12, 12, 3), 7, np.uint8))
    uploads.close()


def test_decodes_in_another_process(uploads: UploadEncoder) -> None:
    raw = Raw("photo", photo(50))
    pixels = uploads.decode(LOOK, raw, memory=1, seconds=30)
    np.testing.assert_array_equal(pixels, LOOK(raw))
    assert uploads.decode(os.getpid, memory=1, seconds=30) != os.getpid()


def test_a_photo_that_needs_more_memory_than_there_is_is_refused(uploads: UploadEncoder) -> None:
    """However small its header says that it is: the limit is that of the process, and the next one is decoded."""
    with pytest.raises(PhotoError, match="not enough memory"):
        uploads.decode(LOOK, Raw("photo", photo(5000)), memory=1, seconds=60)
    assert uploads.decode(LOOK, Raw("photo", photo(50)), memory=1, seconds=30).shape == (8, 8, 3)


def test_a_photo_that_ends_its_process_is_refused(uploads: UploadEncoder) -> None:
    with pytest.raises(PhotoError, match="ended the process"):
        uploads.decode(os._exit, 3, memory=1, seconds=30)
    assert uploads.decode(len, b"abc", memory=1, seconds=30) == 3


def test_what_comes_too_late_is_not_decoded(uploads: UploadEncoder) -> None:
    with pytest.raises(BusyError):
        uploads.decode(os._exit, 3, memory=1, seconds=0)
    with uploads._room.taken(10**12, 1), pytest.raises(BusyError):
        uploads.decode(os._exit, 3, memory=1, seconds=0.01)


def test_room_is_shared_by_size() -> None:
    room, gate, inside = Room(100, places=3), Event(), []

    def work(size: int) -> None:
        with room.taken(size, 30):
            inside.append(size)
            gate.wait(30)

    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(work, size) for size in (60, 40)]
        while len(inside) < 2:
            time.sleep(0.001)
        futures += [pool.submit(work, 500)]  # fits never, but may come when nobody else is there
        with pytest.raises(BusyError), room.taken(1, 0.01):
            pass
        assert sorted(inside) == [40, 60]
        gate.set()
        for future in futures:
            future.result(30)
    assert inside[-1] == 500
    with room.taken(100, 1):
        pass


def encode(pixels: Any) -> Any:
    return pixels.reshape(len(pixels), -1)[:, :4].astype(np.float32)


def pixels(i: int) -> Any:
    return np.full((2, 2, 3), i, np.uint8)


def test_each_photo_gets_its_own_outputs() -> None:
    sizes: list[int] = []
    batcher = Batcher(encode, Settings(batch=8, gather=0.02), sizes.append)
    with ThreadPoolExecutor(16) as pool:
        outputs = list(pool.map(lambda i: batcher.outputs(pixels(i)), range(50)))
    batcher.close()
    assert_array_equal(outputs, [[i] * 4 for i in range(50)])
    assert sum(sizes) == 50
    assert max(sizes) <= 8
    assert len(sizes) < 50


def test_what_waits_while_the_network_works_goes_in_one_batch() -> None:
    gate, sizes = Event(), []

    def slow(pixels: Any) -> Any:
        gate.wait(30)
        return encode(pixels)

    batcher = Batcher(slow, Settings(batch=32, gather=0), sizes.append)
    with ThreadPoolExecutor(11) as pool:
        first = pool.submit(batcher.outputs, pixels(0))
        while not sizes:  # the network has it
            pass
        others = [pool.submit(batcher.outputs, pixels(i)) for i in range(1, 11)]
        while batcher._waiting.qsize() < 10:
            pass
        gate.set()
        assert [future.result(30)[0] for future in (first, *others)] == list(range(11))
    batcher.close()
    assert sizes == [1, 10]


def test_failure_reaches_all_of_the_batch_and_no_other() -> None:
    def fail_on_seven(pixels: Any) -> Any:
        if (pixels == 7).any():
            raise ValueError("seven")
        return encode(pixels)

    batcher = Batcher(fail_on_seven, Settings(gather=0))
    with pytest.raises(ValueError, match="seven"):
        batcher.outputs(pixels(7))
    assert batcher.outputs(pixels(8))[0] == 8
    batcher.close()


def test_too_many_and_too_slow_are_turned_away() -> None:
    gate = Event()

    def slow(pixels: Any) -> Any:
        gate.wait(30)
        return encode(pixels)

    batcher = Batcher(slow, Settings(batch=1, gather=0, waiting=1, seconds=0.2))
    with ThreadPoolExecutor(3) as pool:
        given = [pool.submit(batcher.outputs, pixels(i)) for i in range(3)]
        errors = [future.exception(30) for future in given]
    assert all(isinstance(error, BusyError) for error in errors)
    gate.set()
    while batcher._waiting.qsize():  # those who gave up are passed over
        pass
    batcher.settings = Settings()
    assert batcher.outputs(pixels(5))[0] == 5
    batcher.close()


@pytest.fixture
def sharing(made: Any) -> Iterator[tuple[Sharing, UploadEncoder]]:
    uploads = UploadEncoder.open(made.collection, Settings(), device="auto")
    sharing = Sharing(uploads)
    yield sharing, uploads
    sharing.close()


def test_another_process_gets_what_this_one_would(sharing: tuple[Sharing, UploadEncoder]) -> None:
    shared = SharedUploads(sharing[0].connect, 0)
    fingerprint, pixels = sharing[1].fingerprint, np.full((12, 12, 3), 7, np.uint8)
    np.testing.assert_array_equal(shared.outputs(fingerprint, pixels), sharing[1].outputs(fingerprint, pixels))
    assert shared.decode(len, b"abc", memory=1, seconds=30) == 3
    with pytest.raises(BusyError, match="room"):
        shared.decode(len, b"abc", memory=1, seconds=0)
    shared.close()


def test_figures_of_all_are_told_to_each(sharing: tuple[Sharing, UploadEncoder]) -> None:
    shared = [SharedUploads(sharing[0].connect, number) for number in range(2)]
    metrics = [one.metrics for one in shared]
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
        shared = SharedUploads(sharing[0].connect, 0)
        metrics = shared.metrics
        metrics.refused.inc(2)
        metrics.in_flight.inc(5)
        told = metrics.text()
        shared.close()
    assert b"hyphash_refused_total 6.0" in told
    assert b"hyphash_requests_in_flight 5.0" in told  # nobody works for one that is no more


def test_nobody_is_answered_without_the_key(sharing: tuple[Sharing, UploadEncoder]) -> None:
    with pytest.raises(AuthenticationError):
        Client(*cast(Any, sharing[0].connect).args, authkey=b"guessed")
    shared = SharedUploads(sharing[0].connect, 0)
    assert shared.decode(len, b"abc", memory=1, seconds=30) == 3  # and the others go on
    shared.close()


def test_who_finds_nobody_is_told_to_come_again(sharing: tuple[Sharing, UploadEncoder]) -> None:
    shared = SharedUploads(sharing[0].connect, 0)
    sharing[0].close()
    with pytest.raises(BusyError, match="try again"):
        shared.decode(len, b"abc", memory=1, seconds=30)
    shared.close()
