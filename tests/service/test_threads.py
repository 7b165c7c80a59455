"""Work is done in threads, turned away when there is too much, and given up when it takes too long."""

import asyncio
import gc
from threading import Event

import pytest

from hyphash.errors import BusyError, LabelError
from hyphash.service.threads import BoundedPool


def bounded(*, threads: int = 1, waiting: int = 0, seconds: float = 30.0) -> BoundedPool:
    return BoundedPool("test", threads=threads, waiting=waiting, seconds=seconds)


def test_gives_what_the_work_returns_or_raises() -> None:
    async def main() -> None:
        pool = bounded()
        assert await pool.run(lambda: 7) == 7
        with pytest.raises(LabelError):
            await pool.run(lambda: (_ for _ in ()).throw(LabelError("no")))
        assert pool.accepted == 0
        pool.close()

    asyncio.run(main())


def test_turns_away_what_has_no_place_to_wait() -> None:
    async def main() -> None:
        pool, gate = bounded(threads=2, waiting=3), Event()
        accepted = [asyncio.create_task(pool.run(gate.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        assert pool.accepted == 5
        with pytest.raises(BusyError):
            await pool.run(lambda: None)
        gate.set()
        assert await asyncio.gather(*accepted) == [True] * 5
        assert await pool.run(lambda: 1) == 1
        pool.close()

    asyncio.run(main())


def test_nobody_hears_of_an_error_that_came_too_late(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        pool, gate = bounded(seconds=0.05), Event()

        def work() -> None:
            gate.wait()
            raise LabelError("late")

        with pytest.raises(BusyError):
            await pool.run(work)
        gate.set()
        while pool.accepted:
            await asyncio.sleep(0.01)
        pool.close()

    asyncio.run(main())
    gc.collect()
    assert caplog.text == ""


def test_work_that_takes_too_long_counts_until_it_ends() -> None:
    async def main() -> None:
        pool, gate, ran = bounded(waiting=1, seconds=0.2), Event(), []
        first = asyncio.create_task(pool.run(gate.wait))
        second = asyncio.create_task(pool.run(lambda: ran.append(1)))
        for task in (first, second):
            with pytest.raises(BusyError):
                await task
        assert pool.accepted == 1  # the second never began, the first cannot be stopped
        gate.set()
        while pool.accepted:
            await asyncio.sleep(0.01)
        assert ran == []
        assert await pool.run(lambda: 1) == 1
        pool.close()

    asyncio.run(main())
