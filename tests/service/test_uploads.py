"""Uploaded photos are decoded elsewhere, in limited memory and time, and encoded by one network."""

import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hyphash.errors import BusyError, PhotoError
from hyphash.photos import Preprocessing, Raw, pixels_of
from hyphash.service import Settings
from hyphash.service.uploads import Room, UploadEncoder

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
