"""Photos that come together are encoded together, and each gets its own outputs."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hyphash.errors import BusyError
from hyphash.service.batching import Batcher


def encode(pixels: Any) -> Any:
    return pixels.reshape(len(pixels), -1)[:, :4].astype(np.float32)


def photo(i: int) -> Any:
    return np.full((2, 2, 3), i, np.uint8)


def test_each_photo_gets_its_own_outputs() -> None:
    sizes: list[int] = []
    batcher = Batcher(encode, most=8, gather=0.02, seen=sizes.append)
    with ThreadPoolExecutor(16) as pool:
        outputs = list(pool.map(lambda i: batcher.outputs(photo(i)), range(50)))
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

    batcher = Batcher(slow, most=32, gather=0, seen=sizes.append)
    with ThreadPoolExecutor(11) as pool:
        first = pool.submit(batcher.outputs, photo(0))
        while not sizes:  # the network has it
            pass
        others = [pool.submit(batcher.outputs, photo(i)) for i in range(1, 11)]
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

    batcher = Batcher(fail_on_seven, gather=0)
    with pytest.raises(ValueError, match="seven"):
        batcher.outputs(photo(7))
    assert batcher.outputs(photo(8))[0] == 8
    batcher.close()


def test_too_many_and_too_slow_are_turned_away() -> None:
    gate = Event()

    def slow(pixels: Any) -> Any:
        gate.wait(30)
        return encode(pixels)

    batcher = Batcher(slow, most=1, gather=0, waiting=1, seconds=0.2)
    with ThreadPoolExecutor(3) as pool:
        given = [pool.submit(batcher.outputs, photo(i)) for i in range(3)]
        errors = [future.exception(30) for future in given]
    assert all(isinstance(error, BusyError) for error in errors)
    gate.set()
    while batcher._waiting.qsize():  # those who gave up are passed over
        pass
    batcher.seconds = 30
    assert batcher.outputs(photo(5))[0] == 5
    batcher.close()
